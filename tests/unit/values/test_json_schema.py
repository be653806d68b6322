"""JSON Schema as the schema of a stream: its columns, its versions, its verdict about values."""

import json
from datetime import UTC, date, datetime

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidConfigError
from strandline.values.columns import arrow_schema
from strandline.values.decode import value_by_schema, value_decoder
from strandline.values.evolution import next_version
from strandline.values.fits import misfit_finder

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NULL = {"type": "null"}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def schema_of(properties, required=(), **more):
    """A JSON Schema of objects."""
    return {"type": "object", "properties": properties, "required": [*required], **more}


def versions_of(*schemas, **more):
    """The versions that schemas make, one after the other."""
    found = []
    for schema in schemas:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found.append(next_version(found, text, **more))
    return found


def columns_of(schema):
    """The columns of a schema as Spark writes them."""
    [version] = versions_of(schema)
    return [
        f"{each.name} {each.type}{'' if each.nullable else ' not null'}" for each in version.columns
    ]


def reasons(versions, values):
    """Why values do not fit, from the readers, after a check that publishers get the same verdict.

    None for one that fits.
    """
    decode = value_decoder("json", arrow_schema(versions[-1].columns), versions=versions)
    found = dict(decode(pa.array(values, pa.binary())).bad)
    find = misfit_finder(versions)
    refused = {place: find(value) for place, value in enumerate(values)}
    assert [place for place in refused if refused[place] is not None] == sorted(found), refused
    return [found.get(place) for place in range(len(values))]


def test_types_become_columns():
    """A required property that cannot be null is NOT NULL; a choice with null is its other type."""
    place = schema_of({"city": TEXT, "zip": WHOLE}, ["city"])
    schema = schema_of(
        {
            "id": WHOLE,
            "price": {"type": "number", "minimum": 0},
            "ok": {"type": "boolean"},
            "name": {"type": ["string", "null"]},
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"},
            "photo": {"type": "string", "contentEncoding": "base64"},
            "state": {"enum": ["new", "old", None]},
            "kind": {"const": "order"},
            "sum": {"type": ["integer", "number"]},
            "tags": {"type": "array", "items": {"anyOf": [NULL, TEXT]}},
            "place": {"$ref": "#/$defs/Place", "description": "where"},
            "old place": {"allOf": [{"$ref": "#/$defs/Place"}], "default": None},
        },
        ["id", "name", "kind", "tags"],
        **{"$defs": {"Place": place}, "$id": "https://example.com/order.json", "title": "Order"},
    )
    assert columns_of(schema) == [
        "id bigint not null",
        "price double",
        "ok boolean",
        "name string",
        "day date",
        "at timestamp",
        "mail string",
        "photo binary",
        "state string",
        "kind string not null",
        "sum double",
        "tags array<string> not null",
        "place struct<city:string,zip:bigint>",
        "old place struct<city:string,zip:bigint>",
    ]


def test_values_are_read_by_the_columns():
    """Times and dates too, as a load reads them; other fields are passed over."""
    versions = versions_of(
        schema_of(
            {
                "id": WHOLE,
                "at": {"type": "string", "format": "date-time"},
                "day": {"type": ["string", "null"], "format": "date"},
                "photo": {"type": "string", "contentEncoding": "base64"},
            }
        )
    )
    value = b'{"id":7,"at":"2026-01-31T12:00:00+01:00","day":"2026-01-31","photo":"aGk=","x":[]}'
    assert value_by_schema(versions)(value) == {
        "id": 7,
        "at": datetime(2026, 1, 31, 11, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "photo": b"hi",
    }


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (schema_of({}), 'an object without "properties"'),
        ({"type": "object"}, 'an object without "properties"'),
        (schema_of({"a": {"type": "object"}}), "column 'a': an object without"),
        (schema_of({"a": True}), "column 'a': the schema true allows values of any"),
        (schema_of({"a": {}}), """column 'a': its "type" is nothing"""),
        (schema_of({"a": NULL}), """column 'a': its "type" is nothing"""),
        (schema_of({"a": {"type": ["string", "integer"]}}), "'a': its \"type\" is integer or str"),
        (schema_of({"a": {"enum": [1, "b"]}}), "column 'a': its \"type\" is integer or string"),
        (schema_of({"a": {"oneOf": [TEXT, WHOLE]}}), "column 'a': 'oneOf' gives values more than"),
        (schema_of({"a": {"anyOf": [NULL, TEXT, WHOLE]}}), "column 'a': 'anyOf' gives"),
        (schema_of({"a": {"allOf": [TEXT, {"minLength": 1}]}}), "column 'a': 'allOf' gives"),
        (schema_of({"a": TEXT}, patternProperties={"^x": TEXT}), "values: 'patternProperties'"),
        (schema_of({"a": TEXT}, additionalProperties=TEXT), "values: 'additionalProperties' with"),
        (schema_of({"a": schema_of({"b": {"not": TEXT}})}), "column 'a.b': 'not'"),
        (schema_of({"a": {"type": "array"}}), "column 'a': an array needs \"items\""),
        (
            schema_of({"a": {"type": "array", "items": [TEXT]}}, **{"$schema": DRAFT_7}),
            "column 'a': an array needs \"items\"",
        ),
        (schema_of({"a": TEXT}, ["b"]), "'b' is \"required\" and not among"),
        (schema_of({"a": {"$ref": "http://example.com/a.json"}}), "example.com/a.json"),
        (schema_of({"a": {"$ref": "other.json#/a"}}), "other.json"),
        (schema_of({"a": {"$ref": "#/$defs/b"}}), "properties.a: .*'#/\\$defs/b' leads nowhere"),
        (schema_of({"a": {"$ref": "#b"}}), "'#b' leads to another document or to an anchor"),
        (schema_of({"a": {"$ref": "#"}}), "column 'a.a': '#' holds itself|'#' holds itself"),
        (schema_of({"a": {"$ref": "#/$defs/b", "minLength": 1}}, **{"$defs": {"b": TEXT}}), "besi"),
        (schema_of({"a": {"$ref": "#/x"}}, x={"properties": 1}), "not a JSON Schema: x.properties"),
        (
            schema_of({"a": {"type": "text"}}),
            'properties.a.type is "text", but it must be one of array',
        ),
        (schema_of({"a": {**TEXT, "pattern": "("}}), r'pattern is "\(", but it is not a regular'),
        (schema_of({"a": {**TEXT, "pattern": "(?=b)c"}}), "expression without lookaround and back"),
        (
            schema_of({"a": TEXT}, **{"$schema": "https://example.com/mine"}),
            "mine', which is no dr",
        ),
        (schema_of({"a": False}), "column 'a': the schema false allows no value"),
        (schema_of({"a": {**WHOLE, "minimum": 10**400}}), "has the number 1000.*, which is too la"),
        ('{"type": "object", "properties": {"a": {"minimum": 1e999}}}', "number 1e999, which is"),
        (schema_of({"a": {**TEXT, "$id": "b"}}), "column 'a': an inner \"\\$id\""),
        (schema_of({"_offset": WHOLE}), "'_offset', which names a column of the record"),
        (schema_of({"a": TEXT, "A": TEXT}), "differ by case alone"),
        (schema_of({"": TEXT}), "one without a name"),
        ({"$ref": "#/$defs/a", "$defs": {"a": TEXT}}, '"type" "object"'),
        ('{"type": "object", "properties": {"a": {"type": "number", "x": NaN}}}', "not JSON"),
    ],
)
def test_what_has_no_one_column_is_refused_by_name(schema, told):
    """With the column and the keyword."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(schema)


def doubling(levels):
    """A schema of twice the columns of the level below."""
    found = {"d0": TEXT}
    for n in range(1, levels):
        below = {"$ref": f"#/$defs/d{n - 1}"}
        found[f"d{n}"] = schema_of({"x": below, "y": below})
    return schema_of({"a": {"$ref": f"#/$defs/d{levels - 1}"}}, **{"$defs": found})


def deep(levels, *, word="properties"):
    """A schema of objects, or of arrays, within one another."""
    found = TEXT
    for _ in range(levels):
        found = schema_of({"a": found}) if word == "properties" else {"type": "array", word: found}
    return schema_of({"a": found})


@pytest.mark.parametrize(
    "schema",
    [doubling(30), doubling(13), deep(40), deep(300), deep(60, word="items"), "[" * 20_000],
)
def test_a_schema_that_means_too_much_is_refused(schema):
    """Before it costs memory or the stack: a reference counts wherever it is used."""
    with pytest.raises(InvalidConfigError, match=r"more than|nested too deeply"):
        versions_of(schema)


def test_limits_are_judged_and_named():
    """By the keyword, of what is within a column too; a large value is not written out."""
    schema = schema_of(
        {
            "id": {**WHOLE, "minimum": 1, "multipleOf": 5},
            "state": {"enum": ["new", "old"]},
            "code": {**TEXT, "pattern": "^[a-z]+$", "maxLength": 5},
            "place": {"anyOf": [{"$ref": "#/$defs/Place"}, NULL]},
            "tags": {"type": "array", "items": TEXT, "uniqueItems": True},
        },
        ["id"],
        additionalProperties=False,
        **{"$defs": {"Place": schema_of({"city": {**TEXT, "minLength": 1}}, ["city"])}},
    )
    values = {
        b'{"id":5,"state":"old","code":"ab","place":{"city":"x"},"tags":["a","b"]}': None,
        b'{"id":5,"place":null}': None,
        b'{"id":0}': "column 'id' is 0, but it is less than the minimum of 1",
        b'{"id":7}': "column 'id' is 7, but it is not a multiple of 5",
        b'{"id":5,"state":"odd"}': """column 'state' is "odd", but it is not one of """,
        b'{"id":5,"code":"%s"}' % (b"B" * 100_000): f"column 'code' is \"{'B' * 59}…, but it ",
        b'{"id":5,"place":{"city":""}}': "column 'place.city' is \"\", but it is shorter than 1",
        b'{"id":5,"place":{}}': "column 'place' is {}, but \"city\" is a required property",
        b'{"id":5,"tags":["a","a"]}': 'column \'tags\' is ["a", "a"], but it has non-unique',
        b'{"id":5,"tags":["a",null]}': "column 'tags[1]' is null, but it is not of type \"string\"",
        b'{"id":5,"more":1}': "the value is {",
        b'{"id":5,"state":null}': "column 'state' is null, but it is not one of",
        b'{"id":null}': "column 'id' is null, but it is not of type",
        b"null": 'the value is null, but it is not of type "object"',
        b'{"id":5.0}': "column 'id' is bigint, which cannot hold 5.0",
        b'{"id":5,"more":NaN}': "not JSON",
    }
    found = reasons(versions_of(schema), [*values])
    for (value, told), reason in zip(values.items(), found, strict=True):
        assert (reason is None) == (told is None), (value, reason)
        assert told is None or told in reason
        assert reason is None or len(reason) <= 200


def test_a_tombstone_is_a_row_of_nulls():
    """Whatever the schema requires."""
    assert reasons(versions_of(schema_of({"a": TEXT}, ["a"])), [None]) == [None]


def test_a_frame_of_the_registry_is_taken_off():
    """If its id is that of a version; what Confluent's serializer writes."""
    versions = versions_of(schema_of({"a": WHOLE}), registry_id=17)
    framed = [b"\0\0\0\0\x11" + b'{"a":1}', b"\0\0\0\0\x12" + b'{"a":1}', b"\0\0\0\0\x11", b"\0"]
    found = reasons(versions, framed)
    assert found[:2] == [None, "no version of the schema has the registry's id 18 of its frame"]
    assert found[2].startswith("not one JSON value")
    assert found[3].startswith("not one JSON value")
    assert value_by_schema(versions)(framed[0]) == {"a": 1}
    no_frame = reasons(versions_of("a INT"), [framed[0], b'{"a":1}'])
    assert no_frame == ["no version of the schema has the registry's id 17 of its frame", None]


FIRST = schema_of(
    {
        "id": {**WHOLE, "minimum": 0},
        "name": {**TEXT, "maxLength": 10},
        "state": {"enum": ["new", "old"]},
        "place": schema_of({"city": TEXT}, ["city"], additionalProperties=False),
    },
    ["id", "state"],
)


def changed(name, **words):
    """The schema with some words of one property changed; None: left out."""
    found = json.loads(json.dumps(FIRST))
    each = found["properties"][name] | words
    found["properties"][name] = {word: it for word, it in each.items() if it is not None}
    return found


def whole(**words):
    return {**FIRST, **words}


ALLOWED = [
    whole(properties={**FIRST["properties"], "more": TEXT}),
    whole(required=["id"]),
    whole(title="Orders"),
    changed("id", minimum=-1),
    changed("id", minimum=None),
    changed("id", type=["integer", "null"]),
    changed("name", maxLength=20),
    changed("state", enum=["gone", "old", "new"]),
    changed("state", enum=None, type="string"),
    changed("place", additionalProperties=None),
    changed("place", properties={"city": TEXT, "zip": WHOLE}),
    "id BIGINT, name STRING, state STRING, place STRUCT<city: STRING>",
]
REFUSED = [
    (changed("id", minimum=1), "column 'id': 'minimum' is 1"),
    (changed("id", maximum=1), "column 'id': 'maximum' is 1"),
    (changed("id", type="number"), "column 'id' is bigint and cannot become double"),
    (changed("name", maxLength=9), "column 'name': 'maxLength' is 9"),
    (changed("name", format="date"), "column 'name' is string and cannot become date"),
    (changed("state", enum=["new"]), "column 'state': 'enum' is"),
    (changed("place", required=["city", "zip"], properties={"city": TEXT, "zip": WHOLE}), "place"),
    (whole(required=["id", "name", "state"]), "'required' is|cannot become required"),
    (whole(additionalProperties=False), "values: 'additionalProperties' is false"),
    (
        whole(properties={"id": WHOLE, "state": TEXT}),
        "columns cannot be removed; a JSON Schema renames none",
    ),
]


@pytest.mark.parametrize("schema", ALLOWED)
def test_a_version_that_lets_through_what_the_last_did_is_allowed(schema):
    """And reads its values."""
    versions = versions_of(FIRST, schema)
    value = b'{"id":0,"name":"abcdefghij","state":"old","place":{"city":"x"}}'
    assert reasons(versions, [value, b'{"id":0,"state":"new"}']) == [None, None]


@pytest.mark.parametrize(("schema", "told"), REFUSED)
def test_a_version_that_asks_for_more_is_refused(schema, told):
    """By the column and the keyword: the newest version reads what was valid before."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(FIRST, schema)


def test_columns_alone_ask_for_less_than_a_json_schema():
    """They may follow one, and not precede it."""
    with pytest.raises(InvalidConfigError, match="values: 'not null' is true"):
        versions_of("id BIGINT", schema_of({"id": WHOLE}))
    one, two = versions_of(
        schema_of({"id": WHOLE}), '[{"name": "number", "type": "bigint", "id": 1}]'
    )
    assert (one.columns[0].name, two.columns[0].name, two.json_schema) == ("id", "number", "")


def test_the_same_again_changes_nothing():
    """Whatever its white space; other words of it make a version."""
    [one] = versions_of(FIRST)
    assert next_version([one], json.dumps(FIRST, indent=4)) is one
    assert next_version([one], json.dumps({**FIRST, "title": "x"})).version == 2
    shown = json.dumps({"columns": [{"name": "id", "type": "bigint"}], "json_schema": "{}"})
    with pytest.raises(InvalidConfigError, match="leave 'json_schema' out"):
        next_version([one], shown)
    with pytest.raises(InvalidConfigError, match="its format is json, not avro"):
        next_version([], json.dumps(FIRST), kind="avro")


LIMITS = (
    *("minimum", "maximum", "minLength", "maxLength", "pattern", "enum", "required"),
    *("additionalProperties", "maxProperties", "uniqueItems"),
)
LEAVES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
        optional={"minimum": st.integers(-3, 3), "maximum": st.integers(-3, 3)},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", ["string", "null"]])},
        optional={
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 3),
            "pattern": st.sampled_from(["^a", "b$", "[0-9]"]),
        },
    ),
    st.builds(dict, enum=st.lists(st.sampled_from(["a", "b", "", None]), min_size=1, unique=True)),
    st.just({"type": "boolean"}),
)


def objects(part):
    """Schemas of objects of such parts."""
    properties = st.dictionaries(st.sampled_from("abc"), part, min_size=1, max_size=3)
    return properties.flatmap(
        lambda them: st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.just(them)},
            optional={
                "required": st.lists(st.sampled_from(sorted(them)), unique=True),
                "additionalProperties": st.booleans(),
                "maxProperties": st.integers(0, 3),
            },
        )
    )


PARTS = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        objects(part),
        part.map(lambda each: {"anyOf": [each, NULL]}),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": part}, optional={"uniqueItems": st.booleans()}
        ),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-4, 4),
        st.sampled_from([0.5, 1 << 70]),
        st.sampled_from(["", "a", "ab", "b", "x1", "abcd"]),
    ),
    lambda part: st.one_of(
        st.lists(part, max_size=3), st.dictionaries(st.sampled_from("abcd"), part, max_size=4)
    ),
    max_leaves=8,
)


def is_valid(schema, value):
    """Whether another library finds a value valid, that has no NaN and no integer as 1.0."""
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def accepted(schema):
    """The version of a schema; None: it has no columns."""
    try:
        return versions_of(schema)
    except InvalidConfigError:
        return None


@given(objects(PARTS), st.lists(VALUES, min_size=1, max_size=5))
def test_what_is_read_is_valid_and_the_other_way_round(schema, values):
    """By another library; only integers beyond 64 bits are valid and have no column."""
    versions = accepted(schema)
    if versions is None:
        return
    found = reasons(versions, [json.dumps(value).encode() for value in values])
    for value, reason in zip(values, found, strict=True):
        valid = is_valid(schema, value)
        assert valid or reason is not None
        assert reason is None or not valid or str(1 << 70) in json.dumps(value), reason


def altered(schema, chance):
    """The schema with some words changed at random, most of them to ask for less."""
    if isinstance(schema, list):
        return [altered(each, chance) for each in schema if chance.random() < 0.95]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for word, each in schema.items():
        if word in LIMITS and chance.random() < 0.3:
            if type(each) is int:
                found[word] = each + chance.choice([-1, 1])
        else:
            found[word] = altered(each, chance)
    return {"anyOf": [found, NULL]} if chance.random() < 0.1 else found


@given(objects(PARTS), st.randoms(use_true_random=False), st.lists(VALUES, min_size=1, max_size=5))
def test_a_version_that_is_accepted_reads_what_was_valid(one, chance, values):
    """Where a field had a column before; before, any value was valid where it had none."""
    two = altered(one, chance)
    try:
        versions = versions_of(one, two)
    except InvalidConfigError:
        return
    closed = json.loads(json.dumps(one), object_hook=_closed)
    for value in values:
        if is_valid(closed, value) and str(1 << 70) not in json.dumps(value):
            assert reasons(versions, [json.dumps(value).encode()]) == [None]


def _closed(each):
    return {**each, "additionalProperties": False} if each.get("type") == "object" else each


WORDS = [
    *("type", "properties", "required", "items", "enum", "const", "$ref", "$defs", "$id"),
    *("anyOf", "allOf", "minimum", "format", "not", "additionalProperties", "pattern", "a"),
    *("$schema", "contentEncoding"),
]
HOSTILE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["object", "string", "array", "null", "#", "#/properties/a", "#/$defs/a"]),
        st.text(max_size=3),
    ),
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(st.sampled_from([*WORDS, "", "`", "a b"]), part, max_size=4),
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(WORDS), HOSTILE, max_size=5))
def test_any_document_is_a_schema_or_refused(document):
    """With an error that says why, whatever stands where a schema is expected."""
    versions = accepted({"type": "object", **document})
    if versions is not None:
        reasons(versions, [b"{}", b'{"a":1}', b'{"a":{"a":["x"]}}', b"[]"])

"""Which version of a schema may follow which; whatever is accepted reads the earlier values."""

import io
import json
from decimal import Decimal

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidConfigError
from strandline.values.avro import versions_reader
from strandline.values.columns import parse_type, type_text
from strandline.values.decode import value_by_schema
from strandline.values.evolution import next_version
from strandline.values.schema import SchemaColumn, names_by_column

FIRST = "id BIGINT NOT NULL, customer STRING, price FLOAT, place STRUCT<city: STRING>"


def versions_of(*texts):
    """The versions that texts make, one after the other."""
    found = []
    for text in texts:
        found.append(next_version(found, text if isinstance(text, str) else json.dumps(text)))
    return found


def record(*fields, **more):
    return {"type": "record", "name": "Order", "fields": list(fields), **more}


def named(name, kind, **more):
    return {"name": name, "type": kind, **more}


def encoded(schema, row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_columns_get_ids_that_they_keep():
    """In the order of the first version; a new one gets the next, wherever it stands."""
    one, two = versions_of("a INT, b STRING NOT NULL", "c DATE, b STRING, a BIGINT")
    assert one.columns == (
        SchemaColumn(id=1, name="a", type="int"),
        SchemaColumn(id=2, name="b", type="string", nullable=False),
    )
    assert [(c.id, c.name, c.type) for c in two.columns] == [
        (3, "c", "date"),
        (2, "b", "string"),
        (1, "a", "bigint"),
    ]
    assert (one.version, two.version, two.format) == (1, 2, "json")


def test_the_same_again_changes_nothing():
    """So that a deployment may set its schema each time."""
    [one] = versions_of("a INT, b ARRAY<STRING>")
    assert next_version([one], " a  int ,\nb array<string>", now_ns=7) is one
    columns = [{"name": c.name, "type": c.type, "id": c.id} for c in one.columns]
    assert next_version([one], json.dumps({"columns": columns, "stream": "orders"})) is one
    [avro] = versions_of(record(named("a", "long")))
    assert next_version([avro], json.dumps(record(named("a", "long")), indent=2)) is avro
    assert next_version([avro], avro.avro, registry_id=5).version == 2


def test_a_column_is_renamed_by_its_id():
    """The old name stays the column's own: no other column may have it."""
    renamed = [
        {"name": "id", "type": "bigint", "id": 1},
        {"name": "client", "type": "string", "id": 2},
    ]
    found = versions_of("id BIGINT, customer STRING", renamed, "id BIGINT, client STRING, n INT")
    assert [(c.id, c.name) for c in found[2].columns] == [(1, "id"), (2, "client"), (3, "n")]
    assert names_by_column(found)["customer"] == ("client", "customer")
    for text, told in (
        ("id BIGINT, client STRING, n INT, customer STRING", "are the same column"),
        ([*renamed, {"name": "n", "type": "int", "id": 9}], "'n' has the id 9"),
        (
            [{"name": "client", "type": "bigint", "id": 1}],
            "'client' was the name of another column",
        ),
    ):
        with pytest.raises(InvalidConfigError, match=told):
            next_version(found, text if isinstance(text, str) else json.dumps(text))


ALLOWED = [
    FIRST.replace("NOT NULL", ""),
    FIRST.replace("FLOAT", "DOUBLE"),
    FIRST + ", n INT",
    FIRST.replace("city: STRING", "city: STRING, zip: INT"),
    "place STRUCT<city: STRING>, " + FIRST.replace(", place STRUCT<city: STRING>", ""),
]
REFUSED = [
    (FIRST.replace(", price FLOAT", ""), r"'price' is missing.*its id, 3"),
    (FIRST.replace("BIGINT", "INT"), "'id' is bigint and cannot become int"),
    (FIRST.replace("BIGINT", "DOUBLE"), "'id' is bigint and cannot become double"),
    (FIRST.replace("customer STRING", "customer STRING NOT NULL"), "'customer' may be null"),
    (FIRST + ", n INT NOT NULL", "'n' is new and required"),
    (FIRST.replace("city: STRING", "town: STRING"), "'place.city' is missing"),
    (
        FIRST.replace("city: STRING", "city: STRING, z: INT NOT NULL"),
        "'place' has a field that is NOT NULL",
    ),
    (FIRST.replace("city: STRING", "city: BINARY"), "'place.city' is string and cannot"),
    (FIRST.replace("price FLOAT", "price FLOAT, Price INT"), "differ by case alone"),
    (FIRST + ", m MAP<STRING, INT>", "'m' is map<string, int"),
    (json.dumps(record(named("id", "long"))), "values are json since version 1"),
]


@pytest.mark.parametrize("text", ALLOWED)
def test_what_reads_earlier_values_is_allowed(text):
    """Columns that may be null, wider types, what was required may be null, another order."""
    assert versions_of(FIRST, text)[1].version == 2


@pytest.mark.parametrize(("text", "told"), REFUSED)
def test_anything_else_is_refused_by_name(text, told):
    """With the column and, for a removed one, how to rename it."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(FIRST, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the schema is empty"),
        ("\ufeff \n", "the schema is empty"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "no schema as Spark's schema.json"),
        ('{"type": "struct", "fields": 1}', "no schema as Spark's schema.json"),
        ("id", "takes columns such as"),
        ("[]", "no column"),
        ("[1]", "columns as JSON are a list"),
        ('[{"name": "a", "type": "int", "id": 0}]', "columns as JSON are a list"),
        ('[{"name": "a", "type": "int", "typ": 0}]', "columns as JSON are a list"),
        ('[{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]', "is there twice"),
        ('[{"name": "a", "type": "int, b int"}]', "after a type"),
        ("{", "not JSON"),
        ("[" * 20_000, "nested too deeply"),
        ("{}", '"type" "record" is needed'),
        ('syntax = "proto3"; message A {}', r"a \.proto file is compiled first"),
        ('{"type": "array", "items": "int"}', 'record", got array<int>'),
        (record(named("a", "null")), "'null' has no column"),
        (record(named("a", named("f", "fixed", size=0))), "it takes 1 to"),
        (record(named("a", named("f", "fixed", size=1 << 31))), "a size of 2147483648"),
        (record(named("a", named("f", "fixed", size="8"))), "a size of '8'"),
        (record(named("a b", "int")), "the Avro field 'a b'"),
        (record(named("", "int")), "the Avro field ''"),
        (record(named("_Offset", "int")), "'_Offset', which names a column of the record"),
        (record(named("a", named("x", "int")), doc="\ud800"), "half of a character"),
        (
            record(
                named("a", {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3})
            ),
            "decimal",
        ),
        ("_offset BIGINT", "'_offset', which names a column of the record"),
        ('[{"name": "\\ud800", "type": "int"}]', r"has '\\ud800', half of a character"),
        ('[{"name": "", "type": "int"}]', "length >= 1"),
        ('[{"name": "a", "name": "b", "type": "int"}]', "an object with 'name' twice"),
        ('{"type": "record", "name": "A", "name": "B", "fields": []}', "'name' twice"),
        (record(named("a", ["int", "string"])), "null and one type"),
        (record(named("A", "int"), named("a", "int")), "differ by case alone"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, "more than 32 deep"),
        ('{"type":' * 5000 + '"int"' + "}" * 5000, "deep|recursion"),
        ('{"type":' * 100 + '"int"' + "}" * 100, "more than 64 deep"),
    ],
)
def test_what_is_no_schema_is_refused(text, told):
    """Also what would cost the broker its stack."""
    with pytest.raises(InvalidConfigError, match=told):
        next_version([], text if isinstance(text, str) else json.dumps(text))


def doubling(levels):
    """A record of twice the columns of the level below, which it refers to by name."""
    found = {"type": "record", "name": "A0", "fields": [named("x", "int")]}
    for n in range(1, levels):
        fields = [named("x", found), named("y", f"A{n - 1}")]
        found = {"type": "record", "name": f"A{n}", "fields": fields}
    return found


def chain(levels):
    """A record of records, each with the one before it by name: deep, though its text is not."""
    kinds = [{"type": "record", "name": "A0", "fields": [named("x", "int")]}]
    for n in range(1, levels):
        inner = [named("x", f"A{n - 1}")]
        kinds.append({"type": "record", "name": f"A{n}", "fields": inner})
    return record(*(named(f"f{n}", kind) for n, kind in enumerate(kinds)))


LONG = named("n" * 20_000, "int")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (doubling(20), "more than 2,000 columns"),
        (chain(500), "nested more than 32 deep"),
        (
            record(
                named("a", {"type": "record", "name": "B", "fields": [LONG]}),
                *(named(f"a{n}", "B") for n in range(4)),
            ),
            "names of more than 65,536 characters",
        ),
        (", ".join(f"c{n} INT" for n in range(2001)), "more than 2,000 columns"),
        ("c STRUCT<" + ", ".join(f"c{n}: INT" for n in range(2001)) + ">", "more than 2,000"),
    ],
)
def test_a_schema_that_means_too_many_columns_is_refused(text, told):
    """Before a type that is used by name is written out each time: memory and stack are limited."""
    with pytest.raises(InvalidConfigError, match=told):
        next_version([], text if isinstance(text, str) else json.dumps(text))


def test_a_schema_as_spark_has_it_is_the_same_columns():
    """A user has ``frame.schema.json()`` at hand."""
    place = {"type": "struct", "fields": [{"name": "a b", "type": "long", "nullable": True}]}
    tags = {"type": "array", "elementType": place, "containsNull": True}
    fields = [
        {"name": "id", "type": "integer", "nullable": False, "metadata": {"comment": "its id"}},
        {"name": "tags", "type": tags, "nullable": True, "metadata": {}},
        {"name": "sum", "type": "decimal(5,2)", "nullable": True, "metadata": {}},
    ]
    [found] = versions_of(json.dumps({"type": "struct", "fields": fields}))
    text = "id INT NOT NULL, tags ARRAY<STRUCT<`a b`: BIGINT>>, sum DECIMAL(5,2) COMMENT 'a sum'"
    assert (found.format, found.columns) == ("json", versions_of(text)[0].columns)


def test_a_named_type_may_be_used_again():
    """As deeply and as often as the limits allow."""
    assert versions_of(doubling(10))[0].columns[0].type.count("int") == 256
    assert len(versions_of(", ".join(f"c{n} INT" for n in range(2000)))[0].columns) == 2000


def test_a_message_column_is_no_protobuf():
    """A column may be called as a word of Protocol Buffers."""
    assert versions_of("message STRING, syntax STRING")[0].columns[0].name == "message"


AVRO = record(
    named("id", "int"),
    named("note", ["null", "string"]),
    named("state", named("State", "enum", symbols=["NEW", "OLD"])),
    named("place", named("Place", "record", fields=[named("city", "string")])),
    named("ratio", "float"),
    named("sum", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
)
ROW = {
    "id": 7,
    "note": None,
    "state": "OLD",
    "place": {"city": "Paris"},
    "ratio": 1.5,
    "sum": Decimal("1.25"),
}


def changed(index, **fields):
    """The schema with one field changed."""
    found = json.loads(json.dumps(AVRO))
    found["fields"][index] |= fields
    return found


MAYBE = named("n", ["null", "int"], default=None)
PLACE = {"name": "Place", "type": "record"}
AVRO_ALLOWED = [
    changed(0, type="long"),
    changed(0, type=["null", "int"]),
    changed(0, name="number", aliases=["id"]),
    changed(2, type=named("State", "enum", symbols=["GONE", "OLD", "NEW"])),
    changed(2, type=named("Condition", "enum", symbols=["NEW", "OLD"], aliases=["State"])),
    changed(4, type="double"),
    changed(5, type={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    record(MAYBE, *AVRO["fields"]),
    changed(3, type={**PLACE, "fields": [named("city", "string"), MAYBE]}),
    record(*AVRO["fields"], namespace="shop"),
]
AVRO_REFUSED = [
    (changed(0, type="string"), "'id' is int and cannot become string"),
    (changed(4, type="int"), "'ratio' is float and cannot become int"),
    (changed(1, type="string"), "'note' may be null"),
    (changed(0, name="number"), r"'id' is missing.*\"aliases\": \[\"id\"\]"),
    (changed(2, type=named("State", "enum", symbols=["NEW"])), "'state' lacks OLD"),
    (changed(2, type=named("Other", "enum", symbols=["NEW", "OLD"])), "was called 'State'"),
    (changed(3, type={**PLACE, "fields": [named("town", "string")]}), "'place.city' is missing"),
    (record(*AVRO["fields"], named("n", "int")), "'n' is new and required"),
    (record(*AVRO["fields"], named("n", ["null", "int"])), "'n' is new: give it"),
    (
        changed(5, type={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}),
        "'sum' is decimal",
    ),
    (changed(5, type="bytes"), "'sum' is decimal"),
    ({**AVRO, "name": "Purchase"}, "was called 'Order'"),
]


@pytest.mark.parametrize("schema", AVRO_ALLOWED)
def test_avro_that_is_allowed_reads_earlier_values(schema):
    """As fastavro resolves reader and writer, and the newest values, too."""
    versions = versions_of(AVRO, schema)
    read = versions_reader(versions)
    found = read(encoded(AVRO, ROW))
    plain = [value for value in found.values() if not isinstance(value, dict)]
    assert {7, None, "OLD", 1.5, Decimal("1.25")}.issubset(plain)
    assert found["place"]["city"] == "Paris"


@pytest.mark.parametrize(("schema", "told"), AVRO_REFUSED)
def test_avro_that_would_not_read_earlier_values_is_refused(schema, told):
    """By the name of the column."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(AVRO, schema)


def test_an_avro_field_keeps_all_its_names():
    """Renamed twice, it needs both aliases, or the oldest values could not be read."""
    one, two = record(named("a", "int")), record(named("b", "int", aliases=["a"]))
    versions = versions_of(one, two)
    with pytest.raises(InvalidConfigError, match="'c' was 'a' in earlier versions"):
        next_version(versions, json.dumps(record(named("c", "int", aliases=["b"]))))
    three = next_version(versions, json.dumps(record(named("c", "int", aliases=["b", "a"]))))
    read = versions_reader([*versions, three])
    assert read(encoded(one, {"a": 5})) == {"c": 5}
    assert three.columns == (SchemaColumn(id=1, name="c", type="int", nullable=False),)


def test_a_registry_id_belongs_to_one_version():
    """Framed values name it."""
    one = next_version([], json.dumps(record(named("a", "int"))), registry_id=17)
    with pytest.raises(InvalidConfigError, match="has the registry's id 17"):
        next_version([one], json.dumps(record(named("a", "long"))), registry_id=17)
    with pytest.raises(
        InvalidConfigError, match="a registry's id is for Avro, JSON Schema and Protocol"
    ):
        next_version([], "a INT", registry_id=17)


def test_a_renamed_column_of_any_type_keeps_its_values():
    """Found under either name."""
    kinds = {
        "INT": 1,
        "STRUCT<city: STRING>": {"city": "Paris"},
        "ARRAY<STRUCT<n: INT>>": [{"n": 1}],
        "DECIMAL(5,2)": "1.50",
        "DATE": "2026-11-27",
        "TIMESTAMP": "2026-11-27T12:00:00Z",
        "BINARY": "aGk=",
        "BOOLEAN": True,
    }
    [first] = versions_of(", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds)))
    columns = [{"id": c.id, "name": f"new_{c.name}", "type": c.type} for c in first.columns]
    read = value_by_schema([first, next_version([first], json.dumps(columns))])
    old, new = ({f"{p}c{n}": v for n, v in enumerate(kinds.values())} for p in ("", "new_"))
    found = read(json.dumps(new).encode())
    assert None not in found.values()
    assert read(json.dumps(old).encode()) == found


NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES, st.sampled_from(["tinyint", "float", "string"])),
        st.tuples(st.just("widen"), NAMES, st.sampled_from(["smallint", "bigint", "double"])),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("drop"), NAMES, NAMES),
    ),
    max_size=8,
)
SAMPLES = {"tinyint": 1, "smallint": 300, "bigint": 1 << 40, "float": 0.5, "double": 0.1}


@given(STEPS)
def test_the_newest_version_reads_the_values_of_all(steps):
    """Whatever steps were accepted: each version's values, with what they had in each column."""
    versions, values = [], []
    columns = [{"name": "id", "type": "bigint"}]
    for step, name, to in [("add", "a", "tinyint"), *steps]:
        tried = [dict(each) for each in columns]
        found = next((each for each in tried if each["name"] == name), None)
        if step == "add":
            tried.append({"name": name, "type": to})
        elif found is None:
            continue
        elif step == "drop":
            tried.remove(found)
        else:
            found |= {"type": to} if step == "widen" else {"name": to}
        try:
            version = next_version(versions, json.dumps(tried))
        except InvalidConfigError:
            continue
        if version in versions:
            continue
        versions.append(version)
        columns = [{"id": c.id, "name": c.name, "type": c.type} for c in version.columns]
        row = {c.name: SAMPLES.get(c.type, f"text {c.id}") for c in version.columns}
        values.append((row, {c.id: row[c.name] for c in version.columns}))
    read = value_by_schema(versions)
    for row, by_id in values:
        decoded = read(json.dumps(row).encode())
        for column in versions[-1].columns:
            assert decoded[column.name] == by_id.get(column.id)


TYPES = st.recursive(
    st.sampled_from(["bigint", "string", "decimal(5,2)", "timestamp", "timestamp_ntz", "date"]),
    lambda inner: st.one_of(
        inner.map("array<{}>".format),
        st.tuples(inner, inner).map("map<{0[0]},{0[1]}>".format),
        st.tuples(inner, inner).map("struct<a:{0[0]},`b c`:{0[1]} not null>".format),
    ),
    max_leaves=6,
)


@given(TYPES)
def test_types_are_written_as_they_are_parsed(text):
    """So that what is stored is what was meant."""
    assert type_text(parse_type(text)) == text

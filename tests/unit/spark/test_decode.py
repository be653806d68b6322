"""Decoding values into columns: good ones whole, bad ones set apart with a reason."""

import io
import json
import re
from datetime import UTC, date, datetime, time
from pathlib import Path
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.options import parse_table_options
from strandline.spark.tables.values import Decoding, check_decoding
from strandline.values.avro import arrow_schema_of
from strandline.values.decode import (
    check_distinct_names,
    decoded_schema,
    infer_json_schema,
    value_decoder,
)

from . import json_cases

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def decoded(values, kind="json", schema=SCHEMA, **options):
    return value_decoder(kind, schema, **options)(pa.array(values, pa.binary()))


def test_json_becomes_columns():
    """Fields by name, missing ones null, unknown ones left out, a tombstone a row of nulls."""
    found = decoded([b'{"a":1,"b":"x","c":0}', b"{}", None, b'{\n "b": "y"\n}'])
    assert found.rows.flatten()[0].to_pylist() == [1, None, None, None]
    assert found.rows.flatten()[1].to_pylist() == ["x", None, None, "y"]
    assert (found.sources, found.bad) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b'{"a":',
        b'{"a":"text"}',
        b'{"a":1.5}',
        b"[1]",
        b"7",
        b'\xff{"a":1}',
        b'{"a":3}}\n{"i":5,"v":{"a":4}',
        b'{"a":3}}{"i":1,"v":{"a":4}',
        b'{"a":1},"v":{"a":2}',
        b'{"a":1}{"a":2}',
    ],
)
def test_a_bad_value_costs_its_neighbours_nothing(bad):
    """Any invalid value, even one with closing brackets, is rejected alone."""
    found = decoded([b'{"a":1}', b'{"a":2}', bad, b'{"a":3}'])
    assert found.sources == [0, 1, 3]
    assert found.rows.flatten()[0].to_pylist() == [1, 2, 3]
    [(place, reason)] = found.bad
    assert place == 2
    assert reason


PIECES = st.sampled_from(
    [
        b'{"a":',
        b"1",
        b"}",
        b"{",
        b'"',
        b",",
        b"\n",
        b"[",
        b"]",
        b'"b"',
        b'"i":1',
        b"null",
        b"\\",
        b" ",
    ]
)


@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=8))
def test_every_value_is_a_row_of_its_own_or_bad(values):
    """No row is lost, doubled or moved to another record, and every row was a JSON object."""
    found = decoded(values)
    assert sorted([*found.sources, *(place for place, _ in found.bad)]) == list(range(len(values)))
    assert len(found.rows) == len(found.sources)
    for place, row in zip(found.sources, found.rows.to_pylist(), strict=True):
        text = values[place].replace(b"\n", b" ")
        value = json.loads(text)
        assert value is None or isinstance(value, dict)
        assert (row or {}).get("a") == (value or {}).get("a")


AVRO = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "size", "type": {"type": "enum", "name": "size", "symbols": ["S", "L"]}},
    ],
}


def avro_bytes(**row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


def test_avro_becomes_columns():
    """Values of the writer's schema are decoded; truncated and overlong ones are rejected."""
    text = json.dumps(AVRO)
    good = avro_bytes(id=7, note=None, at=1000, tags=["x"], size="L")
    found = decoded([good, good[:-1], good + b"!"], "avro", arrow_schema_of(text), avro_schema=text)
    [row] = found.rows.to_pylist()
    assert (row["id"], row["note"], row["tags"], row["size"]) == (7, None, ["x"], "L")
    assert row["at"].timestamp() == 1
    assert [place for place, _ in found.bad] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "logical", "value"),
    [
        ("string", "uuid", "0f8fad5b-d9cb-469f-a165-70867728950e"),
        ("int", "date", date(2024, 1, 31)),
        ("int", "time-millis", 3_600_000),
        ("long", "time-micros", 3_600_000_000),
        ("long", "local-timestamp-millis", datetime(2024, 1, 31, 12)),  # noqa: DTZ001 -- it is local
        ("long", "local-timestamp-micros", datetime(2024, 1, 31, 12)),  # noqa: DTZ001 -- it is local
        ("long", "of-tomorrow", 7),
    ],
)
def test_logical_types_become_columns(kind, logical, value):
    """Also in a union with null; a time of day, which Spark has no type for, is the number it is
    stored as, and so is what nobody knows.
    """
    plain = {"type": kind, "logicalType": logical}
    fields = [{"name": "x", "type": plain}, {"name": "y", "type": ["null", plain]}]
    schema = {"type": "record", "name": "r", "fields": fields}
    times = {"time-millis": time(1), "time-micros": time(1), "uuid": UUID}
    given = times.get(logical, value)
    given = given(value) if given is UUID else given
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"x": given, "y": given})
    text = json.dumps(schema)
    found = decoded([out.getvalue()], "avro", arrow_schema_of(text), avro_schema=text)
    assert found.bad == []
    assert found.rows.to_pylist() == [{"x": value, "y": value}]


def written(schema, row):
    """A plain datum."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_a_named_type_is_known_wherever_its_name_stands():
    """Records, enums and fixed of a namespace, by their short and whole names, in unions too."""
    place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "bill", "type": place},
            {"name": "ship", "type": ["null", "Place"]},
            {"name": "more", "type": {"type": "array", "items": "shop.Place"}},
            {"name": "a", "type": {"type": "fixed", "name": "Id", "size": 2}},
            {"name": "b", "type": "Id"},
        ],
    }
    row = {"bill": {"city": "x"}, "ship": {"city": "y"}, "more": [{"city": "z"}]}
    row |= {"a": b"12", "b": b"34"}
    text = json.dumps(schema)
    columns = arrow_schema_of(text)
    found = decoded([written(schema, row)], "avro", columns, avro_schema=text)
    assert (found.rows.to_pylist(), found.bad) == ([row], [])
    schema["fields"].append({"name": "parent", "type": ["null", "Order"]})
    with pytest.raises(InvalidConfigError, match=r"shop\.Order holds itself"):
        arrow_schema_of(json.dumps(schema))


def record_of(*fields):
    """An Avro record."""
    return {"type": "record", "name": "r", "fields": list(fields)}


def test_avro_of_another_version_is_read_with_its_writer_s_schema():
    """New fields get their defaults, dropped ones are skipped, and integers grow; what does not fit
    is refused with the reason.
    """
    old = record_of({"name": "gone", "type": "string"}, {"name": "id", "type": "int"})
    new = record_of(
        {"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}
    )
    value, text = written(old, {"gone": "x", "id": 7}), json.dumps(new)
    schemas = {"avro_schema": text, "avro_writer_schema": json.dumps(old)}
    found = decoded([value, value + b"!"], "avro", arrow_schema_of(text), **schemas)
    assert found.rows.to_pylist() == [{"id": 7, "note": "-"}]
    assert [place for place, _ in found.bad] == [1]
    text = json.dumps(record_of({"name": "needed", "type": "string"}))
    schemas["avro_schema"] = text
    [(_, reason)] = decoded([value], "avro", arrow_schema_of(text), **schemas).bad
    assert "schemas of reader and writer do not fit" in reason


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "{",
        '"long"',
        '{"type":"record","name":"r","fields":[{"name":"u","type":["int","string"]}]}',
        "5",
        "null",
        "{}",
        '{"type":"record","name":"r"}',
        '{"type":"record","name":"r","fields":"x"}',
        '{"type":"record","name":"r","fields":[{"name":"a"}]}',
        '{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"array"}}]}',
        '{"type":"bytes","logicalType":"decimal"}',
        '{"type":"record","fields":[{"name":"a","type":"int"}]}',
    ],
)
def test_an_avro_schema_without_columns_is_rejected(schema):
    """Missing, broken, not a record, or with a union that no column can hold."""
    with pytest.raises(InvalidConfigError):
        arrow_schema_of(schema)


def arrow_bytes(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_arrow_values_have_the_years_1_to_9999(kind, days):
    """As JSON and Avro have: readers of a table's files stop at others."""
    inside, outside = (
        arrow_bytes(pa.table({"at": pa.array([day], pa.int32()).cast(pa.date32()).cast(kind)}))
        for day in (days + 1 if days < 0 else days - 1, days)
    )
    found = decoded([inside, outside], "arrow", pa.schema([("at", kind)]))
    assert found.sources == [0]
    assert found.bad == [(1, "a date or time is not in the years 1 to 9999")]


def test_arrow_values_may_hold_many_rows():
    """Rows of a value all name it as their source; columns are matched by name and cast."""
    two = arrow_bytes(pa.table({"b": ["x", "y"], "a": pa.array([1, 2], pa.int32())}))
    none = arrow_bytes(pa.table({"a": pa.array([], pa.int64())}))
    found = decoded([two, b"noise", none, two[:-20]], "arrow")
    assert found.rows.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert found.sources == [0, 0]
    assert [place for place, _ in found.bad][:1] == [1]


def test_values_that_no_column_can_hold_are_rejected_alone():
    """A time beyond the year 9999 and an Arrow value with a repeated column affect no others."""
    text = json.dumps(AVRO)
    plain = json.loads(text)
    plain["fields"][2]["type"] = "long"
    row = {"id": 7, "note": None, "tags": [], "size": "S"}

    def at(time):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(plain), row | {"at": time})
        return out.getvalue()

    values = [at(1000), at(10**18), at(2000)]
    found = decoded(values, "avro", arrow_schema_of(text), avro_schema=text)
    assert (found.sources, [place for place, _ in found.bad]) == ([0, 2], [1])
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    found = decoded([arrow_bytes(twice), arrow_bytes(pa.table({"a": [3]}))], "arrow")
    assert found.rows.to_pylist() == [{"a": 3, "b": None}]
    assert [place for place, _ in found.bad] == [0]


def test_dates_are_read_from_json():
    """At the top, in structs and in lists; other text is rejected, a tombstone is null."""
    inner = pa.struct([("days", pa.list_(pa.date32()))])
    schema = pa.schema([("day", pa.date32()), ("more", inner)])
    values = [
        b'{"day":"2024-01-02","more":{"days":["1969-12-31"]}}',
        b'{"day":"tomorrow"}',
        None,
        b"{}",
    ]
    found = decoded(values, schema=schema)
    assert found.rows.type == pa.struct(list(schema))
    day, before = date(2024, 1, 2), date(1969, 12, 31)
    nothing = dict.fromkeys(schema.names)
    assert found.rows.to_pylist() == [
        {"day": day, "more": {"days": [before]}},
        None,
        nothing,
    ]
    assert [place for place, _ in found.bad] == [1]


def options_of(*, schema=None, **more):
    schema = schema or StructType().add("id", "long")
    return parse_table_options(
        {"path": "/t", "values": "json", "valueSchema": schema.json(), **more}
    )


def test_what_json_cannot_become_is_rejected_at_the_start():
    """A map, also one within a list, is named before any value is read; for Avro it is a column."""
    pairs = MapType(StringType(), StringType())
    record = pa.schema([("value", pa.binary())])
    for kind in (pairs, ArrayType(StructType().add("inner", pairs))):
        schema = StructType().add("id", "long").add("labels", kind)
        with pytest.raises(InvalidConfigError, match=r"'labels' is .*cannot be read from JSON"):
            check_decoding(record, options_of(schema=schema))
        check_decoding(record, options_of(schema=schema, values="avro"))


def test_rows_that_are_no_records_are_rejected_at_the_start():
    """Decoding needs values, and dead letters need their source."""
    letters = options_of(deadLetters="bad", stream="s", server="s:1")
    value, offset = ("value", pa.binary()), ("offset", pa.int64())
    check_decoding(pa.schema([value]), options_of())
    check_decoding(pa.schema([("partition", pa.int32()), offset, value]), letters)
    check_decoding(pa.schema([offset]), parse_table_options({"path": "/t"}))
    for fields, options, message in (
        ([offset], options_of(), "a column 'value'"),
        ([("value", pa.string())], options_of(), "of type binary"),
        ([value, offset], letters, "'partition' of type int"),
        ([("partition", pa.int64()), offset, value], letters, "'partition' of type int"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            check_decoding(pa.schema(fields), options)


def test_columns_of_json_are_inferred_from_objects_alone():
    """A sample with noise gives columns; one of noise only is an error."""
    sample = pa.array([b"noise", None, b'{"a":1}', b'{"b":"x"}'], pa.binary())
    assert infer_json_schema(sample) == SCHEMA
    with pytest.raises(InvalidConfigError, match="schema"):
        infer_json_schema(pa.array([b"noise", None], pa.binary()))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ([b'{"a":1}', b'{"a":"x"}'], "a is an integer in one and text in another"),
        ([b'{"a":1,"a":2}'], "a is there twice"),
        ([b'{"a":{}}', b"{}"], r"no field .* has a value yet \(a\)"),
        ([b'{"a":null,"b":[{"c":null}]}'], r"no field .* has a value yet \(a, b.c\)"),
    ],
)
def test_a_sample_that_tells_no_columns_is_rejected(sample, message):
    """JSON objects that disagree, or have nothing that a column could be made of."""
    with pytest.raises(InvalidConfigError, match=f"{message}.*give 'schema'"):
        infer_json_schema(pa.array(sample, pa.binary()))


@pytest.mark.parametrize(("kind", "text", "ours", "sparks"), json_cases.FIELDS)
def test_what_columns_make_of_odd_json(kind, text, ours, sparks):
    """Each type and value as the table in the docs says, where Spark differs too."""
    schema = pa.schema([("a", json_cases.TYPES[kind])])
    found = decoded([f'{{"a":{text}}}'.encode()], schema=schema)
    got = json_cases.DEAD if found.bad else found.rows.to_pylist()[0]["a"]
    assert got == ours or (got != got and ours != ours)


def statements():
    """What the docs' table says of whole JSON texts: types, text, of a load, of ``from_json``."""
    page = Path(__file__).parents[3] / "docs" / "pipelines.md"
    table = page.read_text().partition("### JSON values\n")[2].partition("\nWithout `schema`")[0]
    kinds = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")][1:-1]
        if len(cells) != 4 or cells[1] == "JSON":
            continue
        if cells[0]:
            integers = ["TINYINT", "SMALLINT", "INT", "BIGINT"]
            kinds = re.findall("`([^`]+)`", cells[0]) or (cells[0] == "integers" and integers)
        for text in re.findall("`([^`]+)`", cells[1]):
            if kinds and "…" not in text and text not in json_cases.TYPES:
                yield kinds, text, *cells[2:]


def test_the_table_in_the_docs_says_what_the_cases_say():
    """Which values are rejected, by a load and by Spark; the other tests show that it is so."""
    checked = 0
    for kinds, text, of_load, of_spark in statements():
        cases = [
            case
            for case in json_cases.FIELDS
            if case[1] == text and case[0].partition("<")[0] in kinds
        ]
        is_a_part = text in ("+0200", "+02", "24:00:00", "[Europe/Berlin]", "t", "z")
        assert is_a_part or cases, (kinds, text)
        for _, _, ours, sparks in cases:
            checked += 1
            for said, found in ((of_load, ours), (of_spark, sparks)):
                if "; " not in said:  # one text for several values
                    is_rejected = said.startswith("rejected")
                    assert is_rejected == (found == json_cases.DEAD), (kinds, text)
    assert checked > 40


@pytest.mark.parametrize(("text", "ours", "sparks"), json_cases.WHOLE)
def test_what_a_load_makes_of_odd_values(text, ours, sparks):
    """A value is exactly one JSON object, or it is rejected."""
    found = decoded([text.encode()], schema=pa.schema([("a", pa.int32())]))
    row = None if found.bad else found.rows.to_pylist()[0]
    assert (json_cases.DEAD if found.bad else row and row["a"]) == ours


def test_times_and_bytes_are_read_at_any_depth():
    """In structs, lists and lists of structs, with nulls and in slices; a wrong one is named."""
    inner = pa.struct([("at", pa.timestamp("us", tz="UTC")), ("raw", pa.binary())])
    schema = pa.schema([("all", pa.list_(inner)), ("one", inner)])
    zero = datetime.fromtimestamp(0, UTC)
    values = [
        b'{"all":[null,{"at":"1970-01-01T01:00:00.0000000009+01:00"},{"raw":"YQ=="}]}',
        b"{}",
        b'{"all":[],"one":{"at":"soon"}}',
        b'{"all":null,"one":{"at":null,"raw":""}}',
    ]
    found = decoded(values, schema=schema)
    first = [None, {"at": zero, "raw": None}, {"at": None, "raw": b"a"}]
    assert found.rows.to_pylist() == [
        {"all": first, "one": None},
        {"all": None, "one": None},
        {"all": None, "one": {"at": None, "raw": b""}},
    ]
    assert found.bad == [(2, "column 'one': 'soon' is not a time such as 2024-01-31T12:00:00Z")]


def test_a_value_too_deep_is_rejected_alone():
    """Whatever reads it, its neighbours are decoded."""
    deep = b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    found = decoded([b'{"a":1}', deep, b'{"a":NaN}', b'{"a":2}', b"oops"])
    assert found.sources == [0, 3]
    assert found.bad[-1] == (4, "not one JSON value: Expecting value: line 1 column 1 (char 0)")


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        (["2024-01-31", "2024-02-01"], pa.date32()),
        (["2024-01-31T12:00:00Z", "2024-01-31 12:00:00.123456+02:00"], pa.timestamp("us", "UTC")),
        (["2024-01-31T12:00:00", "2024-01-31 12:00"], pa.timestamp("us")),
        (["2024-01-31T12:00:00", "2024-01-31T12:00:00Z"], pa.string()),
        (["2024-01-31", "2024-01-31T12:00:00"], pa.string()),
        (["2024-01-31T12:00:00.123456789Z"], pa.string()),
        (["x", "2024-01-31"], pa.string()),
        ([1, 9223372036854775807], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([[1], [], [2.5]], pa.list_(pa.float64())),
        ([{"b": "2024-01-31"}], pa.struct([("b", pa.date32())])),
    ],
)
def test_inferred_columns_hold_what_was_there(sample, kind):
    """A zone stays a zone and a date a date; other values are read as text."""
    values = [json.dumps({"a": value}).encode() for value in sample]
    schema = infer_json_schema(pa.array(values, pa.binary()))
    assert schema == pa.schema([("a", kind)])
    assert decoded(values, schema=schema).bad == []


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ([b'{"a":9223372036854775808}'], "a has the integer 9223372036854775808, beyond 64 bits"),
        ([b'{"a":[0.5,9007199254740993]}'], "a has integers beyond what a DOUBLE holds"),
        ([b'{"a":{"b":9007199254740993}}', b'{"a":{"b":0.5}}'], r"a\.b has integers beyond"),
        ([b'{"a":true}', b'{"a":1}'], "a is a boolean in one and an integer in another"),
        ([b'{"a":{}}', b'{"a":[1]}'], "a is an object in one and a list in another"),
    ],
)
def test_what_no_column_holds_without_loss_is_rejected(sample, message):
    """By name, and before the first commit: the user chooses the type."""
    with pytest.raises(InvalidConfigError, match=f"{message}.*give 'schema'"):
        infer_json_schema(pa.array(sample, pa.binary()))


def test_columns_that_differ_by_case_alone_are_rejected():
    """Also in structs within lists: such a table could not be opened."""
    check_distinct_names(pa.schema([("a", pa.struct([("b", pa.int64())])), ("b", pa.int64())]))
    twins = pa.struct([("userId", pa.int64()), ("userid", pa.int64())])
    for schema, names in (
        (pa.schema(list(twins)), "'userId' and 'userid'"),
        (pa.schema([("in", pa.list_(twins))]), "'in.userId' and 'in.userid'"),
        (
            pa.schema([("in", pa.map_(pa.string(), twins))]),
            "'in.value.userId' and 'in.value.userid'",
        ),
    ):
        with pytest.raises(InvalidConfigError, match=f"{names} differ by case alone"):
            check_distinct_names(schema)


def test_fields_without_a_value_are_left_out_and_named(caplog):
    """A column of nulls only would reject the first value."""
    sample = [b'{"a":1,"b":null,"c":{"d":null,"e":{},"f":"x"},"g":[]}', b'{"b":null,"h":[1]}']
    inner = pa.struct([("f", pa.string())])
    found = infer_json_schema(pa.array(sample, pa.binary()))
    assert found == pa.schema([("a", pa.int64()), ("c", inner), ("h", pa.list_(pa.int64()))])
    assert "fields left out: b, c.d, c.e, g: " in caplog.text
    assert "'schema'" in caplog.text


def test_a_value_too_deep_for_the_sample_is_noise():
    """One hostile value does not keep a load from starting."""
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert infer_json_schema(pa.array([deep, b'{"a":1}'], pa.binary())).names == ["a"]


def test_names_of_a_record_and_of_its_value_may_not_clash():
    """A field with the name of a record's column is rejected by name."""
    record = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
    assert decoded_schema(record, SCHEMA).names == ["_partition", "_offset", "a", "b"]
    for name in ("_offset", "_Offset"):
        with pytest.raises(InvalidConfigError, match=f"'{name}'"):
            decoded_schema(record, pa.schema([(name, pa.int64())]))


def test_a_bad_value_without_dead_letters_ends_the_load():
    """The error has the record and a remedy."""
    options = options_of()
    record = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
    batch = pa.RecordBatch.from_pydict(
        {"partition": [0, 0], "offset": [1, 2], "value": [b'{"id":1}', b"oops"]}, schema=record
    )
    values = pa.schema([("id", pa.int64())])
    decoding = Decoding(options, record, values, batch=("query", 0))
    assert decoding.rows(batch.slice(0, 1)).to_pylist() == [
        {"_partition": 0, "_offset": 1, "id": 1}
    ]
    with pytest.raises(InvalidRecordError, match=r"partition 0, offset 2 is not json.*deadLetters"):
        decoding.rows(batch)
    with pytest.raises(InvalidRecordError, match="the value of a record is not json"):
        Decoding(options, record, values, batch=("query", 0)).rows(batch.select(["value"]))

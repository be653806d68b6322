"""Whether a value fits a schema: the verdict that refuses a publisher is that of the readers."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.values.columns import arrow_schema
from strandline.values.decode import value_decoder
from strandline.values.evolution import next_version
from strandline.values.fits import misfit_finder
from tests.unit.spark.json_cases import DEAD, FIELDS, WHOLE

COLUMNS = (
    "id INT NOT NULL, t TINYINT, f FLOAT, d DOUBLE, b BOOLEAN, s STRING, n DECIMAL(38,20), "
    "x BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, a ARRAY<INT>, "
    "o STRUCT<x: INT, at: TIMESTAMP>"
)
NAMES = ["id", "t", "f", "d", "b", "s", "n", "x", "day", "at", "local", "a", "o", "other"]
TIME = st.from_regex(
    r"(0000|0001|9999|20[0-9]{2})-[01][0-9]-[0-3][0-9]"
    r"([T ][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
    r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?",
    fullmatch=True,
)
NUMBER = st.from_regex(
    r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,10})?", fullmatch=True
)
LEAF = st.one_of(
    st.sampled_from(
        ["null", "true", "NaN", "-Infinity", '"NaN"', '"aGk="', '"aGk"', r'"\ud83d"', '"a\nb"']
    ),
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.integers(-(1 << 66), 1 << 66).map(str),
    st.floats().map(json.dumps),
    NUMBER,
    NUMBER.map(json.dumps),
    TIME.map(json.dumps),
)


def object_of(parts):
    return "{" + ",".join(f"{json.dumps(name)}:{part}" for name, part in parts) + "}"


PART = st.one_of(
    LEAF,
    st.lists(LEAF, max_size=3).map(lambda parts: f"[{','.join(parts)}]"),
    st.lists(st.tuples(st.sampled_from(["x", "at", "y"]), LEAF), max_size=3).map(object_of),
)
VALUE = st.lists(st.tuples(st.sampled_from(NAMES), PART), max_size=6).map(object_of)


def versions_of(*texts):
    found = []
    for text in texts:
        found.append(next_version(found, text))
    return found


def is_read(versions, value):
    """Whether the readers decode a value."""
    decode = value_decoder("json", arrow_schema(versions[-1].columns), versions=versions)
    found = decode(pa.array([value], pa.binary()))
    found.rows.to_pylist()
    return not found.bad


@pytest.mark.parametrize(("kind", "text", "ours", "_"), FIELDS)
def test_a_field_fits_if_it_is_read(kind, text, ours, _):
    """In every case of the table of JSON values, alone and beside others."""
    for columns in (f"a {kind}", f"z STRING, a {kind}, n DECIMAL(3,1)"):
        reason = misfit_finder(versions_of(columns))(b'{"a":%b}' % text.encode("utf-8", "replace"))
        assert (reason is not None) == (ours == DEAD), reason


@pytest.mark.parametrize(("text", "ours", "_"), WHOLE)
def test_a_value_fits_if_it_is_read(text, ours, _):
    """With text around an object, or something else."""
    reason = misfit_finder(versions_of("a INT"))(text.encode())
    assert (reason is not None) == (ours == DEAD), reason


@given(st.one_of(VALUE.map(str.encode), st.binary(max_size=20), PART.map(str.encode)))
def test_what_fits_is_read_and_what_does_not_is_not(value):
    """Any value at all."""
    versions = versions_of(COLUMNS)
    reason = misfit_finder(versions)(value)
    assert is_read(versions, value) == (reason is None), reason


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at TIMESTAMP", b'"0001-01-01T00:00:00+00:01"'),
        ("at TIMESTAMP", b'"9999-12-31T23:59:59-00:01"'),
        ("at TIMESTAMP", b'"0000-12-31T23:59:59Z"'),
        ("at TIMESTAMP_NTZ", b'"0000-12-31T23:59:59"'),
        ("at DATE", b'"0000-12-31"'),
        ("at STRUCT<x: ARRAY<DATE>>", b'{"x":["0000-12-31"]}'),
        ("at STRING", b'"a\nb"'),
        ("at STRING, o INT", b'"a","other":1e400'),
        ("at STRING, o INT", b'"a","other":0e999999999999'),
        ("at DECIMAL(5,2)", b"0e99"),
    ],
)
def test_what_other_readers_cannot_have_neither_fits_nor_is_read(column, value):
    """Such as a time in the year 0, at which readers of the table's files stop."""
    versions = versions_of(column)
    text = b'{"at":%b}' % value
    assert misfit_finder(versions)(text) is not None
    assert not is_read(versions, text)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("a DOUBLE", b'{"a":1.8e308}'),
        ("a DOUBLE", b'{"a":-17.99e307}'),
        ("a DOUBLE, n DECIMAL(5,2)", b'{"a":1.8e308}'),
        ("a DOUBLE", b'{"a":1%b}' % (b"0" * 309)),
        ("a DATE", b'{"a":"2024-01-31T10:00:00+24:00"}'),
        ("a DATE", b'{"a":"2024-01-31T10:00:00-9999"}'),
        ("a INT, o STRUCT<x: INT>", b'{"x":1,"x":2,"o":{"a":1,"a":2,"x":3}}'),
        ("a INT, o STRUCT<x: INT>", b'{"y":[{"a":1,"a":2}],"o":{"y":{"x":1,"x":2}}}'),
        ("a INT, o ARRAY<STRUCT<x: INT>>", b'{"o":[{"a":1,"a":2},{"x":1}]}'),
        ("a INT, o STRUCT<x: INT>", b'{"o":{"x":1,"x":2}}'),
        ("a INT, o ARRAY<STRUCT<x: INT>>", b'{"o":[{"x":1,"x":1}]}'),
        ("a INT, o STRUCT<x: INT>", b'{"o":{"x":1},"o":null}'),
    ],
)
def test_numbers_dates_and_repeated_names_fit_if_they_are_read(column, value):
    """As an infinity, the day as written, and where no column has the name."""
    versions = versions_of(column)
    reason = misfit_finder(versions)(value)
    assert is_read(versions, value) == (reason is None), reason


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00-23:59", "9999-12-31T23:59:59+23:59"])
def test_the_first_and_the_last_time_fit(text):
    """As far as they are of those years in UTC."""
    versions = versions_of("at TIMESTAMP")
    assert misfit_finder(versions)(b'{"at":"%b"}' % text.encode()) is None
    assert is_read(versions, b'{"at":"%b"}' % text.encode())


def test_an_avro_decimal_of_too_many_digits_does_not_fit():
    """As readers find, who have its precision."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    fields = [{"name": "d", "type": kind}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    find = misfit_finder(versions_of(schema))
    assert find(b"\x04\x27\x10") is None
    assert find(b"\x0c\x7f\xff\xff\xff\xff\xff") is not None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "'id', which the schema requires, is missing or null"),
        (b"null", "'id', which the schema requires, is missing or null"),
        (b'{"id":1.5}', "column 'id' is int, which cannot hold 1.5"),
        (
            b'{"id":1,"o":{"x":"1"}}',
            """column 'o' is struct<x:int>, which cannot hold {"x": "1"}""",
        ),
        (b"7", "the value is 7, not a JSON object"),
        (b'{"id":1', "not one JSON value: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        (b"\xff", "the value is not UTF-8"),
        (b"[" * 100_000, "JSON that is nested too deeply"),
        (
            b'{"id":1,"id":2}',
            "'id' is there twice in one object",
        ),
        (
            b'{"id":1,"s":"\\udc00"}',
            "a text has half a character, written as one \\u escape of two",
        ),
    ],
)
def test_a_reason_is_in_words(value, reason):
    """It names the column and what is there."""
    assert misfit_finder(versions_of("id INT NOT NULL, o STRUCT<x: INT>"))(value) == reason


def test_a_column_may_have_any_of_its_names():
    """And a tombstone, which has no value, fits."""
    first = versions_of("id INT NOT NULL")
    renamed = next_version(first, '[{"id": 1, "name": "number", "type": "bigint"}]')
    find = misfit_finder([*first, renamed])
    for value in (b'{"id":1}', b'{"number":1099511627776}', b"{}", None):
        assert find(value) is None
    assert find(b'{"id":"1"}') == """column 'id' is bigint, which cannot hold "1\""""


def test_an_avro_value_fits_if_a_version_reads_it():
    """Whichever, framed or not."""
    schema = '{"type":"record","name":"R","fields":[{"name":"id","type":"int"}]}'
    find = misfit_finder(versions_of(schema))
    assert find(b"\x02") is None
    assert find(None) is None
    assert find(b"\x02\x02").startswith("it fits no version of the schema; 1 bytes follow")

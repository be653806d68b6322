"""Batches of a put: which columns and types are taken, and how they are normalised."""

import pyarrow as pa
import pytest

from strandline.api.put import PUT_TYPES, AckedRange, PutAck, normalise, put_schema
from strandline.api.status import ErrorBody
from strandline.api.wire import decode, encode
from strandline.errors import InvalidRecordError
from strandline.record.schema import HEADERS_TYPE, RECORD_SCHEMA


def batch(**columns) -> pa.RecordBatch:
    """A record batch of these columns."""
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary(2),
        pa.string_view(),
    ],
    ids=str,
)
def test_values_of_any_text_or_bytes_type_are_taken(kind):
    """Polars, DuckDB and pandas each have their own; all become binary."""
    values = [b"ab", None] if pa.types.is_fixed_size_binary(kind) else ["ab", None]
    done = normalise(batch(value=pa.array(values, kind)))
    assert done.schema.equals(put_schema(["value"]))
    assert done.column(0).to_pylist() == [b"ab", None]


def test_every_column_gets_its_type_and_place():
    """Subjects become a dictionary, headers a map of bytes, in the order of PUT_TYPES."""
    done = normalise(
        batch(
            message_id=["i"],
            headers=pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())),
            subject=["x.y"],
            key=["k"],
            value=["v"],
        )
    )
    assert done.schema.names == list(PUT_TYPES)
    assert done.schema.equals(put_schema(list(PUT_TYPES)))
    assert done.column("headers").to_pylist() == [[("a", b"1")]]


def test_what_was_read_can_be_put_elsewhere():
    """The broker's own columns are left out, so a read is a valid put."""
    names = ["partition", *RECORD_SCHEMA.names]
    arrays = [pa.nulls(0, pa.int32()), *(pa.nulls(0, f.type) for f in RECORD_SCHEMA)]
    done = normalise(pa.RecordBatch.from_arrays(arrays, names=names))
    assert done.schema.names == ["value", "key", "subject", "headers"]


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"key": [b"k"]}, "value"),
        ({"value": [1]}, "int64"),
        ({"value": [b"v"], "delay": [3]}, "delay"),
        ({"value": [b"v"], "subject": [7]}, "subject"),
        ({"value": [b"v"], "subject": [b"\xff"]}, "subject"),
        ({"value": [b"v"], "headers": ["h"]}, "headers"),
        ({"value": [[b"v"]]}, "list"),
    ],
)
def test_columns_that_mean_something_else_are_rejected(columns, part):
    """Nothing is dropped or guessed: the error names the column and its type."""
    with pytest.raises(InvalidRecordError, match=part):
        normalise(batch(**columns))


def test_a_repeated_column_is_rejected():
    """Two columns of one name have no meaning."""
    twice = pa.RecordBatch.from_arrays([pa.array([b"a"])] * 2, names=["value", "value"])
    with pytest.raises(InvalidRecordError, match="twice"):
        normalise(twice)


@pytest.mark.parametrize("name", ["value", "key", "subject", "message_id"])
def test_a_dictionary_of_views_is_taken(name):
    """Polars makes one of each categorical column."""
    views = pa.array(["ab", "a text too long to be kept in its view"], pa.string_view())
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], pa.uint32()), views)
    done = normalise(batch(**{"value": pa.nulls(3), name: column.slice(1)}))
    found = [x.encode() if isinstance(x, str) else x for x in done.column(name).to_pylist()]
    assert found == [b"ab", None, b"a text too long to be kept in its view"]


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@pytest.mark.parametrize("fields", [("key", "value"), ("name", "value"), ("value", "key")])
def test_headers_may_be_lists_of_structs(kind, fields):
    """Parquet and older Polars have no maps; rows, order, repeats and nulls stay as they are."""
    name = fields[fields[0] == "value"]
    entry = pa.struct([(field, pa.string() if field == name else pa.binary()) for field in fields])
    pairs = [[("a", b"0")], [("h", b"1"), ("h", b"")], None, [], [("k", b"2")]]
    rows = [each and [{name: n, "value": v} for n, v in each] for each in pairs]
    column = pa.array(rows, kind(entry)).slice(1)
    done = normalise(batch(value=["x"] * 4, headers=column))
    done.validate(full=True)
    assert done.column("headers").to_pylist() == pairs[1:]


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[], [("good", b""), ("h", None)]], HEADERS_TYPE),
        pa.array([[], [("h", None)]], pa.map_(pa.string(), pa.string_view())),
        pa.array([[], [{"key": "h", "value": None}]]),
    ],
)
def test_a_header_without_a_value_is_rejected(headers):
    """A null header is rejected, since NATS has empty values only."""
    with pytest.raises(InvalidRecordError, match="header 'h' has no value"):
        normalise(batch(value=["x"] * 2, headers=headers))
    assert normalise(batch(value=["x"], headers=headers.slice(0, 1))).num_rows == 1


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[None]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.array([[{"key": None, "value": b"v"}]]),
        pa.array([[{"key": "a", "value": b"v", "more": 1}]]),
        pa.array([[{"key": "a", "name": "v"}]]),
        pa.array([["a", "v"]]),
    ],
    ids=["a null entry", "no name", "more fields", "other fields", "no structs"],
)
def test_lists_that_are_no_headers_are_rejected(headers):
    """Each entry is a name and a value, and has a name."""
    with pytest.raises(InvalidRecordError, match="header"):
        normalise(batch(value=["x"], headers=headers))


def test_an_index_of_pandas_without_a_name_is_left_out():
    """Row numbers of a filtered frame are dropped; a similar data column is rejected."""
    done = normalise(batch(value=["x"], __index_level_0__=[7]))
    assert done.schema.names == ["value"]
    with pytest.raises(InvalidRecordError, match="__index_level_x__"):
        normalise(batch(value=["x"], __index_level_x__=[7]))


def test_a_column_without_any_value_may_have_any_type():
    """A pandas column of missing values is one of floats."""
    done = normalise(batch(value=["x", "y"], key=pa.array([None, None], pa.float64())))
    assert done.to_pylist() == [{"value": b"x", "key": None}, {"value": b"y", "key": None}]


def test_null_columns_are_taken_as_absent_values():
    """A frame's all-null column has type null."""
    done = normalise(batch(value=[b"v"], key=pa.nulls(1), subject=pa.nulls(1), headers=pa.nulls(1)))
    assert done.column("headers").type == HEADERS_TYPE
    assert done.column("subject").null_count == 1


def test_an_ack_survives_the_wire():
    """Ranges, per-row offsets and errors come back as sent."""
    ack = PutAck(
        sequence=7,
        ranges=(AckedRange(1, 100, 5),),
        offsets=(1, -1),
        partitions=(0, 0),
        duplicates=(0,),
        error=ErrorBody(code="disk_full", message="m", retriable=True),
    )
    assert decode(encode(ack), PutAck, what="ack") == ack

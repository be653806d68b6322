"""Record batches as Spark's Arrow reader wants them."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.record.schema import HEADERS_TYPE, RECORD_SCHEMA
from strandline.spark.arrow import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    SparkCast,
    first_of_each_header,
    sized_batches,
    to_spark_batches,
)

SPARK_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("subject", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)


def records(first, count, size=100, headers=None):
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first, first + count), pa.int64()),
            pa.array([1_700_000_000_123_456_789] * count, pa.timestamp("ns", "UTC")),
            pa.array(["a.b"] * count).dictionary_encode(),
            pa.nulls(count, pa.binary()),
            pa.array([b"v" * size] * count),
            pa.array([headers] * count, HEADERS_TYPE),
        ],
        schema=RECORD_SCHEMA,
    )


def test_a_batch_becomes_exactly_what_spark_asks_for():
    """Types, order and nullability are Spark's; nanoseconds are cut to microseconds."""
    (batch,) = to_spark_batches(
        [records(7, 2, headers=[("h", b"1")])], SPARK_SCHEMA, constants={"partition": 3}
    )
    assert batch.schema.equals(SPARK_SCHEMA)
    row = batch.to_pylist()[1]
    assert row["partition"] == 3
    assert row["offset"] == 8
    assert row["timestamp"].microsecond == 123_456
    assert row["subject"] == "a.b"
    assert row["headers"] == [("h", b"1")]


@pytest.mark.parametrize(
    "names", [["value"], ["value", "offset"], ["partition"], ["headers", "partition", "key"]]
)
def test_any_columns_in_any_order(names):
    """Only the columns of the user's schema arrive, in its order."""
    target = pa.schema([SPARK_SCHEMA.field(name) for name in names])
    (batch,) = to_spark_batches([records(0, 3)], target, constants={"partition": 1})
    assert batch.schema.equals(target)
    assert batch.num_rows == 3


def test_small_batches_are_gathered_and_big_ones_sliced():
    """Whatever arrives, Spark gets batches of half a megabyte to two, the last one excepted."""
    small = [records(i, 1, size=2048) for i in range(1501)]
    big = [records(1501, 4000, size=2048)]
    sizes = [batch.nbytes for batch in sized_batches([*small, *big, *small])]
    assert max(sizes) <= LARGEST_BYTES * 1.01
    assert all(size >= SMALLEST_BYTES for size in sizes[:-1])


def test_a_few_small_batches_before_a_big_one_go_with_it():
    """On their own they would cost Spark as much as a batch that is worth it."""
    few = [records(i, 1) for i in range(3)]
    first, *_ = sized_batches([*few, records(3, 4000, size=2048)])
    assert first.nbytes >= SMALLEST_BYTES
    assert first.column("offset")[:5].to_pylist() == [0, 1, 2, 3, 4]


def test_rows_without_a_byte_are_rows():
    """A column of nulls alone takes no memory; its rows count all the same."""
    batch = pa.RecordBatch.from_pydict({"a": pa.nulls(3)})
    assert sum(each.num_rows for each in sized_batches([batch])) == 3


def test_slicing_copies_nothing():
    """A sliced batch still points into the memory it arrived in."""
    whole = records(0, 4000, size=2048)
    pieces = list(sized_batches([whole]))
    address = whole.column("value").buffers()[2].address
    assert len(pieces) > 1
    assert {piece.column("value").buffers()[2].address for piece in pieces} == {address}


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5000)), max_size=12))
def test_no_record_is_lost_or_moved_by_sizing(shapes):
    """Gathering and slicing keep every record, in order."""
    first, batches = 0, []
    for count, size in shapes:
        batches.append(records(first, count, size=size))
        first += count
    offsets = [o for b in sized_batches(batches) for o in b.column("offset").to_pylist()]
    assert offsets == list(range(first))


def test_repeated_headers_keep_the_first_value():
    """A Spark map has no repeated keys; the first value stays, as NATS clients read it."""
    headers = pa.array(
        [[("a", b"1"), ("b", b"2"), ("a", b"3")], None, [], [("a", b"9")]], HEADERS_TYPE
    )
    assert first_of_each_header(headers).to_pylist() == [
        [("a", b"1"), ("b", b"2")],
        None,
        [],
        [("a", b"9")],
    ]
    assert first_of_each_header(headers.slice(1)).to_pylist() == [None, [], [("a", b"9")]]


def test_a_subject_that_changes_between_batches_is_the_right_one():
    """What one batch shares with the last one is taken from it only where it is the same."""
    target = pa.schema([("subject", pa.string())])
    cast = SparkCast(target)
    words = [["a"] * 3, ["b"] * 2, ["b"] * 4, ["a", "b"], ["a", None], [None], ["b"]]
    batches = [
        pa.RecordBatch.from_pydict({"subject": pa.array(each, pa.string()).dictionary_encode()})
        for each in words
    ]
    assert [cast(batch).column("subject").to_pylist() for batch in batches] == words


def test_large_and_view_types_are_cast():
    """A broker that sends large binary still gives Spark plain binary."""
    batch = pa.RecordBatch.from_pydict(
        {"offset": pa.array([1], pa.int64()), "value": pa.array([b"x"], pa.large_binary())}
    )
    target = pa.schema([("value", pa.binary())])
    (out,) = to_spark_batches([batch], target, constants={"partition": 0})
    assert out.schema.equals(target)

"""Rows written to streams: their pieces and their fingerprint."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.options import parse_write_options
from strandline.spark.rows import Fingerprint, RowRouter, check_columns


def options(**more):
    return parse_write_options({"server": "s:1", **more})


def pieces(columns, **more):
    """Streams, partitions and values of the pieces of a batch."""
    batch = pa.RecordBatch.from_pydict(columns)
    found = RowRouter(options(**more), list(columns)).pieces(batch)
    return [(p.stream, p.partition, p.rows.column("value").to_pylist()) for p in found]


def test_rows_that_go_one_way_stay_together():
    """Without a routing column a batch is one piece."""
    assert pieces({"value": [b"a", b"b"], "partition": [1, 2]}, stream="x") == [
        ("x", None, [b"a", b"b"])
    ]


def test_a_column_names_the_stream():
    """Each stream gets its rows in order; the option takes those that name none."""
    values = {"value": [b"a", b"b", b"c", b"d"], "stream": ["y", None, "x", "y"]}
    assert pieces(values, stream="x") == [
        ("y", None, [b"a", b"d"]),
        ("x", None, [b"b"]),
        ("x", None, [b"c"]),
    ]
    with pytest.raises(InvalidRecordError, match="names no stream"):
        pieces(values)


def test_a_column_names_the_partition():
    """Rows keep their order within each partition, and none may be without."""
    values = {"value": [b"a", b"b", b"c"], "partition": pa.array([1, 0, 1], pa.int32())}
    assert pieces(values, stream="x", partitionBy="column") == [
        ("x", 1, [b"a", b"c"]),
        ("x", 0, [b"b"]),
    ]
    with pytest.raises(InvalidRecordError, match="no partition"):
        pieces({**values, "partition": [0, None, 1]}, stream="x", partitionBy="column")


def test_an_empty_batch_has_no_pieces():
    """Tasks without rows send nothing."""
    assert pieces({"value": pa.array([], pa.binary())}, stream="x") == []


@given(st.lists(st.binary(max_size=8)), st.randoms(), st.integers(0, 20))
def test_a_fingerprint_knows_the_rows_and_not_their_order(values, random, cut):
    """However rows are shuffled and spread over tasks, the sum is the same."""
    shuffled = random.sample(values, len(values))

    def of(some):
        return Fingerprint.of(pa.RecordBatch.from_pydict({"value": pa.array(some, pa.binary())}))

    assert of(values) == of(shuffled[:cut]) + of(shuffled[cut:])
    assert of(values) != of([*values, b""])
    assert of([b"a", *values]) != of([b"b", *values])


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("value STRING", {}, "'stream'"),
        ("value STRING", {"stream": "x", "partitionBy": "column"}, "'partition'"),
        (
            "value STRING, partition STRING",
            {"stream": "x", "partitionBy": "column"},
            "is string, not int",
        ),
        ("value STRING, message_id STRING", {"stream": "x"}, "atLeastOnce"),
        ("value STRING, stream INTEGER", {}, "stream"),
    ],
)
def test_rows_must_say_where_they_go(columns, more, message):
    """A missing routing column is named before anything is written."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind.lower())
    with pytest.raises(InvalidConfigError, match=message):
        check_columns(schema, options(**more))

"""Filters on the broker: by subject pattern, key and time, and together."""

import pyarrow as pa
import pytest

from strandline.api.tickets import ReadRequest
from strandline.reading.filters import RecordFilter
from strandline.record.schema import RECORD_SCHEMA, SUBJECT_TYPE, TIMESTAMP_TYPE


@pytest.fixture
def batch():
    """Four records; the dictionary holds a subject that no row has."""
    indices = pa.array([0, 1, 2, 0], pa.int32())
    subjects = pa.DictionaryArray.from_arrays(indices, pa.array(["a.x", "a.y", "b.x", "c"]))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([10, 11, 12, 13]),
            pa.array([100, 200, 300, 400], TIMESTAMP_TYPE),
            subjects.cast(SUBJECT_TYPE),
            pa.array([b"k", None, b"", b"j"]),
            pa.array([b"0", b"1", b"2", b"3"]),
            pa.nulls(4, RECORD_SCHEMA.field("headers").type),
        ],
        schema=RECORD_SCHEMA,
    )


@pytest.mark.parametrize(
    ("request_", "offsets"),
    [
        ({}, [10, 11, 12, 13]),
        ({"subject": "a.*"}, [10, 11, 13]),
        ({"subject": "*.x"}, [10, 12, 13]),
        ({"subject": ">"}, [10, 11, 12, 13]),
        ({"subject": "b.x"}, [12]),
        ({"subject": "c"}, []),
        ({"keys": [b"k", b"nobody"]}, [10]),
        ({"keys": [b""]}, [12]),
        ({"keys": []}, []),
        ({"timestamp_from_ns": 200}, [11, 12, 13]),
        ({"timestamp_to_ns": 200}, [10]),
        ({"timestamp_from_ns": 0, "timestamp_to_ns": 301}, [10, 11, 12]),
        ({"subject": "*.x", "keys": [b"j", b"k"], "timestamp_from_ns": 101}, [13]),
    ],
)
def test_rows_that_pass(batch, request_, offsets):
    """Each filter alone and all together; half-open in time; a null key is no key."""
    found = RecordFilter(ReadRequest(stream="s", **request_)).apply(batch)
    assert found.column("offset").to_pylist() == offsets


def test_a_batch_that_passes_whole_is_not_copied(batch):
    """The common case costs nothing."""
    passing = RecordFilter(ReadRequest(stream="s", subject=">"))
    assert passing.apply(batch) is batch
    assert RecordFilter(ReadRequest(stream="s")).is_trivial


def test_filters_say_which_columns_they_need():
    """Even when the reader does not want them delivered."""
    request = ReadRequest(stream="s", subject="a", keys=[b"k"], timestamp_to_ns=1)
    assert RecordFilter(request).columns == ("subject", "key", "timestamp")

"""Chunks: records with an offset that wait to become a batch."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.broker.write_path.pending import (
    CHUNK_BYTES_MAX,
    CommitWaiter,
    PendingArrowBatch,
    PendingQueue,
    PendingRecords,
)
from strandline.errors import UnavailableError
from strandline.record.codec import BATCH_RECORDS_MAX, Stamp, decode_batches
from strandline.types import Offset, PartitionName


def rows(chunk):
    """The records of the batch that the chunk becomes."""
    [batch] = decode_batches(bytes(chunk.encode(Stamp(7, 0, 1_000))))
    return batch.to_pylist()


def test_keys_and_headers_stay_with_their_record():
    """Columns that begin late or pause are filled for the records without."""
    chunk = PendingRecords(7)
    chunk.add(b"plain", "s")
    chunk.add(b"keyed", "s")
    chunk.decorate(b"k", None)
    chunk.add(None, "t")
    chunk.decorate(b"", [("n", b"1"), ("n", b"2")])
    chunk.add(b"plain", "s")
    found = rows(chunk)
    assert [row["key"] for row in found] == [None, b"k", b"", None]
    assert [row["headers"] for row in found] == [None, None, [("n", b"1"), ("n", b"2")], None]
    assert [row["value"] for row in found] == [b"plain", b"keyed", None, b"plain"]
    assert [row["offset"] for row in found] == [7, 8, 9, 10]
    assert chunk.count == 4


def test_a_single_record_keeps_what_it_has():
    """A plain one is encoded the quick way; one with anything more to it is not."""
    cases = [
        (b"v", None, None),
        (b"v", b"k", None),
        (None, b"k", None),
        (b"v", None, [("n", b"1")]),
    ]
    for value, key, headers in cases:
        chunk = PendingRecords(7)
        chunk.add(value, "s")
        chunk.decorate(key, headers)
        [row] = rows(chunk)
        assert (row["value"], row["key"], row["headers"]) == (value, key, headers)
    chunk = PendingRecords(7)
    chunk.add(b"v" * 1000, "s")
    packed = chunk.encode(Stamp(7, 0, 1_000, "zstd"))
    assert len(packed) < 500
    assert rows(chunk)[0]["value"] == b"v" * 1000


def test_a_chunk_is_full_by_bytes_or_by_records():
    """The next record then begins another chunk, so that no batch is over its limits."""
    queue = PendingQueue()
    chunk = queue.open_batch(Offset(0))
    assert queue.open_batch(Offset(0), BATCH_RECORDS_MAX) is chunk
    chunk.add(b"", "s")
    assert queue.open_batch(Offset(1), BATCH_RECORDS_MAX - 1) is chunk
    assert queue.open_batch(Offset(1), BATCH_RECORDS_MAX) is not chunk
    chunk = queue.open_batch(Offset(1))
    chunk.size = CHUNK_BYTES_MAX
    assert queue.open_batch(Offset(2)) is not chunk


def test_an_arrow_chunk_stays_as_it_came():
    """Nothing is added to it; rows without a subject get the stream's."""
    queue = PendingQueue()
    queue.open_batch(Offset(6)).add(b"before", "s")
    chunk = PendingArrowBatch(7, pa.record_batch({"value": [b"a", b"b"]}), "default")
    queue.add(chunk)
    queue.open_batch(Offset(9)).add(b"after", "s")
    assert [batch.base_offset for batch in queue.batches] == [6, 7, 9]
    assert chunk.count == 2
    assert [(row["subject"], row["value"]) for row in rows(chunk)] == [
        ("default", b"a"),
        ("default", b"b"),
    ]


def test_a_group_commit_takes_up_to_its_limits_and_at_least_one():
    """Batches that fill a limit exactly are within it."""
    for bytes_max, records_max, count in (
        (0, 0, 1),
        (200, 99, 2),
        (199, 99, 1),
        (999, 4, 2),
        (999, 3, 1),
        (300, 6, 3),
    ):
        queue = PendingQueue()
        for base in (0, 2, 4):
            queue.batches.append(SimpleNamespace(size=100, count=2, base=base))
        queue._open = queue.batches[-1]
        taken, size, records = queue.take(bytes_max, records_max)
        assert [each.base for each in taken] == [0, 2, 4][:count]
        assert (size, records) == (100 * count, 2 * count)
        assert len(queue.batches) == 3 - count
        assert (queue._open is None) is (count == 3)


async def test_who_waits_for_one_append_is_told_once():
    """Its offset or its error; what comes later changes nothing."""
    stored, refused, error = CommitWaiter(), CommitWaiter(), UnavailableError("full")
    stored.acked("t", PartitionName("s", 0), 7, duplicate=False)
    stored.rejected("t", error)
    refused.rejected("t", error)
    refused.acked("t", PartitionName("s", 0), 7, duplicate=False)
    assert await stored.wait() == 7
    with pytest.raises(UnavailableError, match="full"):
        await refused.wait()

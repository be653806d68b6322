"""A partition and its admission: what it accepts, when it acknowledges, what readers see."""

import asyncio
import threading

import pyarrow as pa
import pytest

from strandline.broker.write_path import pending
from strandline.broker.write_path.admission import RECORD_OVERHEAD_BYTES, Admission
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import PendingMarker
from strandline.config import LimitsConfig, StreamConfig
from strandline.errors import (
    DiskFullError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.record.batch import Extent, header_of
from strandline.record.codec import BATCH_RECORDS_MAX
from strandline.storage.log import Log
from strandline.types import LeaderEpoch, LogId, PartitionName, ProducerStamp


@pytest.fixture
def admission(clock):
    woken = []
    admission = Admission(LimitsConfig(record_bytes=100), clock=clock, wake=lambda: woken.append(1))
    admission.woken = woken
    return admission


@pytest.fixture
def partition(tmp_path, disk, admission):
    """A partition without a broker: tests drive its group commits themselves."""
    log = Log.open(tmp_path / "log", disk=disk, segment_bytes=64 << 10, segment_age_ms=10**6)
    return Partition(
        PartitionName("s", 0),
        StreamConfig(name="s", subject="s"),
        log,
        log_id=LogId(1),
        leader_epoch=LeaderEpoch(0),
        admission=admission,
    )


def group_commit(partition, *, upto=None):
    """Do what a group commit does to one partition, without the journal."""
    chunks, _, _ = partition.take(1 << 30, 1 << 30)
    partition._admission.dirty.clear()
    for chunk in chunks[:upto]:
        partition.write(chunk, partition._admission.clock.now_ns(), [])
        partition.commit(partition.log_end_offset)
        for each in chunk.waiting:
            each.acked(partition.name)
    return chunks


# Admission


async def test_a_record_over_its_limit_is_rejected_with_the_limit(
    partition, admission, answers, kit
):
    """Key, value and headers count together; the error names limit and size."""
    kit.put(partition, answers, "value", value=bytes(101))
    kit.put(partition, answers, "all", value=bytes(50), key=bytes(40), headers=[("n", bytes(10))])
    kit.put(partition, answers, "fits", value=bytes(50), key=bytes(40), headers=[("n", bytes(9))])
    assert answers.codes == {"value": "record_too_large", "all": "record_too_large"}
    assert admission.rejects == {"record_too_large": 2}
    assert "101 bytes; limits.record_bytes is 100" in str(answers.errors["all"])
    assert partition.next_offset == 1


async def test_everything_is_rejected_for_the_reason_of_the_broker(
    partition, admission, answers, kit
):
    """A stopping or poisoned broker rejects at once, and keeps nothing."""
    admission.write_error = ShuttingDownError("stopping")
    kit.put(partition, answers, "a")
    partition.append_arrow(pa.record_batch({"value": [b"x"]}), ack_sink=answers, token="arrow")
    assert set(answers.codes.values()) == {"shutting_down"}
    partition.append(b"nobody asks", subject="s")
    assert not partition.pending.batches
    assert admission.pending_bytes == 0


async def test_the_metadata_block_a_partition_until_they_allow_it(partition, answers, kit):
    """Whoever leads it; allowing what is allowed changes nothing."""
    partition.block_writes(None)
    kit.put(partition, answers, 0)
    partition.block_writes(UnavailableError("readonly"))
    kit.put(partition, answers, 1)
    partition.block_writes(None)
    kit.put(partition, answers, 2)
    assert answers.codes == {1: "unavailable"}


async def test_a_closed_partition_rejects_for_its_own_reason(partition, answers, kit):
    """Appending to a deleted stream is the sender's error, not the broker's end."""
    assert not partition.closed
    partition.close(UnknownStreamError("stream 's' was deleted"))
    kit.put(partition, answers, "a")
    assert answers.codes == {"a": "unknown_stream"}
    assert partition.closed


async def test_pending_bytes_are_given_back(partition, admission, answers, kit):
    """Accepted bytes count until they are taken or rejected; empty records count too."""
    kit.put(partition, answers, "a", value=b"", key=b"k")
    assert admission.pending_bytes == RECORD_OVERHEAD_BYTES + 1
    kit.put(partition, answers, "b", value=None)
    group_commit(partition)
    assert admission.pending_bytes == 0
    kit.put(partition, answers, "c", "d")
    partition.append_arrow(pa.record_batch({"value": [b"x"] * 9}), ack_sink=answers, token="e")
    partition.reject_from((), DiskFullError("full"))
    assert admission.pending_bytes == 0
    assert answers.codes == dict.fromkeys("cde", "disk_full")


async def test_no_more_is_pending_than_the_limit_allows(partition, admission, answers, kit):
    """Beyond it everything is rejected, naming the limit, until a group commit has made room."""
    admission.limits = LimitsConfig(pending_bytes=100)
    kit.put(partition, answers, *range(5), value=bytes(10))
    assert answers.codes == {3: "unavailable", 4: "unavailable"}
    assert "limits.pending_bytes, 100" in str(answers.errors[4])
    group_commit(partition)
    kit.put(partition, answers, "later")
    assert "later" not in answers.errors


def put_many(partition, answers, *tokens, value=b"v", subjects=("s",)):
    """Append a record for each token, with one call; None: no outcome is asked for."""
    values = [value] * len(tokens)
    partition.append_many(values, subjects=subjects, ack_sink=answers, tokens=tokens)


async def test_a_chunk_is_accepted_as_its_records_would_be(partition, admission, answers, kit):
    """It joins the batch that is being filled, in order; each record has its ack and its subject,
    and what has keys and headers before it keeps them."""
    kit.put(partition, answers, "a", key=b"k", headers=[("n", b"h")])
    put_many(partition, answers, "b", None, "c", subjects=("x", "y", "z"))
    put_many(partition, answers, None, None)
    kit.put(partition, answers, "d", key=b"l")
    assert admission.pending_bytes == 7 * RECORD_OVERHEAD_BYTES + len(b"aknhvvvvvdl")
    assert admission.dirty == [partition]
    [chunk] = group_commit(partition)
    assert chunk.subjects == ["s", "x", "y", "z", "s", "s", "s"]
    assert chunk.keys == [b"k", None, None, None, None, None, b"l"]
    assert answers.acks == {"a": 0, "b": 1, "c": 3, "d": 6}
    assert admission.pending_bytes == 0
    assert partition.log_end_offset == 7


async def test_of_a_chunk_only_what_breaks_a_limit_is_rejected(partition, admission, answers):
    """A record that is too large, or comes when too much is pending; the others are stored."""
    partition.append_many(
        [b"fits", bytes(101), b"too"], subjects=("s",), ack_sink=answers, tokens=("a", "b", "c")
    )
    assert answers.codes == {"b": "record_too_large"}
    admission.limits = LimitsConfig(pending_bytes=200)
    put_many(partition, answers, *range(5), value=bytes(50))
    assert answers.codes == {
        "b": "record_too_large",
        2: "unavailable",
        3: "unavailable",
        4: "unavailable",
    }
    group_commit(partition)
    assert answers.acks == {"a": 0, "c": 1, 0: 2, 1: 3}


async def test_a_chunk_is_rejected_record_by_record(partition, admission, answers):
    """A closed partition rejects each; outcomes are reported once, to those who asked."""
    put_many(partition, answers, "lost", None)
    partition.reject_from((), DiskFullError("full"))
    partition.close(UnknownStreamError("stream 's' was deleted"))
    put_many(partition, answers, "late", None)
    assert answers.codes == {"lost": "disk_full", "late": "unknown_stream"}
    assert admission.rejects["unknown_stream"] == 2
    assert admission.pending_bytes == 0


async def test_a_batch_has_no_more_records_than_its_format_allows(partition, answers, monkeypatch):
    """A chunk for which there is no room begins another batch."""
    monkeypatch.setattr(pending, "BATCH_RECORDS_MAX", 5)
    for number in range(3):
        put_many(partition, answers, f"{number}a", f"{number}b")
    assert [chunk.count for chunk in group_commit(partition)] == [4, 2]
    assert answers.acks["2b"] == 5


async def test_the_group_commit_is_requested_once(partition, admission, answers, kit):
    """A partition is queued once, however much it accepts, and again after its group commit."""
    kit.put(partition, answers, *range(5))
    assert admission.dirty == [partition]
    assert len(admission.woken) == 1
    group_commit(partition)
    kit.put(partition, answers, "next")
    assert admission.dirty == [partition]


async def test_a_partition_given_up_is_not_queued_twice(partition, admission, answers, kit):
    """Rejecting pending records leaves the partition's place in the queue as it is."""
    kit.put(partition, answers, "a")
    partition.reject_from((), DiskFullError("full"))
    kit.put(partition, answers, "b")
    assert admission.dirty == [partition]


# Expected sequences and message ids


async def test_an_expected_sequence_counts_what_is_pending(partition, answers, kit):
    """The last sequence is that of the newest accepted record, stored or not."""
    kit.put(partition, answers, "first", expected_last=0)
    kit.put(partition, answers, "wrong", expected_last=0)
    kit.put(partition, answers, "right", expected_last=1)
    group_commit(partition)
    assert answers.codes == {"wrong": "wrong_last_sequence"}
    assert "wrong last sequence: 1" in str(answers.errors["wrong"])
    assert answers.acks == {"first": 0, "right": 1}


async def test_a_repeat_is_recognised_before_its_expectation_is_checked(partition, answers, kit):
    """A retry with an id and an expected sequence is a duplicate, not a conflict with itself."""
    kit.put(partition, answers, "a", message_id="m", expected_last=0)
    group_commit(partition)
    kit.put(partition, answers, "retry", message_id="m", expected_last=0)
    partition._admission.send_queue.deliver()
    assert answers.acks == {"a": 0, "retry": 0}
    partition._admission.send_queue.deliver()
    assert answers.duplicates == {"retry"}


async def test_an_id_that_was_rejected_is_not_remembered(partition, answers, kit):
    """A record that failed its expectation leaves no trace in the window."""
    kit.put(partition, answers, "wrong", message_id="m", expected_last=7)
    kit.put(partition, answers, "right", message_id="m", expected_last=0)
    group_commit(partition)
    assert answers.acks == {"right": 0}
    assert not answers.duplicates


async def test_a_repeat_of_a_pending_record_waits_with_it(partition, answers, kit):
    """A duplicate of a pending record gets its outcome together with it."""
    kit.put(partition, answers, "a", message_id="m")
    kit.put(partition, answers, "again", message_id="m")
    assert not answers.order
    group_commit(partition)
    assert answers.acks == {"a": 0, "again": 0}
    kit.put(partition, answers, "b", message_id="n")
    kit.put(partition, answers, "b again", message_id="n")
    partition.reject_from((), DiskFullError("full"))
    assert answers.codes == {"b": "disk_full", "b again": "disk_full"}


async def test_a_repeat_waits_for_its_own_record_only(partition, answers, kit):
    """Later records do not decide the outcome of a duplicate."""
    kit.put(partition, answers, "a", message_id="m")
    partition.append_arrow(pa.record_batch({"value": [b"x"]}), ack_sink=answers, token="batch")
    kit.put(partition, answers, "again", message_id="m")
    chunks = group_commit(partition, upto=1)
    partition.reject_from(chunks[1:], DiskFullError("full"))
    assert answers.acks == {"a": 0, "again": 0}
    assert answers.codes == {"batch": "disk_full"}


async def test_a_repeat_of_what_is_being_synced_waits_for_the_sync(partition, answers, kit):
    """Written is not durable: the duplicate is answered at the commit."""
    kit.put(partition, answers, "a", message_id="m")
    [chunk], _, _ = partition.take(1 << 30, 1 << 30)
    partition.write(chunk, partition._admission.clock.now_ns(), [])
    kit.put(partition, answers, "again", message_id="m")
    kit.put(partition, answers, "next")
    assert not answers.order
    partition.commit(1)
    partition._admission.send_queue.deliver()
    assert answers.acks == {"again": 0}


async def test_a_repeat_of_several_batches_waits_for_the_last(partition, answers, kit):
    """An ack needs all of them committed."""

    def put(token, sequence, values):
        batch = pa.record_batch({"value": values})
        stamp = ProducerStamp(7, 0, sequence)
        partition.append_arrow(batch, ack_sink=answers, token=token, producer=stamp)

    put("first", 0, [b"a", b"b"])
    put("second", 2, [b"c"])
    for chunk in partition.take(1 << 30, 1 << 30)[0]:
        partition.write(chunk, partition._admission.clock.now_ns(), [])
    partition.commit(2)
    put("both", 0, [b"a", b"b", b"c"])
    assert not answers.order
    partition.commit(3)
    partition._admission.send_queue.deliver()
    assert answers.acks == {"both": 0}


async def test_a_repeat_of_what_fails_to_sync_fails_too(partition, answers, kit):
    """If the sync fails, the duplicate is rejected."""
    kit.put(partition, answers, "a", message_id="m")
    chunks, _, _ = partition.take(1 << 30, 1 << 30)
    partition.write(chunks[0], partition._admission.clock.now_ns(), [])
    kit.put(partition, answers, "again", message_id="m")
    partition.reject_from(chunks, DiskFullError("full"))
    assert answers.codes == {"a": "disk_full", "again": "disk_full"}


async def test_a_repeat_that_nobody_waits_for_is_dropped(partition, admission, answers, kit):
    """A duplicate without a responder is not stored either."""
    partition.append(b"1", subject="s", message_id="m")
    partition.append(b"1", subject="s", message_id="m")
    assert partition.next_offset == 1
    assert admission.duplicates == 1


async def test_an_idle_broker_remembers_ids_for_the_whole_window(partition, answers, kit, clock):
    """The window counts from the publish, however long ago the last group commit was."""
    kit.put(partition, answers, "long ago", message_id="x")
    group_commit(partition)
    clock.advance_ms(10 * 60_000)
    kit.put(partition, answers, "a", message_id="m")
    group_commit(partition)
    kit.put(partition, answers, "other", message_id="n")
    kit.put(partition, answers, "retry", message_id="m")
    group_commit(partition)
    partition._admission.send_queue.deliver()
    assert answers.duplicates == {"retry"}


async def test_an_id_is_forgotten_after_the_window(partition, answers, kit, clock):
    """An id is free again when its window has passed, even if no other id came meanwhile."""
    kit.put(partition, answers, "a", message_id="m")
    group_commit(partition)
    clock.advance_ms(120_001)
    kit.put(partition, answers, "b", message_id="m")
    group_commit(partition)
    assert answers.acks == {"a": 0, "b": 1}


async def test_no_window_no_ids(partition, answers, kit):
    """A window of 0 disables deduplication."""
    partition.config = StreamConfig(name="s", subject="s", dedup_window_ms=0)
    kit.put(partition, answers, "a", "b", message_id="m", expected_last=None)
    group_commit(partition)
    assert answers.acks == {"a": 0, "b": 1}


async def test_an_unreadable_window_rejects_rather_than_guesses(partition, answers, kit, disk):
    """If the stored ids cannot be read, a record with an id is rejected, and the loop continues."""
    kit.put(partition, answers, "a", headers=[("Nats-Msg-Id", b"m")])
    group_commit(partition)
    partition.log.roll()
    disk.fail("read")
    kit.put(partition, answers, "again", message_id="m")
    assert answers.codes == {"again": "log_poisoned"}
    disk.heal()
    kit.put(partition, answers, "once more", message_id="m")
    partition._admission.send_queue.deliver()
    assert answers.duplicates == {"once more"}


# Arrow batches


async def test_an_arrow_batch_is_answered_once_with_its_first_offset(partition, answers, kit):
    """A large batch becomes several, and is acknowledged once, when the last is stored."""
    kit.put(partition, answers, "a")
    rows = BATCH_RECORDS_MAX + 5
    partition.append_arrow(
        pa.record_batch({"value": pa.array([b""] * rows)}), ack_sink=answers, token="many"
    )
    kit.put(partition, answers, "b")
    assert len(group_commit(partition)) == 4
    assert answers.acks == {"a": 0, "many": 1, "b": rows + 1}


async def test_an_arrow_batch_over_the_limit_is_rejected(partition, admission, answers):
    """The error names the limit."""
    admission.limits = LimitsConfig(batch_bytes=1000)
    partition.append_arrow(pa.record_batch({"value": [bytes(1001)]}), ack_sink=answers, token="big")
    assert answers.codes == {"big": "record_too_large"}
    assert "limits.batch_bytes is 1000" in str(answers.errors["big"])


# The group commit


async def test_a_group_commit_takes_whole_chunks_within_its_limits(partition, answers, kit):
    """At least one chunk, then as many as fit in bytes and in records."""
    for size in (10, 10, 10):
        partition.append_arrow(
            pa.record_batch({"value": [bytes(90)] * size}), ack_sink=answers, token=object()
        )
    one = partition.pending.batches[0].size
    assert partition.take(1, 1)[1:] == (one, 10)
    assert len(partition.take(2 * one, 19)[0]) == 1
    assert partition.pending.batches
    assert len(partition.take(1 << 30, 1 << 30)[0]) == 1
    assert partition.take(1, 1) == ([], 0, 0)


async def test_a_log_receives_of_a_batch_what_its_header_says(partition, answers, kit, monkeypatch):
    """However the batch was made: the header of a batch just encoded is not decoded."""
    told = []
    append = partition.log.append

    def listen(batch, extent):
        told.append((header_of(batch), extent))
        return append(batch, extent)

    monkeypatch.setattr(partition.log, "append", listen)
    kit.put(partition, answers, "one")
    group_commit(partition)
    kit.put(partition, answers, "two", "three")
    partition.append_arrow(pa.record_batch({"value": [b"4", b"5", b"6"]}))
    group_commit(partition)
    partition.write(PendingMarker(partition.log_end_offset, ProducerStamp(7, 1, -1), 0), 1, [])
    assert [header.record_count for header, _ in told] == [1, 2, 3, 1]
    for header, extent in told:
        assert extent == Extent(*(getattr(header, name) for name in Extent.__struct_fields__))


async def test_timestamps_never_run_backwards(partition, answers, kit, admission, clock):
    """A clock that is set back does not make later records older than earlier ones."""
    now_ns = clock.now_ns()
    kit.put(partition, answers, "a")
    group_commit(partition)
    clock.set_wall_clock(now_ns - 10**12)
    kit.put(partition, answers, "b")
    group_commit(partition)
    assert partition.offset_for_timestamp(now_ns) == 0
    assert partition.offset_for_timestamp(now_ns + 1) == 2


async def test_rejecting_gives_the_offsets_back(partition, answers, kit):
    """The next record after a rejection gets the offset that was not used."""
    kit.put(partition, answers, "a")
    group_commit(partition)
    kit.put(partition, answers, "b", "c", message_id=None)
    partition.reject_from((), DiskFullError("full"))
    assert (partition.next_offset, partition.log_end_offset) == (1, 1)
    kit.put(partition, answers, "d")
    group_commit(partition)
    assert answers.acks == {"a": 0, "d": 1}


# Reading


async def test_readers_see_committed_records_only(partition, answers, kit):
    """A record that is written but not committed is not served; its offset is out of range."""
    kit.put(partition, answers, "a", "b")
    [chunk], _, _ = partition.take(1 << 30, 1 << 30)
    partition.write(chunk, partition._admission.clock.now_ns(), [])
    assert partition.log_end_offset == 2
    assert partition.read(0, 1000).size == 0
    with pytest.raises(OffsetOutOfRangeError, match="to 0 \\(high watermark\\)"):
        partition.read(1, 1000)
    assert partition.offset_for_timestamp(0) == 0
    partition.commit(2)
    assert kit.values(partition) == [b"a", b"b"]
    assert partition.read(2, 1000).size == 0


async def test_impossible_offsets_name_the_range(partition, answers, kit):
    """Below the log start and beyond the end: the error names the available offsets."""
    kit.put(partition, answers, *range(10))
    group_commit(partition)
    partition.log.delete_before(5)
    for offset in (-1, 4, 11):
        with pytest.raises(OffsetOutOfRangeError, match="5 \\(log start\\) to 10"):
            partition.read(offset, 1000)


async def test_waiting_ends_at_a_commit(partition, answers, kit):
    """A reader beyond the end is woken by the commit that gives it something."""
    waiting = asyncio.get_running_loop().run_in_executor(None, kit.wait_beyond, partition, 0, 10.0)
    await kit.until(lambda: partition.committed.waiters)
    kit.put(partition, answers, "a")
    group_commit(partition)
    assert await waiting is True
    assert kit.wait_beyond(partition, 0, 0.0) is True
    assert kit.wait_beyond(partition, 1, 0.01) is False
    assert not partition.committed.waiters


async def test_waiting_ends_when_the_partition_is_closed(partition, kit):
    """Deleting a stream or stopping the broker releases waiting readers."""
    waiting = asyncio.get_running_loop().run_in_executor(None, kit.wait_beyond, partition, 0, 10.0)
    await kit.until(lambda: partition.committed.waiters)
    partition.close(ShuttingDownError("stopping"))
    assert await asyncio.wait_for(waiting, 60) is False
    assert kit.wait_beyond(partition, 0, 10.0) is False


async def test_every_waiting_reader_is_woken(partition, answers, kit):
    """A reader that leaves while others are being woken makes none of them miss it."""

    class Leaving(threading.Event):
        def set(self):
            super().set()
            partition.committed.waiters.remove(self)

    waiters = [Leaving() for _ in range(5)]
    partition.committed.waiters.extend(waiters)
    kit.put(partition, answers, "a")
    group_commit(partition)
    assert all(waiter.is_set() for waiter in waiters)

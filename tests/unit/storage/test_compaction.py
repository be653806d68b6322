"""Key compaction: the newest record of each key stays, at its offset, and nothing else changes."""

from itertools import pairwise

import pyarrow as pa
import pytest

from strandline.errors import DiskFullError, LogPoisonedError
from strandline.record.batch import Attributes, iter_headers, read_header
from strandline.record.codec import (
    MESSAGE_ID_HEADER,
    NOBODY,
    Stamp,
    decode_batches,
    encode_records,
)
from strandline.storage.compaction import Compactor
from strandline.storage.log import Log
from strandline.storage.scan import OFFSET_MAX
from strandline.storage.segment_reads import RetiredSegmentError
from strandline.storage.walk import walk
from strandline.types import ProducerStamp


def put_in_place(compactor, compaction):
    """Apply a compaction as the cleaner does."""
    compactor.apply(compaction)


def put(log, records, *, time_ns=0, compression="none", epoch=0, producer=NOBODY, ids=None):
    """Append one batch of (key, value) records."""
    keys, values = zip(*records, strict=True)
    stamp = Stamp(log.log_end_offset, epoch, time_ns, compression, producer)
    headers = [[("h", b"%d" % i)] for i in range(len(keys))]
    if ids is not None:
        headers = [[(MESSAGE_ID_HEADER, each)] for each in ids]
    has_keys = any(key is not None for key in keys)
    batch = bytes(
        encode_records(values, ["s"], stamp, keys=keys if has_keys else None, headers=headers)
    )
    log.append(batch, read_header(batch))


def rows(log):
    """Offset, key and value of every record that is served."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read_dense(offset, 1 << 20)
        for position, header in iter_headers(part.buffer):
            if not header.attributes & Attributes.REMOVED:
                whole = part.buffer[position : position + header.length]
                (batch,) = decode_batches(whole, columns=["offset", "key", "value"])
                found += zip(*(c.to_pylist() for c in batch.columns), strict=True)
        offset = part.next_offset
    return found


def batches(log):
    """Return each batch's first and last offset, its leader epoch, and whether it is a filler."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read_dense(offset, 1 << 20)
        for _, header in iter_headers(part.buffer):
            is_filler = bool(header.attributes & Attributes.REMOVED)
            found.append((header.base_offset, header.next_offset, header.leader_epoch, is_filler))
        offset = part.next_offset
    return found


def settle(log):
    """Seal the active segment and take a checkpoint."""
    log.roll()
    at = log.checkpoint()
    log.flush()
    log.mark_checkpointed(at)
    return at


@pytest.fixture
def log(open_log):
    """An empty log with large segments."""
    return open_log(segment_bytes=1 << 20)


@pytest.fixture
def compact(log, disk):
    """Runs a compaction from beginning to end."""
    compactor = Compactor(log, disk=disk, tombstone_delay_ms=1)

    def run(*, now_ns=0, below=OFFSET_MAX, tombstones_below=OFFSET_MAX):
        compaction = compactor.prepare(
            below=below, tombstones_below=tombstones_below, now_ns=now_ns
        )
        put_in_place(compactor, compaction)
        return compaction

    def is_due(*, now_ns=0, tombstones_below=OFFSET_MAX):
        return compactor.is_due(now_ns=now_ns, tombstones_below=tombstones_below)

    run.is_due = is_due
    return run


VALUE = b"v" * 200


def test_only_the_newest_of_each_key_stays(log, compact):
    """Older records of a key go, the others keep offset, value, headers and order."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"2" + VALUE), (b"a", b"3" + VALUE)])
    put(log, [(b"c", b"4" + VALUE), (b"b", b"5" + VALUE)])
    settle(log)
    put(log, [(b"c", b"6")])
    before = log.size_bytes
    done = compact()
    assert rows(log) == [(2, b"a", b"3" + VALUE), (4, b"b", b"5" + VALUE), (5, b"c", b"6")]
    assert done.records_removed == 3
    assert done.bytes_removed == before - log.size_bytes > 0
    assert log.log_end_offset == 6
    assert log.log_start_offset == 0


def test_headers_times_and_epoch_stay(log, compact):
    """A rewritten batch keeps its headers, times and leader epoch."""
    stamp = Stamp(0, 7, 123, "none")
    keys = [b"a", b"b", b"a"]
    headers = [[("n", b"0")], [("n", b"1"), ("n", b"2")], None]
    batch = bytes(encode_records([VALUE] * 3, ["x", "y", "z"], stamp, keys=keys, headers=headers))
    log.append(batch, read_header(batch))
    settle(log)
    compact()
    found = log.read(0, 1 << 20)
    header = read_header(found.buffer)
    assert (header.base_offset, header.next_offset) == (0, 3)
    assert header.leader_epoch == 7
    assert header.attributes & Attributes.OFFSET_DELTAS
    (batch,) = decode_batches(found.buffer)
    assert batch.column("subject").to_pylist() == ["y", "z"]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [123, 123]
    assert batch.column("headers").to_pylist() == [[("n", b"1"), ("n", b"2")], None]


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_compressed_batches(log, compact, compression):
    """Compressed batches are compacted and stay compressed."""
    put(log, [(b"%d" % (i % 5), b"%d" % i + VALUE) for i in range(50)], compression=compression)
    settle(log)
    compact()
    assert [offset for offset, _, _ in rows(log)] == [45, 46, 47, 48, 49]
    assert (read_header(log.read(0, 100).buffer).codec == 0) == (compression == "none")


def test_records_without_a_key_stay(log, compact):
    """A record without a key replaces nothing and is not replaced."""
    put(log, [(None, b"x" + VALUE), (b"a", b"1" + VALUE), (None, b"y" + VALUE)])
    put(log, [(None, b"z" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    settle(log)
    compact()
    assert [offset for offset, _, _ in rows(log)] == [0, 2, 3, 4]


def test_null_value_deletes_its_key_after_the_delay(log, compact):
    """A null value removes the key's records at once and goes itself when the delay is over."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"2" + VALUE)], time_ns=0)
    put(log, [(b"a", None)], time_ns=10)
    settle(log)
    done = compact(now_ns=500_000)
    assert rows(log) == [(1, b"b", b"2" + VALUE), (2, b"a", None)]
    assert done.tombstone_due_ns == 1_000_011
    assert not compact.is_due(now_ns=1_000_010)
    assert compact.is_due(now_ns=1_000_011)
    assert compact(now_ns=1_000_011).tombstone_due_ns == 0
    assert rows(log) == [(1, b"b", b"2" + VALUE)]
    assert log.log_end_offset == 3


def test_a_deleted_key_does_not_come_back(log, compact):
    """A batch that would not get smaller is kept whole, but not while it hides a deleted record."""
    put(log, [(b"k%d" % i, b"x") for i in range(200)], time_ns=0)
    put(log, [(b"k7", None), (b"other", VALUE)], time_ns=0)
    settle(log)
    for _ in range(3):
        compact(now_ns=10**10)
        found = {key: value for _, key, value in rows(log)}
        assert found.get(b"k7") is None
    assert b"k7" not in found
    assert len(found) == 200


def test_a_null_value_waits_for_what_it_deletes(log, compact):
    """It goes in the run after that which removed the last older record, whatever its age."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(b"a", None)])
    settle(log)
    compact(now_ns=10**10)
    assert rows(log) == [(1, b"b", b"1" + VALUE), (2, b"a", None)]
    assert compact.is_due(now_ns=10**10)
    compact(now_ns=10**10)
    assert rows(log) == [(1, b"b", b"1" + VALUE)]
    assert not compact.is_due(now_ns=10**10)


def test_a_null_value_waits_for_every_replica(log, compact):
    """It stays while a replica may lack it, and is not searched for before."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(b"a", None)])
    settle(log)
    compact(now_ns=10**10)
    compact(now_ns=10**10, tombstones_below=2)
    assert rows(log)[-1] == (2, b"a", None)
    assert not compact.is_due(now_ns=10**10, tombstones_below=2)
    assert compact.is_due(now_ns=10**10, tombstones_below=3)
    compact(now_ns=10**10, tombstones_below=3)
    assert rows(log) == [(1, b"b", b"1" + VALUE)]


def test_null_values_wait_for_corruption_to_be_repaired(log, compact):
    """A corrupt batch may have an older record of a deleted key."""
    put(log, [(b"a", b"1" + VALUE)])
    settle(log)
    put(log, [(b"b", b"1" + VALUE), (b"b", b"2" + VALUE)])
    put(log, [(b"a", None)])
    settle(log)
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    for _ in range(3):
        compact(now_ns=10**10)
    assert log.read(2, 1 << 20).base_offset == 1
    assert not compact.is_due(now_ns=10**10)
    data[150] ^= 1
    path.write_bytes(data)
    assert rows(log) == [(0, b"a", b"1" + VALUE), (2, b"b", b"2" + VALUE), (3, b"a", None)]


def test_a_compacted_log_is_copied_batch_by_batch(log, compact, tmp_path, disk):
    """Appended to another log as they are, the batches make the same log; it recovers the same."""
    for turn in range(40):
        put(log, [(b"%d" % (turn % 3), b"%d" % turn + VALUE)], epoch=turn // 10, time_ns=turn)
    settle(log)
    compact()
    copy = Log.open(tmp_path / "copy", disk=disk, segment_bytes=500, segment_age_ms=10)
    for segment in log.segments:
        for found in walk(segment):
            copy.append(bytes(found.view), found.header)
    assert rows(copy) == rows(log)
    assert batches(copy) == batches(log)
    assert all(a[1] == b[0] for a, b in pairwise(batches(copy)))
    at = copy.checkpoint()
    copy.flush()
    again = Log.open(tmp_path / "copy", disk=disk, segment_bytes=500, segment_age_ms=10, at=at)
    assert batches(again) == batches(log)


@pytest.fixture
def remembering(log, disk):
    """A compactor of a log whose message ids count for 2 ms and producers' numbers for 5 ms."""
    return Compactor(log, disk=disk, tombstone_delay_ms=1, ids_ms=2, numbers_ms=5)


def run(compactor, *, now_ns):
    """A compaction from beginning to end; how many records it has removed."""
    done = compactor.prepare(below=OFFSET_MAX, tombstones_below=OFFSET_MAX, now_ns=now_ns)
    put_in_place(compactor, done)
    return done.records_removed


def test_message_ids_stay_as_long_as_they_count(log, remembering):
    """Young batches with ids stay whole, others do not; later one is looked for again."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)], time_ns=10, ids=[b"x", b"y"])
    put(log, [(b"a", b"2" + VALUE), (b"b", b"2" + VALUE)], time_ns=10)
    put(log, [(b"a", b"3" + VALUE)], time_ns=20)
    settle(log)
    assert run(remembering, now_ns=2_000_010) == 1
    assert [offset for offset, _, _ in rows(log)] == [0, 1, 3, 4]
    assert not remembering.is_due(now_ns=2_000_010, tombstones_below=OFFSET_MAX)
    assert remembering.is_due(now_ns=2_000_011, tombstones_below=OFFSET_MAX)
    assert run(remembering, now_ns=2_000_011) == 2
    assert [offset for offset, _, _ in rows(log)] == [3, 4]
    assert not remembering.is_due(now_ns=10**10, tombstones_below=OFFSET_MAX)


def test_ids_that_do_not_count_hold_nothing_up(log, compact):
    """Without deduplication a batch with ids is compacted as any other."""
    put(log, [(b"a", b"1" + VALUE)], ids=[b"x"])
    put(log, [(b"a", b"2" + VALUE)], ids=[b"y"])
    settle(log)
    assert compact().records_removed == 1


def test_the_numbers_of_producers_stay_as_long_as_they_count(log, remembering):
    """A record of a producer's last batch stays, with its sequence after the rewrite."""
    first, second, third = (ProducerStamp(7, 1, sequence) for sequence in (0, 1, 3))
    other = ProducerStamp(8, 0, 0)
    put(log, [(b"a", b"1" + VALUE)], producer=first)
    put(log, [(b"a", b"2" + VALUE), (b"b", b"1" + VALUE)], producer=second)
    put(log, [(b"a", b"3" + VALUE)], producer=third)
    put(log, [(b"a", b"4" + VALUE)], producer=other)
    settle(log)
    assert run(remembering, now_ns=5_000_000) == 2
    assert [offset for offset, _, _ in rows(log)] == [2, 3, 4]
    headers = [h for _, h in iter_headers(log.read(0, 1 << 20).buffer)]
    assert [h.producer for h in headers] == [NOBODY, second, third, other]
    assert [h.last_offset_delta + 1 for h in headers] == [1, 2, 1, 1]
    assert remembering.is_due(now_ns=5_000_001, tombstones_below=OFFSET_MAX)
    assert run(remembering, now_ns=5_000_001) == 1
    assert [offset for offset, _, _ in rows(log)] == [2, 4]


def test_a_deleted_key_stays_deleted_while_its_records_are_held(log, remembering):
    """A null value waits for an older record that is kept to detect retries."""
    put(log, [(b"a", b"1" + VALUE)], time_ns=1_500_000, ids=[b"x"])
    put(log, [(b"a", None)], time_ns=0)
    put(log, [(b"b", b"1")])
    settle(log)
    for _ in range(2):
        run(remembering, now_ns=3_500_000)
    assert rows(log)[:2] == [(0, b"a", b"1" + VALUE), (1, b"a", None)]
    for _ in range(2):
        run(remembering, now_ns=3_500_001)
    assert rows(log) == [(2, b"b", b"1")]


def test_uncommitted_records_replace_nothing(log, compact):
    """A record at or above the high watermark may yet be undone."""
    put(log, [(b"a", b"1" + VALUE)])
    put(log, [(b"b", b"1" + VALUE)])
    settle(log)
    put(log, [(b"a", b"2" + VALUE)])
    put(log, [(b"b", b"2" + VALUE)])
    compact(below=3)
    assert [offset for offset, _, _ in rows(log)] == [1, 2, 3]


def test_aborted_records_replace_nothing(log, disk):
    """They are removed, and the records before them are the newest of their keys."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(None, VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    put(log, [(b"b", b"2" + VALUE)])
    settle(log)
    aborted = 3

    def counts(header):
        return header.base_offset != aborted

    compactor = Compactor(log, disk=disk, tombstone_delay_ms=1)
    compaction = compactor.prepare(
        below=OFFSET_MAX, tombstones_below=OFFSET_MAX, now_ns=0, is_committed=counts
    )
    put_in_place(compactor, compaction)
    assert [offset for offset, _, _ in rows(log)] == [0, 2, 4]


def test_active_and_uncheckpointed_segments_are_left_alone(log, compact):
    """Segments that a recovery might write again by position are not rewritten."""
    put(log, [(b"a", b"1" + VALUE)])
    log.roll()
    put(log, [(b"a", b"2" + VALUE)])
    assert not compact.is_due(now_ns=0)
    assert compact().rewritten == []
    assert len(rows(log)) == 2


def test_a_placeholder_stands_for_what_is_gone(log, compact):
    """Nothing stays of some batches: one filler for each leader epoch keeps the log dense."""
    put(log, [(b"a", b"1" + VALUE)], epoch=1)
    put(log, [(b"a", b"2" + VALUE), (b"a", b"3" + VALUE)], epoch=1)
    put(log, [(b"a", b"4" + VALUE)], epoch=2)
    put(log, [(b"b", b"1" + VALUE)], epoch=2)
    put(log, [(b"b", b"2" + VALUE), (b"a", b"5" + VALUE), (b"b", b"3" + VALUE)], epoch=5)
    settle(log)
    compact()
    assert rows(log) == [(6, b"a", b"5" + VALUE), (7, b"b", b"3" + VALUE)]
    assert batches(log) == [(0, 3, 1, True), (3, 5, 2, True), (5, 8, 5, False)]


def test_an_emptied_segment_is_one_placeholder(log, compact):
    """A segment without records keeps its offsets in a placeholder of a hundred bytes."""
    for turn in range(50):
        put(log, [(b"a", b"%d" % turn + VALUE)])
    settle(log)
    put(log, [(b"a", b"last" + VALUE)])
    settle(log)
    compact()
    assert rows(log) == [(50, b"a", b"last" + VALUE)]
    assert batches(log) == [(0, 50, 0, True), (50, 51, 0, False)]
    assert log.segments[0].size < 120
    assert log.log_start_offset == 0


def test_placeholders_grow_together(log, compact):
    """Records removed later between two fillers merge them into one."""
    put(log, [(b"a", b"1" + VALUE)])
    put(log, [(b"b", b"1" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    settle(log)
    put(log, [(b"a", b"3" + VALUE)])
    settle(log)
    compact()
    assert batches(log) == [(0, 1, 0, True), (1, 2, 0, False), (2, 3, 0, True), (3, 4, 0, False)]
    put(log, [(b"b", b"2" + VALUE)])
    settle(log)
    compact()
    assert batches(log)[0] == (0, 3, 0, True)
    assert rows(log) == [(3, b"a", b"3" + VALUE), (4, b"b", b"2" + VALUE)]


def test_run_is_due_when_enough_is_new(log, compact):
    """A run waits for new sealed segments, and a done one is not repeated."""
    for number in range(20):
        put(log, [(b"%d" % number, VALUE)])
    settle(log)
    assert compact.is_due(now_ns=0)
    compact()
    assert not compact.is_due(now_ns=10**18)
    put(log, [(b"a", b"1")])
    settle(log)
    assert not compact.is_due(now_ns=0)
    for number in range(5):
        put(log, [(b"%d" % number, VALUE)])
    settle(log)
    assert compact.is_due(now_ns=0)


def test_readers_of_the_old_segment_go_on(log, compact):
    """Existing slices stay valid; the old segment itself is no longer read."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    settle(log)
    held = log.read(0, 1 << 20).buffer
    wanted = bytes(held)
    old = log.segments[0]
    old.release()
    compact()
    assert held == wanted
    with pytest.raises(RetiredSegmentError):
        old.view(0, old.size)


def test_compacted_log_survives_everything(log, compact, open_log, disk):
    """After a power loss the compacted segments are the ones that are found, and indexed."""
    for turn in range(200):
        put(log, [(b"%d" % (turn % 7), b"%d" % turn + VALUE * 5)], time_ns=turn)
    put(log, [(b"end", b"")], time_ns=200)
    at = settle(log)
    compact()
    wanted = rows(log)
    assert len(wanted) == 8
    disk.crash()
    again = open_log(at, segment_bytes=1 << 20)
    assert rows(again) == wanted
    for time_ns in (0, 194, 200):
        assert again.offset_for_timestamp(time_ns) == max(193, time_ns)


@pytest.mark.parametrize("renamed", [False, True])
def test_crash_in_the_middle(log, disk, open_log, renamed):
    """A power loss while segments are swapped leaves the old or the new one, whole."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    at = settle(log)
    before = rows(log)
    compactor = Compactor(log, disk=disk, tombstone_delay_ms=1)
    prepared = compactor.prepare(below=OFFSET_MAX, tombstones_below=OFFSET_MAX, now_ns=0)
    if renamed:
        disk.fail("sync_directory")
        with pytest.raises(LogPoisonedError):
            put_in_place(compactor, prepared)
    disk.crash()
    again = open_log(at, segment_bytes=1 << 20)
    assert rows(again) == before
    assert not list(again.directory.glob("*.cleaned"))


def test_corrupt_segment_is_left_as_it_is(log, compact):
    """A segment with corruption in it is not rewritten: another replica may repair it."""
    put(log, [(b"a", b"1" + VALUE)])
    put(log, [(b"b", b"1" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    settle(log)
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    assert compact().rewritten == []
    assert path.read_bytes() == data


@pytest.mark.parametrize("operation", ["full", "sync"])
def test_failing_disk_leaves_the_old_segments(log, compact, disk, operation):
    """Without space, or when the sync fails, nothing changes and nothing stays behind."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    settle(log)
    before = rows(log)
    disk.full = operation == "full"
    if operation == "sync":
        disk.fail("sync")
    with pytest.raises((DiskFullError, LogPoisonedError)):
        compact()
    assert rows(log) == before
    assert not list(log.directory.glob("*.cleaned"))


def test_segment_removed_meanwhile_stays_removed(log, disk):
    """Retention may take a segment while its successor is being written."""
    put(log, [(b"a", b"1" + VALUE), (b"b", b"1" + VALUE)])
    put(log, [(b"a", b"2" + VALUE)])
    settle(log)
    put(log, [(b"c", b"3")])
    compactor = Compactor(log, disk=disk, tombstone_delay_ms=1)
    prepared = compactor.prepare(below=OFFSET_MAX, tombstones_below=OFFSET_MAX, now_ns=0)
    log.delete_before(3)
    put_in_place(compactor, prepared)
    assert rows(log) == [(3, b"c", b"3")]
    assert not list(log.directory.glob("*.cleaned"))


def test_batch_that_would_grow_is_kept(log, compact):
    """A batch stays whole if its gaps would take more space than the removed record."""
    put(log, [(b"k%d" % i, b"x") for i in range(200)])
    put(log, [(b"k7", b"y")])
    settle(log)
    assert compact().rewritten == []


def test_large_segment_is_written_in_pieces(open_log, disk):
    """More than fits in one write is compacted just the same."""
    log = open_log(segment_bytes=64 << 20)
    for turn in range(60):
        put(log, [(b"%d" % turn, bytes(100_000)), (b"same", bytes(100_000))])
    settle(log)
    compactor = Compactor(log, disk=disk, tombstone_delay_ms=1)
    done = compactor.prepare(below=OFFSET_MAX, tombstones_below=OFFSET_MAX, now_ns=0)
    put_in_place(compactor, done)
    assert done.records_removed == 59
    assert [offset for offset, _, _ in rows(log)] == [*range(0, 119, 2), 119]

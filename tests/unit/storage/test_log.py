"""A log: appends, rolls, truncation at both ends, checkpoints, and faults."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from strandline.errors import (
    DiskFullError,
    LogPoisonedError,
    OffsetOutOfRangeError,
    ShuttingDownError,
)
from strandline.record.batch import read_header
from strandline.storage.journal import Journal
from strandline.storage.segment import PENDING_BYTES_MAX, WORTH_WRITING_BYTES
from strandline.storage.segment_reads import RetiredSegmentError


def append(log, batch):
    """Append a batch made elsewhere."""
    log.append(batch, read_header(batch))


def test_new_log_is_empty(open_log):
    """A log that was never written to begins and ends at offset 0 and serves nothing."""
    log = open_log()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (0, 0, 0)
    assert log.read(0, 1000).buffer == b""
    assert log.offset_for_timestamp(0) == 0


def test_batches_are_readable_at_once(open_log, fill, read_all):
    """Appended batches are read whole and in order, synced or not."""
    log = open_log()
    batches = fill(log, 30)
    assert log.log_end_offset == 60
    assert log.size_bytes == sum(map(len, batches))
    assert read_all(log) == b"".join(batches)


def test_segments_roll_by_size(open_log, fill):
    """No segment grows beyond the limit, unless one batch alone does."""
    log = open_log(segment_bytes=1000)
    fill(log, 30)
    assert len(log.segments) > 3
    assert all(0 < s.size <= 1000 for s in log.segments)
    fill(log, 1, size=3000)
    fill(log, 1)
    assert [s.size > 1000 for s in log.segments[-3:]] == [False, True, False]


def test_segments_roll_by_age(open_log, make_batch):
    """A segment spans no more time than the limit."""
    log = open_log(segment_bytes=1 << 20, segment_age_ms=10)
    for offset, time_ms in enumerate((0, 5, 10, 11, 12, 30)):
        append(log, make_batch(offset, time_ns=time_ms * 1_000_000))
    assert [s.base_offset for s in log.segments] == [0, 3, 5]


def test_the_age_of_a_segment_outlives_a_restart(open_log, make_batch):
    """Of records that were stored before it: how long they may stay is counted from them."""
    log = open_log(segment_bytes=1 << 20, segment_age_ms=10)
    append(log, make_batch(0, time_ns=5_000_000))
    append(log, make_batch(1, time_ns=9_000_000))
    at = log.checkpoint()
    log.flush()
    log.close()
    log = open_log(at, segment_bytes=1 << 20, segment_age_ms=10)
    append(log, make_batch(2, time_ns=15_000_000))
    assert [s.base_offset for s in log.segments] == [0]
    append(log, make_batch(3, time_ns=16_000_000))
    assert [s.base_offset for s in log.segments] == [0, 3]


def test_roll_on_request(open_log, fill):
    """Rolling seals the active segment, unless it is empty."""
    log = open_log()
    log.roll()
    assert len(log.segments) == 1
    fill(log, 1)
    log.roll()
    log.roll()
    assert [s.sealed for s in log.segments] == [True, False]


def test_a_roll_does_not_wait_for_files_that_are_removed(open_log, fill):
    """Nor is it left out: another thread that holds the names of files changes nothing for it."""
    log = open_log()
    fill(log, 1)
    with ThreadPoolExecutor(1) as other:
        held = log.files_held()
        other.submit(held.__enter__).result()
        log.roll()
        other.submit(held.__exit__, None, None, None).result()
    assert [s.sealed for s in log.segments] == [True, False]


def test_a_log_that_is_being_truncated_is_not_rolled(open_log, fill, disk, monkeypatch):
    """Its last segment may be removed by then; retention retries."""
    log = open_log()
    fill(log, 3)
    truncate = disk.truncate
    with ThreadPoolExecutor(1) as owner:

        def roll_and_truncate(fd, length):
            owner.submit(log.roll).result()
            truncate(fd, length)

        monkeypatch.setattr(disk, "truncate", roll_and_truncate)
        assert log.truncate_to(4) == 4
    assert [s.sealed for s in log.segments] == [False]


def test_a_cut_waits_for_what_is_being_written(
    open_log, fill, disk, monkeypatch, read_all, tmp_path
):
    """A truncation waits for a checkpoint's write, and decides the end."""
    log = open_log(segment_bytes=1 << 20)
    log.journal = Journal.open(tmp_path / "journal", disk=disk, file_bytes=1 << 16)
    batches = fill(log, 6)
    write, cuts = disk.pwritev, []
    with ThreadPoolExecutor(1) as other:

        def cut_and_write(fd, buffers, position):
            if threading.current_thread() is threading.main_thread() and not cuts:
                cuts.append(other.submit(log.truncate_to, 4, synced_sequence=0))
                wait(cuts, timeout=0.5)
            write(fd, buffers, position)

        monkeypatch.setattr(disk, "pwritev", cut_and_write)
        log.write_pending()
        assert cuts[0].result() == 4
    more = fill(log, 1)
    log.write_pending()
    wanted = b"".join([*batches[:2], *more])
    assert read_all(log) == wanted
    assert log.segments[-1].path.read_bytes() == wanted


def test_batch_must_continue_the_log(open_log, make_batch):
    """Appending with a gap is a bug and is caught."""
    log = open_log()
    with pytest.raises(AssertionError):
        append(log, make_batch(5))


def test_reopening_at_a_checkpoint(open_log, fill, read_all):
    """A log opened at its checkpoint has the same batches and segments."""
    log = open_log()
    batches = fill(log, 20)
    at = log.checkpoint()
    log.flush()
    bases = [s.base_offset for s in log.segments]
    again = open_log(at)
    assert [s.base_offset for s in again.segments] == bases
    assert read_all(again) == b"".join(batches)
    batches += fill(again, 5)
    assert read_all(again) == b"".join(batches)


def test_flushed_data_survives_a_power_loss(open_log, fill, read_all, disk):
    """After checkpoint and flush everything written before is durable, names included."""
    log = open_log()
    batches = fill(log, 20)
    at = log.checkpoint()
    log.flush()
    fill(log, 5)
    del log
    disk.crash()
    assert read_all(open_log(at)) == b"".join(batches)


def test_a_name_is_synced_once(open_log, fill, disk, monkeypatch):
    """A flush that adds records to a segment does not sync its directory again."""
    synced = []
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    log = open_log(segment_bytes=1 << 20)
    counts = []
    for _ in range(3):
        fill(log, 1)
        log.flush()
        counts.append(len(synced))
    assert counts == [1, 1, 1]
    log.close()


def test_opening_without_a_checkpoint_scans_the_last_segment(open_log, fill, read_all, tmp_path):
    """Every intact batch counts, and a torn tail is discarded."""
    log = open_log()
    batches = fill(log, 20)
    log.checkpoint()
    path = log.segments[-1].path
    del log
    path.write_bytes(path.read_bytes() + batches[0][:50])
    again = open_log()
    assert read_all(again) == b"".join(batches)
    assert path.stat().st_size == again.segments[-1].size


def test_opening_without_a_checkpoint_steps_over_corruption(open_log, fill):
    """Corruption in the middle of the last segment does not cost the records after it."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 10)
    log.checkpoint()
    path = log.segments[-1].path
    del log
    data = bytearray(path.read_bytes())
    data[3 * len(batches[0]) + 90] ^= 1
    path.write_bytes(data)
    again = open_log(segment_bytes=1 << 20)
    assert again.log_end_offset == 20
    assert again.read(8, 100_000).buffer == b"".join(batches[4:])


def test_small_batches_are_gathered(open_log, make_batch, disk):
    """Small batches are written together; a checkpoint writes the rest."""
    log = open_log(segment_bytes=1 << 20)
    for offset in range(100):
        append(log, make_batch(offset))
    assert disk.unsynced == []
    assert log.checkpoint().position == log.size_bytes
    assert len(disk.unsynced) == 1
    append(log, make_batch(100, size=PENDING_BYTES_MAX))
    assert len(disk.unsynced) == 2


def test_no_space_leaves_the_log_as_it_was(open_log, fill, make_batch, read_all, disk):
    """A full disk rejects a batch, keeps the others, and the log recovers without reopening."""
    log = open_log(segment_bytes=8 << 20)
    batches = fill(log, 3, size=PENDING_BYTES_MAX)
    disk.fail_write_after(1000)
    big = make_batch(log.log_end_offset, 1, size=PENDING_BYTES_MAX)
    with pytest.raises(DiskFullError):
        append(log, big)
    assert log.segments[-1].path.stat().st_size == log.size_bytes
    assert not log.poisoned
    assert read_all(log) == b"".join(batches)
    append(log, big)
    assert read_all(log) == b"".join([*batches, big])


def test_what_was_gathered_is_written_when_asked(open_log, make_batch, disk):
    """Gathered batches are written from some size on; a deleted log writes nothing."""
    log = open_log(segment_bytes=1 << 20)
    append(log, make_batch(0, 1, size=WORTH_WRITING_BYTES // 2))
    assert (log.can_write_pending, log.pending_bytes) == (False, log.size_bytes)
    append(log, make_batch(1, 1, size=WORTH_WRITING_BYTES // 2))
    assert log.can_write_pending
    log.write_pending()
    assert (log.pending_bytes, len(disk.unsynced)) == (0, 1)
    append(log, make_batch(2, 1, size=WORTH_WRITING_BYTES))
    log.close()
    assert not log.can_write_pending


def test_what_could_not_be_written_comes_first(open_log, make_batch, read_all, disk):
    """A batch is rejected while earlier ones have no space on the disk."""
    log = open_log(segment_bytes=1 << 20)
    first, second = make_batch(0, 1, size=WORTH_WRITING_BYTES), make_batch(1)
    append(log, first)
    disk.full = True
    with pytest.raises(DiskFullError):
        log.write_pending()
    with pytest.raises(DiskFullError):
        append(log, second)
    assert read_all(log) == first
    disk.full = False
    append(log, second)
    assert log.pending_bytes == len(second)
    assert read_all(log) == first + second


def test_no_space_for_gathered_batches_keeps_them(open_log, fill, make_batch, read_all, disk):
    """Batches waiting in memory stay readable on a full disk and are written when it heals."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 10)
    disk.full = True
    with pytest.raises(DiskFullError):
        log.checkpoint()
    with pytest.raises(DiskFullError):
        append(log, make_batch(log.log_end_offset, 1, size=PENDING_BYTES_MAX))
    assert read_all(log) == b"".join(batches)
    disk.full = False
    at = log.checkpoint()
    log.flush()
    assert read_all(open_log(at, segment_bytes=1 << 20)) == b"".join(batches)


def test_no_space_while_rolling(open_log, fill, make_batch, read_all, disk):
    """A roll that finds no space leaves the segments as they were."""
    log = open_log(segment_bytes=1000)
    batches = fill(log, 2)
    disk.full = True
    with pytest.raises(DiskFullError):
        append(log, make_batch(log.log_end_offset, 1, size=900))
    assert len(log.segments) == 1
    disk.full = False
    batches += fill(log, 5)
    assert read_all(log) == b"".join(batches)


def test_failed_write_poisons(open_log, make_batch, disk):
    """After an I/O error the log rejects appends, rolls and checkpoints."""
    log = open_log()
    disk.fail("write", code=errno.EIO)
    with pytest.raises(LogPoisonedError):
        append(log, make_batch(0, size=PENDING_BYTES_MAX))
    for call in (lambda: append(log, make_batch(0)), log.roll, log.checkpoint):
        with pytest.raises(LogPoisonedError):
            call()


def test_failed_write_of_gathered_batches_poisons(open_log, fill, disk):
    """The same when the error comes at a checkpoint or a roll."""
    for call in ("checkpoint", "roll"):
        log = open_log()
        fill(log, 1)
        disk.fail("write", code=errno.EIO)
        with pytest.raises(LogPoisonedError):
            getattr(log, call)()
        assert log.poisoned


def test_failed_sync_poisons(open_log, fill, disk):
    """After a failed sync of a segment nothing more is appended."""
    log = open_log()
    batches = fill(log, 3)
    log.checkpoint()
    disk.fail("sync", code=errno.EIO)
    with pytest.raises(LogPoisonedError):
        log.flush()
    with pytest.raises(LogPoisonedError):
        append(log, batches[0])


@pytest.mark.parametrize("flushed", [False, True])
def test_truncate_to_every_offset(open_log, fill, read_all, tmp_path, flushed):
    """The log ends at or before the offset, at a batch boundary, and can be appended to."""
    for offset in range(42):
        log = open_log()
        batches = fill(log, 20)
        if flushed:
            log.checkpoint()
            log.flush()
        held = log.read(0, 100).buffer
        end = log.truncate_to(offset)
        assert end == log.log_end_offset == min(40, offset - offset % 2)
        batches = batches[: end // 2] + fill(log, 2)
        assert read_all(log) == b"".join(batches)
        assert held == batches[0] or end < 2
        at = log.checkpoint()
        log.flush()
        assert read_all(open_log(at)) == b"".join(batches)
        log.delete()


def test_what_follows_a_cut_during_a_sync_is_synced_by_the_next(open_log, fill, disk, monkeypatch):
    """The sync in progress covered only earlier batches."""
    log = open_log()
    fill(log, 5)
    synced, sync = [], disk.fdatasync

    def cut_meanwhile(fd):
        sync(fd)
        synced.append(fd)
        if len(synced) == 1:
            log.truncate_to(2)

    monkeypatch.setattr(disk, "fdatasync", cut_meanwhile)
    log.checkpoint()
    log.flush()
    fill(log, 2)
    before = len(synced)
    log.checkpoint()
    log.flush()
    assert len(synced) == before + 1


def test_truncate_to_keeps_what_readers_hold(open_log, fill):
    """Cutting a sealed segment leaves slices that were served from it intact."""
    log = open_log()
    batches = fill(log, 20)
    held = log.read(0, 10_000)
    assert len(held.buffer) > len(batches[0])
    wanted = bytes(held.buffer)
    old = log.segments[0]
    old.release()  # a reader may have taken the segment and not mapped it yet
    log.truncate_to(2)
    fill(log, 10, size=40)
    assert held.buffer == wanted
    with pytest.raises(RetiredSegmentError):
        old.view(0, old.size)


def test_truncate_to_below_the_start_is_rejected(open_log, fill):
    """Cutting below the first kept record is the caller's mistake."""
    log = open_log()
    fill(log, 10)
    log.delete_before(6)
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_to(5)


def test_truncate_to_a_start_within_a_batch_leaves_nothing(open_log, fill, read_all, disk):
    """The whole batch is removed; the empty log continues at its start."""
    log = open_log()
    fill(log, 10)
    log.delete_before(7)
    assert log.truncate_to(7) == log.log_start_offset == log.log_end_offset == 7
    batches = fill(log, 2)
    assert read_all(log) == b"".join(batches)
    at = log.checkpoint()
    log.flush()
    del log
    disk.crash()
    again = open_log(at)
    assert (again.log_start_offset, again.log_end_offset) == (7, 11)
    assert read_all(again) == b"".join(batches)


def test_failed_truncation_poisons(open_log, fill, disk):
    """If a file cannot be truncated, its length is unknown."""
    log = open_log(segment_bytes=1 << 20)
    fill(log, 10)
    log.checkpoint()
    disk.fail("truncate", code=errno.EIO)
    with pytest.raises(LogPoisonedError):
        log.truncate_to(4)
    assert log.poisoned


def test_truncate_before_every_offset(open_log, fill, read_all, disk):
    """Records below the offset are removed, whole segments with their files."""
    for offset in range(41):
        log = open_log()
        batches = fill(log, 20)
        at = log.checkpoint()
        log.flush()
        log.delete_before(offset)
        assert log.log_start_offset == offset
        assert read_all(log) == b"".join(batches[offset // 2 :])
        if offset:
            with pytest.raises(OffsetOutOfRangeError):
                log.read(offset - 1, 100)
        del log
        disk.crash()
        again = open_log(at)
        assert again.log_start_offset == offset
        assert again.log_end_offset == 40
        again.delete()


def test_truncate_before_removes_files(open_log, fill, tmp_path):
    """Only segments that still hold a record keep their files."""
    log = open_log()
    fill(log, 20)
    log.delete_before(log.segments[2].base_offset + 1)
    kept = {s.path.name for s in log.segments}
    assert {p.name for p in (tmp_path / "log").glob("*.log")} <= kept
    assert log.segments[0].base_offset < log.log_start_offset


def test_truncate_before_beyond_the_end_is_rejected(open_log, fill):
    """There is nothing to remove beyond the end."""
    log = open_log()
    fill(log, 2)
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_before(5)
    log.delete_before(4)
    log.delete_before(1)
    assert log.log_start_offset == 4


def test_truncate_before_on_a_full_disk_frees_space_first(open_log, fill, disk):
    """Segments before the checkpoint are removed even if the new start cannot be written."""
    log = open_log()
    fill(log, 20)
    at = log.checkpoint()
    log.flush()
    log.mark_checkpointed(at)
    disk.full = True
    with pytest.raises(DiskFullError):
        log.delete_before(39)
    assert 0 < log.log_start_offset <= at.segment_base
    disk.full = False
    log.delete_before(39)
    assert log.log_start_offset == 39


def test_offsets_removed_before_a_power_loss_are_not_used_again(open_log, fill, disk):
    """A log whose records were removed continues after them, even after a power loss."""
    log = open_log()
    at = log.checkpoint()
    log.flush()
    fill(log, 10)
    log.delete_before(20)
    del log
    disk.crash()
    again = open_log(at)
    assert (again.log_start_offset, again.log_end_offset) == (20, 20)
    fill(again, 1)


def test_corrupt_start_file_falls_back(open_log, fill, tmp_path):
    """A start offset that cannot be trusted is not believed."""
    log = open_log()
    fill(log, 10)
    at = log.checkpoint()
    log.flush()
    log.delete_before(1)
    (tmp_path / "log" / "log-start").write_bytes(b"7 00000000\n")
    assert open_log(at).log_start_offset == 0


def test_delete_removes_everything(open_log, fill, tmp_path):
    """A deleted log leaves no file; readers finish; new reads are rejected."""
    log = open_log()
    batches = fill(log, 10)
    held = log.read(0, 100)
    log.checkpoint()
    log.delete()
    assert not (tmp_path / "log").exists()
    assert held.buffer == batches[0]
    with pytest.raises(ShuttingDownError):
        log.read(0, 100)
    with pytest.raises(ShuttingDownError):
        append(log, batches[0])
    log.flush()


def test_a_deleted_log_notes_no_start_for_its_namesake(open_log, fill):
    """A deleted log writes no start: its directory may belong to a new log."""
    log = open_log()
    fill(log, 10)
    log.delete()
    anew = open_log()
    with pytest.raises(ShuttingDownError):
        log.store_start(5)
    anew.close()
    assert open_log().log_start_offset == 0


def test_flush_of_a_log_deleted_meanwhile_is_quiet(open_log, fill, disk):
    """A flush that loses its directory to a deletion is no failure."""
    log = open_log()
    fill(log, 3)
    log.checkpoint()
    real = disk.fdatasync

    def delete_first(fd):
        disk.fdatasync = real
        log.delete()
        real(fd)

    disk.fdatasync = delete_first
    log.flush()
    assert not log.poisoned


def test_closed_log_rejects_reads(open_log, fill):
    """After closing, reads and appends say that the log was closed."""
    log = open_log()
    fill(log, 3)
    log.close()
    with pytest.raises(ShuttingDownError):
        log.read(0, 100)

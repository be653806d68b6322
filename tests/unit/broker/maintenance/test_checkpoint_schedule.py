"""When checkpoints are taken, and that they never get in the way of anything else."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from strandline.broker.maintenance import checkpoint_schedule
from strandline.errors import DiskFullError, UnknownStreamError
from strandline.storage import segment
from strandline.storage.descriptors import STORAGE_DESCRIPTORS, current_shares
from strandline.storage.mapped_segments import MAPPED_SEGMENTS


@pytest.fixture
async def write(broker, partition, kit, answers):
    """Store records and wait for them."""

    async def append(count, size=10):
        before = len(answers.order)
        kit.put(partition, answers, *range(before, before + count), value=bytes(size))
        await answers.wait(before + count)

    return append


async def test_a_checkpoint_is_due_by_time_if_something_changed(broker, write, kit, clock, disk):
    """After the interval, and not again until more was written."""
    await write(1)
    taken = broker.telemetry.checkpoint_seconds.count
    clock.advance_ms(29_000)
    await asyncio.sleep(0.12)
    assert broker.telemetry.checkpoint_seconds.count == taken
    clock.advance_ms(2_000)
    await kit.until(lambda: broker.telemetry.checkpoint_seconds.count == taken + 1)
    clock.advance_ms(60_000)
    await asyncio.sleep(0.12)
    assert broker.telemetry.checkpoint_seconds.count == taken + 1
    assert broker._storage.journal.bytes_since_recycle == 0


async def test_a_full_journal_file_is_the_next_spare(broker, write, kit):
    """A checkpoint is due at once, and two files do however much is written."""
    journal = broker._storage.journal
    for _ in range(20):  # a file holds three
        await kit.until(lambda: journal.spares == 1)
        await write(1, size=20_000)
    await kit.until(lambda: journal.spares == 1 and not journal.full_files)
    assert broker.telemetry.checkpoint_seconds.count >= 6
    assert len(list(journal.directory.iterdir())) == 2


async def test_a_checkpoint_is_due_when_much_went_past_the_journal(broker, write, kit, monkeypatch):
    """Recovery would have to look for it in the segments; a little of it counts as a change."""
    monkeypatch.setattr(checkpoint_schedule, "BULK_BYTES_MAX", 1000)
    await write(1)
    taken = broker.telemetry.checkpoint_seconds.count
    broker.telemetry.bulk_bytes += 999
    await asyncio.sleep(0.12)
    assert broker.telemetry.checkpoint_seconds.count == taken
    broker.telemetry.bulk_bytes += 1
    await kit.until(lambda: broker.telemetry.checkpoint_seconds.count == taken + 1)
    await asyncio.sleep(0.12)
    assert broker.telemetry.checkpoint_seconds.count == taken + 1


async def test_many_sealed_segments_that_wait_for_a_sync_ask_for_a_checkpoint(
    broker, write, monkeypatch
):
    """Each keeps a file descriptor; the active ones are not counted."""
    await write(1)
    storage = broker._storage
    kept = STORAGE_DESCRIPTORS.held - len(MAPPED_SEGMENTS) - len(storage.logs)
    for unsynced, is_asked in ((kept, False), (kept - 1, True)):
        shares = current_shares()._replace(unsynced=unsynced)
        monkeypatch.setattr(checkpoint_schedule, "current_shares", lambda shares=shares: shares)
        assert checkpoint_schedule._has_many_unsynced(storage) == is_asked


async def test_group_commits_come_between_the_writes_of_a_checkpoint(
    open_broker, make_stream, answers, kit, disk, monkeypatch
):
    """Many logs with a little in memory each do not hold up publishers all at once."""
    monkeypatch.setattr(checkpoint_schedule, "PENDING_STEP_BYTES", 1)
    broker = await open_broker()
    streams = [await make_stream(broker, f"s{number}") for number in range(20)]
    for stream in streams:
        kit.put(stream, answers, stream.name.stream)
    await answers.wait(20)
    written = []
    broker.on_answered(lambda: written.append(disk.count("write", "/logs/*.log")))
    async with asyncio.TaskGroup() as group:
        group.create_task(broker._checkpoints.checkpoint())
        await asyncio.sleep(0)
        kit.put(streams[0], answers, "between")
    await answers.wait(21)
    assert 0 < written[0] < 20
    assert disk.count("write", "/logs/*.log") >= 20


async def test_a_spare_file_does_not_take_the_space_that_logs_wait_for(
    broker, partition, answers, kit, disk
):
    """On a disk that was full: only once logs have theirs can a checkpoint free journal files."""
    await kit.until(lambda: broker._storage.journal.spares)
    disk.fill("/logs/")
    kit.put(partition, answers, "journaled", value=bytes(40_000))
    await answers.wait(1)
    broker._storage.journal._spares.clear()
    made = disk.count("create", "/journal/")
    with pytest.raises(DiskFullError):
        await broker._checkpoints._allocate_spare()
    assert disk.count("create", "/journal/") == made
    disk.heal()
    await broker._checkpoints._allocate_spare()
    assert disk.count("create", "/journal/") > made


async def test_segments_are_written_back_a_little_at_a_time(
    open_broker, make_stream, answers, kit, disk, monkeypatch
):
    """Each part of a segment once, long before a checkpoint is due."""
    asked = []

    def write_back(fd, *part):
        if "/logs/" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            asked.append(part)

    monkeypatch.setattr(checkpoint_schedule, "WRITE_BACK_BYTES", 100_000)
    monkeypatch.setattr(segment, "WRITE_BACK_BYTES", 40_000)
    monkeypatch.setattr(disk, "write_back", write_back)
    broker = await open_broker(journal={"file_bytes": 16 << 20})
    partition = await make_stream(broker, segment_bytes=16 << 20)
    for parts in (3, 6, 9):
        before = len(answers.order)
        kit.put(partition, answers, *range(before, before + 12), value=bytes(10_000))
        await answers.wait(before + 12)
        await kit.until(partial(has_length, asked, parts))
    assert asked == [(part * 40_000, 40_000) for part in range(9)]
    assert not broker._storage.journal.full_files


def has_length(found, length):
    """Whether this many were found."""
    return len(found) == length


async def test_with_many_logs_more_files_are_full_before_a_checkpoint(
    open_broker, make_stream, answers, kit, monkeypatch
):
    """A checkpoint syncs each log, so it is not taken for every few records of each."""
    monkeypatch.setattr(checkpoint_schedule, "LOGS_PER_FILE", 2)
    broker = await open_broker()
    partition = await make_stream(broker, partitions=5)
    journal, taken = broker._storage.journal, broker.telemetry.checkpoint_seconds
    for number, full in enumerate((0, 1, 2, 0, 1)):
        kit.put(partition, answers, number, value=bytes(50_000))
        await answers.wait(number + 1)
        await kit.until(lambda full=full: journal.full_files == full and journal.spares)
    assert taken.count == 1


async def test_a_spare_journal_file_is_made_ready(broker, write, kit):
    """The group commit that fills a file finds the next one ready."""
    await kit.until(lambda: broker._storage.journal.spares == 1)
    await write(1)
    assert broker._storage.journal.spares == 0
    await kit.until(lambda: broker._storage.journal.spares == 1)


async def test_records_are_stored_while_a_checkpoint_runs(
    broker, partition, write, kit, disk, clock, answers
):
    """Only the checkpoint waits for the disk; group commits continue."""
    await write(1)
    gate = disk.hold("sync", "/logs/")
    clock.advance_ms(60_000)
    await kit.until(gate.reached.is_set)
    await write(3)
    gate.released.set()
    assert len(answers.acks) == 4


async def test_a_stream_is_deleted_after_the_checkpoint_that_holds_it(
    broker, partition, write, kit, disk, clock
):
    """Deletion waits for the checkpoint in progress, whose files must not vanish."""
    await write(1)
    gate = disk.hold("sync", "/logs/")
    clock.advance_ms(60_000)
    await kit.until(gate.reached.is_set)
    deleting = asyncio.create_task(broker.delete_stream("s"))
    with pytest.raises(UnknownStreamError):
        await kit.until(lambda: broker.stream("s") is None)
    await asyncio.sleep(0.02)
    assert not deleting.done()
    assert partition.log.directory.exists()
    gate.released.set()
    await deleting
    assert not partition.log.directory.exists()
    assert broker.admission.write_error is None


async def test_a_stop_waits_for_the_checkpoint_in_progress(broker, write, kit, disk, clock):
    """Checkpoints never overlap, and the directory is not released before one ends."""
    await write(1)
    gate = disk.hold("sync", "/logs/")
    clock.advance_ms(60_000)
    await kit.until(gate.reached.is_set)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    assert broker.lock._fd >= 0
    gate.released.set()
    await stopping
    assert broker.lock._fd == -1


async def test_a_stop_waits_for_the_journal_file_being_made(open_broker, kit, disk):
    """A thread that fills a file with zeros must have ended before anyone opens the journal."""
    gate = disk.hold("write", "/journal/")
    broker = await open_broker()
    await kit.until(gate.reached.is_set)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    gate.released.set()
    await stopping


async def test_a_disk_that_stays_full_is_told_of_once(broker, write, kit, clock, disk, caplog):
    """Not at each interval; a disk that is full again is logged again."""

    async def fails():
        await write(1)
        tries = disk.count("create", "checkpoint")
        clock.advance_ms(31_000)
        await kit.until(lambda: disk.count("create", "checkpoint") > tries)

    await kit.until(lambda: broker._storage.journal.spares == 1)
    for times in (1, 2):
        disk.fill("checkpoint")
        for _ in range(3):
            await fails()
        disk.heal()
        clock.advance_ms(31_000)
        await kit.until(lambda: not broker._storage.journal.bytes_since_recycle)
        assert caplog.text.count("checkpoint failed and will be tried again: ") == times

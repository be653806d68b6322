"""Slow file-system calls run on a thread, not on the event loop: one broker alone."""

import asyncio

import pytest

from strandline.config import StreamConfig


@pytest.fixture
def disk(kit):
    return kit.LoopWatchingDisk()


@pytest.fixture
async def watched(broker, disk):
    """A started broker whose loop's file-system calls are recorded from now on."""
    disk.on_the_loop.clear()
    return broker


async def put(broker, kit, count, *, name="s", size=3000):
    """Publish records with few keys."""
    answers, partition = kit.Answers(), broker.stream(name).partition(0)
    for number in range(count):
        key = b"%d" % (number % 3)
        kit.put(partition, answers, number, key=key, value=bytes(size))
        await answers.wait(number + 1)
    assert len(answers.acks) == count


async def test_a_stream_comes_shrinks_and_goes_on_a_thread(watched, kit, disk):
    """No change of a stream's files makes the loop sync, truncate or remove a file.

    It renames nothing but the directory of a deleted log.
    """
    config = StreamConfig(name="s", subject="s", segment_bytes=64 << 10, compact=True)
    await watched.create_stream(config)
    await put(watched, kit, 60)
    await watched._checkpoints.checkpoint()
    partition = watched.stream("s").partition(0)
    sealed = len(partition.log.segments)
    assert sealed > 2
    await watched._cleaner.clean()
    assert watched.telemetry.compaction_records > 0
    await watched.delete_before("s", 0, 50)
    await watched.skip_to("s", 0, 1000)
    await put(watched, kit, 3)
    await watched.delete_stream("s")
    await watched.reclaimer.drained()
    assert disk.on_the_loop == []


@pytest.mark.usefixtures("without_spares")
async def test_journal_files_are_made_on_a_thread(watched, kit, disk):
    """Also where none was made ahead of need: filling one with zeros takes long."""
    await watched.create_stream(StreamConfig(name="s", subject="s"))
    await put(watched, kit, 60)
    assert disk.count("create", "/journal/") > 2
    assert disk.on_the_loop == []


async def test_a_failed_disk_is_reopened_on_a_thread(watched, kit, disk):
    """Recovery runs on a thread, and the loop keeps answering."""
    await watched.create_stream(StreamConfig(name="s", subject="s"))
    await put(watched, kit, 5)
    gate = disk.hold("sync")
    watched.committer.poison(watched._storage.journal._poisoned_error())
    await kit.until(gate.reached.is_set)
    await asyncio.wait_for(asyncio.sleep(0), 5)  # the loop stands if recovery runs on it
    gate.released.set()
    await kit.until(lambda: not watched.telemetry.journal_poisoned)
    await put(watched, kit, 5)
    assert disk.on_the_loop == []


async def test_who_skips_takes_no_records_meanwhile(watched, kit, disk):
    """A record accepted before the log is replaced would be lost with it."""
    await watched.create_stream(StreamConfig(name="s", subject="s"))
    await put(watched, kit, 5)
    gate = disk.hold("rename", "log-start")
    skipping = asyncio.create_task(watched.skip_to("s", 0, 1000))
    await kit.until(gate.reached.is_set)
    answers, partition = kit.Answers(), watched.stream("s").partition(0)
    kit.put(partition, answers, "meanwhile")
    assert answers.codes == {"meanwhile": "unavailable"}
    gate.released.set()
    await skipping
    kit.put(partition, answers, "after")
    await answers.wait(2)
    assert answers.acks == {"after": 1000}

"""A group commit that needs a new journal file: it waits, and the loop does not."""

import asyncio
import errno

import pytest

pytestmark = pytest.mark.usefixtures("without_spares")


async def held_group_commit(broker, partition, answers, disk, kit):
    """A group commit with one record that waits for its file; the gate that holds it."""
    gate = disk.hold("create", "/journal/")
    kit.put(partition, answers, "held")
    await kit.until(gate.reached.is_set)
    return gate


async def test_the_loop_continues_while_a_file_is_made(broker, partition, answers, disk, kit):
    """Records are accepted into the same group commit meanwhile; nothing is written before."""
    gate = await held_group_commit(broker, partition, answers, disk, kit)
    kit.put(partition, answers, "meanwhile")
    await asyncio.wait_for(asyncio.sleep(0.02), 5)
    assert (answers.order, partition.log_end_offset) == ([], 0)
    assert not broker.committer.is_idle
    gate.released.set()
    await answers.wait(2)
    assert answers.acks == {"held": 0, "meanwhile": 1}
    assert (broker.telemetry.group_commits, disk.count("create", "/journal/")) == (1, 1)


async def test_files_are_made_as_large_as_an_entry_needs(broker, partition, answers, disk, kit):
    """For an entry that does not fit into the file before, and for a record larger than both."""
    for number, size in enumerate((40_000, 40_000, 300_000, 40_000)):
        kit.put(partition, answers, number, value=bytes(size))
        await answers.wait(number + 1)
    assert answers.acks == {0: 0, 1: 1, 2: 2, 3: 3}
    assert [len(value) for value in kit.values(partition)] == [40_000, 40_000, 300_000, 40_000]
    assert 3 <= disk.count("create", "/journal/") <= 4


async def test_without_space_for_a_file_records_are_rejected(broker, partition, answers, disk, kit):
    """Those of the group commit that waited; a smaller one fits into the present file."""
    kit.put(partition, answers, "a", value=bytes(40_000))
    await answers.wait(1)
    disk.fill("/journal/0")
    kit.put(partition, answers, "large", value=bytes(40_000))
    await answers.wait(2)
    assert answers.codes == {"large": "disk_full"}
    assert (partition.next_offset, partition.log_end_offset) == (1, 1)
    disk.heal()
    kit.put(partition, answers, "again", value=bytes(40_000))
    await answers.wait(3)
    assert answers.acks == {"a": 0, "again": 1}


async def test_a_disk_that_fails_meanwhile_is_reopened(broker, partition, answers, disk, kit):
    """Waiting records are rejected, and the loop continues."""
    disk.fail("create", "/journal/", code=errno.EIO, times=1)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    assert set(answers.codes) == {"a"}
    await kit.until(lambda: not broker.telemetry.journal_poisoned)
    kit.put(partition, answers, "b")
    await answers.wait(2)
    assert kit.values(partition) == [b"b"]


async def test_a_stream_that_is_deleted_meanwhile_takes_its_records_along(
    broker, partition, make_stream, answers, disk, kit
):
    """They are pending and rejected with it; its log is removed after the group commit."""
    other = await make_stream(broker, "other")
    gate = await held_group_commit(broker, partition, answers, disk, kit)
    kit.put(other, answers, "kept")
    deleting = asyncio.create_task(broker.delete_stream("s"))
    await answers.wait(1)
    assert answers.codes == {"held": "unknown_stream"}
    assert not deleting.done()
    gate.released.set()
    await deleting
    await answers.wait(2)
    assert answers.acks == {"kept": 0}


async def test_a_stop_waits_for_the_file(broker, partition, answers, disk, kit):
    """No other process may open the directory while a thread still writes to it."""
    gate = await held_group_commit(broker, partition, answers, disk, kit)
    stopping = asyncio.create_task(broker.stop())
    done, _ = await asyncio.wait({stopping}, timeout=0.1)
    assert not done
    gate.released.set()
    await stopping
    assert answers.acks == {"held": 0}


async def test_storage_that_fails_meanwhile_is_reopened_after_the_file(
    broker, partition, answers, disk, kit
):
    """The thread writes to the journal that is being given up: the new one comes after it."""
    gate = await held_group_commit(broker, partition, answers, disk, kit)
    journal = broker._storage.journal
    broker.committer.poison(journal._poisoned_error())
    await answers.wait(1)
    assert set(answers.codes) == {"held"}
    await asyncio.sleep(0.05)
    assert broker._storage.journal is journal
    gate.released.set()
    await kit.until(lambda: not broker.telemetry.journal_poisoned)
    kit.put(partition, answers, "b")
    await answers.wait(2)
    assert kit.values(partition) == [b"b"]

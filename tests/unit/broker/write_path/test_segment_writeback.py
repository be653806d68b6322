"""Segments are written in the shadow of the journal's sync, or after the answers."""

import pytest

from strandline.broker.write_path import segment_writeback as late_writes
from strandline.errors import LogPoisonedError
from strandline.storage.segment import PENDING_BYTES_MAX, WORTH_WRITING_BYTES

pytestmark = pytest.mark.usefixtures("without_spares")


def written(disk):
    """What was written and synced, in order, repeats left out."""
    kinds = ("journal" if "/journal/" in path else "log" for _, path in disk.seen)
    steps = [f"{name} {kind}" for (name, _), kind in zip(disk.seen, kinds, strict=True)]
    wanted = [step for step in steps if step.startswith(("write", "sync"))]
    return [step for before, step in zip([None, *wanted], wanted, strict=False) if step != before]


@pytest.mark.usefixtures("on_the_loop")
async def test_a_segment_is_written_while_the_journal_is(broker, partition, answers, disk, kit):
    """After the journal's write, which the disk is busy with, and before its sync is waited for."""
    kit.put(partition, answers, "first")
    await answers.wait(1)
    disk.seen.clear()
    kit.put(partition, answers, "big", value=bytes(WORTH_WRITING_BYTES))
    await answers.wait(2)
    assert written(disk) == ["write journal", "write log", "sync journal"]


async def test_a_segment_is_written_while_the_thread_syncs(broker, partition, answers, disk, kit):
    """The loop need not wait for the journal's sync, nor the segment."""
    kit.by_thread(broker)
    kit.put(partition, answers, "first")
    await answers.wait(1)
    gate = disk.hold("sync", "/journal/")
    kit.put(partition, answers, "big", value=bytes(WORTH_WRITING_BYTES))
    try:
        await kit.until(lambda: disk.count("write", "/logs/*.log") == 1, seconds=10)
        assert answers.order == ["first"]
    finally:
        gate.released.set()
    await answers.wait(2)


async def test_without_a_sync_publishers_do_not_wait(broker, make_stream, answers, disk, kit):
    """A stream with acks 'memory' is answered first."""
    partition = await make_stream(broker, acks="memory")
    told = []
    broker.on_answered(lambda: told.append(disk.count("write", "/logs/*.log")))
    kit.put(partition, answers, "big", value=bytes(WORTH_WRITING_BYTES))
    await answers.wait(1)
    await kit.until(lambda: disk.count("write", "/logs/*.log") == 1)
    assert told[0] == 0


async def test_many_segments_take_several_rounds(
    broker, make_stream, answers, disk, kit, monkeypatch
):
    """A group commit writes a part of what its logs have gathered; later rounds write the rest."""
    monkeypatch.setattr(late_writes, "ROUND_BYTES", 3 * WORTH_WRITING_BYTES)
    streams = [await make_stream(broker, f"s{number}") for number in range(10)]
    in_turn = []
    broker.on_answered(lambda: in_turn.append(disk.count("write", "/logs/*.log")))
    for stream in streams:
        kit.put(stream, answers, stream.name.stream, value=bytes(WORTH_WRITING_BYTES))
    await answers.wait(10)
    assert next(filter(None, in_turn)) == 3, "none while the journal made its file"
    await kit.until(lambda: disk.count("write", "/logs/*.log") == 10)
    assert [kit.values(stream) for stream in streams] == 10 * [[bytes(WORTH_WRITING_BYTES)]]


async def test_a_log_that_goes_meanwhile_is_left_alone(broker, make_stream, answers, kit, disk):
    """A stream that is deleted before it is due leaves no file behind."""
    partition = await make_stream(broker, acks="memory")
    directory = partition.log.directory
    kit.put(partition, answers, "big", value=bytes(WORTH_WRITING_BYTES))
    broker.on_answered(partition.log.delete)
    await answers.wait(1)
    await broker.quiesce()
    assert not directory.exists()


@pytest.mark.usefixtures("on_the_loop")
async def test_a_failed_write_is_answered_and_heals(broker, partition, answers, disk, kit):
    """EIO on a segment before the sync: the group commit is rejected; acknowledged records stay."""
    kit.put(partition, answers, "a")
    await answers.wait(1)
    disk.fail("write", "/logs/*.log", times=1)
    kit.put(partition, answers, "b", value=bytes(WORTH_WRITING_BYTES))
    await answers.wait(2)
    assert isinstance(answers.errors["b"], LogPoisonedError)
    await kit.until(lambda: broker.admission.write_error is None)
    kit.put(partition, answers, "c", value=bytes(PENDING_BYTES_MAX))
    await answers.wait(3)
    assert kit.values(partition)[0] == b"a"
    assert kit.values(partition)[-1] == bytes(PENDING_BYTES_MAX)


async def test_a_failed_write_during_the_sync_takes_no_ack_away(
    broker, partition, answers, disk, kit
):
    """EIO on a segment during the sync: the journal has the entry, and recovery writes it."""
    kit.by_thread(broker)
    disk.fail("write", "/logs/*.log", times=1)
    kit.put(partition, answers, "a", value=bytes(WORTH_WRITING_BYTES))
    await answers.wait(1)
    assert answers.acks == {"a": 0}
    await kit.until(lambda: broker.telemetry.journal_poisoned == 0)
    kit.put(partition, answers, "b")
    await answers.wait(2)
    assert kit.values(partition) == [bytes(WORTH_WRITING_BYTES), b"b"]

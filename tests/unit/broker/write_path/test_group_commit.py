"""The group commit: one write and one sync for all records that arrived, and one outcome each."""

import asyncio

import pytest

from strandline.broker.write_path.io_plan import IoPlan
from strandline.broker.write_path.sync_policy import INLINE_BYTES_MAX
from strandline.errors import LogPoisonedError
from strandline.storage.segment import WORTH_WRITING_BYTES

pytestmark = pytest.mark.usefixtures("without_spares")


async def test_one_write_and_one_sync_for_all_partitions(broker, make_stream, answers, disk, kit):
    """Whatever came in one round of the loop is one journal entry, however many partitions."""
    streams = [await make_stream(broker, f"s{number}") for number in range(20)]
    kit.put(streams[0], answers, "first")
    await answers.wait(1)
    writes, syncs = disk.count("write", "/journal/"), disk.count("sync", "/journal/")
    for number, partition in enumerate(streams):
        kit.put(partition, answers, *(f"{number}-{n}" for n in range(5)))
    await answers.wait(101)
    assert disk.count("write", "/journal/") == writes + 1
    assert disk.count("sync", "/journal/") == syncs + 1
    assert broker.telemetry.group_commits == 2
    assert broker.telemetry.records_appended == 101


async def test_nothing_is_answered_before_the_sync(broker, partition, answers, disk, kit):
    """During the sync nothing is acknowledged or readable; new records are accepted."""
    kit.by_thread(broker)
    gate = disk.hold("sync", "/journal/")
    gate.released.set()  # making the file syncs too
    kit.put(partition, answers, "a")
    await answers.wait(1)
    gate.released.clear()
    kit.put(partition, answers, "b", "c")
    gate.reached.clear()
    await kit.until(gate.reached.is_set)
    kit.put(partition, answers, "d")
    await asyncio.sleep(0.02)
    assert answers.order == ["a"]
    assert (partition.high_watermark, partition.log_end_offset, partition.next_offset) == (1, 3, 4)
    assert not broker.committer.is_idle
    gate.released.set()
    await answers.wait(4)
    assert answers.order == ["a", "b", "c", "d"]
    assert broker.telemetry.group_commits == 3


async def test_memory_acks_need_no_sync(broker, make_stream, answers, disk, kit):
    """A stream with acks 'memory' is answered after the write; readers see its records then."""
    partition = await make_stream(broker, acks="memory")
    kit.put(partition, answers, "first")
    await answers.wait(1)
    syncs = disk.count("sync", "/journal/")
    kit.put(partition, answers, *range(10))
    await answers.wait(11)
    assert disk.count("sync", "/journal/") == syncs
    assert partition.high_watermark == 11


async def test_memory_acks_of_one_publish_come_before_the_sync(
    broker, partition, answers, disk, kit
):
    """A publish that asks for less is acknowledged sooner; the others wait for the disk."""
    kit.by_thread(broker)
    kit.put(partition, answers, "first")
    await answers.wait(1)
    gate = disk.hold("sync", "/journal/")
    kit.put(partition, answers, "late")
    kit.put(partition, answers, "early", acks="memory")
    await answers.wait(2)
    assert answers.order == ["first", "early"]
    assert partition.high_watermark == 1, "acked is not committed"
    gate.released.set()
    await answers.wait(3)
    assert broker.telemetry.acks == 3


async def test_a_mixed_group_commit_syncs_for_all(broker, make_stream, answers, disk, kit):
    """Streams that need the sync get it, whichever share the group commit."""
    memory, durable = await make_stream(broker, "m", acks="memory"), await make_stream(broker, "d")
    syncs = disk.count("sync", "/journal/")
    kit.put(memory, answers, "m")
    kit.put(durable, answers, "d")
    await answers.wait(2)
    assert disk.count("sync", "/journal/") > syncs
    assert broker._storage.journal.synced_sequence == broker._storage.journal.last_sequence


async def test_front_ends_are_flushed_after_every_group_commit(broker, partition, answers, kit):
    """Callbacks run after the acks of a group commit, also when it had only a duplicate."""
    flushed = []
    broker.on_answered(lambda: flushed.append(len(answers.order)))
    kit.put(partition, answers, "a", message_id="m")
    await answers.wait(1)
    await broker.quiesce()
    assert flushed[-1] == 1
    kit.put(partition, answers, "again", message_id="m")
    await kit.until(lambda: flushed[-1] == 2)


async def test_a_front_end_that_fails_to_flush_stops_no_commit(broker, partition, answers, kit):
    """The loop reports a bug in a callback; appends continue."""
    failures = []
    broker._loop.set_exception_handler(lambda _, context: failures.append(context))

    def broken():
        raise RuntimeError("a bug")

    broker.on_answered(broken)
    for number in range(3):
        kit.put(partition, answers, number)
        await answers.wait(number + 1)
    assert failures
    assert len(answers.acks) == 3
    assert broker.admission.write_error is None


@pytest.mark.parametrize("is_bug", [True, False])
async def test_a_bug_in_a_group_commit_is_reported(
    broker, partition, answers, kit, monkeypatch, is_bug
):
    """Its records are rejected as after a failed sync, which is no bug and has its own log line."""
    failures = []
    broker._loop.set_exception_handler(lambda _, context: failures.append(context))
    failed = LogPoisonedError("the sync failed")
    error = RuntimeError("a bug") if is_bug else failed

    def commit(_):
        raise error

    monkeypatch.setattr(IoPlan, "commit", commit)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    monkeypatch.undo()
    assert [each["exception"] for each in failures] == [error] * is_bug
    assert answers.errors["a"].code == failed.code
    told = "internal error, the log is reopened: RuntimeError('a bug')"
    assert answers.errors["a"].message == (told if is_bug else failed.message)


async def test_an_ack_sink_that_raises_is_called_once_and_does_not_affect_others(
    broker, partition, answers, kit
):
    """The loop reports it; everybody else is acknowledged, and the storage is not to blame."""
    failures = []
    broker._loop.set_exception_handler(lambda _, context: failures.append(context))

    class Broken(kit.Answers):
        def acked(self, token, partition, offset, *, duplicate):
            super().acked(token, partition, offset, duplicate=duplicate)
            raise RuntimeError("a bug")

    broken = Broken()
    kit.put(partition, answers, "before")
    kit.put(partition, broken, "broken")
    kit.put(partition, answers, "after")
    await answers.wait(2)
    assert broken.order == ["broken"]
    assert len(failures) == 1
    assert answers.acks == {"before": 0, "after": 2}
    assert broker.admission.write_error is None
    assert kit.values(partition) == [b"before", b"broken", b"after"]


async def test_passing_is_seen_by_those_who_wait(broker, partition, answers, disk, kit):
    """``passed`` returns at the end of the group commit, even if the next begins at once."""
    await broker.committer.passed()
    kit.by_thread(broker)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    gate = disk.hold("sync", "/journal/")
    kit.put(partition, answers, "b")
    await kit.until(gate.reached.is_set)
    passing = asyncio.create_task(broker.committer.passed())
    kit.put(partition, answers, "c")
    await asyncio.sleep(0.01)
    assert not passing.done()
    gate.released.set()
    await asyncio.wait_for(passing, 60)


async def test_frames_leave_before_the_sync(broker, partition, answers, disk, kit):
    """Followers write and sync while this broker does: their frames do not wait for its sync."""
    kit.put(partition, answers, "first")
    await answers.wait(1)
    before, syncs_when_sent = disk.count("sync", "/journal/"), []

    def say():
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: syncs_when_sent.append(disk.count("sync", "/journal/") - before))
        return True

    broker.committer.send_queue.add_frames(say)
    kit.put(partition, answers, "second")
    await answers.wait(2)
    await kit.until(lambda: syncs_when_sent)
    assert syncs_when_sent[0] == 0
    assert disk.count("sync", "/journal/") == before + 1


async def test_the_disk_begins_only_where_there_is_something_to_do_meanwhile(
    broker, partition, answers, disk, kit
):
    """For a lone small record it would be two calls for one."""
    for number in range(3):
        kit.put(partition, answers, f"small {number}")
        await answers.wait(number + 1)
    assert disk.count("begin", "/journal/") == 0
    kit.put(partition, answers, "large", value=bytes(WORTH_WRITING_BYTES))
    await answers.wait(4)
    assert disk.count("begin", "/journal/") == 1
    broker.committer.send_queue.add_frames(lambda: True)
    kit.put(partition, answers, "to others")
    await answers.wait(5)
    assert disk.count("begin", "/journal/") == 2


async def test_what_others_have_committed_is_sent_before_the_sync(
    broker, partition, answers, disk, kit
):
    """Publishers can send the next records while the disk is busy with those of others."""
    kit.put(partition, answers, "first")
    await answers.wait(1)
    order = []

    def say():
        if "frames" not in order:  # an ack of another broker has come, too
            broker.committer.send_queue.deliver_soon()
        order.append("frames")
        return True

    broker.committer.send_queue.add_frames(say)
    broker.on_answered(lambda: order.append(f"{disk.count('sync', '/journal/') - before} syncs"))
    before = disk.count("sync", "/journal/")
    kit.put(partition, answers, "second")
    await answers.wait(2)
    await kit.until(lambda: order[-1] == "1 syncs")
    assert order == ["frames", "0 syncs", "frames", "1 syncs"]


@pytest.mark.parametrize("when", ["before the group commit", "meanwhile"])
async def test_what_others_have_committed_does_not_wait_for_a_slow_sync(
    broker, partition, answers, disk, kit, when
):
    """It is acknowledged once the sync runs on its thread, and while that is busy."""
    kit.by_thread(broker)
    kit.put(partition, answers, "first")
    await answers.wait(1)
    gate = disk.hold("sync", "/journal/")
    sent = []
    broker.on_answered(lambda: sent.append(gate.released.is_set()))
    kit.put(partition, answers, "second")
    if when == "before the group commit":
        broker.committer.send_queue.deliver_soon()
    await kit.until(gate.reached.is_set)
    if when == "meanwhile":
        await asyncio.sleep(0.01)
        broker.committer.send_queue.deliver_soon()
    try:
        await kit.until(lambda: sent, seconds=10)
        assert not any(sent)
        assert broker.committer.is_busy
    finally:
        gate.released.set()
    await answers.wait(2)
    assert sent[-1]


@pytest.mark.parametrize("connections", [0, 1, 2])
async def test_large_group_commits_of_several_connections_are_synced_off_the_loop(
    broker, make_stream, answers, kit, monkeypatch, connections
):
    """Not those that come over one connection alone; without an ack it is unknown."""
    streams = [await make_stream(broker, f"s{number}") for number in range(2)]
    if connections:
        kit.put(streams[0], answers, "small")
        await answers.wait(1)
    submit, handed_over = broker._syncer.submit, []
    monkeypatch.setattr(
        broker._syncer, "submit", lambda fd, done: [handed_over.append(fd), submit(fd, done)]
    )
    others = kit.Answers() if connections == 2 else answers
    for partition, source in zip(streams, (answers, others), strict=True):
        for token in (partition.name, f"{partition.name} again"):
            if connections:
                kit.put(partition, source, token, value=bytes(INLINE_BYTES_MAX))
            else:
                partition.append(bytes(INLINE_BYTES_MAX), subject="s")
    await kit.until(lambda: streams[-1].high_watermark == 2)
    assert bool(handed_over) == (connections != 1)


async def test_a_front_end_that_fails_before_the_sync_stops_no_group_commit(
    broker, partition, answers, kit
):
    """The loop reports a bug in a callback; the group commit continues with its sync."""
    failures = []
    broker._loop.set_exception_handler(lambda _, context: failures.append(context))

    def broken():
        raise RuntimeError("a bug")

    broker.on_answered(broken)
    broker.committer.send_queue.add_frames(lambda: True)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    assert failures
    assert broker.admission.write_error is None
    assert not broker.committer.is_busy


async def test_only_a_group_commit_of_a_single_record_that_was_synced_is_polled_behind(
    broker, partition, make_stream, answers, kit, monkeypatch
):
    """After larger ones there is more to read, and acks 'memory' need no sync."""
    in_memory = await make_stream(broker, "m", acks="memory")
    behind = []
    monkeypatch.setattr(
        broker.committer.journal_sync.busy_poll, "synced", lambda *times: behind.append(times)
    )
    kit.put(partition, answers, "a")
    await answers.wait(1)
    kit.put(partition, answers, "b", "c")
    await answers.wait(3)
    kit.put(in_memory, answers, "d")
    await answers.wait(4)
    assert len(behind) == 1
    assert behind[0][0] <= behind[0][1]

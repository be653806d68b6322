"""The broker: streams, restarts, crashes that keep acked records, stops that answer all."""

import asyncio
import errno

import pytest

from strandline.broker.broker import Broker
from strandline.config import BrokerConfig, StreamConfig
from strandline.errors import (
    CorruptBatchError,
    DataDirLockedError,
    DiskFullError,
    InvalidConfigError,
    LogPoisonedError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.headers import encode_headers
from strandline.servers.nats.ingest import MessageIngest
from strandline.storage import reserve

pytestmark = pytest.mark.usefixtures("without_spares")


def ids(*names):
    """Options of an append with a message id, as the front ends give them."""
    [name] = names
    return {"message_id": name, "headers": [("Nats-Msg-Id", name.encode())]}


# Life


async def test_a_clean_stop_and_start_keep_everything(open_broker, make_stream, answers, kit):
    """Streams, records, offsets and log starts are as they were."""
    first = await open_broker()
    partition = await make_stream(first, partitions=2, compression="zstd")
    kit.put(partition, answers, *range(10))
    await answers.wait(10)
    await first.delete_before("s", 0, 4)
    await first.stop()
    second = await open_broker()
    assert second.telemetry.recovery_records == 0, "a clean stop leaves nothing to replay"
    found = second.stream("s")
    assert found.config.compression == "zstd"
    assert (found.partition(0).log_start_offset, found.partition(0).high_watermark) == (4, 10)
    assert kit.values(found.partition(0)) == [b"%d" % n for n in range(4, 10)]
    kit.put(found.partition(0), answers, "next")
    await answers.wait(11)
    assert answers.acks["next"] == 10


async def test_a_crash_keeps_what_was_acked(open_broker, make_stream, answers, kit):
    """Only the journal was synced: it is replayed, and offsets continue."""
    first = await open_broker()
    partition = await make_stream(first)
    kit.put(partition, answers, *range(10))
    await answers.wait(10)
    kit.abandon(first)
    second = await open_broker()
    assert second.telemetry.recovery_records == 10
    found = second.stream("s").partition(0)
    assert kit.values(found) == [b"%d" % n for n in range(10)]
    kit.put(found, answers, "next")
    await answers.wait(11)
    assert answers.acks["next"] == 10


@pytest.mark.parametrize("crash", [False, True])
async def test_ids_survive_a_restart(open_broker, make_stream, answers, kit, clock, crash):
    """A retry after the restart is recognised within the window, and stored after it."""
    first = await open_broker()
    partition = await make_stream(first)
    kit.put(partition, answers, "a", **ids("m"))
    await answers.wait(1)
    if crash:
        kit.abandon(first)
    else:
        await first.stop()
    clock.advance_ms(60_000)
    found = (await open_broker()).stream("s").partition(0)
    kit.put(found, answers, "retry", **ids("m"))
    await answers.wait(2)
    assert answers.acks["retry"] == 0
    assert answers.duplicates == {"retry"}
    clock.advance_ms(60_001)
    kit.put(found, answers, "much later", **ids("m"))
    await answers.wait(3)
    assert answers.acks["much later"] == 1


async def test_ids_that_are_not_utf8_are_told_apart(open_broker, make_stream, answers):
    """As NATS publishers send them: two records, whose retries are known, live and restarted."""

    def publish(broker, token, message_id):
        routes = broker.routes
        block = encode_headers([("Nats-Msg-Id", message_id)])
        backpressure = Backpressure(1 << 20)
        intake = MessageIngest(broker.clock, routes, broker.admission, backpressure=backpressure)
        intake.take(routes.find(b"s"), token, block=block, payload=b"v", sink=answers)

    first = await open_broker()
    await make_stream(first)
    publish(first, b"a", b"\xe8")
    publish(first, b"b", b"\xe9")
    publish(first, b"a again", b"\xe8")
    await answers.wait(3)
    await first.stop()
    second = await open_broker()
    publish(second, b"b again", b"\xe9")
    publish(second, b"c", b"\xea")
    await answers.wait(5)
    assert answers.acks == {b"a": 0, b"b": 1, b"a again": 0, b"b again": 1, b"c": 2}
    assert answers.duplicates == {b"a again", b"b again"}


async def test_a_second_broker_on_the_directory_is_rejected(broker, open_broker, partition):
    """The first one is not affected; after its stop the directory is free."""
    with pytest.raises(DataDirLockedError, match="in use by another broker"):
        await open_broker()
    assert broker.stream("s")
    await broker.stop()
    await open_broker()


async def test_a_start_that_fails_lets_go_of_the_directory(
    open_broker, make_stream, answers, kit, data_dir, disk
):
    """Once the cause is gone the next start works, in the same process."""
    first = await open_broker()
    kit.put(await make_stream(first), answers, "a")
    await answers.wait(1)
    await first.stop()
    intact = (data_dir / "metadata.json").read_bytes()
    (data_dir / "metadata.json").write_bytes(b"nonsense")
    with pytest.raises(CorruptBatchError):
        await open_broker()
    (data_dir / "metadata.json").write_bytes(intact)
    disk.fail("read", "/journal/")
    disk.fail("open", "/journal/")
    with pytest.raises(LogPoisonedError):
        await open_broker()
    disk.heal()
    assert (await open_broker()).stream("s")


async def test_a_broker_starts_and_stops_on_a_full_disk(
    open_broker, make_stream, answers, disk, kit
):
    """Reads work, appends fail with disk_full, and service returns with space."""
    first = await open_broker()
    partition = await make_stream(first)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    await first.stop()
    disk.fill()
    second = await open_broker()
    found = second.stream("s").partition(0)
    assert kit.values(found) == [b"a"]
    kit.put(found, answers, "refused")
    await answers.wait(2)
    assert answers.codes == {"refused": "disk_full"}
    await second.stop()
    third = await open_broker()
    disk.heal()
    found = third.stream("s").partition(0)
    kit.put(found, answers, "b")
    await answers.wait(3)
    assert kit.values(found) == [b"a", b"b"]


async def test_a_full_disk_after_a_crash_rejects_the_start_and_loses_nothing(
    open_broker, make_stream, answers, disk, kit
):
    """Replay needs space: the start reports that, and keeps the journal."""
    first = await open_broker()
    partition = await make_stream(first)
    kit.put(partition, answers, "a")
    await answers.wait(1)
    kit.abandon(first)
    disk.fill()
    for _ in range(2):
        with pytest.raises(DiskFullError, match="free space or enlarge the file system"):
            await open_broker()
    disk.heal()
    assert kit.values((await open_broker()).stream("s").partition(0)) == [b"a"]


@pytest.mark.parametrize("where", ["inline", "thread"])
async def test_a_stop_answers_everything(open_broker, make_stream, answers, kit, disk, where):
    """Accepted records are stored and acked before the end; later ones are rejected."""
    broker = await open_broker()
    partition = await make_stream(broker)
    if where == "thread":
        broker._syncer.average_ms = 1e12
    kit.put(partition, answers, *range(50))
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    kit.put(partition, answers, "late")
    await stopping
    assert answers.codes == {"late": "shutting_down"}
    assert len(answers.acks) == 50
    with pytest.raises(ShuttingDownError):
        await broker.create_stream(StreamConfig(name="t", subject="t"))
    with pytest.raises(ShuttingDownError):
        await broker.delete_stream("s")
    await broker.stop()  # harmless


async def test_a_stop_while_reopening_stays_stopped(broker, partition, answers, disk, kit):
    """A broker that heals while it stops does not begin to accept again."""
    gate = disk.hold("sync", "/logs/")
    broker.committer.poison(LogPoisonedError("EIO"))
    gate.released.set()
    stopping = asyncio.create_task(broker.stop())
    await stopping
    kit.put(partition, answers, "late")
    assert answers.codes == {"late": "shutting_down"}


async def test_corruption_found_at_the_start_is_logged_with_its_place(
    open_broker, make_stream, answers, kit, data_dir, caplog
):
    """File and byte position are in the log, and counted; the other records are served."""
    first = await open_broker()
    partition = await make_stream(first)
    for number in range(3):
        kit.put(partition, answers, number, value=b"%d" % number + bytes(1000))
        await answers.wait(number + 1)
    kit.abandon(first)
    [journal] = [f for f in (data_dir / "journal").iterdir() if b"STNE" in f.read_bytes()]
    content = bytearray(journal.read_bytes())
    at = content.index(b"1" + bytes(100))
    content[at + 5] ^= 0x10
    journal.write_bytes(content)
    second = await open_broker()
    assert f"corruption in {journal} at byte" in caplog.text
    assert second.telemetry.corrupt_batches == 1
    found = second.stream("s").partition(0)
    with pytest.raises(CorruptBatchError) as caught:
        found.read(1, 1 << 20)
    assert caught.value.next_offset == 2
    assert found.high_watermark == 3
    assert found.read(0, 1).size > 0
    assert found.read(2, 1).size > 0


async def test_a_task_that_dies_of_a_bug_is_reported(broker, kit, caplog, monkeypatch):
    """A broker without checkpoints would fill its disk: the log says that one died."""

    async def bug():
        raise RuntimeError("a bug")

    broker._spawn(bug(), "example")
    await kit.until(lambda: "task example died" in caplog.text)


# Streams


async def test_streams_are_announced_and_counted(broker):
    """Front ends are notified of every change; the metrics follow."""
    changes = []
    broker.on_streams_changed(
        lambda names: changes.append((*names, [s.name for s in broker.streams()]))
    )
    await broker.create_stream(StreamConfig(name="b", subject="b", partitions=3))
    await broker.create_stream(StreamConfig(name="a", subject="a"))
    broker.refresh_telemetry()
    assert broker.telemetry.streams == 2
    assert broker.telemetry.partitions == 4
    await broker.delete_stream("b")
    assert changes == [("b", ["b"]), ("a", ["a", "b"]), ("b", ["a"])]
    assert broker.telemetry.partitions == 1


async def test_a_name_is_taken_until_it_is_deleted(broker):
    """A second stream of the same name is rejected until the first is deleted."""
    config = StreamConfig(name="s", subject="s")
    await broker.create_stream(config)
    with pytest.raises(StreamExistsError):
        await broker.create_stream(config)
    await broker.delete_stream("s")
    await broker.create_stream(config)
    with pytest.raises(InvalidConfigError):
        await broker.create_stream(StreamConfig(name="bad", subject="bad", partitions=0))


@pytest.mark.parametrize("what", ["mkdir", "metadata"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_stream_that_cannot_be_made_leaves_nothing(
    broker, open_broker, disk, what, code, data_dir
):
    """The name stays free, now and after a restart, and the next attempt works."""
    if what == "mkdir":
        disk.fail("mkdir", "/logs/00000002", code=code)
    else:
        disk.fail("create", "metadata", code=code)
    config = StreamConfig(name="s", subject="s", partitions=3)
    with pytest.raises((DiskFullError, LogPoisonedError)):
        await broker.create_stream(config)
    with pytest.raises(UnknownStreamError, match="create it"):
        broker.stream("s")
    assert not broker._storage.logs
    disk.heal()
    await broker.create_stream(config)
    await broker.stop()
    assert len((await open_broker()).stream("s").partitions) == 3


async def test_deleting_rejects_what_is_pending(broker, partition, answers, kit, data_dir):
    """Publishers get an error; the stream's files are removed."""
    kit.put(partition, answers, "a")
    await answers.wait(1)
    kit.put(partition, answers, "pending")
    await broker.delete_stream("s")
    kit.put(partition, answers, "late")
    assert answers.codes == {"pending": "unknown_stream", "late": "unknown_stream"}
    assert not list((data_dir / "logs").iterdir())
    assert broker.admission.write_error is None
    with pytest.raises(UnknownStreamError):
        await broker.delete_stream("s")


async def test_deleting_waits_for_the_sync_in_progress(broker, partition, answers, disk, kit):
    """Records in a group commit are answered first, then the files are removed."""
    broker._syncer.average_ms = 1e12
    kit.put(partition, answers, "a")
    await answers.wait(1)
    gate = disk.hold("sync", "/journal/")
    kit.put(partition, answers, "syncing")
    await kit.until(gate.reached.is_set)
    kit.put(partition, answers, "pending")
    deleting = asyncio.create_task(broker.delete_stream("s"))
    await answers.wait(2)
    assert answers.codes == {"pending": "unknown_stream"}
    assert not deleting.done()
    gate.released.set()
    await deleting
    assert answers.acks == {"a": 0, "syncing": 1}


async def test_deleting_does_not_wait_for_a_pause_of_the_others(
    broker, make_stream, answers, kit, disk
):
    """On a busy broker, a deletion waits for one group commit only."""
    await make_stream(broker, "gone")
    busy = await make_stream(broker, "busy")
    broker._syncer.average_ms = 1e12
    token = 0

    def again():
        nonlocal token
        token += 1
        kit.put(busy, answers, token)

    broker.on_answered(again)
    again()
    async with asyncio.timeout(60):
        await broker.delete_stream("gone")
    broker.committer.send_queue.disconnect()


async def test_a_deleted_stream_does_not_come_back(open_broker, make_stream, answers, kit):
    """After a crash the journal still has its records; no log gets them."""
    first = await open_broker()
    partition = await make_stream(first)
    kit.put(partition, answers, *range(5))
    await answers.wait(5)
    await first.delete_stream("s")
    partition = await make_stream(first)
    kit.put(partition, answers, "new")
    await answers.wait(6)
    kit.abandon(first)
    found = (await open_broker()).stream("s").partition(0)
    assert kit.values(found) == [b"new"]


async def test_a_deletion_that_cannot_be_noted_did_not_happen(
    broker, partition, answers, disk, kit
):
    """No space for the metadata: a typed error, and the stream works as before."""
    disk.fail("write", "metadata", code=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        await broker.delete_stream("s")
    kit.put(partition, answers, "a")
    await answers.wait(1)
    assert answers.acks == {"a": 0}


async def test_files_that_cannot_be_removed_are_left_to_the_next_start(
    open_broker, make_stream, disk, data_dir
):
    """The stream is deleted anyway."""
    first = await open_broker()
    await make_stream(first)
    disk.fail("rename", "/logs/")
    await first.delete_stream("s")
    assert not first.streams()
    disk.heal()
    await first.stop()
    await open_broker()
    assert not list((data_dir / "logs").iterdir())


async def test_unknown_streams_and_partitions_say_what_there_is(broker, partition):
    """The error lists names and the range of numbers."""
    with pytest.raises(UnknownStreamError, match="there are: s"):
        broker.stream("t")
    with pytest.raises(UnknownPartitionError, match="0 to 0"):
        await broker.delete_before("s", 1, 0)
    with pytest.raises(UnknownStreamError):
        await broker.delete_before("t", 0, 0)


# Truncation


async def test_truncation_removes_a_prefix(broker, partition, answers, kit):
    """Up to the high watermark and no further; below the log start it changes nothing."""
    kit.put(partition, answers, *range(10))
    await answers.wait(10)
    assert await broker.delete_before("s", 0, 4) == 4
    assert await broker.delete_before("s", 0, 2) == 4
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError, match="high watermark is 10"):
            await broker.delete_before("s", 0, offset)
    assert await broker.delete_before("s", 0, 10) == 10
    kit.put(partition, answers, "next")
    await answers.wait(11)
    assert kit.values(partition) == [b"next"]


async def test_truncation_needs_no_space(broker, partition, answers, kit, monkeypatch):
    """On a full disk, before any checkpoint, the reserve is spent for it and then renewed."""
    kit.put(partition, answers, *range(10))
    await answers.wait(10)
    kept = broker.data_dir / reserve.FILE_NAME
    plain = broker.disk.write_atomically

    def write_atomically(path, data):
        if kept.exists():
            raise DiskFullError("full")
        plain(path, data)

    monkeypatch.setattr(broker.disk, "write_atomically", write_atomically)
    assert await broker.delete_before("s", 0, 4) == 4
    assert kept.exists()


async def test_truncation_of_everything_survives_a_crash(open_broker, make_stream, answers, kit):
    """Used offsets stay used, and the records stay deleted."""
    first = await open_broker()
    partition = await make_stream(first)
    kit.put(partition, answers, *range(10))
    await answers.wait(10)
    await first.delete_before("s", 0, 10)
    kit.abandon(first)
    found = (await open_broker()).stream("s").partition(0)
    assert (found.log_start_offset, found.high_watermark) == (10, 10)


# Other threads


async def test_threads_reach_the_loop(broker, partition, answers, kit):
    """Front ends with threads of their own append and administrate through the loop."""

    def remote_error():
        broker.call_soon(lambda: kit.put(partition, answers, "a"))
        config = StreamConfig(name="t", subject="t")
        return broker.run_coroutine(broker.create_stream(config)).result(60)

    stream = await asyncio.to_thread(remote_error)
    await answers.wait(1)
    assert broker.stream("t") is stream


async def test_settings_of_a_broker_reach_its_parts(tmp_path):
    """Without arguments a broker uses the machine's clock and file system."""
    broker = Broker(BrokerConfig(data_dir=str(tmp_path)))
    await broker.start()
    stream = await broker.create_stream(StreamConfig(name="s", subject="s"))
    assert stream.created_ns > 1_700_000_000_000_000_000
    await broker.stop()

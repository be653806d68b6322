"""Retention and compaction of a running broker."""

import asyncio

import pyarrow as pa
import pytest

from strandline.api.put import PRODUCER_MEMORY_S
from strandline.broker.broker import Broker
from strandline.broker.cluster.remote import RemotePartition
from strandline.config import BrokerConfig, JournalConfig, StreamConfig
from strandline.errors import UnknownStreamError
from strandline.record.codec import MESSAGE_ID_HEADER, decode_batches
from strandline.storage.faulty_disk import FaultyDisk
from strandline.types import LogId, PartitionName, ProducerStamp

pytestmark = pytest.mark.usefixtures("without_spares")

ID = [{"headers": [(MESSAGE_ID_HEADER, b"id-%d" % turn)]} for turn in range(2)]


@pytest.fixture
async def cleaned(open_broker, make_stream, answers, kit):
    """A broker whose cleaner is run by hand, and a way to fill a stream of it."""
    broker = await open_broker(cleaner_interval_ms=10**9)

    async def fill(count, *, name="s", keys=1 << 30, size=1000, **settings):
        try:
            partition = broker.stream(name).partition(0)
        except UnknownStreamError:
            partition = await make_stream(broker, name, **settings)
        for number in range(count):
            token = len(answers.order)
            key = b"%d" % (number % keys)
            kit.put(partition, answers, token, key=key, value=b"%d" % number + bytes(size))
            await answers.wait(token + 1)
        return partition

    broker.fill = fill
    return broker


async def test_retention_by_records_keeps_the_newest(cleaned):
    """The log start moves, and exactly the configured number is kept."""
    partition = await cleaned.fill(10, retention_records=3)
    await cleaned._cleaner.clean()
    assert (partition.log_start_offset, partition.high_watermark) == (7, 10)


async def test_retention_by_bytes_deletes_segments(cleaned):
    """Whole sealed segments go, oldest first, and are counted."""
    partition = await cleaned.fill(200, retention_bytes=100_000)
    segments = len(partition.log.segments)
    await cleaned._cleaner.clean()
    gone = segments - len(partition.log.segments)
    assert gone > 0
    assert partition.log.size_bytes <= 100_000 + (64 << 10)
    assert cleaned.telemetry.retention_segments == gone
    assert cleaned.telemetry.retention_bytes > 50_000


async def test_retention_by_age_seals_what_is_old(cleaned, clock):
    """A segment whose newest record is too old goes, the active one included."""
    partition = await cleaned.fill(3, retention_age_ms=1000)
    clock.advance_ms(1001)
    await cleaned._cleaner.clean()
    assert (partition.log_start_offset, partition.high_watermark) == (3, 3)


async def test_partitions_that_others_keep_are_left_to_them(cleaned, monkeypatch):
    """Partitions without a replica here are skipped; others are cleaned."""
    partition = await cleaned.fill(10, retention_records=3)
    limits = {"retention_age_ms": 1, "retention_bytes": 1, "compact": True}
    settings = StreamConfig(name="r", subject="r", **limits)
    remote_error = RemotePartition(
        PartitionName("r", 0), settings, log_id=LogId(77), admission=cleaned.admission
    )
    monkeypatch.setattr(cleaned._cleaner, "_partitions", lambda: [remote_error, partition])
    await cleaned._cleaner.clean()
    assert partition.log_start_offset == 7


async def test_compaction_keeps_the_newest_of_each_key(cleaned):
    """Sealed segments that a checkpoint has passed are rewritten while records arrive."""
    partition = await cleaned.fill(300, keys=5, compact=True)
    await cleaned._checkpoints.checkpoint()
    await cleaned._cleaner.clean()
    assert cleaned.telemetry.compaction_records > 150
    assert partition.read(0, 1 << 20).size > 0
    await cleaned.fill(1)
    assert partition.high_watermark == 301


async def test_a_retry_is_known_after_compaction_and_a_restart(
    open_broker, make_stream, answers, kit, clock
):
    """By its message id within the window, and by a producer's numbers."""
    broker = await open_broker(cleaner_interval_ms=10**9)
    partition = await make_stream(broker, compact=True)

    def number(sequence, token, who=7):
        rows = pa.RecordBatch.from_pydict({"key": [b"n"], "value": [b"." * 2000]})
        stamp = ProducerStamp(who, 0, sequence)
        partition.append_arrow(rows, ack_sink=answers, token=token, producer=stamp)

    for turn in range(2):
        kit.put(partition, answers, f"id-{turn}", key=b"k", message_id=f"id-{turn}", **ID[turn])
        number(turn, f"number-{turn}")
        await answers.wait(2 * turn + 2)
    number(0, "newer", who=8)
    await answers.wait(5)
    partition.log.roll()
    await broker._checkpoints.checkpoint()
    await broker._cleaner.clean()
    await broker.stop()
    broker = await open_broker(cleaner_interval_ms=10**9)
    partition = broker.stream("s").partition(0)
    kit.put(partition, answers, "id again", key=b"k", message_id="id-0", **ID[0])
    number(1, "number again")
    await answers.wait(7)
    assert answers.duplicates == {"id again", "number again"}
    assert (answers.acks["id again"], answers.acks["number again"]) == (0, 3)
    clock.advance_ms(PRODUCER_MEMORY_S * 1000 + 1)
    partition.log.roll()
    await broker._checkpoints.checkpoint()
    await broker._cleaner.clean()
    assert broker.telemetry.compaction_records == 2


async def test_a_failing_round_is_tried_again(cleaned, disk, caplog):
    """No space or EIO in one partition is logged; others are cleaned, and the next round tries."""
    bad = await cleaned.fill(5, name="bad", retention_records=1)
    good = await cleaned.fill(5, name="good", retention_records=1)
    disk.fail("write", f"{bad.log_id:08d}/log-start")
    await cleaned._cleaner.clean()
    assert (bad.log_start_offset, good.log_start_offset) == (0, 4)
    assert "cleaning bad/0" in caplog.text
    disk.heal()
    await cleaned._cleaner.clean()
    assert bad.log_start_offset == 4


async def test_a_stream_is_not_deleted_while_it_is_compacted(cleaned, disk, kit):
    """Deleting waits for the thread that rewrites the stream's segments."""
    partition = await cleaned.fill(300, keys=250, compact=True)
    await cleaned._checkpoints.checkpoint()
    gate = disk.hold("create", ".cleaned")
    cleaning = asyncio.create_task(cleaned._cleaner.clean())
    await kit.until(gate.reached.is_set)
    deleting = asyncio.create_task(cleaned.delete_stream("s"))
    await asyncio.sleep(0.02)
    assert not deleting.done()
    gate.released.set()
    await asyncio.gather(cleaning, deleting)
    assert not partition.log.directory.exists()


async def test_a_stream_deleted_during_a_round_is_left_alone(cleaned, disk, kit, caplog):
    """The round does not touch a stream that was deleted meanwhile."""
    await cleaned.fill(300, name="a", keys=250, compact=True)
    await cleaned.fill(5, name="b", retention_records=1)
    await cleaned._checkpoints.checkpoint()
    gate = disk.hold("create", ".cleaned")
    cleaning = asyncio.create_task(cleaned._cleaner.clean())
    await kit.until(gate.reached.is_set)
    deleting = asyncio.create_task(cleaned.delete_stream("b"))
    await asyncio.sleep(0.01)
    gate.released.set()
    await asyncio.gather(cleaning, deleting)
    assert "cleaning b/0" not in caplog.text


async def test_retention_does_not_overtake_the_sync(cleaned, disk, kit, answers):
    """The log start never passes the high watermark."""
    partition = await cleaned.fill(10, retention_records=2)
    cleaned._syncer.average_ms = 1e12
    gate = disk.hold("sync", "/journal/")
    kit.put(partition, answers, *"abcdef")
    await kit.until(gate.reached.is_set)
    assert (partition.high_watermark, partition.log_end_offset) == (10, 16)
    cleaning = asyncio.create_task(cleaned._cleaner.clean())
    await asyncio.sleep(0.02)
    assert partition.log_start_offset <= partition.high_watermark
    gate.released.set()
    await cleaning
    assert (partition.log_start_offset, partition.high_watermark) == (14, 16)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({"compact": True}, [b"new"]), ({"retention_records": 1}, [b"new"]), ({}, [b"old"])],
)
async def test_what_is_removed_went_for_something_durable(tmp_path, kit, answers, settings, kept):
    """A record acked from memory survives a power loss if older ones were removed for its sake."""
    disk = FaultyDisk(tmp_path / "scratch")
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        journal=JournalConfig(file_bytes=1 << 20),
        cleaner_interval_ms=10**9,
    )
    broker = Broker(config, disk=disk)
    await broker.start()
    stream = await broker.create_stream(
        StreamConfig(name="s", subject="s", acks="memory", **settings)
    )
    partition = stream.partition(0)
    kit.put(partition, answers, "old", key=b"k")
    await answers.wait(1)
    partition.log.roll()
    await broker._checkpoints.checkpoint()
    kit.put(partition, answers, "new", key=b"k")
    await answers.wait(2)
    await broker._cleaner.clean()
    kit.abandon(broker)
    broker._storage.journal.poison()
    broker._close_storage()
    disk.crash()
    broker = Broker(config, disk=disk)
    await broker.start()
    assert values(broker.stream("s").partition(0)) == kept
    await broker.stop()


async def test_nothing_is_removed_if_what_it_goes_for_cannot_be_synced(cleaned, disk, kit):
    """A failed sync poisons the journal; the next round removes after reopening."""
    partition = await cleaned.fill(3, retention_records=1, acks="memory")
    disk.fail("sync", "/journal/", times=1)
    await cleaned._cleaner.clean()
    assert partition.log_start_offset == 0
    assert cleaned.why_not_ready.startswith("storage failed")
    await kit.until(lambda: cleaned.admission.write_error is None)
    await cleaned._cleaner.clean()
    assert (partition.log_start_offset, partition.high_watermark) == (2, 3)


def values(partition):
    """Every committed value of a partition that fits into one read, compacted or not."""
    found = partition.read(partition.log_start_offset, 1 << 20)
    batches = decode_batches(found, columns=["value"])
    return [value for batch in batches for value in batch.column("value").to_pylist()]

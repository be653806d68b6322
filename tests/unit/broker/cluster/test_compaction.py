"""Compaction where a partition has several copies: each compacts its own, all say the same."""

import shutil

import pytest

from strandline.broker.cluster.replication_throttle import ReplicationThrottle
from strandline.core.metadata.commands import ForgetDirectory
from strandline.record.codec import decode_batches
from strandline.types import PartitionName

PAD = b"." * 3000
DELAY_MS = 1


def state(partition):
    """Return the newest value of every key in a replica, without deleted keys."""
    found, offset, end = {}, partition.log_start_offset, partition.high_watermark
    while offset < end:
        batches = partition.read(offset, 1 << 20)
        if not batches.size:
            break
        for rows in decode_batches(batches, columns=["offset", "key", "value"]):
            for at, key, value in zip(*(c.to_pylist() for c in rows.columns), strict=True):
                if at >= offset:
                    offset = at + 1
                    found[key] = value
    return {key: value for key, value in found.items() if value is not None}


def keys_kept(partition):
    """Return every key with a record left, deleted or not."""
    found = set()
    offset = partition.log_start_offset
    while (batches := partition.read(offset, 1 << 20)).size:
        for rows in decode_batches(batches, columns=["offset", "key"]):
            found |= set(rows.column("key").to_pylist())
            offset = rows.column("offset").to_pylist()[-1] + 1
        if offset >= partition.high_watermark:
            break
    return found


@pytest.fixture
async def compacted(cluster):
    """Three brokers with a compacted stream, and helpers."""
    cluster.settings["cleaner_interval_ms"] = 3_600_000  # tests say when
    await cluster.start(1, 2, 3)
    await cluster.create(compact=True, tombstone_delay_ms=DELAY_MS)
    await cluster.isr(1, 2, 3)

    async def put(*records, seconds=30):
        """Publish (key, value) records at the leader, all acked."""
        answers = cluster.kit.Answers()
        partition = cluster.partition(await cluster.leader())
        for number, (key, value) in enumerate(records):
            partition.append(value, subject="s", key=key, ack_sink=answers, token=number)
        await answers.wait(len(records))
        assert len(answers.acks) == len(records)

    async def clean(*numbers, rounds=2):
        """Seal the active segment, and compact on some brokers."""
        for number in numbers or tuple(cluster.brokers):
            broker = cluster.brokers[number]
            for _ in range(rounds):
                await broker.committer.passed()
                cluster.partition(number).log.roll()
                await broker._checkpoints.checkpoint()
                await broker._cleaner.clean()

    async def settled():
        """Until every broker has everything committed."""
        end = max(cluster.partition(n).log_end_offset for n in cluster.brokers)
        await cluster.kit.until(
            lambda: all(cluster.partition(n).high_watermark == end for n in cluster.brokers),
            seconds=20,
        )

    cluster.put_records, cluster.clean, cluster.settled = put, clean, settled
    return cluster


def numbered(count, keys, tag=b""):
    return [(b"k%d" % (i % keys), tag + b"%d" % i + PAD) for i in range(count)]


async def test_each_copy_compacts_its_own_and_all_say_the_same(compacted):
    """Copies that were compacted at other times hold other records, and the same of each key."""
    await compacted.put_records(*numbered(60, 5))
    await compacted.settled()
    await compacted.clean(1)
    await compacted.put_records(*numbered(60, 7, b"later "))
    await compacted.settled()
    await compacted.clean(2)
    wanted = {b"k%d" % (i % 7): b"later %d" % i + PAD for i in range(60)}
    sizes = {n: compacted.partition(n).log.size_bytes for n in (1, 2, 3)}
    assert sizes[2] < sizes[1] < sizes[3]
    for number in (1, 2, 3):
        assert state(compacted.partition(number)) == wanted
        assert compacted.partition(number).log_end_offset == 120


async def test_an_empty_disk_is_filled_from_a_compacted_log(compacted):
    """A broker that lost its disk copies fillers and all, and can lead afterwards."""
    await compacted.put_records(*numbered(80, 4))
    await compacted.settled()
    leader = await compacted.leader()
    victim, other = (n for n in (1, 2, 3) if n != leader)
    await compacted.kill(victim)
    await compacted.isr(*sorted((leader, other)))
    await compacted.clean(leader, other)
    shutil.rmtree(compacted.tmp_path / f"broker-{victim}")
    broker = compacted.brokers[leader]
    await compacted.kit.until(lambda: broker._image.brokers[victim].is_fenced, seconds=20)
    forgotten = await broker.membership.admin.propose(ForgetDirectory(broker=victim), timeout_s=20)
    assert forgotten.is_applied
    await compacted.start(victim)
    await compacted.isr(1, 2, 3)
    await compacted.put_records((b"k0", b"new"))
    await compacted.settled()
    await compacted.kill(leader)
    await compacted.kit.until(lambda: compacted.image().leader not in (None, leader), seconds=20)
    await compacted.put_records((b"k1", b"newer"))
    await compacted.settled()
    wanted = {b"k%d" % (i % 4): b"%d" % i + PAD for i in range(80)}
    wanted |= {b"k0": b"new", b"k1": b"newer"}
    for number in (victim, other):
        assert state(compacted.partition(number)) == wanted


async def test_a_null_value_waits_for_a_copy_that_is_away(compacted):
    """A broker that was away while a key was deleted does not bring the key back."""
    await compacted.put_records((b"gone", b"value" + PAD), *numbered(20, 5))
    await compacted.settled()
    leader = await compacted.leader()
    victim, other = (n for n in (1, 2, 3) if n != leader)
    await compacted.kill(victim)
    await compacted.isr(*sorted((leader, other)))
    await compacted.put_records((b"gone", None), *numbered(20, 5))
    await compacted.clean(leader, other, rounds=3)
    assert b"gone" in keys_kept(compacted.partition(leader))
    assert b"gone" not in state(compacted.partition(leader))
    await compacted.start(victim)
    await compacted.isr(1, 2, 3)
    await compacted.put_records((b"last", b"one"))
    await compacted.settled()
    await compacted.put_records((b"last", b"two"))  # its batch tells who has the one before
    await compacted.settled()
    await compacted.clean(rounds=3)
    for number in (1, 2, 3):
        assert b"gone" not in keys_kept(compacted.partition(number)), number


async def test_leaders_change_while_a_copy_is_made(compacted):
    """One gives it a record, the other has done with the null value that deletes it."""
    await compacted.put_records((b"gone", b"value" + PAD), *numbered(30, 5))
    await compacted.put_records(*numbered(30, 5))
    await compacted.put_records((b"gone", None), *numbered(30, 5))
    for what in (b"one", b"two", b"three"):  # a batch tells who has those before
        await compacted.settled()
        await compacted.put_records((b"last", what))
    await compacted.settled()
    leader = await compacted.leader()
    other, third = (n for n in (1, 2, 3) if n != leader)
    await compacted.clean(other, rounds=3)
    assert b"gone" not in keys_kept(compacted.partition(other))
    assert b"gone" in keys_kept(compacted.partition(leader))
    orders = compacted.brokers[leader].operations
    directory = compacted.partition(third).log.directory
    await orders.reassign("s", 0, (leader, other))
    await compacted.kit.until(lambda: not directory.exists(), seconds=60)

    # The first slice is copied at once, the next one after hours.
    compacted.brokers[leader].membership.replicas._move_rate = ReplicationThrottle(1)
    await orders.reassign("s", 0, (leader, other, third))
    end = compacted.partition(leader).log_end_offset
    await compacted.until_caught_up(third, 1)
    assert compacted.partition(third).log_end_offset < end
    assert b"gone" in state(compacted.partition(third))
    assert compacted.image().filling == (third,)

    await orders.elect(PartitionName("s", 0), other, is_unclean=False)
    await compacted.until_caught_up(third, end)
    await compacted.isr(1, 2, 3)
    assert compacted.image().filling == ()
    for number in (1, 2, 3):
        assert b"gone" not in state(compacted.partition(number)), number


async def test_the_scrub_reads_compacted_copies(compacted):
    """Fillers are no corruption, and offsets that are missing without one are."""
    for _ in range(3):
        await compacted.put_records(*numbered(30, 3))
        await compacted.settled()
        await compacted.clean(rounds=1)
    broker = compacted.brokers[1]
    await broker._scrubber.scrub()
    assert broker.telemetry.corrupt_batches == 0
    log = compacted.partition(1).log
    assert len(log.segments) > 2
    log._arrange([log.segments[0], *log.segments[2:]])  # as if its file were gone
    await broker._scrubber.scrub()
    await compacted.kit.until(lambda: broker.telemetry.corrupt_batches == 1)


async def test_a_copy_is_not_repaired_with_what_another_has_left(compacted, caplog):
    """A corrupt batch that kept a null value is not replaced by one that has done with it."""
    await compacted.put_records((b"K", b"v1" + PAD))
    await compacted.put_records((b"K", None), (None, None), (b"M", b"m"))
    await compacted.put_records((b"z", b"z"))
    await compacted.settled()
    leader = await compacted.leader()
    number = next(n for n in (1, 2, 3) if n != leader)
    broker, partition = compacted.brokers[number], compacted.partition(number)
    await compacted.clean(*({1, 2, 3} - {number}), rounds=3)
    await broker._checkpoints.checkpoint()
    found, kept = partition.log.read(1, 1), compacted.partition(leader).log.read(1, 1)
    assert len(found.buffer) == len(kept.buffer), "the case is that they fit"
    assert found.buffer != kept.buffer
    with found.file.open("r+b") as file:
        file.seek(found.position + 90)
        file.write(b"?")
    await broker._scrubber.scrub()
    await compacted.kit.until(lambda: broker.telemetry.failed_repairs > 0, seconds=20)
    assert "are not repaired" in caplog.text
    assert broker.telemetry.repaired_batches == 0

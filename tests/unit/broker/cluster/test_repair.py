"""Corruption on one broker's disk: found, repaired from another replica, never served."""

import shutil

import pytest

from strandline.core.metadata.commands import ForgetDirectory
from strandline.errors import CorruptBatchError

WORDS = [f"record-{number:03}" for number in range(30)]


def flip(log, offset, *, at=90):
    """Flip a bit of the batch that holds an offset, in its file."""
    found = log.read(offset, 1)
    with found.file.open("r+b") as file:
        file.seek(found.position + at)
        [byte] = file.read(1)
        file.seek(found.position + at)
        file.write(bytes([byte ^ 0x20]))


@pytest.fixture
async def loaded(cluster):
    """Three brokers with thirty records, each in a batch of its own, all in files."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put(*WORDS)
    await cluster.isr(1, 2, 3)
    await cluster.agree(WORDS)
    for broker in cluster.brokers.values():
        await broker._checkpoints.checkpoint()
    return cluster


async def read_until_repaired(cluster, number):
    """A reader that meets corruption tries again until it has everything."""
    partition = cluster.partition(number)

    def is_whole():
        try:
            return cluster.kit.values(partition) == [word.encode() for word in WORDS]
        except CorruptBatchError:
            return False

    await cluster.kit.until(is_whole, seconds=20)


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_a_reader_that_meets_corruption_finds_it_repaired(loaded, role):
    """The batch comes back from another replica: nothing wrong is served meanwhile."""
    leader = await loaded.leader()
    number = leader if role == "leader" else next(n for n in (1, 2, 3) if n != leader)
    partition, telemetry = loaded.partition(number), loaded.brokers[number].telemetry
    for offset in (0, 11, 12, 29):
        flip(partition.log, offset)
    with pytest.raises(CorruptBatchError):
        loaded.kit.values(partition)
    await read_until_repaired(loaded, number)
    assert telemetry.corrupt_batches == 3, "neighbours are one corruption"
    await loaded.kit.until(lambda: telemetry.repaired_batches == 4, seconds=20)
    assert telemetry.failed_repairs == 0


async def test_the_scrub_finds_corruption_that_nobody_reads(loaded):
    """A round of the scrubber reads everything, and corruption is repaired."""
    broker, partition = loaded.brokers[1], loaded.partition(1)
    flip(partition.log, 17)
    await broker._scrubber.scrub()
    await loaded.kit.until(lambda: broker.telemetry.repaired_batches == 1, seconds=20)
    assert broker.telemetry.scrubbed_bytes > 0
    await loaded.agree(WORDS)


async def test_corruption_while_a_broker_was_stopped_is_repaired(loaded):
    """A clean stop, flipped bits in all segments, a start: reading gives every record."""
    files = list((loaded.tmp_path / "broker-3" / "logs").rglob("*.log"))
    log = loaded.partition(3).log
    flip(log, 5)
    flip(log, 25, at=20)
    await loaded.kill(3)
    assert files
    await loaded.start(3)
    await loaded.isr(1, 2, 3)
    await read_until_repaired(loaded, 3)


async def test_a_leader_repairs_itself_to_serve_a_follower_that_is_behind(loaded):
    """A follower that lost everything copies batches that the leader first had to repair."""
    leader = await loaded.leader()
    victim, other = (n for n in (1, 2, 3) if n != leader)
    await loaded.kill(victim)
    await loaded.isr(*sorted((leader, other)))
    shutil.rmtree(loaded.tmp_path / f"broker-{victim}")
    flip(loaded.partition(leader).log, 9)
    assert (await forget(loaded, leader, victim)).is_applied
    await loaded.start(victim)
    await loaded.isr(1, 2, 3)
    await loaded.agree(WORDS)
    assert loaded.brokers[leader].telemetry.repaired_batches == 1


async def forget(cluster, at, victim):
    """Once the broker is known to be out of service, let its directory be forgotten."""
    broker = cluster.brokers[at]
    await cluster.kit.until(lambda: broker._image.brokers[victim].is_fenced, seconds=20)
    return await broker.membership.admin.propose(ForgetDirectory(broker=victim), timeout_s=20)


async def test_a_failed_sync_while_repairing_reopens_the_storage(loaded):
    """The disk's contents are unknown: the storage is reopened, and the repair follows."""
    leader = await loaded.leader()
    victim = next(n for n in (1, 2, 3) if n != leader)
    broker = loaded.brokers[victim]
    flip(loaded.partition(victim).log, 21)
    before = broker.membership.incarnation
    loaded.disks[victim].fail("sync", "logs/*.log", times=1)
    with pytest.raises(CorruptBatchError):
        loaded.kit.values(loaded.partition(victim))
    await loaded.kit.until(lambda: broker.membership.incarnation not in ("", before), seconds=20)
    await loaded.isr(1, 2, 3)
    await read_until_repaired(loaded, victim)
    assert loaded.disks[victim].orders == [["sync", "*logs/*.log*", 5, 0, 0]], "it did fail"


async def test_corruption_everywhere_stays_visible(loaded):
    """Without an intact replica the records are rejected, and those around them are served."""
    for number in loaded.brokers:
        flip(loaded.partition(number).log, 4)
    for number in loaded.brokers:
        partition = loaded.partition(number)
        for _ in range(3):
            with pytest.raises(CorruptBatchError) as caught:
                partition.read(4, 100)
            assert (caught.value.first_offset, caught.value.next_offset) == (4, 5)
        assert partition.read(5, 100).size
    assert all(b.telemetry.repaired_batches == 0 for b in loaded.brokers.values())

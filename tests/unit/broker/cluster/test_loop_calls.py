"""Slow file-system calls run on a thread, not on the event loop: three brokers of a cluster."""

import pytest

from strandline.broker import quorum
from strandline.broker.cluster import metadata_applier
from strandline.types import PartitionName


@pytest.fixture
async def watched(cluster, kit, monkeypatch):
    """Three started brokers with disks that record the loop's calls."""
    monkeypatch.setattr(quorum, "SNAPSHOT_ENTRIES", 12)
    monkeypatch.setattr(metadata_applier, "WATERMARK_INTERVAL_S", 0.05)
    for number in (1, 2, 3):
        cluster.disks[number] = kit.LoopWatchingDisk()
    await cluster.start(1, 2, 3)
    forget(cluster)
    return cluster


def forget(cluster):
    """A broker that starts may use its loop."""
    for disk in cluster.disks.values():
        disk.on_the_loop.clear()


def calls(cluster):
    return [call for disk in cluster.disks.values() for call in disk.on_the_loop]


async def test_streams_come_grow_move_and_go_beside_the_loop(watched):
    """Logs are opened and removed, watermarks and snapshots of the metadata are saved."""
    await watched.create(replicas=2, partitions=3)
    await watched.put(*(f"{number}" + "." * 3000 for number in range(60)))
    await watched.brokers[1].add_partitions("s", 2)
    leader = await watched.leader()
    keeps, other = watched.image().replicas
    third = next(n for n in (1, 2, 3) if n not in (keeps, other))
    await watched.brokers[leader].operations.reassign("s", 0, (keeps, third))
    await watched.kit.until(lambda: watched.image().replicas == (keeps, third))
    await watched.brokers[leader].operations.reassign("s", 0, (keeps, other))
    await watched.kit.until(lambda: watched.image().replicas == (keeps, other))
    leader = await watched.leader()
    await watched.brokers[leader].delete_before("s", 0, 40)
    for broker in watched.brokers.values():
        await watched.kit.until(lambda b=broker: b._store_of_quorum.log.log_start_offset > 0)
    await watched.brokers[1].delete_stream("s")
    for broker in watched.brokers.values():
        await watched.kit.until(lambda b=broker: len(b._storage.logs) == 1)
        await broker.reclaimer.drained()
    assert calls(watched) == []


async def test_a_follower_cuts_its_log_on_a_thread(watched):
    """After an unclean election a replica truncates the records that only it has."""
    await watched.create(replicas=2, min_isr=1)
    await watched.put(*"ab")
    first, second = watched.image().replicas
    await watched.kill(second)
    await watched.isr(first)
    await watched.put(*(f"{number}" + "." * 3000 for number in range(40)))
    assert len(watched.partition(first).log.segments) > 1
    await watched.kill(first)
    await watched.start(second)
    await watched.until_live()
    order = next(iter(watched.brokers.values())).operations
    await order.elect(PartitionName("s", 0), second, is_unclean=True)
    await watched.put(*"cd")
    await watched.start(first)
    forget(watched)
    await watched.kit.until(lambda: watched.partition(first).log.log_end_offset == 4)
    await watched.until_caught_up(first, 4)
    assert watched.kit.values(watched.partition(first)) == [b"a", b"b", b"c", b"d"]
    assert calls(watched) == []

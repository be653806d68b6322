"""A replica that cannot be opened here: the rest of its stream works, and others lead it."""

import errno

import pytest

from strandline.broker.cluster import metadata_applier as following
from strandline.broker.cluster import replicas
from strandline.broker.cluster.remote import RemotePartition
from strandline.broker.cluster.replicas import Replicas
from strandline.core.replication.limits import ReplicationLimits
from strandline.errors import StrandlineError, UnavailableError

SHORT_LAG = ReplicationLimits(replica_lag_ms_max=1000)
NEW = 3
"""Partitions that are added."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "RETRY_S", 0.05)
    monkeypatch.setattr(replicas, "ReplicationLimits", lambda: SHORT_LAG)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
async def test_partitions_that_cannot_be_opened_leave_the_others_of_the_stream_alone(
    cluster, kit, code
):
    """The present partition works, and other replicas lead the new ones."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    old = cluster.partition(1)
    cluster.disks[1].fail("mkdir", code=code)
    cluster.disks[1].fail("open", "/logs/", code=code)
    cluster.disks[1].fail("create", "/logs/", code=code)
    await cluster.brokers[2].add_partitions("s", NEW)
    await kit.until(lambda: len(cluster.brokers[1].stream("s").partitions) == 1 + NEW)
    assert cluster.partition(1) is old, "it was not touched"
    await cluster.put("b")
    await kit.until(
        lambda: all(cluster.image(index=n).leader not in (None, 1) for n in range(1, 1 + NEW))
    )
    for number in range(1, 1 + NEW):
        assert isinstance(cluster.partition(1, index=number), RemotePartition)
        await cluster.put(f"c{number}", index=number)
    await kit.until(lambda: all(_names_leader(cluster, n) for n in range(1, 1 + NEW)))
    assert "3 copies here cannot be opened" in cluster.brokers[1].why_not_ready
    cluster.disks[1].heal()
    for number in range(NEW + 1):
        await cluster.isr(1, 2, 3, index=number)
    await kit.until(lambda: not cluster.brokers[1].why_not_ready)
    await cluster.agree(["a", "b"])
    await cluster.agree(["c1"], index=1)


def _names_leader(cluster, number):
    """Whether broker 1 redirects clients of a partition to its leader, and not to itself."""
    leader = cluster.image(index=number).leader
    return cluster.partition(1, index=number).leader_address == f"127.0.0.1:{10_000 + leader}"


async def test_who_has_the_only_copy_and_cannot_open_it_says_so_and_points_nowhere(cluster, kit):
    """It has no leader, clients get the reason and retry, and it opens when that is possible."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=1, min_isr=1)
    for disk in cluster.disks.values():
        disk.fail("mkdir", code=errno.ENOSPC)
    await cluster.brokers[2].add_partitions("s", 1)
    leader = cluster.image(index=1).leader
    stuck = cluster.partition(leader, index=1)
    assert not stuck.is_led
    assert not stuck.leader_address
    assert isinstance(stuck.remote_error, UnavailableError)
    assert "cannot open its copy of s/1" in stuck.remote_error.message
    answers = kit.Answers()
    kit.put(stuck, answers, "x")
    assert answers.errors["x"].code == "unavailable"
    assert answers.errors["x"].retriable
    await kit.until(lambda: cluster.brokers[leader]._retry is not None)
    again = cluster.partition(leader, index=1)
    assert again is stuck, "trying again in vain replaces nothing"
    for disk in cluster.disks.values():
        disk.heal()
    everyone = cluster.brokers.values()
    await kit.until(lambda: all(len(b.stream("s").partitions) == 2 for b in everyone))
    await cluster.put("x", index=1)


async def test_a_copy_without_a_replica_takes_no_records(cluster, kit, monkeypatch):
    """A log that opens and whose replica cannot be made commits nothing by itself."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    added = Replicas.add

    def add(self, partition, high_watermark):
        if self.me == 1 and partition.name.partition:
            raise UnavailableError("its epochs cannot be read")
        added(self, partition, high_watermark)

    monkeypatch.setattr(Replicas, "add", add)
    await cluster.brokers[2].add_partitions("s", NEW)
    await kit.until(lambda: len(cluster.brokers[1].stream("s").partitions) == 1 + NEW)
    for number in range(1, 1 + NEW):
        partition = cluster.partition(1, index=number)
        answers = kit.Answers()
        kit.put(partition, answers, "x")
        assert isinstance(answers.errors["x"], StrandlineError)
        assert not partition.is_led
        await kit.until(lambda n=number: cluster.image(index=n).leader not in (None, 1))
    monkeypatch.setattr(Replicas, "add", added)
    for number in range(NEW + 1):
        await cluster.isr(1, 2, 3, index=number)
    await cluster.put("y", index=1)

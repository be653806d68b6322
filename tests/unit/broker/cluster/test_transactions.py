"""Transactions on three brokers: a new coordinator, a new leader, and what readers see."""

import asyncio

import pytest

from strandline.broker.cluster.replicas import Replicas
from strandline.errors import NotLeaderError, ProducerFencedError, StrandlineError, UnavailableError

HOME = "__transactions"


class Desk:
    """Sends requests to the present coordinator, and retries while there is none."""

    def __init__(self, cluster, tx):
        self.cluster = cluster
        self.tx = tx

    async def __call__(self, name, *args, **kwargs):
        async with asyncio.timeout(60):
            while True:
                for broker in list(self.cluster.brokers.values()):
                    try:
                        return await getattr(self.tx.Asker(broker), name)(*args, **kwargs)
                    except UnavailableError:
                        continue
                await asyncio.sleep(0.02)

    async def write(self, who, number, *values, name="s"):
        """Write to the leader of a partition as the first batch of a transaction there."""
        answers = self.cluster.kit.Answers()
        partition = self.cluster.partition(number, name)
        self.tx.Asker(self.cluster.brokers[number]).write(who, partition, answers, *values)
        await answers.wait(1)
        return answers.codes


@pytest.fixture
def desk(cluster, tx):
    return Desk(cluster, tx)


async def min_replica_offset(cluster, tx, *values, name="s"):
    """Until every broker that runs shows these values and no others."""
    await cluster.kit.until(
        lambda: all(
            tx.seen(cluster.partition(number, name)) == list(values) for number in cluster.brokers
        ),
        seconds=30,
    )


async def coordinator(cluster):
    return await cluster.leader(HOME)


async def test_a_transaction_over_streams_that_others_lead(cluster, desk, tx):
    """Markers reach every leader; every replica shows the same, and nothing before the commit."""
    await cluster.start(1, 2, 3)
    for name in ("s", "t", "u"):
        await cluster.create(name)
    who = await desk("begin", "pay")
    await desk("add", "pay", who, ("s", 0), ("t", 0), ("u", 0))
    for name in ("s", "t", "u"):
        assert not await desk.write(who, await cluster.leader(name), "x", "y", name=name)
        assert all(tx.seen(cluster.partition(n, name)) == [] for n in cluster.brokers)
    await desk("end", "pay", who, is_commit=True)
    for name in ("s", "t", "u"):
        await min_replica_offset(cluster, tx, "x", "y", name=name)
    assert cluster.image(HOME).replicas


async def test_the_coordinator_dies_after_a_prepare(cluster, desk, tx):
    """The next one knows the prepared transaction, and the external decision ends it."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    who = await desk("begin", "pay")
    await desk("add", "pay", who, ("s", 0))
    assert not await desk.write(who, await cluster.leader(), "x")
    await desk("prepare", "pay", who)
    await cluster.kill(await coordinator(cluster))
    await desk("end_staged", "pay", (who.producer_id, who.epoch), is_commit=True)
    await min_replica_offset(cluster, tx, "x")


async def test_the_leader_dies_between_prepare_and_commit(cluster, desk, tx):
    """The new leader has the records and accepts none after the end of the transaction."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    first = await desk("begin", "one")
    await desk("add", "one", first, ("s", 0))
    second = await desk("begin", "two")
    await desk("add", "two", second, ("s", 0))
    leader = await cluster.leader()
    assert not await desk.write(first, leader, "1")
    assert not await desk.write(second, leader, "2")
    await desk("prepare", "one", first)
    await cluster.kill(leader)
    await desk("end_staged", "one", (first.producer_id, first.epoch), is_commit=True)
    await desk("end", "two", second, is_commit=False)
    await min_replica_offset(cluster, tx, "1")
    assert await desk.write(second, await cluster.leader(), "late") == {"late": "producer_fenced"}
    await cluster.start(leader)
    await min_replica_offset(cluster, tx, "1")


async def test_whoever_is_not_the_coordinator_names_it(cluster, desk, tx):
    """A client is redirected; the coordinator rejects a producer of an older epoch."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    old = await desk("begin", "pay")
    here = await coordinator(cluster)
    [other, *_] = [n for n in cluster.brokers if n != here]
    with pytest.raises(NotLeaderError, match=f"broker {here} leads"):
        await tx.Asker(cluster.brokers[other]).begin("pay")
    new = await desk("begin", "pay")
    with pytest.raises(ProducerFencedError):
        await desk("add", "pay", old, ("s", 0))
    await desk("end", "pay", new, is_commit=True)
    with pytest.raises(StrandlineError, match="was committed"):
        await desk("end", "pay", new, is_commit=False)


async def test_a_copy_that_starts_again_shows_no_open_transaction(cluster, desk, tx, monkeypatch):
    """Records of an uncommitted transaction are hidden from the first moment."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    who = await desk("begin", "pay")
    await desk("add", "pay", who, ("s", 0))
    leader = await cluster.leader()
    assert not await desk.write(who, leader, "x")
    other = next(n for n in (1, 2, 3) if n != leader)
    end = cluster.partition(leader).log_end_offset
    await cluster.until_caught_up(other, end)
    await cluster.brokers[other]._note_watermarks()
    await cluster.kill(other)
    seen, add = [], Replicas.add

    def look(self, partition, high_watermark):
        add(self, partition, high_watermark)
        if partition.name.stream == "s":
            seen.append((partition.high_watermark, tx.seen(partition)))

    monkeypatch.setattr(Replicas, "add", look)
    await cluster.start(other)
    assert seen == [(end, [])]
    await desk("end", "pay", who, is_commit=True)
    await min_replica_offset(cluster, tx, "x")

"""The group coordinator of a cluster: it moves with its stream's leader, and forgets nothing."""

import asyncio
import contextlib

import pytest

from strandline.broker.coordinators.groups import GROUPS_STREAM
from strandline.errors import NotLeaderError, StaleMemberError, UnavailableError
from strandline.types import PartitionName

NOTHING = frozenset()
IDS = (1, 2, 3)


async def ask(cluster, method, *arguments, **options):
    """Return the coordinator's answer, whichever broker it is on."""
    async with asyncio.timeout(60):
        while True:
            for broker in list(cluster.brokers.values()):
                try:
                    return await getattr(broker.groups, method)(*arguments, **options)
                except UnavailableError:  # not here, or not now
                    continue
            await asyncio.sleep(0.05)


async def test_the_coordinator_moves_and_forgets_nothing(cluster):
    """Members, epochs and positions survive the death of the broker that coordinates."""
    await cluster.start(*IDS)
    await cluster.create("s", partitions=4)
    ann = await ask(cluster, "join", "g", "ann", ["s"], session_ms=60_000)
    bob = await ask(cluster, "join", "g", "bob", ["s"], session_ms=60_000)
    ann = await ask(cluster, "heartbeat", "g", "ann", epoch=ann.epoch, held=ann.partitions)
    ann = await ask(cluster, "heartbeat", "g", "ann", epoch=ann.epoch, held=ann.partitions)
    bob = await ask(cluster, "heartbeat", "g", "bob", epoch=bob.epoch, held=NOTHING)
    assert len(ann.partitions) == len(bob.partitions) == 2
    await ask(cluster, "commit", "g", {"s": {0: 11}}, member="ann", epoch=ann.epoch)

    config = cluster.brokers[1].stream(GROUPS_STREAM).config
    assert (config.replicas, config.min_isr) == (3, 2)
    first = await cluster.leader(GROUPS_STREAM)
    other = next(number for number in IDS if number != first)
    with pytest.raises(NotLeaderError):
        await cluster.brokers[other].groups.committed_offsets("g")
    await cluster.kill(first)

    assert await ask(cluster, "committed_offsets", "g") == {"s": {0: 11}}
    # Nobody's partitions moved: both go on under the epochs they have.
    after = await ask(cluster, "heartbeat", "g", "ann", epoch=ann.epoch, held=ann.partitions)
    assert after == ann._replace(began_with={})
    await ask(cluster, "commit", "g", {"s": {0: 12}}, member="ann", epoch=ann.epoch)
    after = await ask(cluster, "heartbeat", "g", "bob", epoch=bob.epoch, held=bob.partitions)
    assert after == bob._replace(began_with={})
    third = await ask(cluster, "join", "g", "cat", ["s"], session_ms=60_000)
    assert third.epoch > max(ann.epoch, bob.epoch)
    assert PartitionName("s", 0) not in third.partitions


async def test_a_coordinator_that_was_cut_off_answers_nothing(cluster, monkeypatch):
    """Without enough replicas it neither stores offsets nor reads old ones."""
    monkeypatch.setattr("strandline.broker.coordinators.runtime.REQUEST_TIMEOUT_S", 2.0)
    await cluster.start(*IDS)
    await cluster.until_live()  # an internal stream gets as many copies as there are brokers
    await ask(cluster, "commit", "g", {"s": {0: 1}})
    leader = await cluster.leader(GROUPS_STREAM)
    for number in IDS:
        if number != leader:
            await cluster.kill(number)
    with pytest.raises(UnavailableError):
        await cluster.brokers[leader].groups.committed_offsets("g")


async def test_old_entries_go_on_every_replica(cluster, monkeypatch):
    """Entries before a rewrite are deleted; another coordinator starts from the rest."""
    monkeypatch.setattr("strandline.broker.coordinators.runtime.SEGMENT_BYTES", 64 << 10)
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 40)
    await cluster.start(*IDS)
    await cluster.until_live()
    many = dict.fromkeys(range(1000), 0)
    for number in range(100):
        await ask(cluster, "commit", "g", {"s": many, "t": {0: number}})
    for broker in cluster.brokers.values():
        partition = broker.stream(GROUPS_STREAM).partition(0)
        await cluster.kit.until(lambda p=partition: p.log_start_offset > 0, seconds=30)
    await cluster.kill(await cluster.leader(GROUPS_STREAM))
    assert await ask(cluster, "committed_offsets", "g") == {"s": many, "t": {0: 99}}


async def test_every_broker_stores_consumers_at_the_coordinator(cluster):
    """What one stores another finds; errors come back as the coordinator raised them."""
    await cluster.start(*IDS)
    await cluster.until_live()
    await ask(cluster, "commit", "g", {"s": {0: 1}})
    coordinator = await cluster.leader(GROUPS_STREAM)
    others = [cluster.brokers[number].consumers for number in IDS if number != coordinator]
    await others[0].keep("c.one", {"s": {0: 5}}, "state", epoch=1, is_new=True)
    assert await others[1].list("c.") == ["c.one"]
    assert await others[1].claim("c.", 2) == {"c.one": "state"}
    with pytest.raises(StaleMemberError):
        await others[0].keep("c.one", {"s": {0: 6}}, "later", epoch=1)
    await others[0].delete("c.one")
    assert await cluster.brokers[coordinator].consumers.list("c.") == []


async def test_a_question_creates_no_stream(cluster):
    """At any broker; one that has not heard of the stream yet finds out before it says no."""
    await cluster.start(*IDS)
    for broker in cluster.brokers.values():
        assert await broker.groups.groups() == {}
        assert GROUPS_STREAM not in broker.image.streams
    await ask(cluster, "commit", "g", {"s": {0: 1}}, number=1)
    # None says that there are no groups: it coordinates them, or knows that another one does.
    assert await ask(cluster, "groups") == {"g": 0}
    for broker in cluster.brokers.values():
        with contextlib.suppress(UnavailableError):
            assert await broker.groups.groups() == {"g": 0}

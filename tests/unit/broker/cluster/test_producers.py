"""Idempotent producers in a cluster: every replica has its leader's producer state."""

import asyncio
import threading

import pyarrow as pa
import pytest

from strandline.broker.write_path import duplicates, state_loader
from strandline.security.producer_ids import owner_of
from strandline.types import ProducerStamp


async def put(cluster, kit, numbers, *values):
    """Append numbered values at the present leader, until they are acked; return the offset."""
    async with asyncio.timeout(30):
        while True:
            partition = cluster.partition(await cluster.leader())
            answers = kit.Answers()
            partition.append_arrow(
                pa.record_batch({"value": [value.encode() for value in values]}),
                ack_sink=answers,
                token="t",
                producer=ProducerStamp(*numbers),
            )
            await answers.wait(1)
            if answers.acks:
                return answers.acks["t"]
            await asyncio.sleep(0.02)


@pytest.fixture(params=["at once", "beside the loop"])
def reading(request, monkeypatch):
    """How a restarted replica loads its producer state."""
    if request.param == "beside the loop":
        monkeypatch.setattr(state_loader, "INLINE_BYTES", -1)


async def test_a_new_leader_knows_the_producers(cluster, kit, reading):
    """Records of the lost leader are acked as duplicates, by running and restarted replicas."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    assert await put(cluster, kit, (7, 0, 0), "a", "b") == 0
    assert await put(cluster, kit, (8, 0, 0), "c") == 2
    old = await cluster.leader()
    await cluster.kill(old)
    assert await put(cluster, kit, (7, 0, 0), "a", "b") == 0
    assert await put(cluster, kit, (7, 0, 2), "d") == 3
    await cluster.start(old)
    await cluster.isr(1, 2, 3)
    other = await cluster.leader()
    await cluster.kill(other)
    assert await put(cluster, kit, (8, 0, 0), "c") == 2
    assert await put(cluster, kit, (7, 0, 2), "d") == 3
    assert await put(cluster, kit, (8, 0, 1), "e") == 4
    await cluster.agree(["a", "b", "c", "d", "e"])


async def test_producer_ids_are_unique_in_the_cluster(cluster):
    """Whichever broker is asked, before and after its restart."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    found = [await broker.new_producer_id() for broker in cluster.brokers.values()]
    await cluster.kill(1)
    await cluster.start(1)
    found.append(await cluster.brokers[1].new_producer_id())
    assert len(set(found)) == 4


async def test_the_broker_that_gives_an_id_out_knows_its_owner(cluster):
    """Whichever it is: the client uses the id there next. A principal has one number everywhere."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    owners = []
    for broker in cluster.brokers.values():
        for name in ("ann", "bob"):
            found = owner_of(await broker.new_producer_id(name))
            assert broker.image.producer_owners[name] == found
            owners.append((name, found))
    assert set(owners) == {("ann", 1), ("bob", 2)}
    assert owner_of(await cluster.brokers[1].new_producer_id()) == 0


async def test_what_is_copied_while_producers_are_read_back_is_known(cluster, kit, monkeypatch):
    """A follower that restarted reads on a thread; batches that come meanwhile are noted after."""
    may_end, load, begun = threading.Event(), duplicates.load_producers, []

    def held(*args, **kwargs):
        begun.append(threading.get_ident())
        assert may_end.wait(30)
        return load(*args, **kwargs)

    await cluster.start(1, 2, 3)
    await cluster.create()
    await put(cluster, kit, (7, 0, 0), "a", "b")
    leader = await cluster.leader()
    follower = next(n for n in (1, 2, 3) if n != leader)
    await cluster.kill(follower)
    monkeypatch.setattr(state_loader, "INLINE_BYTES", -1)
    monkeypatch.setattr(duplicates, "load_producers", held)
    await cluster.start(follower)
    await cluster.isr(1, 2, 3)
    for n, value in enumerate("cdef"):
        await put(cluster, kit, (7, 0, 2 + n), value)
    copy = cluster.partition(follower)
    await kit.until(lambda: copy.log_end_offset == 6)
    assert begun
    assert threading.get_ident() not in begun
    assert copy.duplicates.producers is None
    may_end.set()
    await kit.until(lambda: copy.duplicates.producers is not None)
    assert copy.duplicates.producers.check(ProducerStamp(7, 0, 6), 1) is None
    for sequence in range(6):
        assert copy.duplicates.producers.check(ProducerStamp(7, 0, sequence), 1) == sequence

"""The request for log ends when a leader is lost, and the effect of the answers."""

import asyncio

from strandline.broker.cluster import replica_status
from strandline.broker.cluster.channels import REPLICATION


async def test_the_copy_that_is_furthest_leads_next(cluster, kit, monkeypatch):
    """A record on one of two in-sync replicas is kept, though the other has the smaller id."""
    monkeypatch.setattr(
        replica_status, "ASK_S", 30
    )  # the machine may stand still for a quarter second
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    await cluster.isr(1, 2, 3)
    leader = await cluster.leader()
    behind, ahead = (n for n in (1, 2, 3) if n != leader)
    links = cluster.brokers[leader].membership._links
    send = links.send

    def send_to_one(peer, channel, *rest, **more):
        return (peer, channel) != (behind, REPLICATION) and send(peer, channel, *rest, **more)

    monkeypatch.setattr(links, "send", send_to_one)
    kit.put(cluster.partition(leader), kit.Answers(), "b")
    await kit.until(lambda: cluster.partition(ahead).log.log_end_offset == 2, seconds=60)
    assert cluster.partition(behind).log.log_end_offset < 2
    await cluster.kill(leader)
    assert await cluster.leader() == ahead
    await cluster.put("c")
    await cluster.agree(["a", "b", "c"])


async def test_who_says_nothing_is_not_waited_for(cluster, kit, monkeypatch):
    """Neither a silent broker nor one that is away nor a log that is nowhere keeps an answer."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    for number in (1, 3):
        await kit.until(lambda n=number: cluster.partition(n).log.log_end_offset == 1, seconds=60)
    log_id = cluster.partition(1).log_id
    monkeypatch.setattr(cluster.brokers[2].membership.replica_status, "serve", lambda *_: None)
    wanted = dict.fromkeys((1, 2, 3, 9), (log_id, 99))
    async with asyncio.timeout(30):
        found = await cluster.brokers[1].membership.replica_status.ask(wanted)
    epoch = cluster.brokers[1].membership.replicas.drivers[log_id].replica.log.last_epoch
    assert {n: end for n, end in found[log_id].items() if n != 3} == {1: (epoch, 1)}
    assert found[log_id].get(3, (epoch, 1)) == (epoch, 1), "unless the machine is that slow"
    assert found.keys() == {log_id}

"""Commands to a cluster: accepted at any broker, repeated if outdated, rejected with advice.

Three brokers in one process, on real links and logs; ``tests/integration`` has the whole stories.
"""

import asyncio

import msgspec
import pytest

from strandline.broker.cluster import membership, operations
from strandline.broker.peers.errors import HandshakeError
from strandline.broker.peers.handshake import Hello
from strandline.errors import (
    InvalidConfigError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnavailableError,
    UnknownPartitionError,
)
from strandline.storage.descriptors import shares_of
from strandline.types import PartitionName

S0 = PartitionName("s", 0)


def starts(cluster, name="s"):
    """Where the log of partition 0 starts at each broker."""
    return {n: cluster.partition(n, name).log_start_offset for n in cluster.brokers}


def hello(broker, directory):
    return Hello(cluster_id="test", broker_id=broker, incarnation="r", to=1, directory_id=directory)


async def test_a_leader_is_chosen_and_stays_preferred(cluster):
    """At any broker; choosing it again changes nothing."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    other, third = (n for n in (1, 2, 3) if n != leader)
    for _ in range(2):
        await cluster.brokers[third].operations.elect(S0, other, is_unclean=False)
    assert await cluster.leader() == other
    assert cluster.image().replicas[0] == other
    await cluster.put("b")
    await cluster.agree(["a", "b"])
    with pytest.raises(InvalidRequestError, match="keeps no copy"):
        await cluster.brokers[1].operations.elect(S0, 9, is_unclean=True)
    with pytest.raises(UnknownPartitionError):
        await cluster.brokers[1].operations.elect(PartitionName("s", 5), 1, is_unclean=False)


async def test_copies_move_and_the_old_ones_are_deleted(cluster, kit):
    """The replica's records move with it; the partition stays readable."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=1, min_isr=1)
    await cluster.put(*"abc")
    source = await cluster.leader()
    goal = next(n for n in (1, 2, 3) if n != source)
    orders = cluster.brokers[source].operations
    assert await orders.reassign("s", 0, (goal,)) == 1
    await kit.until(lambda: cluster.image().replicas == (goal,), seconds=20)
    assert await orders.reassign("s", None, (goal,)) == 0, "it is there"
    logs = cluster.brokers[source].data_dir / "logs"
    await kit.until(lambda: not list(logs.iterdir()), seconds=20)
    await kit.until(lambda: cluster.partition(goal).high_watermark == 3, seconds=20)
    assert kit.values(cluster.partition(goal)) == [b"a", b"b", b"c"]
    await cluster.put("d")


async def test_what_makes_no_sense_is_rejected_with_the_reason(cluster):
    """Unknown brokers, too few, and brokers that are in use."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    orders = cluster.brokers[2].operations
    for to, reason in (((1, 9, 2), "no broker 9"), ((1,), "min_isr"), ((1, 1), "distinct")):
        with pytest.raises(InvalidRequestError, match=reason):
            await orders.reassign("s", 0, to)
    with pytest.raises(InvalidRequestError, match="drain it first"):
        await orders.remove(1)
    with pytest.raises(InvalidRequestError, match="broker 2 cannot remove itself"):
        await orders.remove(2)
    with pytest.raises(InvalidRequestError, match="stop it first"):
        await orders.replace_disk(1)
    with pytest.raises(InvalidRequestError, match="another id"):
        await orders.admit(1, "127.0.0.1:1")
    assert await orders.rebalance() == 0, "everybody has a share"


async def test_an_order_on_an_old_image_is_decided_again(cluster, monkeypatch):
    """Concurrent changes cause a retry; too many of them an error."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    broker = cluster.brokers[await cluster.leader()]
    old = broker._image
    other, third = (n for n in (1, 2, 3) if n != broker.membership.me)
    await broker.operations.elect(S0, other, is_unclean=False)
    images = [old, old]
    monkeypatch.setattr(
        operations.Operations,
        "_image",
        property(lambda self: images.pop() if images else self._membership.machine.image),
    )
    await broker.operations.elect(S0, third, is_unclean=False)
    assert await cluster.leader() == third
    monkeypatch.setattr(operations.Operations, "_image", property(lambda _: old))
    monkeypatch.setattr(operations, "RETRY_S", 0.0)
    with pytest.raises(UnavailableError, match="concurrent changes"):
        await broker.operations.elect(S0, other, is_unclean=False)


async def test_records_are_deleted_up_to_an_offset_on_every_copy(cluster, kit):
    """Also at a broker that was away; only committed ones, which the leader knows."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put(*"abcdef")
    leader = await cluster.leader()
    away, other = (n for n in (1, 2, 3) if n != leader)
    await cluster.kill(away)
    assert await cluster.brokers[leader].delete_before("s", 0, 4) == 4
    await kit.until(lambda: starts(cluster) == {leader: 4, other: 4})
    await cluster.start(away)
    await kit.until(lambda: set(starts(cluster).values()) == {4}, seconds=20)
    with pytest.raises(OffsetOutOfRangeError):
        await cluster.brokers[leader].delete_before("s", 0, 7)
    with pytest.raises(NotLeaderError, match=f"broker {leader} leads"):
        await cluster.brokers[other].delete_before("s", 0, 5)
    assert await cluster.brokers[leader].delete_before("s", 0, 2) == 4, "it never goes back"


async def test_retention_is_the_leaders_and_all_copies_follow(cluster, kit):
    """Each broker cleans by itself, and still all of them start at one offset."""
    await cluster.start(1, 2, 3)
    await cluster.create(retention_records=5)
    await cluster.put(*(f"v{n}" for n in range(20)))
    leader = await cluster.leader()
    for number, broker in cluster.brokers.items():
        if number != leader:
            await broker._cleaner.clean()
    await asyncio.sleep(0)
    assert set(starts(cluster).values()) == {0}, "a follower deletes nothing by itself"
    await cluster.brokers[leader]._cleaner.clean()
    await kit.until(lambda: set(starts(cluster).values()) == {15}, seconds=20)


async def test_what_retention_decided_is_not_done_to_a_stream_recreated(cluster, kit):
    """A decision that comes late names the log it was about; one of the same name is another."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put(*"abc")
    leader = await cluster.leader()
    broker, other = cluster.brokers[leader], next(n for n in (1, 2, 3) if n != leader)
    async with broker.membership.admin._lock:  # its commands wait
        broker.log_starts.want_deleted(cluster.partition(leader), 3)
        await cluster.brokers[other].delete_stream("s")
        await cluster.create(at=other)
        await cluster.put("x")
    await broker.operations.drain(other, is_on=False)  # comes after what waited
    assert cluster.image().log_start_offset == 0
    assert set(starts(cluster).values()) == {0}


async def test_a_stream_gets_more_partitions(cluster):
    """The present partitions are not affected; new ones are placed and led."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    stream = await cluster.brokers[3].add_partitions("s", 2)
    assert [str(p.name) for p in stream.partitions] == ["s/0", "s/1", "s/2"]
    await cluster.put("b")
    await cluster.put("c", index=2)
    await cluster.agree(["a", "b"])
    assert cluster.image(index=1).replicas[0] != cluster.image(index=2).replicas[0]


async def test_another_directory_under_a_known_number_is_rejected_at_the_door(cluster, kit):
    """Before it could vote; after its vote is withdrawn any directory may come."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    membership = cluster.brokers[1].membership
    known = membership.machine.image.brokers[3].directory_id
    membership._peers.check_directory(hello(3, known))
    membership._peers.check_directory(hello(3, ""))  # an older version does not say
    membership._peers.check_directory(hello(7, "new"))
    with pytest.raises(HandshakeError, match="replace-disk 3"):
        membership._peers.check_directory(hello(3, "new"))
    await cluster.kill(3)
    await kit.until(lambda: membership.machine.image.brokers[3].is_fenced, seconds=20)
    await cluster.brokers[2].operations.replace_disk(3)
    await kit.until(lambda: 3 not in membership.quorum.members.voters, seconds=20)
    membership._peers.check_directory(hello(3, "new"))


async def test_the_controller_itself_can_be_removed(cluster, kit):
    """It hands over to another broker, which removes it; the rest continues, and it is notified."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    controller = cluster.brokers[1].membership.quorum.leader
    others = [n for n in (1, 2, 3) if n != controller]
    orders = cluster.brokers[others[0]].operations
    await orders.drain(controller, is_on=True)
    await orders.remove(controller)
    out = cluster.brokers.pop(controller)
    quorums = [cluster.brokers[n].membership.quorum for n in others]
    await kit.until(lambda: all(q.members.voters == tuple(others) for q in quorums), seconds=20)
    await kit.until(lambda: not out.is_ready, seconds=20)
    await out.stop()
    await cluster.create(replicas=2, at=others[1])
    await cluster.put("a")
    await cluster.agree(["a"])


async def test_a_copy_from_before_an_unclean_election_agrees_with_the_new_leader(cluster):
    """Even if its records were certainly committed: the operator accepted their loss."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    other, third = (n for n in (1, 2, 3) if n != leader)
    await cluster.until_caught_up(other, 1)
    replicas = cluster.brokers[other].membership.replicas
    now = cluster.image()
    heard = []
    [driver] = replicas.drivers.values()
    driver.step = heard.append

    def hear(epoch, unclean_epoch):
        elected = msgspec.structs.replace(
            now, leader=third, leader_epoch=epoch, unclean_epoch=unclean_epoch
        )
        replicas.assign(replicas.image.with_partitions({S0: elected}), ["s"])

    hear(1, 0)
    hear(2, 2)
    hear(3, 2)
    driver.replica.log.epochs.note(2, 1)
    hear(4, 2)
    assert [event.unclean for event in heard] == [False, True, True, False]


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_copy_that_is_filling_is_told_so_if_it_matters(cluster, is_compacted):
    """Without compaction all leaders have the same, and a copy need not start over."""
    await cluster.start(1, 2, 3)
    await cluster.create(compact=is_compacted)
    leader = await cluster.leader()
    other = next(n for n in (1, 2, 3) if n != leader)
    replicas = cluster.brokers[other].membership.replicas
    heard = []
    [driver] = replicas.drivers.values()
    driver.step = heard.append
    lost = msgspec.structs.replace(cluster.image(), filling=(other,), leader_epoch=9)
    replicas.assign(replicas.image.with_partitions({S0: lost}), ["s"])
    assert [event.filling for event in heard] == [(other,) if is_compacted else ()]


async def test_partitions_are_rejected_where_another_broker_has_no_room(cluster, monkeypatch):
    """Whichever broker is asked: growth, creation and moves name the one that is short of files."""
    await cluster.start(1, 2)
    few = shares_of(10_000)._replace(partitions=3)
    monkeypatch.setattr(membership, "current_shares", lambda: few)
    await cluster.start(3)
    await cluster.create(at=1)
    reason = r"broker 3 would get 2 more partitions, and there is room for 1"
    with pytest.raises(InvalidConfigError, match=reason):
        await cluster.brokers[1].add_partitions("s", 2)
    with pytest.raises(InvalidConfigError, match=reason):
        await cluster.create("t", at=2, partitions=2)
    await cluster.create("u", at=2, partitions=4, replicas=1, min_isr=1)
    kept = [p.replicas for p in cluster.brokers[1]._image.streams["u"].partitions]
    assert kept.count((3,)) <= 1
    with pytest.raises(InvalidConfigError, match="broker 3 would get"):
        await cluster.brokers[1].operations.reassign("u", None, (3,))
    await cluster.put("a", "b")

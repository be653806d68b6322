"""Brokers of a cluster together: streams, commits, lost leaders, restarts, failing disks."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from strandline.broker.cluster import metadata_applier as following
from strandline.broker.cluster import replicas, requests
from strandline.broker.cluster.broker import ClusterBroker
from strandline.config import BrokerConfig, ClusterConfig, JournalConfig
from strandline.core.raft.messages import Campaign
from strandline.errors import (
    InvalidConfigError,
    NotLeaderError,
    StreamExistsError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.describe import DescribeCalls
from strandline.servers.grpc.liftbridge.host import Host


async def test_records_are_on_every_replica_when_acked(cluster):
    """A stream created at one broker is known at all, and each serves acked records."""
    await cluster.start(1, 2, 3)
    await cluster.create(at=2)
    await cluster.put("a", "b", "c")
    await cluster.agree(["a", "b", "c"])
    assert cluster.image().isr == (1, 2, 3)


async def test_many_records_keep_their_order(cluster, kit):
    """Records accepted at once are committed in the order in which they came."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    words = [str(n) for n in range(500)]
    answers = kit.Answers()
    partition = cluster.partition(await cluster.leader())
    for word in words:
        kit.put(partition, answers, word)
    await answers.wait(500)
    assert answers.acks == {word: n for n, word in enumerate(words)}
    await cluster.agree(words)


async def test_a_follower_sends_publishers_to_the_leader(cluster, kit):
    """A publisher at a follower gets an error with the leader's address."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    leader = await cluster.leader()
    other = next(n for n in (1, 2, 3) if n != leader)
    answers = kit.Answers()
    kit.put(cluster.partition(other), answers, "x")
    assert isinstance(answers.errors["x"], NotLeaderError)
    await kit.until(lambda: cluster.partition(other).addresses[0] == f"127.0.0.1:{10_000 + leader}")
    kit.put(cluster.partition(other), answers, "y")
    assert f"127.0.0.1:{10_000 + leader}" in answers.errors["y"].message


async def test_a_killed_leader_costs_nothing_that_was_acked(cluster):
    """Another replica leads on, with every acked record in order; the old one catches up."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    words = [f"a{n}" for n in range(20)]
    await cluster.put(*words)
    old = await cluster.leader()
    await cluster.kill(old)
    more = [f"b{n}" for n in range(20)]
    await cluster.put(*more)
    assert await cluster.leader() != old
    await cluster.start(old)
    await cluster.isr(1, 2, 3)
    await cluster.agree(words + more)


async def test_all_brokers_may_go_and_come_back(cluster):
    """After all were killed the cluster comes back with its streams and records."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    words = [f"a{n}" for n in range(10)]
    await cluster.put(*words)
    for number in (1, 2, 3):
        await cluster.kill(number)
    async with asyncio.TaskGroup() as group:
        for number in (1, 2, 3):
            group.create_task(cluster.start(number))
    await cluster.put("again")
    await cluster.isr(1, 2, 3)
    await cluster.agree([*words, "again"])


async def test_a_broker_that_starts_long_before_the_others_waits_for_them(
    cluster, kit, monkeypatch
):
    """It retries its registration, and takes part once the others are there."""
    monkeypatch.setattr(requests, "LEADERLESS_S", 0.1)
    tries = 0

    async def counted(*given, **named):
        nonlocal tries
        tries += 1
        return await propose(*given, **named)

    propose = requests.Requests.propose
    monkeypatch.setattr(requests.Requests, "propose", counted)
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.start(1))
        await kit.until(lambda: tries == 3)
        group.create_task(cluster.start(2, 3))
    await cluster.create()
    await cluster.put("a")
    await cluster.agree(["a"])


async def test_who_joins_and_is_told_nothing_says_what_may_be_wrong(
    cluster, kit, monkeypatch, caplog
):
    """It admits only its peers, and so waits without effect if none is the controller."""
    monkeypatch.setattr(requests, "LEADERLESS_S", 0.1)
    cluster.tls[1] = {"join": True}
    starting = asyncio.create_task(cluster.start(1))
    await kit.until(lambda: "not registered yet" in caplog.text)
    starting.cancel()
    assert "its cluster.peers must name all brokers of today" in caplog.text


async def test_too_few_replicas_reject_at_once(cluster, kit):
    """With fewer than min_isr in sync a publish is rejected, until they are back."""
    await cluster.start(1, 2, 3)
    await cluster.create(min_isr=3)
    await cluster.put("a")
    leader = await cluster.leader()
    away = next(n for n in (1, 2, 3) if n != leader)
    await cluster.kill(away)
    await kit.until(lambda: len(cluster.image().isr) == 2, seconds=20)
    partition = cluster.partition(cluster.image().leader)
    await kit.until(lambda: partition.replica_hooks.replica.reject_reason is not None)
    answers = kit.Answers()
    kit.put(partition, answers, "b")
    assert answers.codes == {"b": "not_enough_replicas"}
    assert answers.errors["b"].retriable
    await cluster.start(away)
    await cluster.put("c")
    await cluster.agree(["a", "c"])


async def test_a_leader_that_is_cut_off_rejects_at_once(cluster, kit):
    """It can neither commit nor shrink the ISR: publishers get an error at once."""
    await cluster.start(1, 2, 3)
    await cluster.create(min_isr=1)
    await cluster.put("a")
    leader = await cluster.leader()
    partition, held = cluster.partition(leader), kit.Answers()
    others = [n for n in (1, 2, 3) if n != leader]
    for number in others:
        await cluster.kill(number)
    kit.put(partition, held, "b")
    await held.wait(1)
    assert "is not known" in held.errors["b"].message, "what was taken may yet be kept"
    refused = kit.Answers()
    kit.put(partition, refused, "c")
    assert refused.codes == {"c": "unavailable"}
    assert "reaches neither" in refused.errors["c"].message
    await cluster.start(*others)
    await cluster.put("d")
    assert refused.acks == {}


async def test_a_stop_hands_over_and_loses_nobody(cluster, caplog):
    """A broker that stops cleanly passes its leaderships on before it goes, which is no error."""
    await cluster.start(1, 2, 3)
    await cluster.create(partitions=3, partition_by="subject")
    for index in range(3):
        await cluster.put(f"p{index}", index=index)
    leader = await cluster.leader()
    broker = cluster.brokers[leader]
    await broker.prepare_stop()
    assert cluster.image().leader not in (None, leader)
    cluster.brokers.pop(leader)
    await broker.stop()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    await cluster.put("after")
    await cluster.agree(["p0", "after"])


async def controller(cluster):
    """Return the controller, once all brokers agree on it."""
    quorums = [broker.membership.quorum for broker in cluster.brokers.values()]
    await cluster.kit.until(lambda: len({q.leader for q in quorums} - {None}) == 1, seconds=20)
    return quorums[0].leader


async def test_a_controller_that_stops_has_a_successor_before_it_is_gone(cluster):
    """It asks for one election, which saves an election timeout."""
    await cluster.start(1, 2, 3)
    await cluster.create(partitions=3, partition_by="subject")
    old = await controller(cluster)
    broker = cluster.brokers[old]
    term = broker.membership.quorum.term
    assert broker.membership.replicas.leads, "leaders are shared"
    await broker.prepare_stop()
    assert not broker.membership.replicas.leads
    assert not broker.membership.controller.is_held
    new = broker.membership.quorum.leader
    assert new in cluster.brokers.keys() - {old}
    assert broker.membership.quorum.term == term + 1
    cluster.brokers.pop(old)
    await broker.stop()
    assert cluster.brokers[new].membership.controller.is_held
    await cluster.create("made-after", at=new, replicas=2)
    await cluster.put("after")
    assert cluster.brokers[new].membership.quorum.term == term + 1


async def test_a_controller_whose_successors_do_not_answer_stops_all_the_same(cluster, kit, caplog):
    """Each successor gets its time; then the rest elects, as after a crash."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    old = await controller(cluster)
    broker = cluster.brokers[old]
    quorum = broker.membership.quorum
    send = quorum._send
    quorum._send = lambda e: None if isinstance(e.message, Campaign) else send(e)
    async with asyncio.timeout(20):
        await broker.prepare_stop()
    assert quorum.is_leading
    assert "before all leaderships were handed over" in caplog.text
    cluster.brokers.pop(old)
    await broker.stop()
    await kit.until(lambda: any(b.membership.controller.is_held for b in cluster.brokers.values()))
    await cluster.put("after")


async def test_what_no_other_broker_has_is_not_waited_for(cluster, caplog):
    """A partition without another copy stays where it is, and its broker stops without delay."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=1, min_isr=1, acks="disk")
    broker = cluster.brokers[await cluster.leader()]
    await broker.prepare_stop()
    assert broker.membership.replicas.leads
    assert "before all leaderships were handed over" not in caplog.text


async def test_deleted_streams_are_gone_everywhere(cluster, kit):
    """Also at a broker that was away, whose logs are removed when it returns."""
    await cluster.start(1, 2, 3)
    await cluster.create("keep")
    await cluster.create("drop")
    await cluster.put("x", name="drop")
    await cluster.kill(3)
    await kit.until(lambda: cluster.brokers[1]._image.brokers[3].is_fenced, seconds=20)
    await cluster.brokers[1].delete_stream("drop")
    await cluster.start(3)
    for broker in cluster.brokers.values():
        await kit.until(lambda b=broker: [s.name for s in b.streams()] == ["keep"])
        logs = broker.data_dir / "logs"
        await kit.until(lambda logs=logs: len(list(logs.iterdir())) == 1)
    with pytest.raises(UnknownStreamError):
        await cluster.brokers[2].delete_stream("drop")


async def test_metadata_is_told_while_a_stream_goes(cluster, kit):
    """A broker that is about to delete a stream still describes all the others."""
    await cluster.start(1, 2, 3)
    await cluster.create("keep")
    await cluster.create("drop")
    late = cluster.brokers[3]
    late.membership._on_image = lambda image: None
    await cluster.brokers[1].delete_stream("drop")
    await kit.until(lambda: "drop" not in late._image.streams)
    anybody = SimpleNamespace(caller=SimpleNamespace(has=lambda _: True))
    describe = DescribeCalls(Host(late, pool=None))
    told = await describe.metadata(pb.FetchMetadataRequest(), anybody)
    leaders = {each.name: each.partitions[0].leader for each in told.streamMetadata}
    assert leaders == {"keep": str(await cluster.leader("keep")), "drop": ""}


async def test_what_a_stream_cannot_be_is_rejected_anywhere(cluster):
    """Existing names and settings that a cluster cannot keep are rejected."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    with pytest.raises(StreamExistsError):
        await cluster.create(at=3)
    with pytest.raises(InvalidConfigError):
        await cluster.create("t", min_isr=4)
    with pytest.raises(InvalidConfigError):
        await cluster.create("t", queue_group="g", partitions=2, partition_by="key")


async def test_a_broker_whose_disk_fails_comes_back_by_itself(cluster, kit):
    """A failed sync stops the broker; reopened, it registers again and is in sync again."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    before = cluster.brokers[leader].membership.incarnation
    cluster.disks[leader].fail("sync", "journal", times=1)
    await cluster.put("b", "c")
    await kit.until(lambda: cluster.brokers[leader].membership.incarnation != before)
    await cluster.isr(1, 2, 3)
    await cluster.put("d")
    await cluster.agree(["a", "b", "c", "d"])


async def test_a_directory_has_one_broker(cluster, open_broker, tmp_path):
    """Another id, or no cluster at all, is rejected on a data directory of a cluster's broker."""
    await cluster.start(1, 2, 3)
    await cluster.kill(1)
    (tmp_path / "data").symlink_to(tmp_path / "broker-1")
    with pytest.raises(InvalidConfigError, match="broker 1 of cluster 'test'"):
        await open_broker()


async def test_who_asks_too_early_where_brokers_are_is_told_to_retry(tmp_path, kit):
    """A starting broker's front ends listen before it knows its ports."""
    [port] = free_ports(1)
    peers = [f"1=127.0.0.1:{port}"]
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        journal=JournalConfig(file_bytes=1 << 20),
        cluster=ClusterConfig(broker_id=1, name="test", peer_port=port, peers=peers),
    )
    broker = ClusterBroker(config, disk=kit.Disk())
    await broker.start()
    try:
        with pytest.raises(UnavailableError, match="retry"):
            _ = broker.flight_addresses
        broker.announce(10_001)
        assert broker.flight_addresses == (broker.flight_address,) == ("127.0.0.1:10001",)
    finally:
        await broker.stop()


async def test_brokers_talk_over_tls(cluster):
    """With certificates in the settings everything works as without."""
    cluster.secure()
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a", "b")
    await cluster.agree(["a", "b"])


async def test_peers_have_a_network_of_their_own(cluster, kit):
    """Brokers use one address for peers, and another one for clients."""
    addresses = [peer.replace("127.0.0.1", "127.0.7.1") for peer in cluster.peers]
    cluster.peers = addresses
    own = {"peer_host": "127.0.7.1", "advertised_host": "127.0.0.1"}
    cluster.tls = dict.fromkeys((1, 2, 3), own)
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    told = tuple(f"127.0.0.1:{10_000 + number}" for number in (1, 2, 3))
    await kit.until(lambda: cluster.brokers[1].flight_addresses == told)
    port = int(addresses[0].rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_partitions_kept_elsewhere_are_known_by_name(cluster, answers, kit):
    """A broker without a copy lists the stream, and sends readers and publishers to the leader."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=1, min_isr=1)
    leader = await leader_of_one(cluster)
    away = cluster.partition(next(n for n in (1, 2, 3) if n != leader))
    address = f"127.0.0.1:{10_000 + leader}"
    await kit.until(lambda: address in away.remote_error.message)
    kit.put(away, answers, "x")
    assert address in answers.errors["x"].message
    with pytest.raises(NotLeaderError, match=address):
        away.read(0, 100)
    here = cluster.partition(leader)
    kit.put(here, answers, "y")
    await answers.wait(2)
    assert kit.values(here) == [b"y"]


async def leader_of_one(cluster):
    """Return the leader, once there is one."""
    await cluster.kit.until(lambda: cluster.image().leader is not None)
    return cluster.image().leader


async def test_the_high_watermark_travels_with_the_next_batch(cluster, kit, monkeypatch):
    """A commit alone wakes no follower at once; the next batch carries it."""
    monkeypatch.setattr(replicas, "WATERMARK_DELAY_S", 3600.0)
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    follower = cluster.partition(next(n for n in (1, 2, 3) if n != leader))
    await cluster.put("b")
    await kit.until(lambda: follower.high_watermark >= 1)


async def test_a_copy_shows_no_more_than_it_knows_to_be_committed(cluster, monkeypatch):
    """A replica that is started again serves no further than it noted, from the first moment."""
    monkeypatch.setattr(following, "WATERMARK_INTERVAL_S", 3600)
    seen, add = [], replicas.Replicas.add

    def look(self, partition, high_watermark):
        if partition.name.stream == "s":
            seen.append((partition.last_stable_offset, partition.log_end_offset))
        add(self, partition, high_watermark)

    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a", "b")
    other = next(n for n in (1, 2, 3) if n != cluster.image().leader)
    await cluster.kill(other)
    monkeypatch.setattr(replicas.Replicas, "add", look)
    await cluster.start(other)
    await cluster.agree(["a", "b"])
    assert seen == [(0, 2)], "both are stored, and nobody has said there yet that they count"


async def test_an_isr_that_was_overtaken_takes_no_other_down_with_it(cluster, kit):
    """Only a leader's last proposal is pending: two would be rejected together."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    await cluster.isr(1, 2, 3)
    leader = await cluster.leader()
    host = cluster.brokers[leader].membership.replicas
    driver, version = cluster.partition(leader).replica_hooks, cluster.image().version
    smaller = {leader, next(n for n in (1, 2, 3) if n != leader)}
    proposal = driver.replica.leader.isr.propose(smaller, ())
    host.propose_isr(driver, msgspec.structs.replace(proposal, version=version - 1))
    host.propose_isr(driver, proposal)
    await kit.until(lambda: cluster.image().version > version, seconds=20)
    await cluster.isr(1, 2, 3)
    await cluster.put("b")
    await cluster.agree(["a", "b"])


async def test_a_stream_that_is_not_opened_yet_is_not_called_unknown(cluster):
    """A broker that has just started knows it from its disk, and opens it once it may."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    broker = cluster.brokers[3]
    broker._streams = {}
    with pytest.raises(UnavailableError, match=r"'s' is not open here yet; retry"):
        broker.stream("s")
    with pytest.raises(UnknownStreamError, match="there are: s"):
        broker.stream("t")

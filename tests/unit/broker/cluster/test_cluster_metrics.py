"""Metrics of a cluster: replicas behind, leaders, elections, and the reason for not ready."""

from types import SimpleNamespace

import pytest

from strandline.broker.cluster import cluster_metrics
from strandline.config import StreamConfig
from strandline.core.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    StreamImage,
)
from strandline.core.replication.effects import RejectReason
from strandline.telemetry import Telemetry


async def figures_of(cluster, number):
    """A broker's figures as a scrape would find them."""
    broker = cluster.brokers[number]
    broker.refresh_telemetry()
    return broker.telemetry


async def test_a_lost_follower_shows_at_the_leader_and_a_commit_is_timed(cluster, kit):
    """Under-replicated and lagging while it is away, neither when it is back."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    leader = await cluster.leader()
    lost = next(n for n in (1, 2, 3) if n != leader)
    await cluster.put("a", "b")
    await cluster.isr(1, 2, 3)
    shown = await figures_of(cluster, leader)
    assert (shown.replicas, shown.led_partitions, shown.under_replicated_partitions) == (1, 1, 0)
    assert shown.commit_seconds.count == 2
    assert 0 < shown.commit_seconds.total < 60
    assert shown.leader_elections == 1
    await kit.until(lambda: lag(cluster, leader, lost) == (0, 0))
    await cluster.kill(lost)
    await cluster.put("c" * 1000)
    await kit.until(lambda: not cluster.image().isr.count(lost), seconds=20)
    await kit.until(lambda: refreshed(cluster, leader).under_replicated_partitions == 1)
    assert shown.isr_shrinks == 1
    records, size = lag(cluster, leader, lost)
    assert records == 1
    assert size >= 1000
    assert shown.under_min_isr_partitions == shown.offline_partitions == 0
    await cluster.start(lost)
    await cluster.isr(1, 2, 3)
    await kit.until(lambda: refreshed(cluster, leader).under_replicated_partitions == 0)
    assert shown.isr_expands >= 1
    await kit.until(lambda: lag(cluster, leader, lost) == (0, 0))


def refreshed(cluster, number):
    cluster.brokers[number].refresh_telemetry()
    return cluster.brokers[number].telemetry


def lag(cluster, leader, broker):
    shown = refreshed(cluster, leader)
    return shown.replica_lag_records[str(broker)], shown.replica_lag_bytes[str(broker)]


async def test_without_a_majority_of_copies_a_partition_takes_no_records(cluster, kit):
    """Below ``min_isr`` the leader reports it; without a live replica there is no leader."""
    await cluster.start(1, 2, 3)
    await cluster.create(min_isr=3)
    leader = await cluster.leader()
    lost = next(n for n in (1, 2, 3) if n != leader)
    assert sum(refreshed(cluster, n).controller for n in (1, 2, 3)) == 1
    assert len({refreshed(cluster, n).consensus_term for n in (1, 2, 3)}) == 1
    assert all(refreshed(cluster, n).consensus_commit_index > 0 for n in (1, 2, 3))
    await cluster.kill(lost)
    await kit.until(lambda: refreshed(cluster, leader).under_min_isr_partitions == 1, seconds=20)


async def test_a_broker_is_ready_once_its_copies_are_in_sync(cluster, kit):
    """A restarted broker reports how many of its replicas are behind, until none is."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    lost = next(n for n in (1, 2, 3) if n != cluster.image().leader)
    assert all(not broker.why_not_ready for broker in cluster.brokers.values())
    await cluster.kill(lost)
    await cluster.put("b")
    await kit.until(lambda: lost not in cluster.image().isr, seconds=20)
    await cluster.start(lost)
    broker = cluster.brokers[lost]
    replicas = broker.membership.replicas
    given = replicas.assigned(cluster.partition(lost).log_id)
    if lost not in given.isr:
        assert cluster_metrics.why_behind(replicas) == "1 of 1 copies here are not in sync yet"
    await kit.until(lambda: not broker.why_not_ready, seconds=20)
    assert lost in replicas.assigned(cluster.partition(lost).log_id).isr


async def test_a_broker_that_is_cut_off_is_not_ready(cluster, kit):
    """Alone of three, leader or not, it takes no records until others are back."""
    await cluster.start(1, 2, 3)
    await cluster.create("s")
    await cluster.create("t")
    alone = cluster.image().leader
    broker = cluster.brokers[alone]
    await kit.until(lambda: not broker.why_not_ready, seconds=20)
    others = [n for n in (1, 2, 3) if n != alone]
    for number in others:
        await cluster.kill(number)
    await kit.until(lambda: broker.why_not_ready.startswith("no controller"), seconds=20)
    assert refreshed(cluster, alone).ready == 0
    await cluster.start(*others)
    await kit.until(lambda: not broker.why_not_ready, seconds=20)


def test_copies_that_a_move_brings_in_are_not_behind():
    """A broker that is given more copies stays ready, and nothing counts as under-replicated."""
    partition = PartitionImage(log_id=1, replicas=(1, 2, 3, 4), isr=(1, 2), adding=(4,))
    assert cluster_metrics.behind(partition) == {3}


async def test_a_leader_with_too_few_copies_in_sync_is_not_ready(cluster, kit):
    """It says how many partitions take no records, and why."""
    await cluster.start(1, 2, 3)
    await cluster.create(min_isr=3)
    leader = await cluster.leader()
    lost = next(n for n in (1, 2, 3) if n != leader)
    await cluster.kill(lost)
    broker = cluster.brokers[leader]
    await kit.until(lambda: "1 partitions led here take no records" in broker.why_not_ready)
    await cluster.start(lost)
    await kit.until(lambda: not broker.why_not_ready, seconds=20)


async def test_a_broker_that_was_removed_says_so(cluster, kit):
    """It is not ready, and the reason asks the operator to stop it."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    operations = cluster.brokers[1].operations
    await operations.drain(3, is_on=True)
    await operations.remove(3)
    await kit.until(lambda: "was removed from the cluster" in cluster.brokers[3].why_not_ready)


class Drivers:
    """Replicas at broker 1: each with image, whether it is led, has a way, why it rejects."""

    me = 1

    def __init__(self, *shapes):
        self.shapes = dict(enumerate(shapes))
        self.drivers = {
            log_id: SimpleNamespace(
                replica=SimpleNamespace(leader=object() if led else None, reject_reason=rejection)
            )
            for log_id, (_, led, _, rejection) in self.shapes.items()
        }

    def assigned(self, log_id):
        return self.shapes[log_id][0]

    def can_commit(self, log_id):
        return self.shapes[log_id][2]


def copy(*, leader=2, isr=(1, 2), adding=()):
    return PartitionImage(log_id=1, replicas=(1, 2), leader=leader, isr=isr, adding=adding)


FINE = (copy(), False, True, None)
LED = (copy(leader=1), True, True, None)
FEW = RejectReason.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([], ""),
        ([FINE, LED], ""),
        ([FINE, (copy(leader=1), False, True, None)], "1 leaderships here have not begun yet"),
        ([FINE, (copy(isr=(2,)), False, True, None)], "1 of 2 copies here are not in sync yet"),
        ([(None, False, True, None)], "1 of 1 copies here are not in sync yet"),
        ([(copy(isr=(2,), adding=(1,)), False, True, None)], ""),
        ([FINE, (copy(), False, False, None)], "no controller: 1 of 2 copies here take no records"),
        (
            [LED, (copy(leader=1), True, True, FEW), (copy(isr=(2,)), False, True, None)],
            "1 partitions led here take no records",
        ),
        ([LED, (copy(leader=1), True, True, RejectReason.RESIGNING)], ""),
    ],
)
def test_a_broker_says_what_its_copies_lack(shapes, why):
    """The worst first; a copy that is being added may lag."""
    found = cluster_metrics.why_behind(Drivers(*shapes))
    assert found.startswith(why)
    assert bool(found) is bool(why)


def test_partitions_without_a_leader_in_service_are_offline():
    """Whether there is none, or it is fenced."""
    image = MetadataImage()
    for number in (1, 2):
        image = image.with_broker(
            BrokerImage(id=number, directory_id="d", incarnation="r", is_fenced=number == 2)
        )
    partitions = tuple(copy(leader=leader) for leader in (1, 2, None, 1))
    stream = StreamImage(
        config=StreamConfig(name="s", subject="s"), created_ns=1, partitions=partitions
    )
    assert cluster_metrics._offline(image.with_streams({"s": stream})) == 2


def test_partitions_led_here_are_counted_among_those_that_are_not():
    """In any order; a follower's lag is counted at the leader."""
    made = Drivers(FINE, LED, FINE, (copy(leader=1, isr=(1,)), True, True, FEW), (None, *LED[1:]))
    for number in (1, 3):
        progress = SimpleNamespace(durable_offset=90)
        leader = SimpleNamespace(
            reject_reason=made.shapes[number][3],
            followers={2: progress},
            log=SimpleNamespace(log_end_offset=90 + number - 1),
        )
        made.drivers[number].replica.leader = leader
        made.drivers[number].log = SimpleNamespace(bytes_from=lambda offset: 1000 + offset)
    telemetry = Telemetry()
    cluster_metrics._refresh_leaders(telemetry, made)
    assert telemetry.led_partitions == 2
    assert telemetry.under_replicated_partitions == 1
    assert telemetry.under_min_isr_partitions == 1
    assert telemetry.replica_lag_records == {"2": 2}
    assert telemetry.replica_lag_bytes == {"2": 1090}

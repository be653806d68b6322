"""Reports about a Liftbridge group's coordinator, checked against the metadata."""

from types import SimpleNamespace

import pytest

from strandline.broker.cluster.broker import ClusterBroker
from strandline.clock import ManualClock
from strandline.config import GrpcConfig
from strandline.core.metadata.commands import MoveGroup
from strandline.core.metadata.image import BrokerImage, GroupImage
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.groups import GroupCalls
from strandline.servers.grpc.status import RpcError

CALL = SimpleNamespace(caller=SimpleNamespace(is_checked=False))


class Broker(ClusterBroker):
    """A broker of a cluster, as far as its metadata goes; keeps the changes that are asked for."""

    image = clock = None

    def __init__(self, image):
        self.image, self.clock, self.changes = image, ManualClock(), []

    async def change(self, command, **_):
        self.changes.append(command)


def calls(*, fenced=(), members=3):
    """The calls of broker 1; broker 2 coordinates the group, in epoch 7, and 3 is another."""
    brokers = {
        number: BrokerImage(
            id=number, directory_id=f"d{number}", incarnation="i", is_fenced=number in fenced
        )
        for number in (1, 2, 3)
    }
    names = {f"m{number}": ("s",) for number in range(members)}
    group = GroupImage(coordinator=2, epoch=7, members=names)
    broker = Broker(SimpleNamespace(brokers=brokers, groups={"g": group}))

    async def newest():
        """Nothing is newer."""

    host = SimpleNamespace(broker=broker, config=GrpcConfig(), me=1, know_newest=newest)
    return broker, GroupCalls(host)


def report(member="m0", *, coordinator="2", epoch=7):
    return pb.ReportConsumerGroupCoordinatorRequest(
        groupId="g", consumerId=member, coordinator=coordinator, epoch=epoch
    )


async def test_one_report_is_enough_if_the_coordinator_is_known_to_be_away():
    """A broker that is fenced does not answer anybody: the group need not wait for a majority."""
    broker, groups = calls(fenced={2})
    await groups.report(report(), CALL)
    assert broker.changes == [MoveGroup("g", 1, 7)]


async def test_a_live_coordinator_is_replaced_by_a_majority_only():
    """One member's report does not move the group; those of two of three do."""
    broker, groups = calls()
    await groups.report(report("m0"), CALL)
    await groups.report(report("m0"), CALL)
    assert broker.changes == []
    await groups.report(report("m1"), CALL)
    assert broker.changes == [MoveGroup("g", 1, 7)]


async def test_a_fenced_broker_does_not_become_the_coordinator():
    """Only a live broker can answer the members."""
    broker, groups = calls(fenced={1, 2})
    await groups.report(report(), CALL)
    assert broker.changes == [MoveGroup("g", 3, 7)]
    broker, groups = calls(fenced={1, 2, 3})
    with pytest.raises(RpcError, match="candidates"):
        await groups.report(report(), CALL)
    assert broker.changes == []


@pytest.mark.parametrize("stale", [{"coordinator": "3"}, {"epoch": 6}])
async def test_a_report_about_another_coordinator_counts_for_nothing(stale):
    """The group has moved since: the member must look it up."""
    broker, groups = calls(fenced={2})
    with pytest.raises(RpcError, match="another coordinator or epoch"):
        await groups.report(report(**stale), CALL)
    assert broker.changes == []

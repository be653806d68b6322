"""A broker that stops hands over its partitions, and the metadata last."""

from types import SimpleNamespace

import pytest

from strandline.broker.cluster import handover
from strandline.broker.cluster.handover import hand_over
from strandline.config import StreamConfig
from strandline.core.metadata.commands import BeginShutdown, BrokerRun
from strandline.core.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    StreamImage,
)
from strandline.core.metadata.outcome import CommandOutcome
from strandline.core.raft.messages import Members
from strandline.errors import UnavailableError

ME = BrokerRun(1, "r")


def image(*, leader, fenced=()):
    """A stream of one partition on brokers 1 and 2, and broker 3 that is live."""
    found = MetadataImage()
    for number in (1, 2, 3):
        broker = BrokerImage(
            id=number,
            directory_id="d",
            incarnation="r",
            is_fenced=number in fenced,
            is_stopping=number == 1,
        )
        found = found.with_broker(broker)
    partition = PartitionImage(
        log_id=1, replicas=(1, 2), isr=(1, 2), leader=leader, leader_epoch=1, version=1
    )
    stream = StreamImage(
        config=StreamConfig(name="s", subject="s"), created_ns=1, partitions=(partition,)
    )
    return found.with_streams({"s": stream})


class World:
    """A broker's replicas, quorum and session; everything that happens, in order."""

    def __init__(self, now, *, leads=True, is_controller=False):
        self.machine = SimpleNamespace(image=now)
        self.done = []
        self.outcome = CommandOutcome()
        self.replicas = SimpleNamespace(
            resign=lambda: self.done.append("resign"), may_hand_over=True, leads=leads
        )
        self.quorum = SimpleNamespace(
            is_leading=is_controller,
            leader=1 if is_controller else 2,
            members=Members((1, 2, 3)),
            hand_over=self.give,
        )

    def give(self, successor):
        self.done.append(f"metadata to {successor}")
        self.quorum.leader, self.quorum.is_leading = successor, False

    async def propose(self, command, *, timeout_s):
        self.done.append(command)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def stop(self):
        await hand_over(ME, self.quorum, machine=self.machine, replicas=self.replicas, session=self)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(handover, "STEP_S", 0.05)
    monkeypatch.setattr(handover, "SUCCESSOR_S", 0.05)
    monkeypatch.setattr(handover, "POLL_S", 0.001)


async def test_partitions_go_before_the_metadata(caplog):
    """A controller is needed to hand over partitions."""
    world = World(image(leader=2), is_controller=True)
    await world.stop()
    [successor] = [each for each in (2, 3) if f"metadata to {each}" in world.done]
    assert world.done == ["resign", BeginShutdown(ME), f"metadata to {successor}"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("now", "leads", "waits"),
    [
        (image(leader=1), True, True),
        (image(leader=1), False, False),  # its replicas say so already
        (image(leader=2), True, False),
        (image(leader=1, fenced=(2,)), True, False),  # nobody could take over
    ],
)
async def test_it_waits_for_those_that_can_take_over(now, leads, waits, caplog):
    """For a limited time."""
    await World(now, leads=leads).stop()
    assert ("before all leaderships were handed over" in caplog.text) is waits


async def test_a_broker_that_may_not_stop_yet_is_not_waited_for(caplog):
    """A rejected command moves no leadership, so there is none to wait for."""
    world = World(image(leader=1))
    world.outcome = CommandOutcome(code="invalid_request", reason="stale_incarnation")
    await world.stop()
    assert not caplog.records


async def test_without_a_quorum_it_stops_all_the_same(caplog):
    """Partitions then get an election."""
    world = World(image(leader=1))
    world.outcome = UnavailableError("no quorum")
    await world.stop()
    assert "stopping without handing over leaderships: no quorum" in caplog.text
    assert world.done == ["resign", BeginShutdown(ME)]


async def test_the_next_broker_is_asked_if_one_does_not_take_the_metadata(caplog):
    """Its link may be gone; nobody is asked once another leads."""
    world = World(image(leader=2), is_controller=True)
    world.quorum.hand_over = world.done.append
    await world.stop()
    assert sorted(world.done[2:]) == [2, 3]
    assert len([each for each in caplog.records if "leaderships" in each.message]) == 2

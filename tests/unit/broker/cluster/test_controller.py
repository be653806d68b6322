"""The controller of a broker: there while it leads the quorum, told what happens to brokers."""

import asyncio
from types import SimpleNamespace
from typing import ClassVar

import pytest

from strandline.broker.cluster import controller as runner_module
from strandline.broker.cluster.controller import ControllerRunner
from strandline.clock import ManualClock
from strandline.core.metadata.commands import BrokerRun, DeleteStream, decode_entry
from strandline.core.metadata.image import BrokerImage, MetadataImage
from strandline.core.metadata.outcome import CommandOutcome
from strandline.core.raft.messages import Members
from strandline.errors import UnavailableError
from tests.kit.waiting import until_async

RUN = BrokerRun(2, "r")
COMMANDS = (DeleteStream("a"), DeleteStream("b"))


class FakeController:
    """Keeps what it is told; decides what a test has set."""

    made: ClassVar[list] = []

    def __init__(self, now_ms, limits, away):
        self.begun = (now_ms, limits, dict(away))
        self.told, self.commands = [], ()
        self.made.append(self)

    def heartbeat(self, run, now_ms, stored_index):
        self.told.append((run, now_ms, stored_index))

    def lost(self, broker, now_ms):
        self.told.append(("lost", broker, now_ms))

    def found(self, broker):
        self.told.append(("found", broker))

    def decide(self, image, now_ms, log_ends=None):
        self.told.append(("decide", now_ms))
        commands, self.commands = self.commands, ()
        return commands


class FakeQuorum:
    """A member of a group of brokers 1 and 2; proposals are accepted."""

    def __init__(self):
        self.me, self.is_leading = 1, False
        self.on_leadership, self.proposed, self.changed, self.given = [], [], [], []
        self.members = Members((1, 2))
        self.error = None

    def lead(self, *, is_leading=True):
        self.is_leading = is_leading
        for callback in self.on_leadership:
            callback()

    async def barrier(self, *, timeout_s):
        if self.error is not None:
            raise self.error

    async def propose(self, data, *, timeout_s):
        self.proposed.append(decode_entry(data))
        return CommandOutcome()

    async def change_members(self, members, *, timeout_s):
        self.changed.append(members)
        self.members = members

    def hand_over(self, successor):
        self.given.append(successor)


def broker(number, **fields):
    return BrokerImage(
        id=number, directory_id=f"d{number}", incarnation="r", is_fenced=False, **fields
    )


@pytest.fixture
async def office(monkeypatch):
    """A runner whose decisions run, its quorum, clock and image."""
    monkeypatch.setattr(runner_module, "Controller", FakeController)
    monkeypatch.setattr(runner_module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(FakeController, "made", [])
    image = MetadataImage().with_broker(broker(1)).with_broker(broker(2))
    made = SimpleNamespace(quorum=FakeQuorum(), clock=ManualClock(), image=image)

    async def nobody(wanted):
        raise AssertionError("no election asks for log ends")

    made.runner = ControllerRunner(made.quorum, lambda: made.image, nobody, clock=made.clock)
    running = asyncio.create_task(made.runner.run())
    yield made
    running.cancel()


def told(kind):
    """What the newest controller was told of a kind."""
    return [each for each in FakeController.made[-1].told if each[0] == kind]


async def test_it_is_there_while_the_broker_leads_the_quorum(office):
    """Each leadership has its own, which knows who was away before."""
    runner = office.runner
    assert not runner.is_held
    runner.heartbeat(RUN, 3)
    office.clock.advance_ms(7)
    runner.peer_disconnected(3)
    runner.peer_disconnected(4)
    runner.peer_connected(4)
    office.quorum.lead()
    assert runner.is_held
    now_ms, limits, away = FakeController.made[0].begun
    assert (now_ms, limits, away) == (7, runner_module.LIMITS, {3: 7})
    office.quorum.lead(is_leading=False)
    assert not runner.is_held
    office.quorum.lead()
    assert len(FakeController.made) == 2


async def test_it_hears_of_brokers_at_the_time_it_happens(office):
    """Heartbeats, and connections that end and return."""
    office.quorum.lead()
    office.clock.advance_ms(5)
    office.runner.heartbeat(RUN, 9)
    office.runner.peer_disconnected(2)
    office.runner.peer_connected(2)
    assert told(RUN) == [(RUN, 5, 9)]
    assert told("lost") == [("lost", 2, 5)]
    assert told("found") == [("found", 2)]


async def test_what_it_decides_is_proposed_in_order(office):
    """Soon after a change, and from time to time without one."""
    office.quorum.lead()
    await until_async(lambda: len(told("decide")) >= 3)
    FakeController.made[-1].commands = COMMANDS
    office.runner.image_changed()
    await until_async(lambda: office.quorum.proposed)
    await until_async(lambda: len(office.quorum.proposed) == 2)
    assert tuple(office.quorum.proposed) == COMMANDS


async def test_without_a_quorum_it_decides_nothing(office, caplog):
    """On an outdated image it could decide what is over; it tries again."""
    office.quorum.error = UnavailableError("no quorum")
    office.quorum.lead()
    await asyncio.sleep(0.05)
    assert told("decide") == []
    office.quorum.error = None
    await until_async(lambda: told("decide"))


async def test_members_follow_the_brokers(office):
    """One step at a time; a leader that was removed lets another remove it."""
    office.image = office.image.with_broker(broker(3))
    office.quorum.lead()
    await until_async(lambda: office.quorum.members == Members((1, 2, 3)))
    assert office.quorum.changed == [Members((1, 2), (3,)), Members((1, 2, 3))]
    office.image = MetadataImage(removed=(1,)).with_broker(broker(2)).with_broker(broker(3))
    await until_async(lambda: office.quorum.given)
    assert set(office.quorum.given) <= {2, 3}
    assert len(office.quorum.changed) == 2


async def test_a_member_change_that_is_not_possible_yet_is_tried_again(office, monkeypatch):
    """So while the one before it is not committed."""
    change, tries = office.quorum.change_members, []

    async def at_the_third(members, *, timeout_s):
        tries.append(members)
        if len(tries) < 3:
            raise UnavailableError("not yet")
        await change(members, timeout_s=timeout_s)

    monkeypatch.setattr(office.quorum, "change_members", at_the_third)
    office.image = office.image.with_broker(broker(3))
    office.quorum.lead()
    await until_async(lambda: office.quorum.changed)
    assert tries[0] == office.quorum.changed[0] == Members((1, 2), (3,))
    assert len(tries) > len(office.quorum.changed)

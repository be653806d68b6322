"""Requests about NATS consumers between brokers: the order, its result, and its error."""

import asyncio

import pytest

from strandline.broker.cluster import remote_consumers
from strandline.broker.cluster.channels import ConsumerRequest, ConsumerResponse
from strandline.broker.cluster.remote_consumers import ClusterConsumerStore
from strandline.broker.coordinators.consumers import ConsumerOrder
from strandline.errors import (
    NotLeaderError,
    RequestTimeoutError,
    UnavailableError,
    UnknownGroupError,
)
from tests.kit.waiting import until_async

POSITIONS = {"s": {0: 4}}
ORDER = ConsumerOrder("keep", "g", POSITIONS, "{}", 3)


class Rpc:
    """The way to broker 2, and back."""

    def __init__(self):
        self.asked, self.answers, self.is_reached = [], [], True
        self.answer_of = asyncio.get_running_loop().create_future()

    def ask(self, to, question, kind):
        assert kind is ConsumerResponse
        self.asked.append((to, question(7)))
        return self.answer_of if self.is_reached else None

    def answer(self, caller, answer):
        self.answers.append((caller, answer))


class Groups:
    """A coordinator here that answers as a test has set; by default it is elsewhere."""

    def __init__(self):
        self.outcome, self.asked = NotLeaderError("elsewhere"), []

    async def keep_consumer(self, group, positions, consumer, *, epoch, is_new):
        self.asked.append(("keep", group, positions, consumer, epoch, is_new))
        if self.outcome is not None:
            raise self.outcome

    async def consumers(self, prefix):
        self.asked.append(("list", prefix))
        if self.outcome is not None:
            raise self.outcome
        return ["b", "a"]


@pytest.fixture
async def consumers():
    """A store whose coordinator is broker 2, as far as a test does not say otherwise."""
    leader = [2]
    made = ClusterConsumerStore(Groups(), Rpc(), lambda: leader[0])
    made.leaders = leader
    yield made
    await made.stop()


def keep(consumers):
    return consumers.keep("g", POSITIONS, "{}", epoch=3)


async def test_the_coordinator_here_is_asked_first(consumers):
    """Then nobody else is."""
    consumers._groups.outcome = None
    await keep(consumers)
    assert await consumers.list("p") == ["a", "b"]
    assert consumers._groups.asked == [("keep", "g", POSITIONS, "{}", 3, False), ("list", "p")]
    consumers._groups.outcome = UnknownGroupError("gone")
    with pytest.raises(UnknownGroupError, match="gone"):
        await keep(consumers)
    assert consumers._rpc.asked == []


async def test_an_order_reaches_the_coordinator(consumers):
    """As it is; its result comes back."""
    consumers._rpc.answer_of.set_result(ConsumerResponse(7, {"g": "state"}))
    assert await consumers._do(ORDER) == {"g": "state"}
    assert consumers._rpc.asked == [(2, ConsumerRequest(7, "keep", "g", POSITIONS, "{}", 3))]


async def test_an_order_without_positions_has_none(consumers):
    """The message always has some."""
    consumers._rpc.answer_of.set_result(ConsumerResponse(7, {}))
    assert await consumers.list("p") == []
    assert consumers._rpc.asked == [(2, ConsumerRequest(7, "list", "p", {}, "", 0))]


@pytest.mark.parametrize(
    ("code", "kind"),
    [("unknown_group", UnknownGroupError), ("from_the_future", UnavailableError)],
)
async def test_an_error_is_raised_here(consumers, code, kind):
    """One of a later version counts as passing."""
    consumers._rpc.answer_of.set_result(ConsumerResponse(7, {}, code, "why"))
    with pytest.raises(kind, match="why"):
        await keep(consumers)


async def test_nothing_was_done_where_nobody_could_be_asked(consumers):
    """There is no coordinator, or no way to it."""
    consumers._rpc.is_reached = False
    with pytest.raises(NotLeaderError, match="cannot be reached"):
        await keep(consumers)
    consumers.leaders[0] = None
    with pytest.raises(NotLeaderError, match="no broker coordinates"):
        await keep(consumers)
    assert len(consumers._rpc.asked) == 1


async def test_silence_is_an_unknown_outcome(consumers, monkeypatch):
    """After a while."""
    monkeypatch.setattr(remote_consumers, "TIMEOUT_S", 0.02)
    with pytest.raises(RequestTimeoutError, match="broker 2 did not answer"):
        await keep(consumers)


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (None, ConsumerResponse(7, {})),
        (UnknownGroupError("gone"), ConsumerResponse(7, {}, "unknown_group", "gone")),
        (NotLeaderError("elsewhere"), ConsumerResponse(7, {}, "not_leader", "elsewhere")),
    ],
)
async def test_other_brokers_are_served(consumers, outcome, answer):
    """With the result or the error; their request is not sent on to a third broker."""
    consumers._groups.outcome = outcome
    consumers.serve(3, ConsumerRequest(7, "keep", "g", POSITIONS, "{}", 3))
    await until_async(lambda: consumers._rpc.answers)
    assert consumers._rpc.answers == [(3, answer)]
    assert consumers._groups.asked == [("keep", "g", POSITIONS, "{}", 3, False)]
    assert consumers._rpc.asked == []
    await until_async(lambda: not consumers._serving)

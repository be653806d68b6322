"""Requests about NATS consumers between brokers: the order, its result, and its error."""

import asyncio

import pytest

from strandline.broker.cluster import remote_consumers
from strandline.broker.cluster.channels import ConsumerRequest, ConsumerResponse
from strandline.broker.cluster.remote_consumers import RemoteConsumers
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


class Store:
    """A coordinator that answers as a test has set."""

    def __init__(self, outcome):
        self.outcome, self.orders = outcome, []

    async def carry_out(self, order):
        self.orders.append(order)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
async def consumers():
    made = RemoteConsumers(Rpc())
    made.leader = lambda: 2
    yield made
    await made.stop()


async def test_an_order_reaches_the_coordinator(consumers):
    """As it is; its result comes back."""
    consumers._rpc.answer_of.set_result(ConsumerResponse(7, {"g": "state"}))
    assert await consumers.ask(ORDER) == {"g": "state"}
    assert consumers._rpc.asked == [(2, ConsumerRequest(7, "keep", "g", POSITIONS, "{}", 3))]


async def test_an_order_without_positions_has_none(consumers):
    """The message always has some."""
    consumers._rpc.answer_of.set_result(ConsumerResponse(7, {}))
    assert await consumers.ask(ConsumerOrder("list", "p")) == {}
    assert consumers._rpc.asked == [(2, ConsumerRequest(7, "list", "p", {}, "", 0))]


@pytest.mark.parametrize(
    ("code", "kind"),
    [("unknown_group", UnknownGroupError), ("from_the_future", UnavailableError)],
)
async def test_an_error_is_raised_here(consumers, code, kind):
    """One of a later version counts as passing."""
    consumers._rpc.answer_of.set_result(ConsumerResponse(7, {}, code, "why"))
    with pytest.raises(kind, match="why"):
        await consumers.ask(ORDER)


async def test_nothing_was_done_where_nobody_could_be_asked(consumers):
    """There is no coordinator, or no way to it."""
    consumers._rpc.is_reached = False
    with pytest.raises(NotLeaderError, match="cannot be reached"):
        await consumers.ask(ORDER)
    consumers.leader = lambda: None
    with pytest.raises(NotLeaderError, match="no broker coordinates"):
        await consumers.ask(ORDER)
    assert len(consumers._rpc.asked) == 1


async def test_silence_is_an_unknown_outcome(consumers, monkeypatch):
    """After a while."""
    monkeypatch.setattr(remote_consumers, "TIMEOUT_S", 0.02)
    with pytest.raises(RequestTimeoutError, match="broker 2 did not answer"):
        await consumers.ask(ORDER)


@pytest.mark.parametrize(
    ("store", "answer"),
    [
        (Store({"g": "state"}), ConsumerResponse(7, {"g": "state"})),
        (Store(UnknownGroupError("gone")), ConsumerResponse(7, {}, "unknown_group", "gone")),
        (None, ConsumerResponse(7, {}, "unavailable", "this broker is starting; retry")),
    ],
)
async def test_other_brokers_are_served(consumers, store, answer):
    """With the result or the error; before the start there is nothing to serve."""
    consumers.store = store
    consumers.serve(3, ConsumerRequest(7, "keep", "g", POSITIONS, "{}", 3))
    await until_async(lambda: consumers._rpc.answers)
    assert consumers._rpc.answers == [(3, answer)]
    if store is not None:
        assert store.orders == [ORDER]
    await until_async(lambda: not consumers._serving)

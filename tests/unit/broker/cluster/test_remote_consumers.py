"""NATS consumers' states at the coordinator of a cluster: the order, its result, and its error."""

import asyncio

import pytest

from strandline.broker.cluster import remote_consumers
from strandline.broker.cluster.channels import ConsumerRequest, ConsumerResponse
from strandline.broker.cluster.remote_consumers import ClusterConsumerStore
from strandline.errors import (
    NotLeaderError,
    RequestTimeoutError,
    UnavailableError,
    UnknownGroupError,
)
from tests.kit.waiting import until_async

POSITIONS = {"s": {0: 4}}
REQUEST = ConsumerRequest(7, "claim", "p", {}, "", 3)
MOVED = NotLeaderError("another broker coordinates groups")


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
    """A coordinator with this outcome."""

    def __init__(self, outcome):
        self.outcome, self.claims = outcome, []

    async def claim_consumers(self, prefix, epoch):
        self.claims.append((prefix, epoch))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def keep_consumer(self, *_, **__):
        raise self.outcome

    async def delete(self, group):
        raise self.outcome


@pytest.fixture
async def made():
    """A function: make a store with this outcome here, and broker 2 as the coordinator."""
    stores = []

    def make(outcome, leader=2):
        store = ClusterConsumerStore(Groups(outcome), Rpc(), lambda: leader)
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.stop()


async def test_the_coordinator_here_is_asked_first(made):
    """Its result and its error are final."""
    assert await made({"g": "state"}).claim("p", 3) == {"g": "state"}
    store = made(UnknownGroupError("gone"))
    with pytest.raises(UnknownGroupError):
        await store.delete("g")
    assert store._rpc.asked == []


async def test_an_order_reaches_the_coordinator_elsewhere(made):
    """As it is; its result comes back."""
    store = made(MOVED)
    store._rpc.answer_of.set_result(ConsumerResponse(7, {"g": "state"}))
    assert await store.claim("p", 3) == {"g": "state"}
    await store.keep("g", POSITIONS, "{}", epoch=3, is_new=True)
    assert store._rpc.asked == [
        (2, REQUEST),
        (2, ConsumerRequest(7, "new", "g", POSITIONS, "{}", 3)),
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [("unknown_group", UnknownGroupError), ("from_the_future", UnavailableError)],
)
async def test_an_error_is_raised_here(made, code, kind):
    """One of a later version counts as passing."""
    store = made(MOVED)
    store._rpc.answer_of.set_result(ConsumerResponse(7, {}, code, "why"))
    with pytest.raises(kind, match="why"):
        await store.delete("g")


async def test_nothing_was_done_where_nobody_could_be_asked(made):
    """There is no coordinator, or no way to it."""
    store = made(MOVED)
    store._rpc.is_reached = False
    with pytest.raises(NotLeaderError, match="cannot be reached"):
        await store.claim("p", 3)
    store = made(MOVED, leader=None)
    with pytest.raises(NotLeaderError, match="no broker coordinates"):
        await store.claim("p", 3)
    assert store._rpc.asked == []


async def test_silence_is_an_unknown_outcome(made, monkeypatch):
    """After a while."""
    monkeypatch.setattr(remote_consumers, "TIMEOUT_S", 0.02)
    with pytest.raises(RequestTimeoutError, match="broker 2 did not answer"):
        await made(MOVED).claim("p", 3)


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        ({"g": "state"}, ConsumerResponse(7, {"g": "state"})),
        (UnknownGroupError("gone"), ConsumerResponse(7, {}, "unknown_group", "gone")),
        (MOVED, ConsumerResponse(7, {}, "not_leader", MOVED.message)),
    ],
)
async def test_other_brokers_are_served(made, outcome, answer):
    """With the result or the error; an order is passed on once, never further."""
    store = made(outcome)
    store.serve(3, REQUEST)
    await until_async(lambda: store._rpc.answers)
    assert store._rpc.answers == [(3, answer)]
    assert store._groups.claims == [("p", 3)]
    assert store._rpc.asked == []
    await until_async(lambda: not store._serving)

"""States of NATS consumers: kept by the coordinator, wherever it is."""

import pytest

from strandline.broker.coordinators.consumers import ConsumerOrder, ConsumerStore
from strandline.errors import NotLeaderError, UnknownGroupError

POSITIONS = {"s": {0: 4}}


class Groups:
    """A coordinator that keeps what it is asked, or is somewhere else."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    def _note(self, *call):
        if self.error is not None:
            raise self.error
        self.asked.append(call)

    async def claim_consumers(self, prefix, epoch):
        self._note("claim", prefix, epoch)
        return {"g": "state"}

    async def consumers(self, prefix):
        self._note("list", prefix)
        return ["b", "a"]

    async def delete(self, group):
        self._note("delete", group)

    async def keep_consumer(self, group, positions, consumer, *, epoch, is_new):
        self._note("keep", group, positions, consumer, epoch, is_new)


class Elsewhere:
    """Another broker's coordinator."""

    def __init__(self):
        self.orders = []

    async def ask(self, order):
        self.orders.append(order)
        return {"z": "1", "y": "2"}


async def test_requests_reach_the_coordinator_here():
    """Each as it was meant."""
    groups = Groups()
    store = ConsumerStore(groups)
    await store.keep("g", POSITIONS, "{}", epoch=3)
    await store.keep("h", POSITIONS, "{}", epoch=3, is_new=True)
    await store.delete("g")
    assert await store.claim("p", 5) == {"g": "state"}
    assert await store.list("p") == ["a", "b"]
    assert groups.asked == [
        ("keep", "g", POSITIONS, "{}", 3, False),
        ("keep", "h", POSITIONS, "{}", 3, True),
        ("delete", "g"),
        ("claim", "p", 5),
        ("list", "p"),
    ]


async def test_an_order_without_positions_keeps_none():
    """So it comes from another broker."""
    groups = Groups()
    found = await ConsumerStore(groups).carry_out(ConsumerOrder("keep", "g", None, "{}", 1))
    assert found == {}
    assert groups.asked == [("keep", "g", {}, "{}", 1, False)]


async def test_where_another_broker_coordinates_it_is_asked():
    """With the same order; without a way to it the caller hears so."""
    store = ConsumerStore(Groups(NotLeaderError("elsewhere")))
    with pytest.raises(NotLeaderError):
        await store.delete("g")
    store.elsewhere = elsewhere = Elsewhere()
    await store.keep("g", POSITIONS, "{}", epoch=3, is_new=True)
    assert await store.claim("p", 5) == {"z": "1", "y": "2"}
    assert await store.list("p") == ["y", "z"]
    await store.delete("g")
    assert elsewhere.orders == [
        ConsumerOrder("new", "g", POSITIONS, "{}", 3),
        ConsumerOrder("claim", "p", None, "", 5),
        ConsumerOrder("list", "p"),
        ConsumerOrder("delete", "g"),
    ]


async def test_other_errors_are_final():
    """The coordinator here has decided."""
    store = ConsumerStore(Groups(UnknownGroupError("gone")))
    store.elsewhere = elsewhere = Elsewhere()
    with pytest.raises(UnknownGroupError):
        await store.delete("g")
    assert elsewhere.orders == []

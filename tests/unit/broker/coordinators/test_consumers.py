"""States of NATS consumers, kept by the coordinator."""

import pytest

from strandline.broker.coordinators.consumers import ConsumerOrder, ConsumerStore
from strandline.errors import NotLeaderError, UnknownGroupError

POSITIONS = {"s": {0: 4}}


class Groups:
    """A coordinator that keeps what it is asked, or fails."""

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
        return group == "g"

    async def keep_consumer(self, group, positions, consumer, *, epoch, is_new):
        self._note("keep", group, positions, consumer, epoch, is_new)


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


async def test_a_consumer_ends_with_its_group():
    """A group of members has none; nor does a group that is not deleted end its consumer."""
    store, ended = ConsumerStore(Groups()), []

    async def end(group):
        ended.append(group)

    store.on_group_deleted(end)
    await store.delete_group("g")
    await store.delete_group("of members")
    await store.delete("g")
    assert ended == ["g"]
    failing = ConsumerStore(Groups(UnknownGroupError("gone")))
    failing.on_group_deleted(end)
    with pytest.raises(UnknownGroupError):
        await failing.delete_group("g")
    assert ended == ["g"]


async def test_an_order_without_positions_keeps_none():
    """So it comes from another broker."""
    groups = Groups()
    found = await ConsumerStore(groups).carry_out(ConsumerOrder("keep", "g", None, "{}", 1))
    assert found == {}
    assert groups.asked == [("keep", "g", {}, "{}", 1, False)]


@pytest.mark.parametrize("error", [NotLeaderError("moved"), UnknownGroupError("gone")])
async def test_the_coordinators_error_is_the_callers(error):
    """A broker alone has nobody else to ask."""
    store = ConsumerStore(Groups(error))
    with pytest.raises(type(error)):
        await store.delete("g")

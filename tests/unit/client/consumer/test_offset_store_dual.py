"""Two offset stores at once, each of which may fail."""

import pytest

from strandline.client.consumer.offset_store import Owner
from strandline.client.consumer.offset_store_dual import DualOffsetStore
from strandline.errors import UnavailableError
from strandline.types import PartitionName

PLACE = PartitionName("s", 0)
OWNER = Owner("m", 1)


class Kept:
    """A store in memory that fails on command, and records the order of calls."""

    def __init__(self, name, order):
        self.name, self.order = name, order
        self.offsets, self.fails = {}, False

    def claim(self, _group, partitions, _owner):
        return {name: at for name, at in self.offsets.items() if name in partitions}

    def commit(self, _group, offsets, _owner):
        self.order.append(self.name)
        if self.fails:
            raise UnavailableError(f"{self.name} is away")
        self.offsets.update(offsets)

    def read(self, _group):
        return dict(self.offsets)

    def close(self):
        self.order.append(f"{self.name} closed")


@pytest.fixture
def stores():
    order = []
    return Kept("old", order), Kept("new", order), order


@pytest.mark.parametrize(("reads", "order"), [("old", ["new", "old"]), ("new", ["old", "new"])])
def test_the_store_that_counts_is_committed_to_last(stores, reads, order):
    """So it never has more than the other, and going back is possible."""
    old, new, seen = stores
    dual = DualOffsetStore(old, new, reads=reads)
    dual.commit("g", {PLACE: 5}, OWNER)
    assert seen == order
    assert old.offsets == new.offsets == {PLACE: 5}


@pytest.mark.parametrize("reads", ["old", "new"])
def test_a_commit_that_fails_halfway_does_not_count(stores, reads):
    """Later reads return the previous offsets, whichever store failed."""
    old, new, _ = stores
    dual = DualOffsetStore(old, new, reads=reads)
    dual.commit("g", {PLACE: 5}, OWNER)
    for store in (old, new):
        store.fails = True
        with pytest.raises(UnavailableError, match=f"{store.name} is away"):
            dual.commit("g", {PLACE: 6}, OWNER)
        store.fails = False
        assert dual.read("g") == {PLACE: 5}
    dual.commit("g", {PLACE: 6}, OWNER)
    assert dual.read("g") == old.read("g") == new.read("g") == {PLACE: 6}


@pytest.mark.parametrize(("reads", "found"), [("old", 3), ("new", 7)])
def test_who_begins_brings_both_stores_to_the_same(stores, reads, found):
    """To the offsets of the store that counts; missing ones come from the old store."""
    old, new, _ = stores
    other = PartitionName("s", 1)
    old.offsets, new.offsets = {PLACE: 3, other: 1}, {PLACE: 7}
    dual = DualOffsetStore(old, new, reads=reads)
    assert dual.claim("g", [PLACE, other], OWNER) == {PLACE: found, other: 1}
    assert old.offsets == new.offsets == {PLACE: found, other: 1}


def test_both_are_let_go_of(stores):
    """Also the new one where the old one cannot be closed."""
    old, new, seen = stores
    old.close = lambda: seen.append("old failed") or 1 / 0
    with pytest.raises(ZeroDivisionError):
        DualOffsetStore(old, new, reads="old").close()
    assert seen == ["old failed", "new closed"]

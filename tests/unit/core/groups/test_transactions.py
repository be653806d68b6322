"""Transactions known to the group coordinator: which may begin, and which have ended."""

import pytest

from strandline.core.coordinator_effects import EntriesStored, Reject, Store
from strandline.core.groups import events as ev
from strandline.core.groups import transactions as transactions_module
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.state import GroupsState
from strandline.core.groups.transactions import PendingOffsets, TransactionMark, Transactions


def of(epoch, producer=7):
    return PendingOffsets(producer, epoch)


@pytest.fixture
def known():
    return Transactions()


def test_the_first_epoch_of_a_producer_may_begin(known):
    """It is 0; one before it does not exist."""
    assert known.may_begin(of(0))
    assert not known.may_begin(of(-1))
    assert not known.is_open(of(0))
    assert not known.has_ended(of(0))


def test_a_transaction_begins_once_and_a_later_one_replaces_it(known):
    """Those of other producers do not count."""
    known.begin(of(3))
    assert known.is_open(of(3))
    assert not known.may_begin(of(3))
    assert known.may_begin(of(4))
    known.begin(of(2))
    assert known.is_open(of(3))
    known.begin(of(4))
    assert known.is_open(of(4))
    assert not known.is_open(of(3))
    assert known.may_begin(of(0, producer=8))


def test_offsets_wait_for_the_end_of_their_own_transaction(known):
    """An end is answered with the groups that waited, once; nothing waits for one that passed."""
    known.begin(of(3))
    known.wait(of(3), "a")
    known.wait(of(3), "b")
    known.wait(of(2), "late")
    known.wait(of(5, producer=8), "c")
    assert known.waiting(of(3)) == {"a", "b"}
    assert known.waiting(of(2)) == frozenset()
    assert known.opened() == [of(3), of(5, producer=8)]
    assert known.end(of(2)) == frozenset()
    assert known.is_open(of(3))
    assert known.end(of(3)) == {"a", "b"}
    assert known.end(of(3)) == frozenset()
    assert not known.may_begin(of(3))
    known.wait(of(3), "a")
    assert known.opened() == [of(5, producer=8)]


def test_a_later_end_ends_earlier_transactions(known):
    """Their offsets do not count, and an earlier end changes nothing any more."""
    known.begin(of(3))
    known.wait(of(3), "a")
    assert known.end(of(5)) == frozenset()
    assert known.opened() == []
    known.end(of(4))
    assert known.ended() == [of(5)]
    assert known.has_ended(of(5))
    assert not known.has_ended(of(6))


def test_those_that_ended_longest_ago_are_forgotten(known, monkeypatch):
    """One that ends again is the newest."""
    monkeypatch.setattr(transactions_module, "ENDED_MAX", 2)
    for producer in (1, 2, 1, 3):
        known.end(of(0, producer))
    assert known.ended() == [of(0, 1), of(0, 3)]


class Coordinator:
    """A group coordinator, and what it knows of a group."""

    def __init__(self):
        self._coordinator = GroupCoordinator(GroupsState(), {"s": 4}, created={"s": 1}, now_ms=0)

    def _step(self, event):
        """Handle an event, and let its entries be stored."""
        effects = self._coordinator.step(event, 0)
        for each in [each for each in effects if isinstance(each, Store)]:
            effects += self._coordinator.step(EntriesStored(each.sequence), 0)
        return effects

    def mark(self, transaction, mark):
        self._step(ev.MarkTransaction(object(), transaction, mark))

    def commit(self, text, offsets=None, **options):
        commit = ev.Commit(object(), "g", {"s": offsets or {}}, metadata=text, **options)
        self._step(commit)

    def delete(self):
        effects = self._step(ev.Delete(object(), "g"))
        return [each.error.code for each in effects if isinstance(each, Reject)]

    @property
    def metadata(self):
        """What is shown of the group; None: there is none."""
        group = self._coordinator.state.groups.get("g")
        return None if group is None else group.metadata


@pytest.mark.parametrize("offsets", [{}, {0: 5}])
@pytest.mark.parametrize(("mark", "shown"), [("COMMIT", "new"), ("ABORT", "old")])
def test_what_a_commit_says_is_shown_when_its_transaction_is_over(mark, shown, offsets):
    """With its offsets or without any; the last commit of the transaction counts."""
    coordinator = Coordinator()
    coordinator.commit("old", {1: 1})
    coordinator.mark(of(0), TransactionMark.BEGIN)
    for text in ("newer", "new"):
        coordinator.commit(text, offsets, transaction=of(0))
        assert coordinator.metadata == "old"
    assert coordinator.delete() == ["unstable_offset_commit"]
    coordinator.mark(of(0), TransactionMark[mark])
    assert coordinator.metadata == shown
    assert coordinator.delete() == []


def test_the_transaction_that_ends_last_says_what_is_shown():
    """Also if it says what was shown when it was told, and if it says nothing."""
    coordinator = Coordinator()
    coordinator.commit("a", {1: 1})
    for producer, text, offset in ((1, "a", 5), (2, "", 6)):
        coordinator.mark(of(0, producer), TransactionMark.BEGIN)
        coordinator.commit(text, {producer: offset}, transaction=of(0, producer))
    coordinator.commit("b", {3: 1})
    coordinator.mark(of(0, 1), TransactionMark.COMMIT)
    assert coordinator.metadata == "a"
    coordinator.mark(of(0, 2), TransactionMark.COMMIT)
    assert coordinator.metadata == ""


def test_a_group_that_only_an_aborted_transaction_named_is_gone():
    """Nothing of it counts."""
    coordinator = Coordinator()
    coordinator.mark(of(0), TransactionMark.BEGIN)
    coordinator.commit("never", transaction=of(0))
    assert coordinator.metadata == ""
    coordinator.mark(of(0), TransactionMark.ABORT)
    assert coordinator.metadata is None

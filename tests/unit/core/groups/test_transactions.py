"""Transactions known to the group coordinator: which may begin, and which have ended."""

import pytest

from strandline.core.groups import transactions as transactions_module
from strandline.core.groups.transactions import PendingOffsets, Transactions


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

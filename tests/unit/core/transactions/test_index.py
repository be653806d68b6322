"""A partition's transaction index: how far readers read, and what is hidden from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.transactions import index as index_module
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.index import Aborted, TransactionIndex
from strandline.core.transactions.state import TransactionalProducer

BEGIN, COMMIT, ABORT = MarkerKind.BEGIN, MarkerKind.COMMIT, MarkerKind.ABORT


def test_reading_ends_at_the_first_open_transaction():
    """Whichever began first holds readers back, however the others end."""
    index = TransactionIndex(0)
    assert index.last_stable_offset(7) == 7
    index.note(BEGIN, TransactionalProducer(1, 0), 2)
    index.note(BEGIN, TransactionalProducer(2, 0), 4)
    assert index.last_stable_offset(9) == 2
    index.note(COMMIT, TransactionalProducer(1, 0), 6)
    assert index.last_stable_offset(9) == 4
    index.note(ABORT, TransactionalProducer(2, 0), 8)
    assert index.last_stable_offset(9) == 9


def test_an_abort_hides_its_own_batches_only():
    """Not those of an earlier transaction of the same producer, nor of other producers."""
    index = TransactionIndex(0)
    index.note(BEGIN, TransactionalProducer(1, 0), 0)
    index.note(COMMIT, TransactionalProducer(1, 0), 2)
    index.note(BEGIN, TransactionalProducer(1, 1), 3)
    index.note(ABORT, TransactionalProducer(1, 1), 6)
    index.note(ABORT, TransactionalProducer(1, 2), 7)
    assert [at for at in range(9) if index.is_aborted(1, at)] == [3, 4, 5]
    assert not index.is_aborted(2, 4)


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_what_has_ended_never_opens_again(kind):
    """A late or repeated beginning has no effect."""
    index = TransactionIndex(0)
    index.note(BEGIN, TransactionalProducer(1, 3), 0)
    index.note(BEGIN, TransactionalProducer(1, 3), 1)
    index.note(kind, TransactionalProducer(1, 3), 2)
    for epoch in (2, 3):
        index.note(BEGIN, TransactionalProducer(1, epoch), 4 + epoch)
        index.note_records(TransactionalProducer(1, epoch), 4 + epoch)
        assert not index.is_open(TransactionalProducer(1, epoch))
    assert index.may_begin(TransactionalProducer(1, 4))
    assert index.last_stable_offset(9) == 9


def test_a_log_that_begins_in_the_middle_of_a_transaction():
    """Its records replace the BEGIN marker that retention has removed."""
    index = TransactionIndex(5)
    index.note_records(TransactionalProducer(1, 3), 5)
    index.note_records(TransactionalProducer(1, 3), 6)
    assert index.last_stable_offset(9) == 5
    index.note(ABORT, TransactionalProducer(1, 3), 8)
    assert [at for at in range(4, 10) if index.is_aborted(1, at)] == [5, 6, 7]


def test_what_retention_has_removed_is_forgotten():
    """The aborted transactions that are remembered are those that readers may meet."""
    index = TransactionIndex(0)
    for number in range(10):
        index.note(BEGIN, TransactionalProducer(number, 0), 2 * number)
        index.note(ABORT, TransactionalProducer(number, 0), 2 * number + 1)
    index.forget_below(9)
    assert index.aborted_count == 5
    assert not index.is_aborted(0, 0)
    assert index.is_aborted(9, 18)


def test_a_producer_keeps_what_readers_may_still_meet():
    """Its earlier transactions are forgotten without it."""
    index = TransactionIndex(0)
    for number in range(3):
        index.note(BEGIN, TransactionalProducer(1, number), 10 * number)
        index.note(ABORT, TransactionalProducer(1, number), 10 * number + 5)
    index.forget_below(6)
    assert [index.is_aborted(1, at) for at in (1, 11, 21)] == [False, True, True]
    index.forget_below(26)
    assert index.aborted_count == 0
    assert not any(index.is_aborted(1, at) for at in range(30))


def test_few_producers_are_remembered(monkeypatch):
    """Those that ended longest ago are forgotten."""
    monkeypatch.setattr(index_module, "ENDED_MAX", 2)
    index = TransactionIndex(0)
    for number in range(3):
        index.note(COMMIT, TransactionalProducer(number, 0), number)
    assert [index.has_ended(TransactionalProducer(number, 0)) for number in range(3)] == [
        False,
        True,
        True,
    ]


KINDS = st.sampled_from([BEGIN, COMMIT, ABORT, None])
HISTORIES = st.lists(st.tuples(KINDS, st.integers(0, 2), st.integers(0, 3)), max_size=40)


@given(history=HISTORIES, cut=st.integers(0, 40))
def test_what_readers_were_not_shown_stays_hidden(history, cut):
    """Below the last stable offset nothing changes any more."""

    def feed(index, part, first):
        for offset, (kind, number, epoch) in enumerate(part, first):
            if kind is None:
                index.note_records(TransactionalProducer(number, epoch), offset)
            else:
                index.note(kind, TransactionalProducer(number, epoch), offset)

    index = TransactionIndex(0)
    feed(index, history[:cut], 0)
    stable = index.last_stable_offset(len(history[:cut]))
    places = [(number, at) for number in range(3) for at in range(stable)]
    hidden = [place for place in places if index.is_aborted(*place)]
    feed(index, history[cut:], len(history[:cut]))
    assert hidden == [place for place in places if index.is_aborted(*place)]


def test_what_was_aborted_is_listed_for_a_range():
    """Each aborted transaction that may have batches there, and no other."""
    index = TransactionIndex(0)
    for first, number, end in ((0, 1, ABORT), (10, 2, COMMIT), (20, 3, ABORT)):
        index.note(BEGIN, TransactionalProducer(number, 0), first)
        index.note(end, TransactionalProducer(number, 0), first + 5)
    assert index.aborted_between(0, 30) == (Aborted(1, 0, 5), Aborted(3, 20, 25))
    assert index.aborted_between(4, 20) == (Aborted(1, 0, 5),)
    assert index.aborted_between(5, 20) == ()
    assert index.aborted_between(24, 30) == (Aborted(3, 20, 25),)


def test_a_transaction_that_replaces_another_begins_where_it_begins():
    """Those of others that began meanwhile come before it, and hold readers back."""
    index = TransactionIndex(0)
    index.note(BEGIN, TransactionalProducer(1, 0), 2)
    index.note(BEGIN, TransactionalProducer(2, 0), 4)
    index.note(BEGIN, TransactionalProducer(1, 1), 6)
    assert index.last_stable_offset(9) == 4
    assert [at for at in range(9) if index.is_aborted(1, at)] == [2, 3, 4, 5]
    index.note(COMMIT, TransactionalProducer(2, 0), 7)
    assert index.last_stable_offset(9) == 6

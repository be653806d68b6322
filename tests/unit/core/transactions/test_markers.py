"""Pending markers: who still needs one, who waits for the last, and when one is sent again."""

import pytest

from strandline.core.coordinator_effects import Answer, Reject
from strandline.core.transactions.effects import MarkerKind, SendMarker
from strandline.core.transactions.markers import PATIENCE_MS, RETRY_MS, Markers
from strandline.core.transactions.state import (
    TransactionalProducer,
    TransactionPartition,
    TransactionState,
    TransactionStatus,
)
from strandline.errors import InvalidRequestError

A, B, C = (TransactionPartition("s", number, 10 + number) for number in range(3))
PRODUCER = TransactionalProducer(7, 3)


def transaction(id_="t", status=TransactionStatus.OPEN, places=()):
    return TransactionState(
        id=id_, producer=PRODUCER, status=status, places=places, timeout_ms=1, nonce="n"
    )


def marks(effects, kind):
    """The partitions of these markers, which are all of a kind."""
    assert all(e == SendMarker(e.id, PRODUCER, e.place, kind) for e in effects)
    return [e.place for e in effects]


@pytest.fixture
def markers():
    return Markers()


def test_a_partition_is_asked_once_to_accept_records(markers):
    """Two requests that need it wait for the same marker, and each for its own partitions."""
    open_ = transaction()
    assert marks(markers.open(open_, {B, A}, token=1), MarkerKind.BEGIN) == [A, B]
    assert marks(markers.open(open_, {B, C}, token=2), MarkerKind.BEGIN) == [C]
    assert markers.opened(open_, B) == []
    assert markers.opened(open_, C) == [Answer(2)]
    assert markers.opened(open_, A) == [Answer(1)]
    assert markers.open(open_, {A, C}, token=3) == [Answer(3)]


def test_transactions_do_not_share_partitions(markers):
    """One that a partition accepts says nothing about another."""
    markers.open(transaction(), {A}, token=1)
    markers.opened(transaction(), A)
    other = transaction("u")
    assert marks(markers.open(other, {A}, token=2), MarkerKind.BEGIN) == [A]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (TransactionStatus.COMMITTING, MarkerKind.COMMIT),
        (TransactionStatus.ABORTING, MarkerKind.ABORT),
    ],
)
def test_every_partition_gets_the_decision(markers, status, kind):
    """Who adds partitions is rejected; only the last marker ends the transaction, and once."""
    markers.open(transaction(), {A}, token=1)
    decided = transaction(status=status, places=(B, A))
    error = InvalidRequestError("decided")
    rejected, *sent = markers.close(decided, error)
    assert rejected == Reject(1, error)
    assert marks(sent, kind) == [A, B]
    assert not markers.closed(decided, A)
    assert marks(markers.unwritten(decided), kind) == [B]
    assert not markers.closed(decided, A), "it was written already"
    assert markers.closed(decided, B)
    assert not markers.closed(decided, B)
    assert markers.opened(transaction(), A) == [], "nobody waits any more"


def test_a_new_coordinator_sends_every_marker_again(markers):
    """It does not know which ones were written."""
    decided = transaction(status=TransactionStatus.COMMITTING, places=(A, B))
    assert marks(markers.unwritten(decided), MarkerKind.COMMIT) == [A, B]
    assert not markers.closed(decided, A)
    assert markers.closed(decided, B)


def test_who_waits_is_answered_when_all_its_transactions_are_finished(markers):
    """Or at once, if there are none."""
    assert markers.answer_when_finished(1, "v", ids=set(), now_ms=0) == [Answer(1, "v")]
    assert markers.answer_when_finished(2, "w", ids={"t", "u"}, now_ms=0) == []
    assert markers.answer_when_finished(3, "x", ids={"u"}, now_ms=0) == []
    assert markers.finished("t") == []
    assert markers.finished("u") == [Answer(2, "w"), Answer(3, "x")]
    assert markers.finished("u") == []
    assert markers.out_of_patience(10 * PATIENCE_MS) == []


def test_who_waits_long_enough_is_answered_before(markers):
    """The decision is final; the markers follow."""
    markers.answer_when_finished(1, "v", ids={"t"}, now_ms=100)
    markers.answer_when_finished(2, "w", ids={"t"}, now_ms=101)
    assert markers.out_of_patience(99 + PATIENCE_MS) == []
    assert markers.out_of_patience(100 + PATIENCE_MS) == [Answer(1, "v")]
    assert markers.finished("t") == [Answer(2, "w")]


def test_a_marker_that_was_not_written_is_sent_again_later(markers):
    """Once, when its time has come."""
    first, second = (SendMarker("t", PRODUCER, each, MarkerKind.COMMIT) for each in (A, B))
    markers.again(first, 1000)
    markers.again(second, 1001)
    assert markers.due(999 + RETRY_MS) == []
    assert markers.due(1000 + RETRY_MS) == [first]
    assert markers.due(1001 + RETRY_MS) == [second]
    assert markers.due(9000 + RETRY_MS) == []


def test_a_transaction_that_is_finished_is_forgotten(markers):
    """Its id is used again, for the next transaction of the same producer."""
    markers.open(transaction(), {A}, token=1)
    markers.opened(transaction(), A)
    markers.finished("t")
    assert marks(markers.open(transaction(), {A}, token=2), MarkerKind.BEGIN) == [A]

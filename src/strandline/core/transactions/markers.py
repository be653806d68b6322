"""Pending markers of transactions: which partitions need them, and when to retry.

Rules: a marker that was not written is sent again after ``RETRY_MS``, until it is written or no
longer needed. A waiting request is answered when every marker of its transactions is written, or
after ``PATIENCE_MS``: the decision is final, and the markers follow. Pure; ``coordinator`` decides.
"""

import msgspec

from strandline.core.coordinator_effects import Answer, Reject
from strandline.core.transactions.effects import Effect, MarkerKind, SendMarker
from strandline.core.transactions.state import TransactionPartition, TransactionState

RETRY_MS = 100
PATIENCE_MS = 5_000


class _Waiter(msgspec.Struct):
    """A request that waits for the end of some transactions."""

    token: object
    value: object
    ids: set[str]
    due_ms: int


class _Adding(msgspec.Struct):
    """A request that waits for partitions to admit records."""

    token: object
    places: set[TransactionPartition]


class _PendingMarkers(msgspec.Struct):
    """Markers that the partitions of one transaction still need."""

    unwritten: set[TransactionPartition] = msgspec.field(default_factory=set)
    begun: set[TransactionPartition] = msgspec.field(default_factory=set)
    """Partitions known to accept records."""
    adding: list[_Adding] = msgspec.field(default_factory=list)


class Markers:
    """The pending markers of all transactions."""

    def __init__(self) -> None:
        self._pending: dict[str, _PendingMarkers] = {}
        self._waiters: list[_Waiter] = []
        self._again: list[tuple[int, SendMarker]] = []

    # Beginning

    def open(
        self, transaction: TransactionState, places: set[TransactionPartition], *, token: object
    ) -> list[Effect]:
        """Send BEGIN markers to partitions; answer the request when all of them accept records."""
        pending = self._pending.setdefault(transaction.id, _PendingMarkers())
        missing = places - pending.begun
        if not missing:
            return [Answer(token)]
        asked = set().union(*(each.places for each in pending.adding))
        pending.adding.append(_Adding(token, missing))
        return [
            SendMarker(transaction.id, transaction.producer, place, MarkerKind.BEGIN)
            for place in sorted(missing - asked)
        ]

    def opened(self, transaction: TransactionState, place: TransactionPartition) -> list[Effect]:
        """Note that a partition accepts records."""
        pending = self._pending.setdefault(transaction.id, _PendingMarkers())
        pending.begun.add(place)
        effects: list[Effect] = []
        for each in pending.adding:
            each.places.discard(place)
            if not each.places:
                effects.append(Answer(each.token))
        pending.adding = [each for each in pending.adding if each.places]
        return effects

    # Ending

    def close(self, transaction: TransactionState, rejection: Exception) -> list[Effect]:
        """Send a decision's marker to every partition; requests to add partitions are rejected."""
        pending = self._pending.setdefault(transaction.id, _PendingMarkers())
        effects: list[Effect] = [Reject(each.token, rejection) for each in pending.adding]  # type: ignore[arg-type]  # always ours
        pending.adding = []
        pending.unwritten = set(transaction.places)
        return [*effects, *self.unwritten(transaction)]

    def unwritten(self, transaction: TransactionState) -> list[Effect]:
        """Return the pending markers of a decided transaction."""
        pending = self._pending.setdefault(
            transaction.id, _PendingMarkers(unwritten=set(transaction.places))
        )
        kind = MarkerKind.COMMIT if transaction.status.is_commit else MarkerKind.ABORT
        return [
            SendMarker(transaction.id, transaction.producer, place, kind)
            for place in sorted(pending.unwritten)
        ]

    def closed(self, transaction: TransactionState, place: TransactionPartition) -> bool:
        """Note that a partition has the decision's marker; return whether it was the last one."""
        pending = self._pending[transaction.id]
        was_unwritten = place in pending.unwritten
        pending.unwritten.discard(place)
        return was_unwritten and not pending.unwritten

    def finished(self, id_: str) -> list[Effect]:
        """Note that a transaction has no pending markers; answer requests that waited for it."""
        self._pending.pop(id_, None)
        for waiter in self._waiters:
            waiter.ids.discard(id_)
        effects: list[Effect] = [Answer(w.token, w.value) for w in self._waiters if not w.ids]
        self._waiters = [waiter for waiter in self._waiters if waiter.ids]
        return effects

    def answer_when_finished(
        self, token: object, value: object, *, ids: set[str], now_ms: int
    ) -> list[Effect]:
        """Answer when these transactions have no pending markers."""
        if not ids:
            return [Answer(token, value)]
        self._waiters.append(_Waiter(token, value, set(ids), now_ms + PATIENCE_MS))
        return []

    # Time

    def again(self, mark: SendMarker, now_ms: int) -> None:
        """Schedule a retry of a marker that was not written."""
        self._again.append((now_ms + RETRY_MS, mark))

    def due(self, now_ms: int) -> list[SendMarker]:
        """Return the markers that are to be sent again now."""
        due = [mark for when_ms, mark in self._again if when_ms <= now_ms]
        self._again = [each for each in self._again if each[0] > now_ms]
        return due

    def out_of_patience(self, now_ms: int) -> list[Effect]:
        """Answer requests that have waited for ``PATIENCE_MS``: the decision is final anyway."""
        effects: list[Effect] = [
            Answer(w.token, w.value) for w in self._waiters if w.due_ms <= now_ms
        ]
        self._waiters = [waiter for waiter in self._waiters if waiter.due_ms > now_ms]
        return effects

"""Markers that are not written yet: in which partitions, and when to send them again.

Rules: a marker is given again ``RETRY_MS`` after it was not written, until it is or its transaction
has no more use for it; who waits hears when the last marker of every transaction it waits for is
written, or after ``PATIENCE_MS``, since what was decided stays decided. Pure; the decisions are
``coordinator``'s.
"""

from dataclasses import dataclass, field

from strandline.core.coordinator_effects import Answer, Reject
from strandline.core.transactions.effects import Effect, MarkerKind, SendMarker
from strandline.core.transactions.state import TransactionPartition, TransactionState

RETRY_MS = 100
PATIENCE_MS = 5_000


@dataclass(slots=True)
class _Waiter:
    """A request that waits for the end of some transactions."""

    token: object
    value: object
    ids: set[str]
    due_ms: int


@dataclass(slots=True)
class _Adding:
    """A request that waits for partitions to admit records."""

    token: object
    places: set[TransactionPartition]


@dataclass(slots=True)
class _PendingMarkers:
    """Markers that the partitions of one transaction still need."""

    owed: set[TransactionPartition] = field(default_factory=set)
    begun: set[TransactionPartition] = field(default_factory=set)
    """Partitions known to let records in."""
    adding: list[_Adding] = field(default_factory=list)


class Markers:
    """The markers of all transactions."""

    def __init__(self) -> None:
        self._debts: dict[str, _PendingMarkers] = {}
        self._waiters: list[_Waiter] = []
        self._again: list[tuple[int, SendMarker]] = []

    # Beginning

    def open(
        self, transaction: TransactionState, places: set[TransactionPartition], *, token: object
    ) -> list[Effect]:
        """Let records into places, and answer when all of them do."""
        debt = self._debts.setdefault(transaction.id, _PendingMarkers())
        missing = places - debt.begun
        if not missing:
            return [Answer(token)]
        asked = set().union(*(each.places for each in debt.adding))
        debt.adding.append(_Adding(token, missing))
        return [
            SendMarker(transaction.id, transaction.producer, place, MarkerKind.BEGIN)
            for place in sorted(missing - asked)
        ]

    def opened(self, transaction: TransactionState, place: TransactionPartition) -> list[Effect]:
        """A place lets records in."""
        debt = self._debts.setdefault(transaction.id, _PendingMarkers())
        debt.begun.add(place)
        effects: list[Effect] = []
        for each in debt.adding:
            each.places.discard(place)
            if not each.places:
                effects.append(Answer(each.token))
        debt.adding = [each for each in debt.adding if each.places]
        return effects

    # Ending

    def close(self, transaction: TransactionState, rejection: Exception) -> list[Effect]:
        """Owe every place the marker of a decision; who still wanted records let in is refused."""
        debt = self._debts.setdefault(transaction.id, _PendingMarkers())
        effects: list[Effect] = [Reject(each.token, rejection) for each in debt.adding]  # type: ignore[arg-type]  # always ours
        debt.adding = []
        debt.owed = set(transaction.places)
        return [*effects, *self.owed(transaction)]

    def owed(self, transaction: TransactionState) -> list[Effect]:
        """The markers that a decided transaction owes."""
        debt = self._debts.setdefault(transaction.id, _PendingMarkers(owed=set(transaction.places)))
        kind = MarkerKind.COMMIT if transaction.status.is_commit else MarkerKind.ABORT
        return [
            SendMarker(transaction.id, transaction.producer, place, kind)
            for place in sorted(debt.owed)
        ]

    def closed(self, transaction: TransactionState, place: TransactionPartition) -> bool:
        """A place has the marker of the decision; whether it was the last one."""
        debt = self._debts[transaction.id]
        was_owed = place in debt.owed
        debt.owed.discard(place)
        return was_owed and not debt.owed

    def finished(self, id_: str) -> list[Effect]:
        """Nothing is owed for a transaction any more: tell who waited for that alone."""
        self._debts.pop(id_, None)
        for waiter in self._waiters:
            waiter.ids.discard(id_)
        effects: list[Effect] = [Answer(w.token, w.value) for w in self._waiters if not w.ids]
        self._waiters = [waiter for waiter in self._waiters if waiter.ids]
        return effects

    def answer_when_finished(
        self, token: object, value: object, *, ids: set[str], now_ms: int
    ) -> list[Effect]:
        """Answer when nothing is owed for these transactions any more."""
        if not ids:
            return [Answer(token, value)]
        self._waiters.append(_Waiter(token, value, set(ids), now_ms + PATIENCE_MS))
        return []

    # Time

    def again(self, mark: SendMarker, now_ms: int) -> None:
        """It was not written: give it again a little later."""
        self._again.append((now_ms + RETRY_MS, mark))

    def due(self, now_ms: int) -> list[SendMarker]:
        """Markers whose time to be given again has come."""
        due = [mark for when_ms, mark in self._again if when_ms <= now_ms]
        self._again = [each for each in self._again if each[0] > now_ms]
        return due

    def out_of_patience(self, now_ms: int) -> list[Effect]:
        """Tell who has waited for long enough: the decision stands, the markers follow."""
        effects: list[Effect] = [
            Answer(w.token, w.value) for w in self._waiters if w.due_ms <= now_ms
        ]
        self._waiters = [waiter for waiter in self._waiters if waiter.due_ms > now_ms]
        return effects

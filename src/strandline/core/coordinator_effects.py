"""Effects and events that all coordinators share, and the log that keeps effects in order.

Rules: effects are plain values. An effect other than ``Store`` is released only after every earlier
entry is stored, so nobody is notified of a decision that a crash could undo. If an entry cannot be
stored, the coordinator is discarded and a new one starts from the stored entries.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from strandline.errors import StrandlineError

REWRITE_ENTRIES_MIN = 5_000
"""The state is rewritten after this many entries, if it needs far fewer (``REWRITE_RATIO``)."""
REWRITE_RATIO = 4

EntryT = TypeVar("EntryT")
EffectT = TypeVar("EffectT")


class Store(msgspec.Struct, Generic[EntryT], frozen=True):
    """Append an entry to the coordinator's log; sequences count up by one."""

    sequence: int
    entry: EntryT


class Answer(msgspec.Struct, frozen=True):
    """Answer a request that succeeded."""

    token: object
    value: object = None


class Reject(msgspec.Struct, frozen=True):
    """Answer a request that failed, or is no longer possible."""

    token: object
    error: StrandlineError


class Forget(msgspec.Struct, frozen=True):
    """Delete entries before this sequence; they are no longer needed."""

    before: int


class EntriesStored(msgspec.Struct, frozen=True):
    """The event that every ``Store`` up to this sequence is durable."""

    sequence: int


class Tick(msgspec.Struct, frozen=True):
    """The event that time has passed; send it at least every second."""


Decision = Store[EntryT] | Answer | Reject | Forget


class CoordinatorMachine(Protocol[EntryT]):
    """A coordinator's state, built from its entries."""

    def apply(self, entry: EntryT, /) -> None:
        """Apply an entry."""
        ...

    def entries(self, per_entry: int, /) -> Iterable[EntryT]:
        """Return the whole state as new entries of a limited number of items."""
        ...


class DecisionLog(Generic[EntryT, EffectT]):
    """A coordinator's entries, and the effects that wait until they are stored.

    Args:
        state: each entry is applied to it at once.
        items_per_entry: the most items in one entry when the state is rewritten.
        sequence: the sequence of the next entry.
        entries: how many were stored since the state was last rewritten.
    """

    def __init__(
        self,
        state: CoordinatorMachine[EntryT],
        *,
        items_per_entry: int,
        sequence: int,
        entries: int,
    ) -> None:
        self._state = state
        self._items_per_entry = items_per_entry
        self._next = sequence
        self._stored = sequence - 1
        self._held: deque[tuple[int, EffectT | Forget]] = deque()
        self._out: list[Store[EntryT] | EffectT | Forget] = []
        self._since_rewrite = entries
        self._rewrite_at = REWRITE_ENTRIES_MIN

    def store(self, entry: EntryT) -> None:
        """Apply an entry and store it."""
        self._state.apply(entry)
        self._out.append(Store(self._next, entry))
        self._next += 1
        self._since_rewrite += 1

    def give(self, *effects: EffectT | Forget) -> None:
        """Release effects once every entry so far is stored."""
        if self._stored == self._next - 1:
            self._out += effects
        else:
            self._held += ((self._next - 1, effect) for effect in effects)

    def stored(self, sequence: int) -> None:
        """Note that entries up to this one are stored."""
        self._stored = max(self._stored, sequence)
        while self._held and self._held[0][0] <= self._stored:
            self._out.append(self._held.popleft()[1])

    def taken(self) -> list[Store[EntryT] | EffectT | Forget]:
        """Return the effects to execute now, in order."""
        out, self._out = self._out, []
        return out

    def rewrite_if_due(self) -> None:
        """Rewrite the state if there are many more entries than it needs."""
        if self._since_rewrite < self._rewrite_at:
            return
        entries = list(self._state.entries(self._items_per_entry))
        if self._since_rewrite < REWRITE_RATIO * len(entries):
            self._rewrite_at = REWRITE_RATIO * len(entries)  # do not count at each entry
            return
        first = self._next
        for entry in entries:
            self.store(entry)
        self._since_rewrite, self._rewrite_at = 0, REWRITE_ENTRIES_MIN
        self.give(Forget(first))


def restore(state: CoordinatorMachine[EntryT], entries: Iterable[EntryT]) -> int:
    """Apply stored entries to an empty state; return how many there were."""
    count = 0
    for entry in entries:
        state.apply(entry)
        count += 1
    return count

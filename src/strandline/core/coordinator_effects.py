"""Effects and events common to all coordinators; the effects in order.

Rules: decisions are plain values. An effect other than ``Store`` is given only when everything that
the coordinator had decided before it is stored: nobody hears of a decision that a crash could undo.
If an entry cannot be stored the coordinator is given up, and another begins from what is stored.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from strandline.errors import StrandlineError

REWRITE_ENTRIES_MIN = 5_000
"""The state is written anew after so many entries, if they are several times what it takes."""
REWRITE_RATIO = 4

EntryT = TypeVar("EntryT")
EffectT = TypeVar("EffectT")


@dataclass(frozen=True, slots=True)
class Store(Generic[EntryT]):
    """Append an entry to the coordinator's log; sequences count up by one."""

    sequence: int
    entry: EntryT


@dataclass(frozen=True, slots=True)
class Answer:
    """The request was done."""

    token: object
    value: object = None


@dataclass(frozen=True, slots=True)
class Reject:
    """The request was not, or no more, possible."""

    token: object
    error: StrandlineError


@dataclass(frozen=True, slots=True)
class Forget:
    """Entries before this sequence are not needed any more."""

    before: int


@dataclass(frozen=True, slots=True)
class EntriesStored:
    """The event that every ``Store`` up to this sequence survives from now on."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The event that time has passed; to be sent every second or more often."""


Decision = Store[EntryT] | Answer | Reject | Forget


class CoordinatorMachine(Protocol[EntryT]):
    """State built from the entries of a coordinator."""

    def apply(self, entry: EntryT, /) -> None:
        """Take a change over."""
        ...

    def entries(self, per_entry: int, /) -> Iterable[EntryT]:
        """The whole state anew, as entries of a limited number of items; nothing else is needed."""
        ...


class DecisionLog(Generic[EntryT, EffectT]):
    """The entries of a coordinator, and the effects that wait for them.

    Args:
        state: changed by each entry, at once.
        items_per_entry: when the state is written anew.
        sequence: of the next entry.
        entries: how many were stored already since the state was written anew.
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
        """Decide."""
        self._state.apply(entry)
        self._out.append(Store(self._next, entry))
        self._next += 1
        self._since_rewrite += 1

    def give(self, *effects: EffectT | Forget) -> None:
        """Let effects follow, when all that was decided before is stored."""
        if self._stored == self._next - 1:
            self._out += effects
        else:
            self._held += ((self._next - 1, effect) for effect in effects)

    def stored(self, sequence: int) -> None:
        """Entries up to this one are stored."""
        self._stored = max(self._stored, sequence)
        while self._held and self._held[0][0] <= self._stored:
            self._out.append(self._held.popleft()[1])

    def taken(self) -> list[Store[EntryT] | EffectT | Forget]:
        """Return the effects to carry out now, in order."""
        out, self._out = self._out, []
        return out

    def rewrite_if_due(self) -> None:
        """Write the state anew when the entries are many more than it needs."""
        if self._since_rewrite < self._rewrite_at:
            return
        entries = list(self._state.entries(self._items_per_entry))
        if self._since_rewrite < REWRITE_RATIO * len(entries):
            self._rewrite_at = REWRITE_RATIO * len(entries)  # not to count them all each time
            return
        first = self._next
        for entry in entries:
            self.store(entry)
        self._since_rewrite, self._rewrite_at = 0, REWRITE_ENTRIES_MIN
        self.give(Forget(first))


def restore(state: CoordinatorMachine[EntryT], entries: Iterable[EntryT]) -> int:
    """Bring an empty state to where stored entries left it; how many there were."""
    count = 0
    for entry in entries:
        state.apply(entry)
        count += 1
    return count

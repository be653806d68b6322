"""What a coordinator wants done, in order, and what it answers, whatever it coordinates.

Rules: plain values. An effect other than ``Store`` is given only when everything that the
coordinator had decided before it is stored: nobody hears of a decision that a crash could undo.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from strandline.errors import StrandlineError

EntryT = TypeVar("EntryT")


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
class Refuse:
    """The request was not, or no more, possible."""

    token: object
    error: StrandlineError


@dataclass(frozen=True, slots=True)
class Forget:
    """Entries before this sequence are not needed any more."""

    before: int


Decision = Store[EntryT] | Answer | Refuse | Forget

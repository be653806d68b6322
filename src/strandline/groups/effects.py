"""What the coordinator of consumer groups wants done, in order, and what it answers.

Rules: plain values. An effect other than ``Store`` is given only when everything that the
coordinator had decided before it is stored: nobody hears of a decision that a crash could undo.
"""

from dataclasses import dataclass
from typing import NamedTuple

from strandline.errors import StrandlineError
from strandline.groups.state import Entry, Partitions, Positions


@dataclass(frozen=True, slots=True)
class Store:
    """Append an entry to the coordinator's log; sequences count up by one."""

    sequence: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Answer:
    """The request was done."""

    token: object
    value: object = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request was not possible."""

    token: object
    error: StrandlineError


@dataclass(frozen=True, slots=True)
class Forget:
    """Entries before this sequence are not needed any more."""

    before: int


@dataclass(frozen=True, slots=True)
class Expired:
    """A member was removed because it was not heard of; worth a line in the log."""

    group: str
    member: str


Effect = Store | Answer | Refuse | Forget | Expired


class Assigned(NamedTuple):
    """What a member may consume."""

    epoch: int
    partitions: Partitions
    """All of them; what the member holds beyond them it is to give up."""
    positions: Positions
    """Where to begin in those that it did not hold, if anything was committed."""
    is_waiting: bool = False
    """More is meant for it, which others have not given up yet: it had better ask again soon."""

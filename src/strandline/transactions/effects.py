"""What the coordinator wants done, in order, and what it answers.

Rules: plain values. An effect other than ``Store`` is given only when everything that the
coordinator had decided before it is stored: nobody hears of a decision that a crash could undo.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from strandline.errors import StrandlineError
from strandline.transactions.state import Entry, Place, Producer, Publication


class MarkerKind(enum.Enum):
    """What a marker says to a partition."""

    BEGIN = "begin"
    """Records of this producer and epoch are let in from here on."""
    COMMIT = "commit"
    """None are from here on; those before count."""
    ABORT = "abort"
    """None are from here on; those before do not count."""


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
    """The request was not, or no more, possible."""

    token: object
    error: StrandlineError


@dataclass(frozen=True, slots=True)
class Mark:
    """Have a partition store a marker; told by ``events.Marked`` or ``NotMarked``."""

    id: str
    producer: Producer
    place: Place
    kind: MarkerKind


@dataclass(frozen=True, slots=True)
class Forget:
    """Entries before this sequence are not needed any more."""

    before: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A transaction was aborted because its time was over: of this id, or a part of it."""

    name: str


Effect = Store | Answer | Refuse | Mark | Forget | TimedOut


class Begun(NamedTuple):
    """A transaction has begun."""

    producer: Producer
    is_published: bool = False
    """The batch that it would be a part of is published: there is nothing to stage."""


class Published(NamedTuple):
    """A batch is published."""

    publication: Publication
    is_repeat: bool

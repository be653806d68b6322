"""Lots of an outbox: how far each has come, and the numbers by which brokers know them.

Rules: pure, and decides nothing; when what is done to a lot is ``outbox``'s to know.

Invariants:
- ``doubt`` is true of a lot that was written to a broker and not answered, until it is certain
  again;
- ``is_void`` is true of a lot whose numbers are void, or were taken from it in flight: it is never
  in doubt.
"""

from collections import OrderedDict
from typing import Generic, NamedTuple, Protocol, TypeVar

from strandline.errors import StrandlineError


class ProducerBatch(Protocol):
    """What travels as one record batch to one partition."""

    partition: int
    size: int
    deadline_s: float

    @property
    def rows(self) -> int:
        """How many records it has."""
        ...

    @property
    def has_ids(self) -> bool:
        """Whether any of them has a message id, which makes it stored once without numbers."""
        ...


LotT = TypeVar("LotT", bound=ProducerBatch)
Lane = object
"""Whatever sends lots; compared only."""


class ProducerSequence(NamedTuple):
    """What a broker knows a lot by."""

    epoch: int
    sequence: int
    producer: int = 0
    """So many were used up before this one."""


class InFlightBatch(Generic[LotT]):
    """A lot and how far it has come."""

    __slots__ = (
        "after",
        "doubt",
        "error",
        "is_void",
        "is_written",
        "lot",
        "number",
        "numbers",
        "sender",
    )

    def __init__(self, lot: LotT, number: int) -> None:
        self.lot = lot
        self.number = number
        self.numbers: ProducerSequence | None = None
        self.after: int | None = None
        """The lot of its partition in flight before it, where numbers do not tell the order."""
        self.sender: Lane | None = None
        self.doubt = False
        self.is_written = False
        """Whether any of it may have gone to a broker, under these numbers."""
        self.is_void = False
        """Whether it is never stored under the numbers it was sent with."""
        self.error: StrandlineError | None = None
        """The last refusal."""

    def unanswered(self) -> None:
        """It is in flight no more, and nobody says what became of it."""
        if self.is_written:
            self.doubt = not self.is_void

    def void(self) -> None:
        """Nothing can have become of it, nor will, under its numbers."""
        self.doubt, self.is_void = False, True


class Expired(NamedTuple, Generic[LotT]):
    """A lot past its deadline."""

    lot: LotT
    is_in_flight: bool
    in_doubt: bool
    """It was written to a broker, and may be stored."""
    error: StrandlineError | None


class PartitionQueue(Generic[LotT]):
    """The lots of one partition, and its next numbers."""

    __slots__ = (
        "entries",
        "epoch",
        "has_gap",
        "has_unnumbered",
        "in_flight",
        "producer",
        "queued",
        "sender",
        "sequence",
        "waits",
    )

    def __init__(self, epoch: int) -> None:
        self.entries: OrderedDict[int, InFlightBatch[LotT]] = OrderedDict()
        self.queued: OrderedDict[int, InFlightBatch[LotT]] = OrderedDict()
        self.in_flight = 0
        self.sender: Lane | None = None
        self.producer = 0
        self.epoch = epoch
        self.sequence = 0
        self.has_gap = False
        """Whether what gets its numbers in this epoch is behind a gap."""
        self.has_unnumbered = False
        """Whether any lot went out without numbers, so that they do not tell the order."""
        self.waits = False
        """Whether an epoch is to begin."""

    def begin_epoch(self, epoch_max: int) -> None:
        """Number from 0 again, as another producer where this one has had its last epoch."""
        if self.epoch == epoch_max:
            self.producer, self.epoch = self.producer + 1, 0
        else:
            self.epoch += 1
        self.sequence = 0
        self.has_gap = False
        self.waits = True


class InFlightWindow:
    """What a lane has in flight."""

    __slots__ = ("numbers", "size")

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.size = 0

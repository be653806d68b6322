"""The state of each batch that a producer has queued or in flight, and its producer sequence.

Rules: data only; ``in_flight_batches`` decides what happens to a batch.

Invariants:
- ``in_doubt`` is true for a batch that was written to a broker and not answered, until its outcome
  is certain again;
- ``is_void`` is true for a batch that cannot be stored under the sequence it was sent with; such a
  batch is never in doubt.
"""

from collections import OrderedDict
from typing import Generic, NamedTuple, Protocol, TypeVar

from strandline.errors import StrandlineError


class ProducerBatch(Protocol):
    """Records that are sent as one record batch to one partition."""

    partition: int
    size: int
    deadline_s: float

    @property
    def rows(self) -> int:
        """Return the number of records."""
        ...

    @property
    def has_ids(self) -> bool:
        """Return whether the records have message ids, which replace a sequence."""
        ...


BatchT = TypeVar("BatchT", bound=ProducerBatch)
SenderRef = object
"""The sender of a batch; only compared by identity."""


class ProducerSequence(NamedTuple):
    """The epoch and sequence by which brokers deduplicate a batch."""

    epoch: int
    sequence: int
    producer: int = 0
    """The number of producer ids that were used up before this one."""


class InFlightBatch(Generic[BatchT]):
    """A producer's batch, and the state of its delivery."""

    __slots__ = (
        "after",
        "batch",
        "error",
        "in_doubt",
        "is_void",
        "is_written",
        "number",
        "numbers",
        "sender",
    )

    def __init__(self, batch: BatchT, number: int) -> None:
        self.batch = batch
        self.number = number
        self.numbers: ProducerSequence | None = None
        self.after: int | None = None
        """The number of the batch in flight before it, if no sequence orders the partition."""
        self.sender: SenderRef | None = None
        self.in_doubt = False
        self.is_written = False
        """Whether any part of it may have been sent to a broker under this sequence."""
        self.is_void = False
        """Whether it cannot be stored under the sequence it was sent with."""
        self.error: StrandlineError | None = None
        """The error of the last rejection."""

    def unanswered(self) -> None:
        """Note that the batch is no longer in flight, and got no answer."""
        if self.is_written:
            self.in_doubt = not self.is_void

    def void(self) -> None:
        """Note that the batch was not stored under its sequence, and will not be."""
        self.in_doubt, self.is_void = False, True


class ExpiredBatch(NamedTuple, Generic[BatchT]):
    """A batch whose deadline has passed."""

    batch: BatchT
    is_in_flight: bool
    in_doubt: bool
    """Whether the batch was written to a broker and may be stored."""
    error: StrandlineError | None


class PartitionQueue(Generic[BatchT]):
    """The batches of one partition, and the next sequence."""

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
        self.entries: OrderedDict[int, InFlightBatch[BatchT]] = OrderedDict()
        self.queued: OrderedDict[int, InFlightBatch[BatchT]] = OrderedDict()
        self.in_flight = 0
        self.sender: SenderRef | None = None
        self.producer = 0
        self.epoch = epoch
        self.sequence = 0
        self.has_gap = False
        """Whether the next sequences of this epoch come after a gap."""
        self.has_unnumbered = False
        """Whether a batch was sent without a sequence, so that sequences do not show the order."""
        self.waits = False
        """Whether new batches wait for the start of another epoch."""

    def begin_epoch(self, epoch_max: int) -> None:
        """Restart the sequence in the next epoch; after the last epoch, with a new producer id."""
        if self.epoch == epoch_max:
            self.producer, self.epoch = self.producer + 1, 0
        else:
            self.epoch += 1
        self.sequence = 0
        self.has_gap = False
        self.waits = True


class InFlightWindow:
    """The numbers of the batches that a sender has in flight, and their bytes."""

    __slots__ = ("numbers", "size")

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.size = 0

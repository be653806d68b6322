"""Lots of a producer on their way: queued, in flight to the leader of their partition, answered.

It also gives out the numbers by which brokers store each lot once, however often it is sent: per
partition an epoch and, within it, a sequence of records.

Rules: pure; the caller tells the time, holds the lock, and does what is asked.
- Lots of one partition go out in the order in which they were put, by one lane at a time; a lane
  that is lost gives back what it had, in that order.
- A lot without numbers, and one behind it, names the lot in flight before it: a broker that
  refuses that one for a while refuses both.
- A lot keeps its numbers while it may be stored under them. It gets new ones, in the next epoch,
  only if it is known not to be: a broker that refuses a sequence does not have what went before.
- A numbered lot that is given up and never stored leaves a gap, and numbers behind it are void.
  Lots have them until a broker refuses their sequence: refusals alone would soon use up the epochs.
- A lot that was refused for good is never stored, unless it is in doubt: then an earlier sending
  may be stored, or arrive yet. What is wrong with its records was wrong then, too; but a full disk
  does not end it.
- The first lot of an epoch waits until nothing of its partition is in flight.
- When a producer's epochs are used up, another producer begins. Brokers do not fence the one
  before: what was given up in doubt may yet be stored, once, behind later lots.

Invariants: those of ``entries``.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Generic

from strandline.client.in_flight import (
    Expired,
    InFlightBatch,
    InFlightWindow,
    Lane,
    LotT,
    PartitionQueue,
    ProducerSequence,
)
from strandline.client.retry import is_refusal, is_worth_a_retry, unknown_outcome
from strandline.errors import (
    DiskFullError,
    InvalidRecordError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    StrandlineError,
)
from strandline.protocol.put import PRODUCER_EPOCH_MAX, SEQUENCE_MAX


class RecordAccumulator(Generic[LotT]):
    """Lots on their way.

    Args:
        window_bytes: no more than about this is in flight in a lane.
        window_lots: no more lots than this are.
        is_numbered: whether lots get numbers.
        only_epoch: lots are numbered in this epoch and no other, as in a transaction.
        epoch_max: the last epoch that a producer may have.
    """

    def __init__(
        self,
        *,
        window_bytes: int,
        window_lots: int,
        is_numbered: bool,
        only_epoch: int | None = None,
        epoch_max: int = PRODUCER_EPOCH_MAX,
    ) -> None:
        self._window_bytes = window_bytes
        self._window_lots = window_lots
        self._is_numbered = is_numbered
        self._only_epoch = only_epoch
        self._epoch_max = epoch_max
        # Ordered, not plain dictionaries: those are slow to tell what is first once much was taken.
        self._held: OrderedDict[int, InFlightBatch[LotT]] = OrderedDict()
        self._turns: OrderedDict[int, None] = OrderedDict()
        """Partitions that have lots queued; whose turn it was goes to the end."""
        self._partitions: dict[int, PartitionQueue[LotT]] = {}
        self._windows: dict[Lane, InFlightWindow] = {}
        self.next_number = 0
        """The number of the next lot put; all before it have smaller ones."""
        self.size = 0
        """Bytes held, queued or in flight."""

    def __bool__(self) -> bool:
        """Whether any lot is held."""
        return bool(self._held)

    def holds_below(self, number: int) -> bool:
        """Whether any lot with a smaller number is held."""
        return next(iter(self._held), number) < number

    @property
    def oldest(self) -> LotT | None:
        """What is held for the longest time."""
        return next((entry.lot for entry in self._held.values()), None)

    def in_flight(self, sender: Lane) -> int:
        """Lots that a lane has."""
        window = self._windows.get(sender)
        return len(window.numbers) if window is not None else 0

    def partition_of(self, number: int) -> int | None:
        """The partition of a lot; None: it is not held."""
        entry = self._held.get(number)
        return None if entry is None else entry.lot.partition

    def put(self, lot: LotT) -> None:
        """Take a lot; it goes out after those of its partition taken before."""
        entry = InFlightBatch(lot, self.next_number)
        self.next_number += 1
        partition = self._partitions.get(lot.partition)
        if partition is None:
            partition = self._partitions[lot.partition] = PartitionQueue(self._only_epoch or 0)
        self._held[entry.number] = partition.entries[entry.number] = entry
        partition.queued[entry.number] = entry
        self._turns.setdefault(lot.partition)
        self.size += lot.size

    def send(self, sender: Lane, takes: Callable[[int], bool]) -> InFlightBatch[LotT] | None:
        """The next lot for a lane, now in flight; None while its window is full or none waits.

        Args:
            sender: which.
            takes: whether the lane takes lots of a partition now.
        """
        window = self._windows.get(sender)
        for number in self._turns:
            partition = self._partitions[number]
            if not takes(number) or not _may_go(partition, sender):
                continue
            entry = next(iter(partition.queued.values()))
            if window is not None and not self._fits(window, entry):
                return None
            if not self._is_numbered or self._numbered(partition, entry):
                self._fly(entry, partition, sender)
                return entry
        return None

    def writes(self, sender: Lane, entry: InFlightBatch[LotT]) -> bool:
        """A lane is about to write a lot that it was given; False: not any more.

        What was given up as not stored must not be; of what may be stored it makes sure, for those
        that are numbered after it.
        """
        if entry.sender is sender:
            entry.is_written = True
            return True
        return entry.doubt

    def _fits(self, window: InFlightWindow, entry: InFlightBatch[LotT]) -> bool:
        size = window.size + entry.lot.size
        is_full = size > self._window_bytes or len(window.numbers) >= self._window_lots
        return not window.numbers or not is_full

    def _numbered(self, partition: PartitionQueue[LotT], entry: InFlightBatch[LotT]) -> bool:
        """Give the lot its numbers, if it has none yet; False if it must wait for them."""
        lot = entry.lot
        if entry.numbers is not None or lot.has_ids:
            return True
        if partition.sequence + lot.rows > SEQUENCE_MAX:
            partition.begin_epoch(self._epoch_max)
        if partition.waits and partition.in_flight:
            return False
        partition.waits = False
        entry.numbers = ProducerSequence(partition.epoch, partition.sequence, partition.producer)
        entry.is_void, entry.is_written = partition.has_gap, False
        partition.sequence += lot.rows
        return True

    def _fly(
        self, entry: InFlightBatch[LotT], partition: PartitionQueue[LotT], sender: Lane
    ) -> None:
        self._turns.move_to_end(entry.lot.partition)
        self._unqueue(entry, partition)
        window = self._windows.setdefault(sender, InFlightWindow())
        entry.after = self._before(entry, partition, window)
        entry.sender = partition.sender = sender
        partition.in_flight += 1
        window.numbers.add(entry.number)
        window.size += entry.lot.size

    def _before(
        self, entry: InFlightBatch[LotT], partition: PartitionQueue[LotT], window: InFlightWindow
    ) -> int | None:
        """The lot in flight before one, unless numbers are all that the partition has seen."""
        partition.has_unnumbered = partition.has_unnumbered or entry.numbers is None
        if not (partition.has_unnumbered and partition.in_flight):
            return None
        before = (n for n in window.numbers if n < entry.number and n in partition.entries)
        return max(before, default=None)

    def _unqueue(self, entry: InFlightBatch[LotT], partition: PartitionQueue[LotT]) -> None:
        del partition.queued[entry.number]
        if not partition.queued:
            del self._turns[entry.lot.partition]

    def _land(self, entry: InFlightBatch[LotT]) -> None:
        """A lot is in flight no more."""
        window = self._windows[entry.sender]
        window.numbers.discard(entry.number)
        window.size -= entry.lot.size
        if not window.numbers:
            del self._windows[entry.sender]
        partition = self._partitions[entry.lot.partition]
        partition.in_flight -= 1
        if not partition.in_flight:
            partition.sender = None
        entry.sender = None

    def _release(self, entry: InFlightBatch[LotT]) -> None:
        """Hold a lot no more."""
        partition = self._partitions[entry.lot.partition]
        del self._held[entry.number], partition.entries[entry.number]
        if entry.number in partition.queued:
            self._unqueue(entry, partition)
        self.size -= entry.lot.size

    def _back(self, entries: list[InFlightBatch[LotT]]) -> None:
        """Queue lots again, in their places."""
        for entry in sorted(entries, key=_number, reverse=True):
            queued = self._partitions[entry.lot.partition].queued
            is_first = next(iter(queued), entry.number) >= entry.number
            queued[entry.number] = entry
            if is_first:
                queued.move_to_end(entry.number, last=False)
            else:
                for number in sorted(queued):
                    queued.move_to_end(number)
            self._turns.setdefault(entry.lot.partition)

    def answered(
        self, sender: Lane, number: int, error: StrandlineError | None = None
    ) -> tuple[LotT, StrandlineError | None] | None:
        """An ack came: the lot and its outcome; None if it was given up, or is to be sent again.

        A refusal is the outcome of a lot that is in doubt only if it never can have been stored.
        """
        entry = self._held.get(number)
        if entry is None or entry.sender is not sender:
            return None
        self._land(entry)
        if error is not None and self._goes_back(entry, error):
            entry.error = error
            self._back([entry])
            return None
        if error is not None and _is_never_stored(entry, error):
            self._leave_gap(entry)
        elif error is not None and entry.doubt:
            error = unknown_outcome(error)
        self._release(entry)
        return entry.lot, error

    def _goes_back(self, entry: InFlightBatch[LotT], error: StrandlineError) -> bool:
        """Whether a lot that was refused is sent again."""
        partition = self._partitions[entry.lot.partition]
        if is_worth_a_retry(error):
            if not is_refusal(error):
                entry.unanswered()
            return True
        if isinstance(error, DiskFullError):
            return entry.doubt and entry.numbers is not None
        if not isinstance(error, OutOfOrderSequenceError):
            return False
        if entry.numbers is None or next(iter(partition.entries)) != entry.number:
            return True  # numbered anew meanwhile, or one before it is still to be stored
        if entry.doubt or self._only_epoch is not None:
            return False
        partition.begin_epoch(self._epoch_max)
        for each in partition.entries.values():
            if each.numbers is not None:
                each.void()
                each.numbers = None
        return True

    def _leave_gap(self, entry: InFlightBatch[LotT]) -> None:
        """A lot is given up and never stored: nor is what was, or will be, numbered after it."""
        if entry.numbers is None:
            return
        partition = self._partitions[entry.lot.partition]
        if (partition.producer, partition.epoch) == (entry.numbers.producer, entry.numbers.epoch):
            partition.has_gap = True
        for each in partition.entries.values():
            if each.number > entry.number and each.numbers is not None:
                each.void()

    def lost(self, sender: Lane) -> None:
        """The lane is lost: what is in flight must be sent again, first and in order."""
        window = self._windows.get(sender)
        if window is None:
            return
        entries = [self._held[number] for number in window.numbers]
        for entry in entries:
            self._land(entry)
            entry.unanswered()
        self._back(entries)

    def expire(self, now_s: float) -> list[Expired[LotT]]:
        """Give up lots past their deadline."""
        in_flight = (self._held[n] for window in self._windows.values() for n in window.numbers)
        found = [entry for entry in in_flight if entry.lot.deadline_s <= now_s]
        for number in self._turns:
            queued = self._partitions[number].queued.values()
            found += takewhile(lambda entry: entry.lot.deadline_s <= now_s, queued)
        found.sort(key=_number)
        return [self._expired(entry) for entry in found]

    def _expired(self, entry: InFlightBatch[LotT]) -> Expired[LotT]:
        is_sent = entry.sender is not None and entry.is_written
        if entry.sender is not None:
            self._land(entry)
            entry.unanswered()
        if not entry.doubt:
            self._leave_gap(entry)
        self._release(entry)
        return Expired(entry.lot, is_sent, entry.doubt, entry.error)

    def refused(self, sender: Lane) -> None:
        """The broker refused the whole call: of what it did not answer it has taken nothing."""
        window = self._windows.get(sender)
        for number in window.numbers if window is not None else ():
            self._held[number].is_written = False

    def drop(self, takes: Callable[[int], bool]) -> list[Expired[LotT]]:
        """Give up everything of some partitions, whatever has become of it."""
        entries = [entry for entry in self._held.values() if takes(entry.lot.partition)]
        return [self._expired(entry) for entry in entries]


def _number(entry: InFlightBatch[LotT]) -> int:
    return entry.number


def _is_never_stored(entry: InFlightBatch[LotT], error: StrandlineError) -> bool:
    """Whether a lot that was refused for good is not stored, nor will be."""
    if isinstance(error, InvalidRecordError | RecordTooLargeError):
        return True
    is_certain = isinstance(error, InvalidRequestError | DiskFullError)
    return is_certain and not (entry.doubt or isinstance(error, ProducerFencedError))


def _may_go(partition: PartitionQueue[LotT], sender: Lane) -> bool:
    """Whether no other lane has lots of the partition in flight."""
    return partition.sender is None or partition.sender is sender

"""The batches of a producer, from the queue to their ack or failure.

Also assigns the producer sequence, by which brokers store each batch once, however often it is
sent: an epoch per partition, and within it a sequence that counts records.

Rules: pure; the caller passes the time, holds the lock, and does the I/O.
- The batches of one partition are sent in the order in which they were put, by one sender at a
  time.
  The batches of a lost sender are queued again in that order.
- A batch without a sequence, and one after it, names the batch in flight before it: a broker that
  rejects that one temporarily rejects both.
- A batch keeps its sequence while it may be stored under it. It gets a new sequence, in the next
  epoch, only when it is known not to be stored: a broker that rejects a sequence lacks one before.
- A numbered batch that fails and is never stored leaves a gap, which makes later sequences void.
  Batches keep void sequences until a broker rejects them: an epoch per gap would use epochs up.
- A batch with a final rejection is never stored, unless it is in doubt: then an earlier attempt may
  be stored, or still arrive. Invalid records were invalid in that attempt, too, but a disk that is
  full now may not have been full then.
- The first batch of an epoch waits until nothing of its partition is in flight.
- After the last epoch another producer id is used. Brokers do not fence the id before it: a batch
  that failed in doubt may still be stored, once, after later batches.

Invariants: those of ``in_flight_batch``.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Generic

from strandline.api.put import PRODUCER_EPOCH_MAX, SEQUENCE_MAX
from strandline.client.producer.in_flight_batch import (
    BatchT,
    ExpiredBatch,
    InFlightBatch,
    InFlightWindow,
    PartitionQueue,
    ProducerSequence,
    SenderRef,
)
from strandline.client.retry_policy import unknown_outcome
from strandline.errors import (
    DiskFullError,
    InvalidRecordError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    StrandlineError,
)


class InFlightBatches(Generic[BatchT]):
    """The batches of a producer that are not yet acknowledged.

    Args:
        window_bytes: the approximate limit of bytes in flight per sender.
        window_batches: the limit of batches in flight per sender.
        is_numbered: whether batches get a producer sequence.
        only_epoch: the only epoch to use, as in a transaction; None: any epoch.
        epoch_max: the last epoch of a producer id.
    """

    def __init__(
        self,
        *,
        window_bytes: int,
        window_batches: int,
        is_numbered: bool,
        only_epoch: int | None = None,
        epoch_max: int = PRODUCER_EPOCH_MAX,
    ) -> None:
        self._window_bytes = window_bytes
        self._window_lots = window_batches
        self._is_numbered = is_numbered
        self._only_epoch = only_epoch
        self._epoch_max = epoch_max
        # An OrderedDict finds its first key quickly even after many deletions; a dict does not.
        self._held: OrderedDict[int, InFlightBatch[BatchT]] = OrderedDict()
        self._ready_partitions: OrderedDict[int, None] = OrderedDict()
        """Partitions with queued batches, in round-robin order."""
        self._partitions: dict[int, PartitionQueue[BatchT]] = {}
        self._windows: dict[SenderRef, InFlightWindow] = {}
        self.next_number = 0
        """The number of the next batch put; numbers ascend."""
        self.size = 0
        """The bytes of all batches, queued or in flight."""

    def __bool__(self) -> bool:
        """Return whether there are any batches."""
        return bool(self._held)

    def holds_below(self, number: int) -> bool:
        """Return whether there is a batch with a smaller number."""
        return next(iter(self._held), number) < number

    @property
    def oldest(self) -> BatchT | None:
        """Return the oldest batch, or None."""
        return next((entry.batch for entry in self._held.values()), None)

    def in_flight(self, sender: SenderRef) -> int:
        """Return the number of batches that a sender has in flight."""
        window = self._windows.get(sender)
        return len(window.numbers) if window is not None else 0

    def partition_of(self, number: int) -> int | None:
        """Return a batch's partition; None if the batch is done."""
        entry = self._held.get(number)
        return None if entry is None else entry.batch.partition

    def put(self, batch: BatchT) -> None:
        """Queue a batch after the others of its partition."""
        entry = InFlightBatch(batch, self.next_number)
        self.next_number += 1
        partition = self._partitions.get(batch.partition)
        if partition is None:
            partition = self._partitions[batch.partition] = PartitionQueue(self._only_epoch or 0)
        self._held[entry.number] = partition.entries[entry.number] = entry
        partition.queued[entry.number] = entry
        self._ready_partitions.setdefault(batch.partition)
        self.size += batch.size

    def next_batch(
        self, sender: SenderRef, may_send: Callable[[int], bool]
    ) -> InFlightBatch[BatchT] | None:
        """Move the next batch to the window and return it; None if there is no room or no batch.

        Args:
            sender: the sender that asks.
            may_send: whether the sender may send to a partition now.
        """
        window = self._windows.get(sender)
        for number in self._ready_partitions:
            partition = self._partitions[number]
            if not may_send(number) or not _may_send(partition, sender):
                continue
            entry = next(iter(partition.queued.values()))
            if window is not None and not self._fits(window, entry):
                return None
            if not self._is_numbered or self._numbered(partition, entry):
                self._add_in_flight(entry, partition, sender)
                return entry
        return None

    def writes(self, sender: SenderRef, entry: InFlightBatch[BatchT]) -> bool:
        """Note that a sender is about to write a batch; return False if it has failed meanwhile.

        A failed batch must not be written, except a batch that failed in doubt: the batches
        numbered after it depend on it.
        """
        if entry.sender is sender:
            entry.is_written = True
            return True
        return entry.in_doubt

    def _fits(self, window: InFlightWindow, entry: InFlightBatch[BatchT]) -> bool:
        size = window.size + entry.batch.size
        is_full = size > self._window_bytes or len(window.numbers) >= self._window_lots
        return not window.numbers or not is_full

    def _numbered(self, partition: PartitionQueue[BatchT], entry: InFlightBatch[BatchT]) -> bool:
        """Assign a sequence unless the batch has one; return False if it has to wait for one."""
        batch = entry.batch
        if entry.numbers is not None or batch.has_ids:
            return True
        if partition.sequence + batch.rows > SEQUENCE_MAX:
            partition.begin_epoch(self._epoch_max)
        if partition.waits and partition.in_flight:
            return False
        partition.waits = False
        entry.numbers = ProducerSequence(partition.epoch, partition.sequence, partition.producer)
        entry.is_void, entry.is_written = partition.has_gap, False
        partition.sequence += batch.rows
        return True

    def _add_in_flight(
        self, entry: InFlightBatch[BatchT], partition: PartitionQueue[BatchT], sender: SenderRef
    ) -> None:
        self._ready_partitions.move_to_end(entry.batch.partition)
        self._unqueue(entry, partition)
        window = self._windows.setdefault(sender, InFlightWindow())
        entry.after = self._before(entry, partition, window)
        entry.sender = partition.sender = sender
        partition.in_flight += 1
        window.numbers.add(entry.number)
        window.size += entry.batch.size

    def _before(
        self,
        entry: InFlightBatch[BatchT],
        partition: PartitionQueue[BatchT],
        window: InFlightWindow,
    ) -> int | None:
        """Return the number of the batch in flight before this one, or None if not needed."""
        partition.has_unnumbered = partition.has_unnumbered or entry.numbers is None
        if not (partition.has_unnumbered and partition.in_flight):
            return None
        before = (n for n in window.numbers if n < entry.number and n in partition.entries)
        return max(before, default=None)

    def _unqueue(self, entry: InFlightBatch[BatchT], partition: PartitionQueue[BatchT]) -> None:
        del partition.queued[entry.number]
        if not partition.queued:
            del self._ready_partitions[entry.batch.partition]

    def _remove_in_flight(self, entry: InFlightBatch[BatchT]) -> None:
        """Remove a batch from its sender's window."""
        window = self._windows[entry.sender]
        window.numbers.discard(entry.number)
        window.size -= entry.batch.size
        if not window.numbers:
            del self._windows[entry.sender]
        partition = self._partitions[entry.batch.partition]
        partition.in_flight -= 1
        if not partition.in_flight:
            partition.sender = None
        entry.sender = None

    def _release(self, entry: InFlightBatch[BatchT]) -> None:
        """Remove a batch that is done."""
        partition = self._partitions[entry.batch.partition]
        del self._held[entry.number], partition.entries[entry.number]
        if entry.number in partition.queued:
            self._unqueue(entry, partition)
        self.size -= entry.batch.size

    def _requeue(self, entries: list[InFlightBatch[BatchT]]) -> None:
        """Queue batches again, at their original positions."""
        for entry in sorted(entries, key=_number, reverse=True):
            queued = self._partitions[entry.batch.partition].queued
            is_first = next(iter(queued), entry.number) >= entry.number
            queued[entry.number] = entry
            if is_first:
                queued.move_to_end(entry.number, last=False)
            else:
                for number in sorted(queued):
                    queued.move_to_end(number)
            self._ready_partitions.setdefault(entry.batch.partition)

    def complete(
        self, sender: SenderRef, number: int, error: StrandlineError | None = None
    ) -> tuple[BatchT, StrandlineError | None] | None:
        """Handle an ack; return the batch and its outcome.

        Returns None if the batch has failed before, or is sent again. A rejection is the outcome
        of a batch in doubt only if the batch cannot have been stored.
        """
        entry = self._held.get(number)
        if entry is None or entry.sender is not sender:
            return None
        self._remove_in_flight(entry)
        if error is not None and self._goes_back(entry, error):
            entry.error = error
            self._requeue([entry])
            return None
        if error is not None and _is_never_stored(entry, error):
            self._leave_gap(entry)
        elif error is not None and entry.in_doubt:
            error = unknown_outcome(error)
        self._release(entry)
        return entry.batch, error

    def _goes_back(self, entry: InFlightBatch[BatchT], error: StrandlineError) -> bool:
        """Return whether a rejected batch is sent again."""
        partition = self._partitions[entry.batch.partition]
        if error.passes_soon:
            if not error.is_rejection:
                entry.unanswered()
            return True
        if isinstance(error, DiskFullError):
            return entry.in_doubt and entry.numbers is not None
        if not isinstance(error, OutOfOrderSequenceError):
            return False
        if entry.numbers is None or next(iter(partition.entries)) != entry.number:
            return True  # it has a new sequence, or a batch before it is not stored yet
        if entry.in_doubt or self._only_epoch is not None:
            return False
        partition.begin_epoch(self._epoch_max)
        for each in partition.entries.values():
            if each.numbers is not None:
                each.void()
                each.numbers = None
        return True

    def _leave_gap(self, entry: InFlightBatch[BatchT]) -> None:
        """Make void the sequences after a batch that fails and is never stored."""
        if entry.numbers is None:
            return
        partition = self._partitions[entry.batch.partition]
        if (partition.producer, partition.epoch) == (entry.numbers.producer, entry.numbers.epoch):
            partition.has_gap = True
        for each in partition.entries.values():
            if each.number > entry.number and each.numbers is not None:
                each.void()

    def lost(self, sender: SenderRef) -> None:
        """Queue the batches of a lost sender again, before others and in order."""
        window = self._windows.get(sender)
        if window is None:
            return
        entries = [self._held[number] for number in window.numbers]
        for entry in entries:
            self._remove_in_flight(entry)
            entry.unanswered()
        self._requeue(entries)

    def expire(self, now_s: float) -> list[ExpiredBatch[BatchT]]:
        """Remove and return the batches whose deadline has passed."""
        in_flight = (self._held[n] for window in self._windows.values() for n in window.numbers)
        found = [entry for entry in in_flight if entry.batch.deadline_s <= now_s]
        for number in self._ready_partitions:
            queued = self._partitions[number].queued.values()
            found += takewhile(lambda entry: entry.batch.deadline_s <= now_s, queued)
        found.sort(key=_number)
        return [self._expired(entry) for entry in found]

    def _expired(self, entry: InFlightBatch[BatchT]) -> ExpiredBatch[BatchT]:
        is_sent = entry.sender is not None and entry.is_written
        if entry.sender is not None:
            self._remove_in_flight(entry)
            entry.unanswered()
        if not entry.in_doubt:
            self._leave_gap(entry)
        self._release(entry)
        return ExpiredBatch(entry.batch, is_sent, entry.in_doubt, entry.error)

    def refused(self, sender: SenderRef) -> None:
        """Note that the broker rejected the whole put: its unanswered batches were not stored."""
        window = self._windows.get(sender)
        for number in window.numbers if window is not None else ():
            self._held[number].is_written = False

    def drop(self, matches: Callable[[int], bool]) -> list[ExpiredBatch[BatchT]]:
        """Remove and return all batches of the partitions that match."""
        entries = [entry for entry in self._held.values() if matches(entry.batch.partition)]
        return [self._expired(entry) for entry in entries]


def _number(entry: InFlightBatch[BatchT]) -> int:
    return entry.number


def _is_never_stored(entry: InFlightBatch[BatchT], error: StrandlineError) -> bool:
    """Return whether a batch with a final rejection is not stored, and never will be."""
    if isinstance(error, InvalidRecordError | RecordTooLargeError):
        return True
    is_certain = isinstance(error, InvalidRequestError | DiskFullError)
    return is_certain and not (entry.in_doubt or isinstance(error, ProducerFencedError))


def _may_send(partition: PartitionQueue[BatchT], sender: SenderRef) -> bool:
    """Return whether no other sender has batches of the partition in flight."""
    return partition.sender is None or partition.sender is sender

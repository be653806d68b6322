"""Index of one partition's transactions: open ones, aborted ones, and the last stable offset.

It is built from the committed batches of the log, in order: a transaction's BEGIN marker, its
records, then its COMMIT or ABORT marker. So every replica, and every restart, builds the same
index. If the log begins in the middle of a transaction, its records replace the missing BEGIN.

Invariants:
- no transaction is open below the last stable offset: each batch there is committed or aborted;
- a producer has at most one open transaction, and epochs that ended never open again.

Threads: ``note`` and ``forget_below`` belong to one thread. ``is_aborted`` may be called on any
thread, for offsets below a last stable offset that was read before.
"""

from collections import deque
from typing import NamedTuple

from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer
from strandline.types import Offset

ENDED_MAX = 100_000
"""How many producers' last epochs are remembered; those that ended longest ago are forgotten. A
forgotten one cannot begin again: only the coordinator writes BEGIN, and without delay."""


class _OpenTransaction(NamedTuple):
    """A transaction that has not ended."""

    epoch: int
    first: Offset


class Aborted(NamedTuple):
    """An offset range in which a producer's batches are aborted."""

    producer_id: int
    first: Offset
    end: Offset


class TransactionIndex:
    """The transactions of one partition up to ``next_offset``.

    Attributes:
        next_offset: the end of the log that was indexed.
    """

    def __init__(self, offset: Offset) -> None:
        self.next_offset = offset
        self._open: dict[int, _OpenTransaction] = {}
        """By producer id, in the order in which they began."""
        self._ended: dict[int, int] = {}
        self._ranges: dict[int, tuple[Aborted, ...]] = {}
        """By producer id; tuples are replaced, so that readers on other threads see whole ones."""
        self._in_order: deque[Aborted] = deque()

    def note(self, kind: MarkerKind, producer: TransactionalProducer, offset: Offset) -> None:
        """Index a marker at ``offset``."""
        known = self._open.get(producer.producer_id)
        if kind is MarkerKind.BEGIN:
            if not self.may_begin(producer):
                return
            if known is not None:
                self._abort(producer.producer_id, known.first, offset)
            self._open.pop(producer.producer_id, None)
            self._open[producer.producer_id] = _OpenTransaction(producer.epoch, offset)
            return
        if known is not None and known.epoch <= producer.epoch:
            if kind is MarkerKind.ABORT:
                self._abort(producer.producer_id, known.first, offset)
            del self._open[producer.producer_id]
        self._end(producer)

    def note_records(self, producer: TransactionalProducer, offset: Offset) -> None:
        """Index records of a transaction from ``offset`` on."""
        if self.may_begin(producer):
            self.note(MarkerKind.BEGIN, producer, offset)

    def _abort(self, producer_id: int, first: Offset, end: Offset) -> None:
        aborted = Aborted(producer_id, first, end)
        self._ranges[producer_id] = (*self._ranges.get(producer_id, ()), aborted)
        self._in_order.append(aborted)

    def _end(self, producer: TransactionalProducer) -> None:
        last = self._ended.pop(producer.producer_id, -1)
        self._ended[producer.producer_id] = max(last, producer.epoch)
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether no transaction is known, so that no batch needs a check."""
        return not (self._open or self._ended)

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset.

        It is where the oldest open transaction begins, or the high watermark if that is lower or
        no transaction is open.
        """
        for first in self._open.values():
            return min(first.first, high_watermark)
        return high_watermark

    def is_open(self, producer: TransactionalProducer) -> bool:
        """Whether the partition accepts records of this producer's transaction."""
        known = self._open.get(producer.producer_id)
        return known is not None and known.epoch == producer.epoch

    def may_begin(self, producer: TransactionalProducer) -> bool:
        """Whether neither this epoch nor a later one has begun or ended."""
        known = self._open.get(producer.producer_id)
        last = self._ended.get(producer.producer_id, -1)
        return producer.epoch > max(last, -1 if known is None else known.epoch)

    def has_ended(self, producer: TransactionalProducer) -> bool:
        """Whether the producer's epoch, or a later one, has ended."""
        return self._ended.get(producer.producer_id, -1) >= producer.epoch

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a producer's batch at ``offset`` is aborted; any thread."""
        return any(each.first <= offset < each.end for each in self._ranges.get(producer_id, ()))

    def aborted_between(self, start: int, stop: int) -> tuple[Aborted, ...]:
        """Return aborted transactions that may have batches between two offsets; any thread."""
        return tuple(
            each
            for ranges in list(self._ranges.values())
            for each in ranges
            if each.first < stop and start < each.end
        )

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    @property
    def aborted_count(self) -> int:
        """The number of aborted transactions that are remembered."""
        return len(self._in_order)

    def forget_below(self, log_start_offset: Offset) -> None:
        """Forget transactions that ended below the log start."""
        while self._in_order and self._in_order[0].end <= log_start_offset:
            gone = self._in_order.popleft()
            rest = tuple(each for each in self._ranges[gone.producer_id] if each is not gone)
            if rest:
                self._ranges[gone.producer_id] = rest
            else:
                del self._ranges[gone.producer_id]

"""The state of idempotent producers in a partition, so that a batch sent twice is stored once.

A producer numbers the records that it sends to a partition: 0, 1, 2 … in each of its epochs. A
batch with the next sequence is stored. A batch that repeats a recently stored sequence is
acknowledged with its offset. Any other batch is rejected: a batch before it is missing, or a
later epoch has taken over.

Rules:
- a batch is noted when it gets its offsets, before it is durable, and forgotten if it is not
  stored, or is truncated after a change of leaders;
- the log's headers contain the whole state, so a restart and every replica can rebuild it
  (``load_producers``);
- a producer is forgotten once the partition has stored records for ``MEMORY_NS`` without any of
  this producer, or when ``PRODUCERS_MAX`` others were active later. An unknown producer has to
  begin at 0.

Invariant: the ranges of a producer ascend by epoch and sequence, and by offset; ranges that touch
    in both are merged.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Callable

from strandline.api.put import PRODUCER_MEMORY_S
from strandline.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from strandline.record.batch import NO_PRODUCER, Attributes, Buffer, read_header
from strandline.storage.log import Log
from strandline.types import Offset, ProducerStamp, TimestampNs

MEMORY_NS = PRODUCER_MEMORY_S * 1_000_000_000
PRODUCERS_MAX = 10_000
RANGES_MAX = 64
"""Kept ranges of a producer that alternates with others; a lone producer needs one."""
LOAD_READ_BYTES = 16 << 20
_MARKER = int(Attributes.MARKER)  # an integer, since enum flags are slow to compare
_HEADER_PARTS = struct.Struct("<8xIxxHq4xI24xqhxxi")
"""Length, attributes, base offset, last offset delta, producer id, epoch, base sequence."""


class _Range:
    """Records of one producer and epoch, consecutive in sequence and in offset."""

    __slots__ = ("epoch", "next_sequence", "offset", "sequence")

    def __init__(self, stamp: ProducerStamp, records: int, offset: int) -> None:
        self.epoch = stamp.epoch
        self.sequence = stamp.sequence
        self.next_sequence = stamp.sequence + records
        self.offset = offset

    def is_before(self, stamp: ProducerStamp, offset: int) -> bool:
        """Whether a batch with this stamp, stored at ``offset``, directly follows the range."""
        return (
            self.epoch == stamp.epoch
            and self.next_sequence == stamp.sequence
            and self.offset + self.next_sequence - self.sequence == offset
        )


class _Producer:
    """The state of one producer."""

    __slots__ = ("is_whole", "last_seen_ns", "ranges")

    def __init__(self) -> None:
        self.ranges: deque[_Range] = deque()
        self.last_seen_ns = 0
        self.is_whole = True
        """Whether no range has been forgotten."""


class ProducerStates:
    """The stored sequences of each producer, with their offsets.

    Args:
        producers_max: the limit of producers; the ones inactive longest are forgotten first.
        ranges_max: the limit of ranges per producer.
    """

    def __init__(self, *, producers_max: int = PRODUCERS_MAX, ranges_max: int = RANGES_MAX) -> None:
        self._producers_max = producers_max
        self._ranges_max = ranges_max
        self._known: OrderedDict[int, _Producer] = OrderedDict()
        """The producers by id, in the order of their last batches."""

    def __len__(self) -> int:
        return len(self._known)

    def check(self, stamp: ProducerStamp, records: int) -> Offset | None:
        """Check whether a batch of ``records`` records is the producer's next one.

        Returns:
            None if it is the next; the offset of its first record if it is stored already.

        Raises:
            OutOfOrderSequenceError: it is neither.
            ProducerFencedError: a later epoch of the producer has written here.
        """
        known = self._known.get(stamp.producer_id)
        if known is None:
            _check_first(stamp, "it is not known here (any more)")
            return None
        newest = known.ranges[-1]
        if stamp.epoch < newest.epoch:
            raise ProducerFencedError(
                f"producer {stamp.producer_id} of epoch {stamp.epoch} was fenced by epoch "
                f"{newest.epoch}"
            )
        if stamp.epoch > newest.epoch:
            _check_first(stamp, f"it was in epoch {newest.epoch}")
            return None
        if stamp.sequence == newest.next_sequence:
            return None
        for stored in reversed(known.ranges):
            is_here = stored.epoch == stamp.epoch and stored.sequence <= stamp.sequence
            if is_here and stamp.sequence + records <= stored.next_sequence:
                return Offset(stored.offset + stamp.sequence - stored.sequence)
        raise OutOfOrderSequenceError(
            f"sequence {stamp.sequence} of producer {stamp.producer_id} in epoch {stamp.epoch}; "
            f"the next one is {newest.next_sequence}"
        )

    def note(
        self, stamp: ProducerStamp, records: int, *, offset: Offset, now_ns: TimestampNs
    ) -> None:
        """Note a batch that begins at ``offset``; it passed ``check``, or is in the log."""
        known = self._known.get(stamp.producer_id)
        if known is None:
            known = self._known[stamp.producer_id] = _Producer()
        else:
            self._known.move_to_end(stamp.producer_id)
        known.last_seen_ns = now_ns
        ranges = known.ranges
        if ranges and ranges[-1].is_before(stamp, offset):
            ranges[-1].next_sequence += records
        else:
            ranges.append(_Range(stamp, records, offset))
            if len(ranges) > self._ranges_max:
                ranges.popleft()
                known.is_whole = False
        self._forget_silent(now_ns)

    def _forget_silent(self, now_ns: TimestampNs) -> None:
        """Forget producers that were inactive too long, or are too many."""
        while True:
            first = next(iter(self._known))
            is_old = self._known[first].last_seen_ns < now_ns - MEMORY_NS
            if not is_old and len(self._known) <= self._producers_max:
                return
            del self._known[first]

    def forget_from(self, offset: Offset) -> bool:
        """Forget records at ``offset`` and after, which were not stored.

        Returns:
            False if the ranges before were forgotten already: all state must be loaded again.
        """
        is_whole = True
        for producer_id, known in list(self._known.items()):
            ranges = known.ranges
            while ranges and ranges[-1].offset >= offset:
                ranges.pop()
            if not ranges:
                is_whole = is_whole and known.is_whole
                del self._known[producer_id]
                continue
            newest = ranges[-1]
            room = offset - newest.offset
            newest.next_sequence = min(newest.next_sequence, newest.sequence + room)
        return is_whole


def _check_first(stamp: ProducerStamp, why: str) -> None:
    """Check that the sequence is 0, as the first of a producer must be.

    Raises:
        OutOfOrderSequenceError: it is not.
    """
    if stamp.sequence:
        raise OutOfOrderSequenceError(
            f"producer {stamp.producer_id} begins epoch {stamp.epoch} at sequence "
            f"{stamp.sequence}, not 0: {why}"
        )


def note_batches(
    producers: "ProducerStates | NotedMeanwhile", batches: Buffer, now_ns: TimestampNs
) -> None:
    """Note all numbered batches in bytes of the log, from the batches' headers."""
    unpack, size = _HEADER_PARTS.unpack_from, len(batches)
    position = 0
    while position < size:
        length, attributes, base, delta, producer_id, epoch, sequence = unpack(batches, position)
        if producer_id != NO_PRODUCER and not attributes & _MARKER:
            stamp = ProducerStamp(producer_id, epoch, sequence)
            producers.note(stamp, delta + 1, offset=Offset(base), now_ns=now_ns)
        position += length


class NotedMeanwhile:
    """Numbered batches that are stored while a thread loads the state of earlier ones.

    Args:
        start: the load reads the batches below this offset.
    """

    def __init__(self, start: Offset) -> None:
        self._start = start
        self._batches: list[tuple[ProducerStamp, int, Offset, TimestampNs]] = []

    def note(
        self, stamp: ProducerStamp, records: int, *, offset: Offset, now_ns: TimestampNs
    ) -> None:
        """Note a batch, as ``ProducerStates.note`` does."""
        if offset >= self._start:
            self._batches.append((stamp, records, offset, now_ns))

    def move_to(self, producers: ProducerStates) -> None:
        """Add the batches to the loaded state."""
        for stamp, records, offset, now_ns in self._batches:
            producers.note(stamp, records, offset=offset, now_ns=now_ns)
        self._batches.clear()


def load_producers(
    log: Log,
    now_ns: TimestampNs,
    *,
    end: Offset | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> ProducerStates:
    """Load the producers' state from the batches of a log; any thread.

    Reads only the time for which a producer is remembered, at about a microsecond per batch.

    Args:
        log: the log of the partition.
        now_ns: the time to use if the last record's time is corrupt or ahead of this.
        end: only batches below this offset are read; None: all.
        is_wanted: the load stops when this returns False.

    Raises:
        UnavailableError: the log cannot be read.
    """
    producers = ProducerStates()
    end = log.log_end_offset if end is None else end
    offset, last_ns = producers_from(log, now_ns)
    while offset < end and is_wanted():
        try:
            found = log.read(offset, LOAD_READ_BYTES, below=end, verify=False)
        except CorruptBatchError as corruption:  # the state of this batch is lost
            offset = Offset(max(corruption.next_offset, offset + 1))
            continue
        except OffsetOutOfRangeError:
            if offset >= log.log_start_offset:
                raise
            offset = log.log_start_offset  # retention deleted the records meanwhile
            continue
        note_batches(producers, found.buffer, last_ns)
        offset = found.next_offset
    return producers


def producers_from(log: Log, now_ns: TimestampNs) -> tuple[Offset, TimestampNs]:
    """Return the offset at which ``load_producers`` starts, and the time of the last record."""
    last_ns = _last_timestamp(log, now_ns)
    return log.offset_since(TimestampNs(last_ns - MEMORY_NS)), last_ns


def _last_timestamp(log: Log, now_ns: TimestampNs) -> TimestampNs:
    """Return the time of the last record: inactivity is measured up to it, not to the clock."""
    if log.log_end_offset == log.log_start_offset:
        return now_ns
    try:
        found = log.read(log.log_end_offset - 1, 1, verify=False)
    except CorruptBatchError:
        return now_ns
    return min(read_header(found.buffer).last_timestamp, now_ns) if found.buffer else now_ns

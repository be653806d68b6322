"""A partition's transactions: an index beside its log, updated with every batch.

Rules:
- batches are noted when they are in the log, and indexed when they are committed. Batches truncated
  in between are dropped, so the index never has to forget;
- records of a transaction are accepted only while it is open in this partition. None is accepted
  after its end marker was, so no record follows the end of its transaction;
- a new index is built from the headers of the log, without checking their checksums, as in
  ``producer_state``. Until it is built no offset is stable, and no transaction begins or ends.

Threads: the loop's, except for ``read_back``, ``readable`` and ``last_stable_offset``, which any
    thread may use.
"""

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from strandline.broker.read_path.visible import read_visible
from strandline.broker.write_path.state_loader import StateLoader
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.hidden import HiddenOffsets
from strandline.core.transactions.index import Aborted, TransactionIndex
from strandline.core.transactions.state import TransactionalProducer
from strandline.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StillLoadingError,
    StrandlineError,
)
from strandline.record.batch import Attributes, BatchHeader, Buffer
from strandline.storage.log import Log
from strandline.types import Offset, PartitionName

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
LOAD_READ_BYTES = 16 << 20
_PARTS: Final = struct.Struct("<8xIxxHq4xi24xqh")
"""Length, attributes, base offset, last offset delta, producer id, producer epoch."""
_OURS: Final = int(Attributes.TRANSACTIONAL | Attributes.MARKER)
_KINDS: Final = {
    MarkerKind.BEGIN: Attributes.MARKER,
    MarkerKind.COMMIT: Attributes.MARKER | Attributes.COMMITTED,
    MarkerKind.ABORT: Attributes.MARKER | Attributes.ABORTED,
}


_ENDS: Final = (MarkerKind.COMMIT, MarkerKind.ABORT)


class Noted(NamedTuple):
    """A batch of a transaction in the log; if ``kind`` is None, it has records, else a marker."""

    offset: Offset
    offsets: int
    """The number of offsets in the batch."""
    producer: TransactionalProducer
    kind: MarkerKind | None


def marker_attributes(kind: MarkerKind) -> int:
    """Return the header attributes of a marker's batch."""
    return int(_KINDS[kind])


def _kind_of(attributes: int) -> MarkerKind | None:
    if not attributes & Attributes.MARKER:
        return None
    if attributes & Attributes.COMMITTED:
        return MarkerKind.COMMIT
    return MarkerKind.ABORT if attributes & Attributes.ABORTED else MarkerKind.BEGIN


def _noted_in(batches: Buffer) -> Iterator[Noted]:
    """Yield the batches that belong to a transaction, or begin or end one."""
    unpack, size, position = _PARTS.unpack_from, len(batches), 0
    while position < size:
        length, attributes, base, last, producer_id, epoch = unpack(batches, position)
        if attributes & _OURS:
            producer = TransactionalProducer(producer_id, epoch)
            yield Noted(Offset(base), last + 1, producer, _kind_of(attributes))
        position += length


def has_transactions(batches: Buffer) -> bool:
    """Whether any batch belongs to a transaction, or begins or ends one."""
    unpack, size, position = _PARTS.unpack_from, len(batches), 0
    while position < size:
        length, attributes, *_ = unpack(batches, position)
        if attributes & _OURS:
            return True
        position += length
    return False


def is_visible(index: "PartitionTransactions | None", header: BatchHeader) -> bool:
    """Whether readers see the records of a batch below the stable offset; any thread."""
    if index is None or not header.attributes & Attributes.TRANSACTIONAL:
        return True
    return index.is_committed(header.producer_id, header.base_offset)


class PartitionTransactions:
    """The transactions of one partition.

    Args:
        log: the log of the partition.
        start: no batch below this offset belongs to a transaction.
        high_watermark: the partition's high watermark.
    """

    def __init__(self, log: Log, *, start: Offset, high_watermark: Offset) -> None:
        self._log = log
        self._high_watermark = high_watermark
        self._stable_offset = Offset(0)
        self.is_loading = True
        """Whether the log must still be read to build the index."""
        self.start = max(start, log.log_start_offset)
        """The offset from which the log is read."""
        self._end = self._kept_to = max(self.start, log.log_end_offset)
        """The end of that read; and the end of what it finds that was not truncated since."""
        self._index = TransactionIndex(self.start)
        self._noted: deque[Noted] = deque()
        self._noted_to = self._end
        """Batches below this offset were noted: a batch may be reported twice during the load."""
        self._ending: set[TransactionalProducer] = set()
        self._hidden = HiddenOffsets()
        self._undecided: dict[int, list[Noted]] = {}
        """Committed records of open transactions, by producer id."""
        self._replay: StateLoader[list[Noted]] | None = None

    @classmethod
    def loaded(cls, log: Log, *, start: Offset, high_watermark: Offset) -> "PartitionTransactions":
        """Return an index that is built from its log.

        Raises:
            UnavailableError: the log cannot be read.
        """
        made = cls(log, start=start, high_watermark=high_watermark)
        made.take(made.read_back())
        return made

    def load(self, name: PartitionName, loaded: Callable[[], None]) -> None:
        """Build the index from the log, on a thread if the log is long; retry until it works.

        Args:
            name: the name of the partition, for messages.
            loaded: called on the loop when the index is complete.
        """

        def take(noted: list[Noted]) -> None:
            self.take(noted)
            loaded()

        def read() -> None:
            if self._replay is replay:
                with contextlib.suppress(StillLoadingError):  # readers get this error meanwhile
                    replay.read(self.read_back, size_bytes=lambda: self._log.bytes_from(self.start))

        def failed(error: StrandlineError) -> None:
            logger.warning("%s: transactions cannot be loaded, will retry: %s", name, error)
            asyncio.get_running_loop().call_later(RETRY_S, read)

        replay = self._replay = StateLoader(take, what=f"transactions of {name}", failed=failed)
        read()

    def close(self) -> None:
        """Stop loading."""
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.cancel()

    def read_back(self, is_wanted: Callable[[], bool] = lambda: True) -> list[Noted]:
        """Read the log's transactions; any thread; a third of a microsecond per batch.

        Args:
            is_wanted: the load stops when this returns False.

        Raises:
            UnavailableError: the log cannot be read.
        """
        log, offset, end = self._log, self.start, self._end
        noted: list[Noted] = []
        while offset < end and is_wanted():
            try:
                found = log.read(offset, LOAD_READ_BYTES, below=end, verify=False)
            except CorruptBatchError as corruption:  # a marker in it is lost: none is written again
                offset = Offset(max(corruption.next_offset, offset + 1))
                continue
            except OffsetOutOfRangeError:
                if offset >= log.log_start_offset:
                    break  # the log was truncated meanwhile
                offset = log.log_start_offset
                continue
            noted += _noted_in(found.buffer)
            if found.next_offset <= offset:
                break  # the log was truncated meanwhile
            offset = found.next_offset
        return noted

    def take(self, noted: Iterable[Noted]) -> None:
        """Continue from the loaded transactions, and those noted during the load."""
        kept = [each for each in noted if each.offset < self._kept_to]
        self._ending.update(each.producer for each in kept if each.kind in _ENDS)
        self._noted.extendleft(reversed(kept))
        self.is_loading = False
        self.commit(self._high_watermark)

    # Changes of the log

    def written(self, batches: Buffer) -> None:
        """Note whole batches that were added to the log."""
        for noted in _noted_in(batches):
            if noted.offset >= self._noted_to:
                self._noted_to = Offset(noted.offset + 1)
                self._noted.append(noted)
                if noted.kind in _ENDS:
                    # A new leader may find the end marker uncommitted; still, no record may follow
                    # it.
                    self._ending.add(noted.producer)

    def forget_from(self, offset: Offset) -> None:
        """Forget uncommitted batches at ``offset`` and after, which were truncated."""
        while self._noted and self._noted[-1].offset >= offset:
            self._noted.pop()
        self._noted_to = min(self._noted_to, offset)
        self._kept_to = min(self._kept_to, offset)

    def commit(self, high_watermark: Offset) -> None:
        """Index batches below ``high_watermark``, which are committed."""
        self._high_watermark = high_watermark
        if self.is_loading:
            return
        index, noted = self._index, self._noted
        while noted and noted[0].offset < high_watermark:
            each = noted.popleft()
            offset, _, producer, kind = each
            if kind is None:
                index.note_records(producer, offset)
                self._undecided.setdefault(producer.producer_id, []).append(each)
            else:
                index.note(kind, producer, offset)
                self._hidden.add(*each[:2])
                self._hide_aborted(producer.producer_id)
                if kind is not MarkerKind.BEGIN:
                    self._ending.discard(producer)
        index.next_offset = high_watermark
        index.forget_below(self._log.log_start_offset)
        self._hidden.forget_below(self._log.log_start_offset)
        # Last: a reader that sees this offset must find the transactions aborted below it.
        self._stable_offset = index.last_stable_offset(high_watermark)

    def _hide_aborted(self, producer_id: int) -> None:
        """Hide the records of a producer that an abort marker has ended."""
        still_open = []
        for each in self._undecided.pop(producer_id, ()):
            if self._index.is_aborted(producer_id, each.offset):
                self._hidden.add(each.offset, each.offsets)
            elif self._index.is_open(each.producer):
                still_open.append(each)
        if still_open:
            self._undecided[producer_id] = still_open

    def hidden_between(self, start: int, stop: int) -> int:
        """Count the committed offsets of markers and of aborted records in a range; any thread."""
        return self._hidden.between(start, stop)

    @property
    def last_stable_offset(self) -> Offset:
        """The end for readers: the high watermark, or the offset of the first open transaction."""
        return max(self._stable_offset, self._log.log_start_offset)

    def is_stale(self, high_watermark: Offset) -> bool:
        """Whether the log was restarted elsewhere, so that it does not have the indexed batches."""
        known = self._index.next_offset
        return known > high_watermark or known < self._log.log_start_offset

    def check_loaded(self) -> None:
        """Check that the index is complete; any thread.

        Raises:
            StillLoadingError: the index is still being loaded.
        """
        if (why := self.why_loading) is not None:
            raise why

    @property
    def why_loading(self) -> StillLoadingError | None:
        """The error while the index is being loaded, or None; any thread."""
        if not self.is_loading:
            return None
        return StillLoadingError("transactions are still being loaded from the log; retry")

    # Writers

    def check(self, producer: TransactionalProducer) -> None:
        """Check that the producer's transaction is open in this partition.

        Raises:
            ProducerFencedError: the transaction is not open.
            StillLoadingError: the index is still being loaded.
        """
        self.check_loaded()
        if producer in self._ending or not self._index.is_open(producer):
            raise ProducerFencedError(
                f"no transaction of producer {producer} is open here: it has ended, or another "
                "one took its id over"
            )

    def needs(self, kind: MarkerKind, producer: TransactionalProducer) -> bool:
        """Whether a marker must still be written; if it is an end marker, reject later records."""
        if kind is MarkerKind.BEGIN:
            return producer not in self._ending and self._index.may_begin(producer)
        if self._index.has_ended(producer):
            return False
        self._ending.add(producer)
        return True

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return self._index.open_count

    # Reading

    def is_committed(self, producer_id: int, offset: int) -> bool:
        """Whether a transaction's batch below the stable offset is committed."""
        return not self._index.is_aborted(producer_id, offset)

    def aborted(self, start: int, stop: int) -> tuple[Aborted, ...]:
        """Return the aborted ranges in a range of offsets below the stable offset."""
        return self._index.aborted_between(start, stop)

    def readable(self, offset: Offset, bytes_max: int, *, below: Offset) -> Buffer:
        """Read visible batches; see ``read_visible``."""
        return read_visible(
            self._log, offset, bytes_max, below=below, is_committed=self.is_committed
        )

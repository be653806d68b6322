"""A reader's cursor in one partition that is read from its end to its beginning.

Batches can only be read forwards, so windows of offsets are read, each below the previous one, and
their records are delivered in reverse. A window grows to about ``batch_bytes``.

Invariant: ``position`` is the offset after the next record to deliver; it only shrinks.

Rules: as ``cursor``. Records newer than a corrupt batch are delivered before the corruption is
reported.
"""

import array
from typing import Final

import pyarrow as pa

from strandline.api.tickets import ReadRequest
from strandline.errors import CorruptBatchError, DataLossError, OffsetOutOfRangeError
from strandline.reading.cursor import Cursor, CursorBatch, PartitionRange, PartitionT
from strandline.record.batch import read_header
from strandline.record.codec import decode_batches
from strandline.record.decode import walk
from strandline.types import Offset

GROWTH: Final = 4
"""A window has at most this many times the offsets of the previous one."""
OVERSIZE: Final = 4
"""A window that turns out this many times too large is read again as smaller ones."""


class DescendingCursor(Cursor[PartitionT]):
    """The state of a descending read in one partition.

    Args:
        request: the read.
        extent: its part of this partition, which has an end.
        names: columns to deliver, in order.
    """

    def __init__(
        self, request: ReadRequest, extent: PartitionRange[PartitionT], *, names: list[str]
    ) -> None:
        super().__init__(request, extent, names=names)
        assert extent.stop is not None, "a descending read begins at its end"
        self._start = extent.start
        self.position = extent.stop
        self._span = 1
        self._record_bytes = 1
        """About how many bytes a record takes."""

    @property
    def is_done(self) -> bool:
        """Whether everything asked for has been delivered."""
        return self.position <= self._start

    @property
    def has_more(self) -> bool:
        """Whether there are records that can be delivered now."""
        return not self.is_done

    def read(self) -> list[CursorBatch]:
        """Return the records before the position, newest first, as non-empty batches.

        The list is empty if no record passed the filters, or at the start; see ``is_done``.

        Raises:
            CorruptBatchError: the next batch is corrupt, and the request does not skip those.
            DataLossError: the next records were deleted meanwhile.
        """
        first = max(self._start, self.partition.log_start_offset)
        if self.position <= first:
            self._end_at(first)
            return []
        low, pieces = self._window(Offset(max(first, self.position - self._span)))
        self._adapt(low, pieces)
        end, self.position = self.position, max(first, low)
        deliveries: list[CursorBatch] = []
        for piece in reversed(pieces):
            for whole in reversed(list(self._decoded(piece))):
                batch = self._between(whole, end)
                if batch.num_rows and not self._filter.is_trivial:
                    batch = self._filter.apply(batch)
                if batch.num_rows:
                    deliveries += self._split(reverse(batch))
        return deliveries

    def _end_at(self, first: Offset) -> None:
        """End the read: any record not delivered yet has been deleted.

        Raises:
            DataLossError: records that the read asked for were deleted.
        """
        if first > self._start and not self._may_move:
            raise DataLossError(
                f"records {self._start} to {first - 1} of {self.partition.name} were deleted "
                f"before they were read; read from offset {first} on"
            )
        self._start = self.position

    def _decoded(self, piece: pa.Buffer) -> list[pa.RecordBatch]:
        number = self.partition.name.partition
        return list(decode_batches(piece, columns=self._columns, partition=number))

    def _window(self, low: Offset) -> tuple[Offset, list[pa.Buffer]]:
        """Return the whole batches from that of ``low`` to the position, and where they begin."""
        pieces: list[pa.Buffer] = []
        begin = offset = low
        size = 0
        while offset < self.position:
            wanted = max(1, min(self._request.batch_bytes, self._bytes_left(offset)))
            try:
                buffer = self.partition.read(offset, wanted)
            except OffsetOutOfRangeError:
                if offset >= self.partition.log_start_offset:
                    raise
                low = offset = self.partition.log_start_offset
                continue
            except CorruptBatchError as error:
                offset = self._behind(error, offset)
                if not self._request.skip_corrupt:
                    low, pieces = offset, []
                continue
            if not buffer.size:
                break
            size += buffer.size
            is_large = size > OVERSIZE * self._request.batch_bytes and bool(pieces)
            if is_large and self.position - begin > 1:
                self._span = max(1, (self.position - begin) // GROWTH)
                return self._window(Offset(self.position - self._span))
            view = memoryview(buffer)
            if not pieces:
                low = min(low, read_header(view).base_offset)
            pieces.append(self._below_position(buffer, view))
            offset = read_header(view, walk(view)[-1][0]).next_offset
        return low, pieces

    def _bytes_left(self, offset: Offset) -> int:
        """Return about how many bytes the rest of the window takes."""
        return (self.position - offset) * self._record_bytes

    def _behind(self, error: CorruptBatchError, offset: Offset) -> Offset:
        """Return the offset at which the intact batches after a corrupt one begin.

        Raises:
            CorruptBatchError: the window has none, and the request does not skip corrupt batches.
        """
        following = Offset(error.next_offset)
        if following <= offset:
            raise error
        if following >= self.position and not self._request.skip_corrupt:
            raise error
        return following

    def _below_position(self, buffer: pa.Buffer, view: memoryview) -> pa.Buffer:
        """Return the batches that begin below the position, at least one."""
        for place, _ in walk(view):
            if place and read_header(view, place).base_offset >= self.position:
                return buffer.slice(0, place)
        return buffer

    def _adapt(self, low: Offset, pieces: list[pa.Buffer]) -> None:
        """Choose the size of the next window by that of this one's records."""
        offsets = max(1, self.position - low)
        self._record_bytes = max(1, sum(piece.size for piece in pieces) // offsets)
        fitting = self._request.batch_bytes // self._record_bytes
        self._span = max(1, min(fitting, GROWTH * offsets))

    def _between(self, batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
        """Return the rows from the start to ``end``."""
        offsets = batch.column("offset").to_numpy()
        begin = int(offsets.searchsorted(self._start))
        return batch.slice(begin, max(0, int(offsets.searchsorted(end)) - begin))


def reverse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in reverse order."""
    # Not pa.array, which imports pandas first if that is installed.
    indices = array.array("q", range(batch.num_rows - 1, -1, -1))
    column = pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, pa.py_buffer(indices)])
    return batch.take(column)


def offset_before_end(partition: PartitionT, count: int) -> Offset:
    """Return the offset of the ``count``-th last record that readers see, or of the first one."""
    first, end = partition.log_start_offset, partition.last_stable_offset
    if count >= end - first:
        return first
    request = ReadRequest(stream=partition.name.stream, columns=["offset"])
    extent = PartitionRange(partition, first, end, may_move=True)
    cursor = DescendingCursor(request, extent, names=["offset"])
    while not cursor.is_done:
        for batch, _ in cursor.read():
            if batch.num_rows >= count:
                return Offset(batch.column(0)[count - 1].as_py())
            count -= batch.num_rows
    return partition.log_start_offset

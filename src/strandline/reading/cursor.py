"""A reader's cursor in one partition: reads whole batches, decodes, trims, filters, projects.

Invariant: ``position`` is the offset of the next record to deliver; it only grows.

Rules: runs on the caller's thread and never waits; zero copy for large batches. It must not know
Flight, nor other partitions, nor whether a broker or the reader's own process reads the log.
"""

from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from strandline.api.tickets import ReadRequest
from strandline.errors import CorruptBatchError, DataLossError, OffsetOutOfRangeError
from strandline.reading.filters import RecordFilter
from strandline.record.batch import read_header
from strandline.record.codec import decode_batches
from strandline.record.decode import walk
from strandline.types import Offset, PartitionName


class OffsetRun(NamedTuple):
    """A half-open range of offsets whose records may match a filter."""

    start: int
    stop: int
    size: int
    """About how many bytes the records take; 0: unknown, or many."""


class RunFinder(Protocol):
    """Finds the records that may match a subject pattern."""

    def next_run(self, position: int, end: int) -> OffsetRun:
        """Return the next run from ``position`` on; an empty one at ``end`` if there is none."""


class Readable(Protocol):
    """A partition that can be read."""

    @property
    def name(self) -> PartitionName:
        """The partition's name."""

    @property
    def log_start_offset(self) -> Offset:
        """The offset of the first record kept."""

    @property
    def last_stable_offset(self) -> Offset:
        """The end of a read, exclusive."""

    def read(self, offset: Offset, bytes_max: int, *, below: Offset | None = None) -> pa.Buffer:
        """Return whole batches from the one that holds ``offset``; empty if nothing is visible.

        A batch that begins at ``below`` or later is left out.
        """

    def find_runs(self, pattern: str) -> RunFinder | None:
        """Return a finder of records with matching subjects; None: every record has to be read."""


PartitionT = TypeVar("PartitionT", bound=Readable)


class PartitionRange(NamedTuple, Generic[PartitionT]):
    """The part of a partition to read, half-open."""

    partition: PartitionT
    start: Offset
    stop: Offset | None
    """None: without end."""
    may_move: bool
    """Whether the start moves if records were deleted, because the caller named no offset."""


class CursorBatch(NamedTuple):
    """A record batch for the reader, with an upper bound of its size, which is slow to compute."""

    batch: pa.RecordBatch
    size: int


class Cursor(Generic[PartitionT]):
    """The position of a read in one partition.

    Args:
        request: the read.
        extent: its part of this partition.
        names: columns to deliver, in order.
    """

    def __init__(
        self, request: ReadRequest, extent: PartitionRange[PartitionT], *, names: list[str]
    ) -> None:
        self.partition = extent.partition
        self.position = extent.start
        self.stop = extent.stop
        self._may_move = extent.may_move
        self._request = request
        self._filter = RecordFilter(request)
        pattern = request.subject
        self._runs = None if pattern is None else extent.partition.find_runs(pattern)
        self._names = names
        needed = ("offset", *self._filter.columns)
        extra = [name for name in needed if name not in self._names]
        self._columns = [*self._names, *extra]
        self._has_extra = bool(extra)

    @property
    def is_done(self) -> bool:
        """Whether everything asked for has been delivered."""
        return self.stop is not None and self.position >= self.stop

    @property
    def end(self) -> Offset:
        """The end of what can be delivered now, exclusive."""
        end = self.partition.last_stable_offset
        return end if self.stop is None else min(end, self.stop)

    @property
    def has_more(self) -> bool:
        """Whether there are records that can be delivered now."""
        return self.position < self.end

    def available_bytes(self, bytes_max: int) -> int:
        """Return about how many bytes can be delivered now, counted up to ``bytes_max``."""
        if not self.has_more:
            return 0
        return int(self._read(bytes_max).size)

    def read(self) -> list[CursorBatch]:
        """Return the next records, about ``batch_bytes`` of them, as non-empty batches.

        The list is empty if no record passed the filters, or at the end; compare ``position`` with
        ``end``.

        Raises:
            CorruptBatchError: the next batch is corrupt, and the request does not skip those.
            DataLossError: the next records were deleted meanwhile.
        """
        end = self.end
        if self.position >= end:
            return []
        bytes_max = self._request.batch_bytes
        if self._runs is not None:
            run = self._runs.next_run(self.position, end)
            if run.start > self.position:
                self.position, self._may_move = Offset(run.start), False
            if self.position >= end:
                return []
            bytes_max = min(bytes_max, run.size or bytes_max)
        buffer = self._read(bytes_max)
        if not buffer.size:
            # Compaction has removed every record from here to the end.
            self.position = max(self.position, end)
            return []
        before = self.position
        batches: list[CursorBatch] = []
        number = self.partition.name.partition
        for whole in decode_batches(buffer, columns=self._columns, partition=number):
            batch = self._trimmed(whole, end)
            if batch.num_rows and not self._filter.is_trivial:
                batch = self._filter.apply(batch)
            if batch.num_rows:
                batches += self._split(batch)
        if self.position == before:
            self._step_over(buffer)
        return batches

    def _read(self, bytes_max: int) -> pa.Buffer:
        """Return whole batches from the position on; move the position past deleted records."""
        partition = self.partition
        while True:
            try:
                return partition.read(self.position, bytes_max, below=self.end)
            except OffsetOutOfRangeError as error:
                first = partition.log_start_offset
                if self.position >= first:
                    raise
                if not self._may_move:
                    raise DataLossError(
                        f"records {self.position} to {first - 1} of {partition.name} were deleted "
                        f"before they were read; continue at offset {first}"
                    ) from error
                self.position = first
            except CorruptBatchError as error:
                following = getattr(error, "next_offset", None)
                if not self._request.skip_corrupt or following is None:
                    raise
                if following <= self.position:
                    raise
                self.position = Offset(following)
            if self.position >= self.end:
                return pa.py_buffer(b"")

    def _trimmed(self, batch: pa.RecordBatch, end: Offset) -> pa.RecordBatch:
        """Return the rows from the position to ``end``, and move the position past them."""
        offsets = batch.column("offset").to_numpy()
        start, stop = self.position, len(offsets)
        first = 0
        if offsets[0] < start:
            first = int(offsets.searchsorted(start))
        if offsets[-1] >= end:
            stop = int(offsets.searchsorted(end))
        if first or stop < len(offsets):
            batch = batch.slice(first, max(0, stop - first))
        if batch.num_rows:
            self.position = Offset(int(offsets[stop - 1]) + 1)
            self._may_move = False
        return batch

    def _split(self, batch: pa.RecordBatch) -> list[CursorBatch]:
        """Return only the columns asked for, in pieces of about ``batch_bytes``."""
        if self._has_extra:
            batch = batch.select(self._names)
        size, wanted = batch.get_total_buffer_size(), self._request.batch_bytes
        if size <= 2 * wanted:
            return [CursorBatch(batch, size)]
        size = batch.nbytes
        rows = max(1, batch.num_rows * wanted // size)
        pieces = [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
        return [CursorBatch(piece, piece.nbytes) for piece in pieces]

    def _step_over(self, buffer: pa.Buffer) -> None:
        """Move the position past batches whose records compaction has removed."""
        view = memoryview(buffer)
        places = walk(view)
        assert places, "a read returns at least one whole batch"
        following = read_header(view, places[-1][0]).next_offset
        assert following > self.position, "a read returns the batch that holds the offset"
        self.position = Offset(following)

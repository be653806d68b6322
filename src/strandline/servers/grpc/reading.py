"""Reads of a partition's committed records on a thread, converted to a client's messages.

Rules: reading, verifying checksums and encoding run on a thread pool, because a slow disk would
block every publisher; each reader reads one portion at a time. Offsets removed by compaction or
retention, and those of aborted transactions, are skipped; readers wait at an open transaction. This
module must not know the client's messages.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple

import pyarrow as pa

from strandline.broker.write_path.partition import Partition
from strandline.errors import OffsetOutOfRangeError
from strandline.record.batch import read_header
from strandline.record.codec import decode_batches
from strandline.record.decode import walk
from strandline.types import Offset

PORTION_BYTES: Final = 256 << 10
THREADS: Final = 4

Convert = Callable[[list[pa.RecordBatch]], bytes | bytearray]


class Portion(NamedTuple):
    """A portion of converted records, and the offset at which the next one begins."""

    data: bytes | bytearray
    records: int
    filled_to: Offset
    """The offset after the last record; without records, the first offset that was read."""
    next_offset: Offset


class GrpcReader:
    """A reader of one partition in order.

    Args:
        partition: the partition.
        offset: the first offset to read.
        columns: the columns of ``record.schema`` that ``convert`` needs, ``offset`` first.
        convert: converts batches to messages; runs on a thread of the pool.
        pool: the threads to read on.
    """

    def __init__(
        self,
        partition: Partition,
        offset: Offset,
        *,
        columns: tuple[str, ...],
        convert: Convert,
        pool: Executor,
    ) -> None:
        assert columns[0] == "offset", "by which records are cut"
        self.partition = partition
        self.offset = offset
        self._columns = columns
        self._convert = convert
        self._pool = pool
        self._more = asyncio.Event()

    async def next(self, stop: Offset | None = None, *, bytes_max: int = PORTION_BYTES) -> Portion:
        """Return the next records below ``stop``, about ``bytes_max`` at most; there may be none.

        Raises:
            CorruptBatchError: the next batch is corrupt.
            StrandlineError: the partition cannot be read here.
        """
        loop = asyncio.get_running_loop()
        size = min(PORTION_BYTES, bytes_max)
        portion = await loop.run_in_executor(self._pool, self._read, stop, size)
        self.offset = portion.next_offset
        return portion

    def _read(self, stop: Offset | None, bytes_max: int) -> Portion:
        partition, offset = self.partition, self.offset
        end = partition.last_stable_offset
        end = end if stop is None else min(end, stop)
        if offset >= end:
            return Portion(b"", 0, offset, offset)
        try:
            buffer = partition.read(offset, bytes_max)
        except OffsetOutOfRangeError:
            if offset >= partition.log_start_offset:
                raise
            start = partition.log_start_offset
            return Portion(b"", 0, start, start)
        batches: list[pa.RecordBatch] = []
        next_offset = end
        if buffer.size:
            whole = decode_batches(buffer, columns=self._columns)
            batches = [piece for batch in whole if (piece := cut(batch, offset, end)).num_rows]
            view = memoryview(buffer)
            last = read_header(view, walk(view)[-1][0])
            next_offset = min(end, last.next_offset)
        if not batches:
            return Portion(b"", 0, offset, next_offset)
        records = sum(batch.num_rows for batch in batches)
        filled_to = Offset(batches[-1].column(0)[-1].as_py() + 1)
        return Portion(self._convert(batches), records, filled_to, next_offset)

    async def more(self) -> None:
        """Wait until there may be more records, or the state of the partition has changed."""
        self._more.clear()
        self.partition.watch(self._more)
        try:
            if self.partition.last_stable_offset <= self.offset and not self.partition.closed:
                await self._more.wait()
        finally:
            self.partition.unwatch(self._more)


def cut(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """Return the rows with offsets of at least ``start`` and below ``stop``."""
    # Without numpy: with it pyarrow imports pandas, if installed, which takes seconds.
    column = batch.column(0)
    if column[0].as_py() >= start and column[-1].as_py() < stop:
        return batch
    offsets = column.to_pylist()
    first, last = bisect_left(offsets, start), bisect_left(offsets, stop)
    return batch.slice(first, max(0, last - first))

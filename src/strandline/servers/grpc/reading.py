"""Committed records of a partition, read beside the loop and handed over as what a client is sent.

Rules: reading, checking sums and encoding happen on threads of a pool, because a cold disk would
hold up every publisher; one portion of one reader at a time. Offsets that compaction or retention
took, and those of aborted transactions, are passed over; one that is in doubt holds readers up.
Must not know what a client is sent.
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
    """What was read, as it is sent, and where to go on."""

    data: bytes | bytearray
    records: int
    filled_to: Offset
    """The offset after the last record, or where it began."""
    next_offset: Offset


class GrpcReader:
    """Reads one partition in order.

    Args:
        partition: which.
        offset: the first wanted.
        columns: of ``record.schema`` that ``convert`` needs; ``offset`` first.
        convert: makes what is sent; runs on a thread of the pool.
        pool: whose threads read.
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
        """The next records below ``stop``, about ``PORTION_BYTES`` at most; perhaps none.

        Raises:
            CorruptBatchError: the next batch is damaged.
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
        """Wait until there may be more, or the partition's state has changed."""
        self._more.clear()
        self.partition.watch(self._more)
        try:
            if self.partition.last_stable_offset <= self.offset and not self.partition.closed:
                await self._more.wait()
        finally:
            self.partition.unwatch(self._more)


def cut(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """The rows with offsets from ``start`` to ``stop``."""
    # Not by numpy: pyarrow imports pandas first, if it is there, which takes seconds.
    column = batch.column(0)
    if column[0].as_py() >= start and column[-1].as_py() < stop:
        return batch
    offsets = column.to_pylist()
    first, last = bisect_left(offsets, start), bisect_left(offsets, stop)
    return batch.slice(first, max(0, last - first))

"""Iteration over a segment's batches, skipping corruption; for everything except client reads.

Rules: only intact batches are yielded. A window of the file is read at a time, so that memory is
limited by the largest batch. ``Log.read``, for clients, is faster.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from strandline.record.batch import BatchHeader
from strandline.storage.disk import Disk
from strandline.storage.offset_index import SparseIndex
from strandline.storage.scan import header_at, intact_at
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import LOG_SUFFIX, CorruptRange

WINDOW_BYTES = 1 << 20


class FoundBatch(NamedTuple):
    """An intact batch in a segment."""

    position: int
    header: BatchHeader
    view: memoryview
    """The bytes of the batch."""


def walk(
    segment: Segment, position: int = 0, *, on_hole: Callable[[CorruptRange], None] | None = None
) -> Iterator[FoundBatch]:
    """Yield the intact batches from ``position``, where a batch begins.

    Args:
        segment: the segment; it is read up to its size at the time of the call.
        position: the position in bytes.
        on_hole: called with every corrupt range.
    """
    size = segment.size
    expected = segment.offset_near(position)
    while position < size:
        window = segment.view(position, min(WINDOW_BYTES, size - position))
        header = header_at(window, 0)
        if header is not None and len(window) < header.length <= size - position:
            window = segment.view(position, header.length)
        at = 0
        while (header := intact_at(window, at)) is not None:
            yield FoundBatch(position + at, header, window[at : at + header.length])
            at += header.length
            expected = header.next_offset
        position += at
        rest = header_at(window, at)
        if at == 0 or (rest is not None and at + rest.length <= len(window)):
            hole = segment.hole(position, expected)
            if on_hole is not None:
                on_hole(hole)
            if hole.next_position < 0:
                return
            position, expected = hole.next_position, hole.next_offset


def open_unindexed(directory: Path, base: int, *, disk: Disk, limit: int) -> Segment:
    """Return a segment to iterate over, without using its index files.

    Args:
        directory: the directory of the log.
        base: offset that names the segment.
        disk: the file system.
        limit: the next segment's first offset; -1: this is the last segment.
    """
    size = (directory / f"{base:020d}{LOG_SUFFIX}").stat().st_size
    end = limit if limit >= 0 else (1 << 63) - 1
    segment = Segment.sealed_on_disk(directory, base, disk=disk, size=size, next_offset=end)
    segment.index, segment.times = SparseIndex(), SparseIndex()
    return segment

"""The read side of a segment: its bytes, the positions of offsets, and its corruption.

Rules: any number of threads may read while one appends, because each value that they need is
replaced by one assignment, in this order: bytes, index, size, next offset. A sealed segment is
memory-mapped, and needs no descriptor while nobody reads it. A retired segment, whose file was
removed or replaced, holds no file: existing views stay valid, and every other access raises
``RetiredSegmentError``. Must not know other segments.
"""

import contextlib
import mmap
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple, Self

from strandline.errors import (
    CorruptBatchError,
    LogPoisonedError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.batch import TIMESTAMP_MIN, BatchHeader, Extent
from strandline.storage.disk import Bytes, Disk, OpenFile
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.storage.offset_index import (
    INTERVAL_BYTES,
    KIND_OFFSETS,
    KIND_TIMES,
    IndexFile,
    SparseIndex,
    decode_index,
)
from strandline.storage.scan import find_intact, header_at, intact_at, scan
from strandline.types import Offset, TimestampNs

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIMES_SUFFIX = ".timeindex"
SUBJECTS_SUFFIX = ".subjects"
DOOMED_SUFFIX = ".doomed"
_WINDOW_BYTES = 64 << 10
_HINTS_MAX = 64
AT_HAND_BYTES_MAX = 256 << 10
"""The most bytes that a read on the event loop may take, so that it does not block it."""
AHEAD_BYTES = 8 << 20
"""How many bytes are read ahead for a sequential reader, and unmapped behind it, at a time."""


class RetiredSegmentError(UnavailableError):
    """A segment was removed or replaced during a read; the log knows the present one."""


class CorruptRange(NamedTuple):
    """A range of a segment without an intact batch."""

    position: int
    first_offset: int
    """The first offset that is missing."""
    next_offset: int
    """The first offset after the hole that can be read."""
    next_position: int
    """Position of the intact batch after the hole; -1: there is none in this segment."""


class BatchLocation(NamedTuple):
    """The position of a batch, and a lower bound for the offsets from there on."""

    position: int
    expected: int


class Tail(NamedTuple):
    """The end of a segment that is being written."""

    written: int
    """The number of bytes in the file."""
    pending: list[Bytes]
    """The batches after those bytes, which are in memory only."""
    positions: list[int]
    """The position of each of these batches in the segment; added after the batch."""


class SegmentReads:
    """Batches from ``base_offset`` up to ``next_offset``, ``size`` bytes of them."""

    __slots__ = (
        "_disk", "_file", "_hints", "_map", "_pinned", "_tail", "base_offset",
        "first_timestamp", "has_durable_name", "index", "indexed_bytes", "is_retired",
        "max_timestamp", "next_offset", "path", "sealed", "size", "subjects", "synced_bytes",
        "times", "truncations", "written_back_bytes",
    )  # fmt: skip

    def __init__(self, directory: Path, base_offset: int, *, disk: Disk) -> None:
        self._disk = disk
        self.path = segment_path(directory, base_offset)
        self.base_offset = base_offset
        self.next_offset = Offset(base_offset)
        self.size = 0
        self.first_timestamp = TIMESTAMP_MIN
        self.max_timestamp = TIMESTAMP_MIN
        self.truncations = 0
        self.sealed = False
        self.has_durable_name = False
        self.is_retired = False
        self._pinned: mmap.mmap | None = None
        self.synced_bytes = 0
        self.written_back_bytes = 0
        self.indexed_bytes = -1
        self.index: SparseIndex | None = SparseIndex()
        self.times: SparseIndex | None = SparseIndex()
        self.subjects: object | None = None
        """The subject index, if ``log_subjects`` has loaded it."""
        self._file: OpenFile | None = None
        self._map: mmap.mmap | None = None
        self._tail = Tail(0, [], [])
        self._hints: dict[int, int] = {}

    @property
    def file(self) -> OpenFile:
        """Return the open file, created if the segment is new; hold it while using its descriptor.

        The file of a sealed and synced segment is closed when the caller releases it.

        Raises:
            RetiredSegmentError: the file was removed or replaced.
        """
        file = self._file
        if file is not None:
            return file
        self._check_not_retired()
        is_new = not self._tail.written  # else the file exists
        is_kept = not (self.sealed and self.is_synced)
        try:
            file = OpenFile(self.path, disk=self._disk, write=not self.sealed, create=is_new)
        finally:
            self._check_not_retired()  # its name may be removed, or name another file
        if is_kept:
            self._file = file
            if self.is_retired:
                self._file = None
        return file

    def _check_not_retired(self) -> None:
        if self.is_retired:
            raise RetiredSegmentError(f"{self.path} was removed or replaced just now; retry")

    @property
    def inode(self) -> int:
        """The inode number of the file."""
        file = self.file
        return self._disk.inode(file.fd)

    @property
    def is_synced(self) -> bool:
        """Whether the contents, but perhaps not the name, survive a power loss."""
        return self.synced_bytes == self.size

    @property
    def is_durable(self) -> bool:
        """Whether it is sealed, and contents and name survive a power loss."""
        return self.sealed and self.has_durable_name and self.is_synced

    @property
    def is_indexed(self) -> bool:
        """Whether the index files cover all of it."""
        return self.indexed_bytes == self.size

    @property
    def written_bytes(self) -> int:
        """The bytes that are in the file, not only in memory."""
        return self._tail.written

    def note(self, extent: BatchHeader | Extent, position: int) -> None:
        """Add a batch at ``position`` to the indexes and the timestamps."""
        index, times = self.index, self.times
        assert index is not None, "an active segment has its index in memory"
        assert times is not None, "and both of them"
        positions = index.positions
        if not positions or position - positions[-1] >= INTERVAL_BYTES:
            times.add(self.max_timestamp, position)
            index.add(extent.base_offset, position)
        if self.first_timestamp == TIMESTAMP_MIN:
            self.first_timestamp = extent.first_timestamp
        self.max_timestamp = max(self.max_timestamp, extent.last_timestamp)

    def view(self, position: int, length: int) -> memoryview:
        """Return at most ``length`` bytes from ``position``, without a copy if it is sealed."""
        if self.sealed:
            return memoryview(self._mapped())[position : position + length]
        tail = self._tail
        from_file = min(length, tail.written - position)
        if from_file <= 0:
            return memoryview(_pending_part(tail, position, position + length))
        try:
            file = self.file
        except LogPoisonedError:
            if not self.sealed:
                raise
            return self.view(position, length)  # it was just sealed, and its name removed
        data = self._disk.pread(file.fd, from_file, position)
        self._check_not_retired()  # the file may have been emptied meanwhile
        if from_file < length:
            data += _pending_part(tail, tail.written, position + length)
        return memoryview(data)

    def is_at_hand(self, offset: int) -> bool:
        """Return whether a record is in memory, and in a small batch.

        Raises:
            StrandlineError: the file cannot be opened, or was removed just now.
        """
        index = self.index
        if index is None:
            return False
        position = index.floor(offset)[1]
        following = index.beyond(position)
        end = self.size if following is None else following[1]
        length = min(end, self.written_bytes) - position
        if end - position > AT_HAND_BYTES_MAX:
            return False
        if length <= 0:
            return True  # in our memory
        file = self.file
        return self._disk.is_cached(file.fd, length, position)

    def _mapped(self) -> mmap.mmap:
        mapped = self._map or self._pinned
        if mapped is None:
            try:
                file = self.file
                mapped = self._disk.map(file.fd, self.size)
            except LogPoisonedError:
                if self._pinned is None:
                    raise
                return self._pinned  # the name belongs to another file now
            self._check_not_retired()  # before any access: the file may be emptied
            self._map = mapped
            MAPPED_SEGMENTS.note_use(self)
            if self.is_retired:
                self._map = None
        return mapped

    def pin(self) -> None:
        """Map the contents and keep the map, because another file will take the name."""
        if self.size:
            self._pinned = self._mapped()

    def retire(self) -> None:
        """Release the file, which will be removed or was replaced; any thread."""
        self.is_retired = True
        self._file = self._map = self._pinned = self.subjects = None
        MAPPED_SEGMENTS.forget(self)

    def release(self) -> None:
        """Release map, descriptor and indexes of a sealed segment; they are reloaded on demand."""
        if self.sealed and self.is_synced:
            MAPPED_SEGMENTS.forget(self)
            self._map = self.subjects = None
            self._file = None
            if self.is_indexed:
                self.index = self.times = None

    def read_ahead(self, position: int, end: int) -> bool:
        """Read ahead for a sequential reader of a sealed segment, and unmap what it has passed.

        Advice only: a file that cannot be opened raises when it is read.

        Args:
            position: the start of the read.
            end: the end of the read; the system is called once for each ``AHEAD_BYTES``.

        Returns:
            Whether the reader will need the next segment soon.
        """
        stretch = end // AHEAD_BYTES
        if position and position // AHEAD_BYTES == stretch:
            return False
        ahead = (stretch + 1) * AHEAD_BYTES if position else end & -mmap.PAGESIZE
        if ahead < self.size and self.sealed and self._pinned is None:
            length = min(AHEAD_BYTES if position else 2 * AHEAD_BYTES, self.size - ahead)
            with contextlib.suppress(StrandlineError):  # its name may have been removed just now
                file = self.file
                self._disk.will_need(file.fd, ahead, length)
        if stretch >= 2:
            self.read_past((stretch - 2) * AHEAD_BYTES, AHEAD_BYTES)
        return ahead >= self.size

    def read_past(self, position: int, length: int) -> None:
        """Drop a mapped range from this process's memory.

        Only page table entries are dropped, not the page cache, so other readers are not affected.
        """
        mapped = self._map
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED, position, length)

    def locate(self, offset: int, *, verify: bool = True) -> BatchLocation | None:
        """Return the location of the first batch that ends after ``offset``; None if there is none.

        Raises:
            CorruptBatchError: the offset lies in a hole.
        """
        hint = self._hints.get(offset)
        if hint is not None and hint < self.size:
            return BatchLocation(hint, offset)
        index = self._offsets()
        expected, position = index.floor(offset)
        expected = max(expected, self.base_offset)
        size = self.size
        following = index.beyond(position)
        # The batch, if it is here, begins before the next entry, so nothing after that is copied.
        stop = size if following is None else following[1]
        while position < size:
            window = self._window(position, size, stop if position < stop else size)
            run = scan(window, 0, len(window), below=offset + 1, verify=verify)
            if run.next_offset > offset:
                return BatchLocation(position + run.last, expected)
            position += run.end
            expected = max(expected, run.next_offset)
            if run.end:
                continue
            beyond = intact_at(window, 0) if verify else header_at(window, 0)
            if beyond is not None:  # compaction has removed the offset
                return BatchLocation(position, expected)
            hole = self.hole(position, expected)
            if hole.next_offset > offset:
                raise self.corrupt(hole)
            if hole.next_position < 0:
                return None
            position, expected = hole.next_position, hole.next_offset
        return None

    def _window(self, position: int, size: int, stop: int) -> memoryview:
        """Return ``size`` bytes from ``position``, up to ``stop``; at least one whole batch."""
        view = self.view(position, min(_WINDOW_BYTES, stop - position))
        header = header_at(view, 0)
        if header is not None and len(view) < header.length <= size - position:
            return self.view(position, header.length)
        return view

    def forget(self, offset: int) -> None:
        """Drop the remembered position of ``offset``, because it was wrong."""
        self._hints.pop(offset, None)

    def remember(self, offset: int, position: int) -> None:
        """Remember the position of ``offset``, which a sequential reader will ask for next."""
        if len(self._hints) >= _HINTS_MAX:
            self._hints = {}
        self._hints[offset] = position

    def hole(self, position: int, expected: int) -> CorruptRange:
        """Return the hole at ``position``, where the batch of offset ``expected`` should be."""
        size, limit = self.size, self.next_offset
        boundary = self._offsets().beyond(position)
        end = size if boundary is None else boundary[1]
        bound = limit if boundary is None else boundary[0]
        view = self.view(position, end - position)
        found = find_intact(view, 0, after=expected, below=bound)
        if found >= 0:
            header = header_at(view, found)
            assert header is not None, "an intact batch has a header"
            return CorruptRange(position, expected, header.base_offset, position + found)
        if boundary is not None:
            return CorruptRange(position, expected, bound, end)
        return CorruptRange(position, expected, limit, -1)

    def bytes_from(self, offset: int) -> int:
        """Return the bytes from the last indexed position at or before ``offset``."""
        return self.size - self._offsets().floor(offset)[1] if offset < self.next_offset else 0

    def offset_near(self, position: int) -> int:
        """Return a lower bound for the offsets of batches at or after ``position``."""
        return max(self._offsets().offset_at(position), self.base_offset)

    def corrupt(self, hole: CorruptRange) -> CorruptBatchError:
        """Return the error for a reader whose offset is in ``hole``."""
        return CorruptBatchError(
            f"records {hole.first_offset} to {hole.next_offset - 1} are corrupt;"
            f" reading can continue at offset {hole.next_offset}",
            file=str(self.path),
            position=hole.position,
            first_offset=Offset(hole.first_offset),
            next_offset=Offset(hole.next_offset),
        )

    # -- indexes -----------------------------------------------------------------------------------

    def _offsets(self) -> SparseIndex:
        index = self.index
        return self.load_indexes()[0] if index is None else index

    def timestamps(self) -> SparseIndex:
        """The time index: no timestamp before a position is larger than its key."""
        times = self.times
        return self.load_indexes()[1] if times is None else times

    def load_indexes(self) -> tuple[SparseIndex, SparseIndex]:
        """Load both indexes from their files, and index the remaining batches from the log.

        Two threads may do this at once, with the same result.
        """
        index, times, position = SparseIndex(), SparseIndex(), 0
        offsets_file = self._read_index(INDEX_SUFFIX, KIND_OFFSETS)
        times_file = self._read_index(TIMES_SUFFIX, KIND_TIMES)
        rebuilt = type(self)(self.path.parent, self.base_offset, disk=self._disk)
        if offsets_file and times_file and offsets_file[0].log_bytes == times_file[0].log_bytes:
            index, times = offsets_file[1], times_file[1]
            position = offsets_file[0].log_bytes
            rebuilt.max_timestamp = TimestampNs(offsets_file[0].max_timestamp)
            self.indexed_bytes = position
        rebuilt.index, rebuilt.times = index, times
        self._index_rest(rebuilt, position)
        self.max_timestamp = max(self.max_timestamp, rebuilt.max_timestamp)
        self.index, self.times = index, times
        return index, times

    def _read_index(self, suffix: str, kind: int) -> tuple[IndexFile, SparseIndex] | None:
        data = self._disk.read_bytes(self.path.with_suffix(suffix))
        found = decode_index(data, kind) if data is not None else None
        if found is None or found[0].log_bytes > self.size:
            return None
        return None if self.sealed and found[0].log_bytes != self.size else found

    def _index_rest(self, into: Self, position: int) -> None:
        """Index the batches from ``position`` to the end, skipping corruption.

        Offsets are dense, so a header that continues the previous batch is trusted. Any other
        header is trusted only if the batch's checksum is right.
        """
        size, expected = self.size, -1
        while position < size:
            window, at = self._window(position, size, size), 0
            while (header := header_at(window, at)) is not None:
                if at + header.length > len(window):
                    break
                if header.base_offset == expected or intact_at(window, at) is not None:
                    into.note(header, position + at)
                    expected = header.next_offset
                at += header.length
            position = position + at if at else self._beyond_corruption(position)

    def _beyond_corruption(self, position: int) -> int:
        """Return the position of the first intact batch after the corruption at ``position``."""
        view = self.view(position, self.size - position)
        found = find_intact(view, 0, after=self.base_offset - 1, below=self.next_offset)
        return self.size if found < 0 else position + found


def _pending_part(tail: Tail, start: int, stop: int) -> bytes:
    """Return the bytes between two positions that are in memory only."""
    _, pending, positions = tail
    first = max(bisect_right(positions, start) - 1, 0)
    after = bisect_left(positions, stop, first)
    return b"".join(
        memoryview(pending[number])[max(start - positions[number], 0) : stop - positions[number]]
        for number in range(first, after)
    )


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the log file of the segment that begins at ``base_offset``."""
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"

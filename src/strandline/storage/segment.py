"""One segment: consecutive batches of a log in one file, named after its first offset.

Rules: an active segment only grows at its end. It keeps batches in memory until its owner writes
them to the file; the journal already has them, so nobody waits for that. A sealed segment is
memory-mapped and never changes, except to repair corruption. One thread appends; ``segment_reads``
has the rules for others. Must not know other segments.
"""

from collections.abc import Sequence
from pathlib import Path

from strandline.errors import DiskFullError
from strandline.record.batch import BatchHeader, Extent
from strandline.storage.disk import Bytes, Disk
from strandline.storage.offset_index import KIND_OFFSETS, KIND_TIMES, IndexFile
from strandline.storage.segment_reads import (
    DOOMED_SUFFIX,
    INDEX_SUFFIX,
    SUBJECTS_SUFFIX,
    TIMES_SUFFIX,
    SegmentReads,
    Tail,
)
from strandline.types import Offset

PENDING_BYTES_MAX = 1 << 20
"""When more bytes than this are in memory, they are written to the file."""
WORTH_WRITING_BYTES = 32 << 10
INDEX_LAG_BYTES = 1 << 20
"""How many bytes an active segment's index files may lack; opening it scans that many."""
WRITE_BACK_BYTES = 1 << 20
"""Enough for one efficient write to the disk, and little enough that a sync of the journal which
waits for it is not slow (about 1 ms per MiB)."""


class Segment(SegmentReads):
    """A segment that may be written."""

    __slots__ = ()

    @classmethod
    def sealed_on_disk(
        cls, directory: Path, base_offset: int, *, disk: Disk, size: int, next_offset: int
    ) -> "Segment":
        """Return a sealed segment of an existing file; nothing is read before it is needed."""
        segment = cls(directory, base_offset, disk=disk)
        segment.size = size
        segment.next_offset = Offset(next_offset)
        segment.sealed = True
        segment.has_durable_name = True
        segment.synced_bytes = size
        segment.indexed_bytes = size
        segment.index = segment.times = None
        segment._tail = Tail(size, [], [])
        return segment

    def append(self, batch: Bytes, extent: BatchHeader | Extent) -> bool:
        """Add a batch at the end; it stays in memory until enough has gathered.

        Returns:
            Whether the batches in memory are enough to be worth a system call.

        Raises:
            DiskFullError: no space; the segment is as before.
            LogPoisonedError: the write failed.
        """
        written, pending, positions = self._tail
        size = self.size
        length = extent.length
        pending_bytes = size + length - written
        if pending_bytes > PENDING_BYTES_MAX:
            self._write([*pending, batch])
        else:
            pending.append(batch)
            positions.append(size)
        self.note(extent, size)
        self.size = size + length
        self.next_offset = extent.next_offset
        return WORTH_WRITING_BYTES <= pending_bytes <= PENDING_BYTES_MAX

    @property
    def pending_bytes(self) -> int:
        """The bytes that are in memory only."""
        return self.size - self._tail.written

    def write_pending(self) -> None:
        """Write the batches in memory to the file; not synced.

        Raises:
            DiskFullError: no space; the batches stay in memory.
            LogPoisonedError: the write failed.
        """
        pending = self._tail.pending
        if pending:
            self._write(pending)

    def _write(self, buffers: Sequence[Bytes]) -> None:
        written = self._tail.written
        file = self.file
        try:
            self._disk.pwritev(file.fd, buffers, written)
        except DiskFullError:
            self._disk.truncate(file.fd, written)
            raise
        self._tail = Tail(written + sum(map(len, buffers)), [], [])

    def adopt(self, written: int) -> None:
        """Make ``written`` bytes of the file visible, counted or not; during recovery only."""
        self._tail = Tail(written, [], [])

    def overwrite(self, batch: Bytes, position: int) -> None:
        """Write a batch at a position, over any bytes there; during recovery only."""
        assert not self.sealed, "sealed segments do not change"
        self._disk.pwrite(self.file.fd, batch, position)
        self._tail = Tail(max(self._tail.written, position + len(batch)), [], [])

    def advance(self, header: BatchHeader) -> None:
        """Count the batch at the end as part of the segment; during recovery only."""
        self.note(header, self.size)
        self.size += header.length
        self.next_offset = header.next_offset

    def put_back(self, batches: Bytes, position: int) -> None:
        """Overwrite corruption with batches, durably; intact batches do not change.

        Raises:
            DiskFullError: no space, on a file system that copies on write.
            LogPoisonedError: the write or its sync failed.
        """
        fd = self._disk.open(self.path, write=True)  # the open descriptor may be read-only
        try:
            self._disk.pwrite(fd, batches, position)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        self.subjects = None  # the index may lack the repaired records

    def truncate(self, position: int, next_offset: int) -> None:
        """Drop the bytes from ``position`` on, durably if they were in the file.

        Raises:
            LogPoisonedError: the file could not be truncated.
        """
        assert not self.sealed, "a sealed segment is replaced: readers have it mapped"
        written, pending, _ = self._tail
        kept = memoryview(b"".join(pending))[: max(position - written, 0)]
        self.truncations += 1
        self.next_offset = Offset(next_offset)
        self.size = position
        self._hints = {}
        self.subjects = None
        left: list[Bytes] = [bytes(kept)] if kept else []
        self._tail = Tail(min(written, position), left, [written] * len(left))
        if position < self.indexed_bytes:
            self.indexed_bytes = -1
        if self.index is not None and self.times is not None:
            self.index = self.index.before(position)
            self.times = self.times.before(position)
        if position < written:
            file = self.file
            self._disk.truncate(file.fd, position)
            self._disk.fdatasync(file.fd)
            self.synced_bytes = min(self.synced_bytes, position)
            self.written_back_bytes = min(self.written_back_bytes, position)

    def seal(self) -> None:
        """End the appends; readers use a memory map from now on."""
        self.write_pending()
        self.sealed = True

    @property
    def can_write_back(self) -> bool:
        """Whether ``WRITE_BACK_BYTES`` are in the file and the disk has not begun to write them."""
        return self.written_bytes - self._begun_bytes >= WRITE_BACK_BYTES

    def write_back(self) -> None:
        """Start writing ``WRITE_BACK_BYTES`` more bytes to the disk; may run on any thread."""
        begun, file = self._begun_bytes, self.file
        self._disk.write_back(file.fd, begun, WRITE_BACK_BYTES)
        self.written_back_bytes = begun + WRITE_BACK_BYTES

    @property
    def _begun_bytes(self) -> int:
        """The bytes of the file that are on the disk, or being written to it."""
        return max(self.written_back_bytes, self.synced_bytes)

    def sync(self) -> None:
        """Make the bytes written so far survive a power loss; may run on any thread."""
        written, truncations = self._tail.written, self.truncations
        if written > self.synced_bytes:
            file = self.file
            self._disk.fdatasync(file.fd)
            if self.truncations == truncations:  # else later bytes are not synced
                self.synced_bytes = written

    def drop_cache(self) -> None:
        """Drop synced bytes from the page cache; may run on any thread."""
        file = self.file
        self._disk.drop_cache(file.fd)

    def write_indexes(self) -> None:
        """Write the index files if they are out of date; not synced; may run on any thread."""
        index, times, size = self.index, self.times, self.written_bytes
        if index is None or times is None or self.indexed_bytes == size or not size:
            return
        if not self.sealed and self._may_indexes_lag(size):
            return
        next_offset = self.next_offset if size == self.size else -1
        for kind, suffix, entries in (
            (KIND_OFFSETS, INDEX_SUFFIX, index),
            (KIND_TIMES, TIMES_SUFFIX, times),
        ):
            about = IndexFile(kind, size, next_offset, self.max_timestamp)
            self._disk.write_whole(
                self.path.with_suffix(suffix), entries.before(size).encode(about)
            )
        self.indexed_bytes = size

    def _may_indexes_lag(self, size: int) -> bool:
        """Whether the index files, if any, are valid and lack less than ``INDEX_LAG_BYTES``."""
        is_unknown = self.indexed_bytes < 0
        if is_unknown and self._disk.exists(self.path.with_suffix(INDEX_SUFFIX)):
            return False  # they describe an earlier file
        return size - max(self.indexed_bytes, 0) < INDEX_LAG_BYTES

    def successor(self) -> "Segment":
        """Return an empty segment of the same name, whose batches will replace this one's."""
        return Segment(self.path.parent, self.base_offset, disk=self._disk)

    def finish_successor(self, size: int, next_offset: int) -> None:
        """Note that this successor's new file is complete and synced; it is renamed later."""
        self.size = self.synced_bytes = size
        self.has_durable_name = True
        self.next_offset = Offset(next_offset)
        self.adopt(size)
        self.sealed = True

    def remove_indexes(self) -> None:
        """Remove the index files; they can be rebuilt."""
        for suffix in (INDEX_SUFFIX, TIMES_SUFFIX, SUBJECTS_SUFFIX):
            self._disk.unlink(self.path.with_suffix(suffix))

    def doom(self) -> None:
        """Rename the files, which ``remove_files``, or the next start, then removes."""
        if self.path.suffix == DOOMED_SUFFIX:
            return  # the names may belong to another segment by now
        self.is_retired = True
        self.remove_indexes()
        doomed = self.path.with_suffix(DOOMED_SUFFIX)
        if self._disk.exists(self.path):
            self._disk.rename(self.path, doomed)
        self.path = doomed  # even without a file, since another segment may soon have the old name

    def remove_files(self) -> None:
        """Remove the files and free their space; views that readers hold stay valid."""
        self.retire()
        self.doom()
        self._disk.remove_large(self.path)

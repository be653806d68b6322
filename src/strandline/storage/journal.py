"""The journal: what makes a turn durable, whatever the number of partitions it touches.

One per broker. A turn appends one entry (one gathered write) and syncs once; partition segments are
written unsynced and catch up at the next checkpoint, after which journal files are recycled.

Rules: files are filled with zeros before use, so that a sync writes data and no metadata; the old
file is synced before the next one is begun; every opening begins a new file, so that what a crash
left behind a torn tail can never follow a new entry; a failed write or sync poisons the journal
for good (open it anew to verify it), but no space for a new file is reported before anything is
written and may be tried again. Owned by one thread; only ``allocate_spare`` may run on another.
Knows nothing of what a log does with its parts; ``journal_scan`` finds entries after a crash.
"""

import itertools
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from crc32c import crc32c

from strandline.errors import LogPoisonedError, StrandlineError
from strandline.storage.disk import Bytes, Disk, OpenFile
from strandline.storage.journal_file import (
    CRC_FROM,
    ENTRY_BYTES,
    ENTRY_MAGIC,
    FILE_HEADER_BYTES,
    PART_BYTES,
    FileHeader,
    entry_struct,
    pack_checksums,
    pack_file_header,
)
from strandline.storage.journal_scan import (
    SUFFIX,
    JournalCorruption,
    JournalEntry,
    JournalScan,
    scan_directory,
)
from strandline.types import LogId

SPARES_MAX = 4
_MARK_BYTES = 1 << 20

__all__ = ["Journal", "JournalCorruption", "JournalEntry"]


class _JournalFile:
    """A zero-filled file that is or will be written to."""

    __slots__ = ("capacity", "file", "last_sequence", "nonce", "number")

    def __init__(self, file: OpenFile, capacity: int) -> None:
        self.file = file
        self.capacity = capacity
        self.number = 0
        self.nonce = 0
        self.last_sequence = 0


def entry_bytes(parts: Sequence[tuple[LogId, Bytes]]) -> int:
    """Return the length of an entry with these parts."""
    return ENTRY_BYTES + sum(2 * PART_BYTES + len(data) for _, data in parts)


class Journal:
    """Entries in order of sequence, from 1.

    Attributes:
        last_sequence: of the newest entry written.
        synced_sequence: entries up to this one survive a power loss.
        poisoned: a write or sync failed; only reopening helps.
        corruption: entries that were synced once and cannot be read now, by file and position.
        torn_bytes: bytes of a last entry that was being written when the broker died.
    """

    def __init__(self, directory: Path, *, disk: Disk, file_bytes: int, scan: JournalScan) -> None:
        self.directory = directory
        self.disk = disk
        self.file_bytes = file_bytes
        self.last_sequence = scan.last_sequence
        self.synced_sequence = scan.last_sequence
        self.poisoned = False
        self.corruption = scan.corruption
        self.torn_bytes = scan.torn_bytes
        self._first_sequence = scan.first_sequence
        self._scan: JournalScan | None = scan
        self._current: _JournalFile | None = None
        self._position = 0
        self._begun_position = 0
        self._full: list[_JournalFile] = []
        self._spares: list[_JournalFile] = []
        self._number = scan.last_number
        self._slots = itertools.count(scan.last_slot + 1)
        self._total_bytes = 0
        self._recycled_bytes = 0
        self._marks: list[tuple[int, int]] = []
        self._adopt(scan)

    @classmethod
    def open(
        cls, directory: Path, *, disk: Disk, file_bytes: int, after_sequence: int = 0
    ) -> "Journal":
        """Open or create the journal in ``directory`` and find what a crash left.

        Args:
            directory: made if missing.
            disk: the file system.
            file_bytes: size of a new file; an entry that is larger gets a larger file.
            after_sequence: of the checkpoint; older entries are not looked at.

        Raises:
            LogPoisonedError: the files cannot be read.
        """
        disk.make_directory(directory)
        scan = scan_directory(directory, disk=disk, after_sequence=after_sequence)
        for stub in scan.stubs:
            disk.unlink(stub)
        disk.sync_directory(directory)
        return cls(directory, disk=disk, file_bytes=file_bytes, scan=scan)

    def _adopt(self, scan: JournalScan) -> None:
        """Files of earlier lives are spares once the next checkpoint has passed them.

        What was found is made durable, as a killed broker may have left it in the system's memory;
        and what never happened is wiped out, lest it count when the file that bounds it is gone.
        """
        for found in scan.files:
            file = _JournalFile(OpenFile(found.path, disk=self.disk, write=True), found.size)
            for position in found.dropped:
                self.disk.pwrite(file.file.fd, bytes(ENTRY_BYTES), position)
            self.disk.fdatasync(file.file.fd)
            file.last_sequence = scan.last_sequence
            file.number = found.header.number
            self._full.append(file)
            self._total_bytes += found.used_bytes

    @property
    def bytes_since_recycle(self) -> int:
        """Bytes that a recovery would have to look through."""
        return self._total_bytes - self._recycled_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of the entries it was opened with and of all that were written since."""
        return self._total_bytes

    @property
    def spares(self) -> int:
        """Files ready for use; with none, the next roll creates one: see ``has_room``."""
        return len(self._spares)

    @property
    def full_files(self) -> int:
        """Files that a checkpoint would make spares of."""
        return len(self._full)

    @property
    def needs_spare(self) -> bool:
        """Whether to make a file: none is spare, and a checkpoint may not free one in time."""
        if self._spares:
            return False
        current = self._current
        return current is None or not self._full or self._position > current.capacity // 2

    def has_room(self, length: int) -> bool:
        """Whether an entry of so many bytes can be written without making a file for it."""
        current = self._current
        if current is not None and self._position + length <= current.capacity:
            return True
        return any(spare.capacity >= FILE_HEADER_BYTES + length for spare in self._spares)

    def append(self, parts: Sequence[tuple[LogId, Bytes]]) -> int:
        """Write one entry; it survives a power loss only once synced.

        Args:
            parts: log id and batch, of each batch that the turn wrote.

        Returns:
            The entry's sequence.

        Raises:
            DiskFullError: no space for the next file; nothing was written, try again later.
            LogPoisonedError: now or earlier a write or sync failed.
        """
        if self.poisoned:
            raise self._poisoned_error()
        buffers: list[Bytes] = [b""]
        sizes: list[int] = []
        rows = 2 * len(parts)
        length = ENTRY_BYTES + PART_BYTES * rows
        for log_id, data in parts:
            size = len(data)
            length += size
            sizes += (log_id, size)
            buffers.append(data)
        assert length % 8 == 0, "batches are padded to eight bytes"
        current = self._current
        if current is None or self._position + length > current.capacity:
            current = self._roll(length)
        sequence = self.last_sequence + 1
        head = bytearray(ENTRY_BYTES + PART_BYTES * len(parts))
        entry_struct(len(parts)).pack_into(
            head, 0, ENTRY_MAGIC, 0, length, rows,
            sequence, self.synced_sequence, current.nonce, *sizes,
        )  # fmt: skip
        head += pack_checksums(buffers[1:])
        struct.pack_into("<I", head, 4, crc32c(memoryview(head)[CRC_FROM:]))
        buffers[0] = head
        try:
            self.disk.pwritev(current.file.fd, buffers, self._position)
        except StrandlineError as error:
            # Even if it says the disk is full: the space was taken when the file was made.
            self.poisoned = True
            raise self._poisoned_error() from error
        self._position += length
        self._total_bytes += length
        self.last_sequence = sequence
        current.last_sequence = sequence
        if not self._marks or self._total_bytes - self._marks[-1][1] >= _MARK_BYTES:
            self._marks.append((sequence, self._total_bytes))
        return sequence

    def begin_sync(self) -> None:
        """Let the disk begin with what ``sync`` will wait for: there may be work in between."""
        current, begun = self._current, self._begun_position
        if current is not None and self._position > begun and not self.poisoned:
            self.disk.write_back(current.file.fd, begun, self._position - begun)
            self._begun_position = self._position

    def sync(self) -> int:
        """Make every entry survive a power loss; returns the sequence of the last one.

        Raises:
            LogPoisonedError: now or earlier a write or sync failed; nothing more may be acked.
        """
        if self.poisoned:
            raise self._poisoned_error()
        if self._current is None or self.synced_sequence == self.last_sequence:
            return self.last_sequence
        try:
            self.disk.fdatasync(self._current.file.fd)
        except StrandlineError as error:
            self.poisoned = True
            raise self._poisoned_error() from error
        self.synced_sequence = self.last_sequence
        return self.last_sequence

    def sync_target(self) -> tuple[int, int]:
        """Descriptor to sync elsewhere (``disk.fdatasync``) and the sequence it will cover.

        Then call ``mark_synced``, or ``poison`` if the sync failed. -1 if nothing was written.
        """
        return (self._current.file.fd if self._current else -1, self.last_sequence)

    def mark_synced(self, sequence: int) -> None:
        """Tell that a sync begun at ``sequence`` has succeeded."""
        assert sequence <= self.last_sequence, "only what was written can be synced"
        if not self.poisoned:
            self.synced_sequence = max(self.synced_sequence, sequence)

    def poison(self) -> None:
        """Tell that a sync done elsewhere has failed; everything raises from now on."""
        self.poisoned = True

    @property
    def first_sequence(self) -> int:
        """Of the oldest file found at opening: 1 if the journal is whole; 0 if there is none."""
        return self._first_sequence

    def replay(self, after_sequence: int = 0) -> Iterator[JournalEntry]:
        """The entries that earlier lives left, in order, those after ``after_sequence``.

        May run until the first append; the views are valid as long as they are held.
        """
        assert self._scan is not None, "replay comes before the first append"
        return self._scan.replay(after_sequence)

    def recycle(self, through_sequence: int) -> None:
        """Let files be reused whose entries are all at or below ``through_sequence``."""
        keep = [file for file in self._full if file.last_sequence > through_sequence]
        freed = [file for file in self._full if file.last_sequence <= through_sequence]
        self._full = keep
        for file in freed:
            if len(self._spares) < SPARES_MAX and file.capacity == self.file_bytes:
                self._spares.append(file)
            else:
                self.disk.unlink(file.file.path)
        if through_sequence >= self.last_sequence:
            self._recycled_bytes = self._total_bytes
            self._marks.clear()
            return
        passed = bisect_right(self._marks, through_sequence, key=lambda mark: mark[0])
        if passed:
            self._recycled_bytes = self._marks[passed - 1][1]
            del self._marks[:passed]

    def allocate_spare(self, length: int = 0) -> None:
        """Create a file ahead of need; may run on another thread, takes about 4 ms per MiB.

        Args:
            length: of an entry that it has to have room for.

        Raises:
            DiskFullError: no space; nothing is left behind.
            LogPoisonedError: the disk fails.
        """
        self._spares.append(self._allocate(max(self.file_bytes, FILE_HEADER_BYTES + length)))

    def close(self) -> None:
        """Sync and let go of the files; poisons the object.

        Raises:
            LogPoisonedError: the sync failed.
        """
        try:
            if not self.poisoned:
                self.sync()
        finally:
            self.poisoned = True
            self._current, self._scan = None, None
            self._full, self._spares = [], []

    def _roll(self, length: int) -> _JournalFile:
        """Sync the current file and begin the next, with room for an entry of ``length`` bytes."""
        needed = FILE_HEADER_BYTES + length
        fresh = next((spare for spare in self._spares if spare.capacity >= needed), None)
        if fresh is not None:
            self._spares.remove(fresh)
        else:
            try:
                fresh = self._allocate(max(self.file_bytes, needed))
            except LogPoisonedError:
                self.poisoned = True
                raise
        self.sync()
        fresh.number = self._number + 1
        fresh.nonce = int.from_bytes(self.disk.entropy(8), "little")
        fresh.last_sequence = self.last_sequence
        header = FileHeader(fresh.number, fresh.nonce, self.last_sequence + 1)
        try:
            self.disk.pwrite(fresh.file.fd, pack_file_header(header), 0)
        except StrandlineError as error:
            self.poisoned = True
            raise self._poisoned_error() from error
        if self._current is not None:
            self._full.append(self._current)
        self._number = fresh.number
        self._current = fresh
        self._position = FILE_HEADER_BYTES
        self._begun_position = 0
        self._scan = None
        return fresh

    def _allocate(self, length: int) -> _JournalFile:
        """A new file of zeros, its name durable; no trace of it if that fails."""
        path = self.directory / f"{next(self._slots):06d}{SUFFIX}"
        while self.disk.exists(path):  # made by the journal that this one takes over from
            path = self.directory / f"{next(self._slots):06d}{SUFFIX}"
        try:
            file = OpenFile(path, disk=self.disk, write=True, create=True)
            self.disk.fill_with_zeros(file.fd, length)
            self.disk.sync_directory(self.directory)
        except StrandlineError:
            self.disk.unlink(path)
            raise
        return _JournalFile(file, length)

    def _poisoned_error(self) -> LogPoisonedError:
        return LogPoisonedError(
            "a write to the journal failed; nothing is acknowledged until it is reopened"
        )

"""The journal of a broker, which makes group commits durable.

A group commit appends one entry (one gathered write), for any number of partitions, and syncs once.
Partition segments are written without a sync. The next checkpoint syncs them, after which journal
files are recycled.

Rules: files are filled with zeros before use, so that a sync writes no metadata. The old file is
synced before the next one is begun. Opening a journal discards torn entries and begins a new file.
A failed write or sync poisons the journal permanently: reopen it to verify it. Lack of space for a
new file is reported before anything is written and may be retried. One thread owns the journal;
only ``allocate_spare`` may run on another. Must not know what a log does with its batches;
``journal_scan`` finds entries after a crash.
"""

import itertools
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from strandline.checksum import crc32c
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
    """A zero-filled file that is being written, or will be, or is full."""

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
        last_sequence: the sequence of the newest entry written.
        synced_sequence: entries up to this one survive a power loss.
        poisoned: a write or sync failed; the journal has to be reopened.
        corruption: entries that were synced and cannot be read now, by file and position.
        torn_bytes: bytes of entries that were being written when the broker died, now discarded.
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
        self._take_over(scan)

    @classmethod
    def open(
        cls, directory: Path, *, disk: Disk, file_bytes: int, after_sequence: int = 0
    ) -> "Journal":
        """Open or create the journal in ``directory``, and find the entries in it.

        Args:
            directory: created if missing.
            disk: the file system.
            file_bytes: the size of a new file; an entry that is larger gets a larger file.
            after_sequence: the checkpoint's sequence; entries up to it are skipped.

        Raises:
            LogPoisonedError: the files cannot be read.
        """
        disk.make_directory(directory)
        scan = scan_directory(directory, disk=disk, after_sequence=after_sequence)
        for stub in scan.stubs:
            disk.unlink(stub)
        disk.sync_directory(directory)
        return cls(directory, disk=disk, file_bytes=file_bytes, scan=scan)

    def _take_over(self, scan: JournalScan) -> None:
        """Take over the files of earlier runs; they become spares after the next checkpoint.

        The entries are made durable, since a killed broker may have left them in the page cache.
        """
        for found in scan.files:
            file = _JournalFile(OpenFile(found.path, disk=self.disk, write=True), found.size)
            self._discard_torn_entries(file, found.torn)
            self.disk.fdatasync(file.file.fd)
            file.last_sequence = scan.last_sequence
            file.number = found.header.number
            self._full.append(file)
            self._total_bytes += found.used_bytes

    def _discard_torn_entries(self, file: _JournalFile, positions: Sequence[int]) -> None:
        """Overwrite the headers of torn entries with zeros, so that no recovery counts them."""
        for position in positions:
            self.disk.pwrite(file.file.fd, bytes(ENTRY_BYTES), position)

    @property
    def bytes_since_recycle(self) -> int:
        """The bytes that a recovery would have to read."""
        return self._total_bytes - self._recycled_bytes

    @property
    def written_bytes(self) -> int:
        """The bytes of the entries found at opening and of all written since."""
        return self._total_bytes

    @property
    def spares(self) -> int:
        """The number of files ready for use; with 0 the next roll creates one: see ``has_room``."""
        return len(self._spares)

    @property
    def full_files(self) -> int:
        """The number of files that a checkpoint would turn into spares."""
        return len(self._full)

    @property
    def needs_spare(self) -> bool:
        """Whether to create a file, because a checkpoint may not free one in time."""
        if self._spares:
            return False
        current = self._current
        return current is None or not self._full or self._position > current.capacity // 2

    def has_room(self, length: int) -> bool:
        """Whether an entry of this length can be written without creating a file."""
        current = self._current
        if current is not None and self._position + length <= current.capacity:
            return True
        return any(spare.capacity >= FILE_HEADER_BYTES + length for spare in self._spares)

    def append(self, parts: Sequence[tuple[LogId, Bytes]]) -> int:
        """Write one entry; it survives a power loss only once synced.

        Args:
            parts: the log id and the batch, for each batch of the group commit.

        Returns:
            The entry's sequence.

        Raises:
            DiskFullError: no space for the next file; nothing was written, retry later.
            LogPoisonedError: a write or sync failed, now or earlier.
        """
        if self.poisoned:
            raise self._poisoned_error()
        batches = [data for _, data in parts]
        rows = 2 * len(batches)
        sizes = [0] * rows
        sizes[::2] = [log_id for log_id, _ in parts]
        sizes[1::2] = map(len, batches)
        length = ENTRY_BYTES + PART_BYTES * rows + sum(sizes[1::2])
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
        head += pack_checksums(batches)
        struct.pack_into("<I", head, 4, crc32c(memoryview(head)[CRC_FROM:]))
        try:
            self.disk.pwritev(current.file.fd, [head, *batches], self._position)
        except StrandlineError as error:
            # Even if the disk is full: the file's space is allocated, so that is no excuse.
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
        """Start writing to the disk what ``sync`` will wait for, if that comes later."""
        current, begun = self._current, self._begun_position
        if current is not None and self._position > begun and not self.poisoned:
            self.disk.write_back(current.file.fd, begun, self._position - begun)
            self._begun_position = self._position

    def sync(self) -> int:
        """Make every entry survive a power loss; return the sequence of the last one.

        Raises:
            LogPoisonedError: a write or sync failed, now or earlier; nothing may be acked.
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
        """Return the descriptor to sync on another thread, and the last sequence that this covers.

        The descriptor is -1 if nothing was written. After the sync (``disk.fdatasync``) call
        ``mark_synced``, or ``poison`` if it failed.
        """
        return (self._current.file.fd if self._current else -1, self.last_sequence)

    def mark_synced(self, sequence: int) -> None:
        """Note that a sync begun at ``sequence`` has succeeded."""
        assert sequence <= self.last_sequence, "only what was written can be synced"
        if not self.poisoned:
            self.synced_sequence = max(self.synced_sequence, sequence)

    def poison(self) -> None:
        """Note that a sync on another thread has failed; every call raises from now on."""
        self.poisoned = True

    @property
    def first_sequence(self) -> int:
        """The first sequence of the oldest file: 1 if the journal is complete, 0 without files."""
        return self._first_sequence

    def replay(self, after_sequence: int = 0) -> Iterator[JournalEntry]:
        """Yield the entries of earlier runs after ``after_sequence``, in order.

        May be called until the first append; the views are valid as long as they are held.
        """
        assert self._scan is not None, "replay comes before the first append"
        return self._scan.replay(after_sequence)

    def recycle(self, through_sequence: int) -> None:
        """Recycle files whose entries are all at or below ``through_sequence``."""
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
        """Create a spare file in advance; may run on another thread, takes about 4 ms per MiB.

        Args:
            length: the length of an entry that must fit.

        Raises:
            DiskFullError: no space; no file is left behind.
            LogPoisonedError: the disk fails.
        """
        self._spares.append(self._allocate(max(self.file_bytes, FILE_HEADER_BYTES + length)))

    def close(self) -> None:
        """Sync and close the files; the object cannot be used afterwards.

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
        """Create a file of zeros with a durable name; if that fails, remove it."""
        path = self.directory / f"{next(self._slots):06d}{SUFFIX}"
        while self.disk.exists(path):  # created by the poisoned journal that this one replaces
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

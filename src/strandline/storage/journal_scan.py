"""Reads a journal back and decides which entries count, which are torn, and which are corrupt.

Rules: a missing or invalid entry is *torn* if nothing proves that it was synced; it and all later
entries are discarded. It is *corrupt* if a later entry or file proves that it was synced; then it
is reported by file and position, and later entries count. In each file, only entries below the next
file's first sequence count: others are torn. Read-only: ``journal`` discards.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.storage.disk import Disk, OpenFile
from strandline.storage.journal_file import (
    BATCH_CRC,
    ENTRY_BYTES,
    ENTRY_HEADER,
    ENTRY_MAGIC,
    FILE_HEADER_BYTES,
    FileHeader,
    ScannedEntry,
    read_entry,
    read_file_header,
    scan_entries,
)
from strandline.storage.scan import intact_at
from strandline.types import LogId, Position

SUFFIX = ".journal"
_NEVER = 1 << 63


class JournalCorruption(NamedTuple):
    """Bytes that were synced and cannot be read now."""

    file: Path
    position: Position
    why: str


class JournalEntry(NamedTuple):
    """The batches that one group commit wrote to the journal."""

    sequence: int
    parts: list[tuple[LogId, memoryview]]
    file: Path
    position: Position


class ScannedFile(msgspec.Struct):
    """A journal file found on disk."""

    path: Path
    slot: int
    size: int
    header: FileHeader
    is_guessed: bool
    """Whether the header is corrupt and was rebuilt from the first entry."""
    view: memoryview
    positions: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    """The positions of the entries that count."""
    used_bytes: int = 0
    torn: list[int] = msgspec.field(default_factory=list)
    """The positions of torn entries, which the journal discards."""

    def entries(self) -> list[ScannedEntry]:
        """Yield every intact entry, whether it counts or not."""
        return scan_entries(self.view, self.header.nonce)[0]

    def entry(self, position: int) -> ScannedEntry:
        """Return the entry at one of ``positions``."""
        entry = read_entry(self.view, position, self.header.nonce)
        assert entry is not None, "the scan found this entry intact"
        return entry


class JournalScan(msgspec.Struct):
    """The contents of a journal directory after the checkpoint."""

    files: list[ScannedFile] = msgspec.field(default_factory=list)
    corruption: list[JournalCorruption] = msgspec.field(default_factory=list)
    stubs: list[Path] = msgspec.field(default_factory=list)
    """Files whose creation was interrupted; nothing was ever written to them."""
    torn_bytes: int = 0
    last_sequence: int = 0
    last_number: int = 0
    last_slot: int = 0

    @property
    def first_sequence(self) -> int:
        """The first sequence of the oldest file, 0 if there is none."""
        firsts = (file.header.first_sequence for file in self.files if file.header.first_sequence)
        return min(firsts, default=0)

    def load(self, path: Path, *, disk: Disk) -> None:
        """Add a file; a corrupt header is rebuilt from its first entry, if possible."""
        file = OpenFile(path, disk=disk)
        size = disk.size(file.fd)
        slot = int(path.stem) if path.stem.isdigit() else 0
        self.last_slot = max(self.last_slot, slot)
        if size < FILE_HEADER_BYTES + ENTRY_BYTES:
            self.stubs.append(path)
            return
        disk.drop_cache(file.fd)
        view = memoryview(disk.map(file.fd, size))
        header = read_file_header(view[:FILE_HEADER_BYTES])
        guessed = header is None
        header = header or _guess_header(view)
        self.last_number = max(self.last_number, header.number)
        self.files.append(ScannedFile(path, slot, size, header, guessed, view))

    def replay(self, after_sequence: int) -> Iterator[JournalEntry]:
        """Yield the entries that count, in order of sequence."""
        for file in self.files:
            for position in file.positions:
                entry = file.entry(position)
                if entry.sequence > after_sequence:
                    parts = own_parts(entry, file.view)
                    yield JournalEntry(entry.sequence, parts, file.path, Position(position))


def scan_directory(directory: Path, *, disk: Disk, after_sequence: int) -> JournalScan:
    """Find the entries after ``after_sequence`` in the files of ``directory``."""
    scan = JournalScan(last_sequence=after_sequence)
    for name in sorted(disk.listing(directory)):
        if name.endswith(SUFFIX):
            scan.load(directory / name, disk=disk)
    scan.files.sort(key=lambda file: (file.header.first_sequence, file.header.number))
    _Walk(scan, after_sequence).run()
    return scan


def _guess_header(view: memoryview) -> FileHeader:
    """Rebuild a corrupt or unwritten file header from the file's first entry."""
    magic, _, _, _, sequence, _, nonce = ENTRY_HEADER.unpack_from(view, FILE_HEADER_BYTES)
    if magic == ENTRY_MAGIC and read_entry(view, FILE_HEADER_BYTES, nonce) is not None:
        return FileHeader(number=0, nonce=nonce, first_sequence=sequence)
    return FileHeader(number=0, nonce=0, first_sequence=0)


class _Walk:
    """One pass over the files in order, which decides which entries are torn or corrupt."""

    def __init__(self, scan: JournalScan, after_sequence: int) -> None:
        self.scan = scan
        firsts = [file.header.first_sequence for file in scan.files]
        # Without a checkpoint the oldest entry that exists is the first one.
        self.expected = after_sequence + 1 if after_sequence else scan.first_sequence or 1
        self.synced = max([after_sequence, *(first - 1 for first in firsts)])
        self.file: Path | None = None
        self.position = FILE_HEADER_BYTES

    def run(self) -> None:
        """Compute positions, corruption and the torn tail."""
        files = self.scan.files
        found: list[tuple[ScannedFile, list[ScannedEntry], int]] = []
        for index, file in enumerate(files):
            limit = files[index + 1].header.first_sequence if index + 1 < len(files) else _NEVER
            if limit > self.expected:
                entries, end = scan_entries(file.view, file.header.nonce)
                file.torn = [entry.position for entry in entries if entry.sequence >= limit]
                entries = [entry for entry in entries if entry.sequence < limit]
                self.synced = max([self.synced, *(entry.synced_sequence for entry in entries)])
                found.append((file, entries, end))
        torn = any(self._walk_file(file, entries) for file, entries, _ in found)
        self.scan.last_sequence = self.expected - 1
        if found and not torn:
            self._measure_tail(found[-1][0], found[-1][2])

    def _walk_file(self, file: ScannedFile, entries: list[ScannedEntry]) -> bool:
        """Count the entries of one file; return True if the torn tail begins in it."""
        if self.file is None:
            self.file = file.path
        for entry in entries:
            end = entry.end
            if entry.sequence >= self.expected:
                torn = entry.sequence > self.synced and not batches_intact(entry, file.view)
                if torn or (entry.sequence > self.expected and self.expected > self.synced):
                    self.scan.torn_bytes += entry.length
                    file.torn += [each.position for each in entries[entries.index(entry) :]]
                    return True
                if entry.sequence > self.expected:
                    self._missing(entry.sequence - 1)
                if file.is_guessed and not file.positions and entry.sequence <= self.synced:
                    why = "journal file header is corrupt; its entries are intact"
                    self.scan.corruption.append(JournalCorruption(file.path, Position(0), why))
                file.positions.append(entry.position)
                file.used_bytes += entry.length
                self.expected = entry.sequence + 1
            self.file, self.position = file.path, end
        return False

    def _missing(self, last: int) -> None:
        """Report the entries from the expected one to ``last`` as corrupt: they had been synced."""
        assert self.file is not None, "a file is being walked"
        why = f"journal entries {self.expected} to {last} are corrupt"
        self.scan.corruption.append(JournalCorruption(self.file, Position(self.position), why))

    def _measure_tail(self, file: ScannedFile, end: int) -> None:
        """Classify the bytes after the last entry: corruption if they were synced, else torn."""
        if self.expected <= self.synced:
            self._missing(self.synced)
            self.scan.last_sequence = self.synced
        elif end <= len(file.view) - ENTRY_BYTES:
            magic, _, length, *_, nonce = ENTRY_HEADER.unpack_from(file.view, end)
            if magic == ENTRY_MAGIC and nonce == file.header.nonce:
                self.scan.torn_bytes += min(length, len(file.view) - end)


def batches_intact(entry: ScannedEntry, view: memoryview) -> bool:
    """Whether an entry's parts are the batches it was written with, all intact."""
    return all(len(part) and _is_whole(part) for _, part in own_parts(entry, view))


def own_parts(entry: ScannedEntry, view: memoryview) -> list[tuple[LogId, memoryview]]:
    """Return an entry's parts; an empty one where the batch belongs to another entry."""
    parts = entry.parts(view)
    for index, checksum in enumerate(entry.checksums):
        log_id, part = parts[index]
        if part[BATCH_CRC] != checksum.to_bytes(4, "little") and intact_at(part, 0) is not None:
            parts[index] = log_id, part[:0]
    return parts


def _is_whole(part: memoryview) -> bool:
    position = 0
    while position < len(part):
        header = intact_at(part, position)
        if header is None:
            return False
        position += header.length
    return True

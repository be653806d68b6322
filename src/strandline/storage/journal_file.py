"""The format of a journal file: its header, its entries, and how they are found after a crash.

File header (one page, so that no entry ever shares it):

    0  magic u32 "STNJ"  4  crc32c u32  8  version u32  12 zero u32
   16  number u64       24  nonce u64  32  first sequence u64

Entry, 8-byte aligned:

    0  magic u32 "STNE"  4  crc32c u32 (bytes 8 to the end of the part table)
    8  length u32 (whole entry)        12  part count u32
   16  sequence u64     24  synced sequence u64 (at the time of writing)   32 nonce u64
   40  part table: log id u32 · length u32 per part, then its checksum u32 · zero u32 per part;
       then the parts: a batch each, whose checksum that is

Rules: files are recycled without being cleared, so an entry counts only if it has the nonce of its
file's header. The nonce is random, so that no record's value can imitate an entry. After a torn
write, an old entry's batches of the same length may follow the new table; the checksums in the
table identify the right ones. Entries of earlier versions have no checksums, and any batches count;
those versions read the checksums as parts without bytes. Pure parsing: no I/O.
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from strandline.checksum import crc32c
from strandline.storage.disk import Bytes
from strandline.types import LogId

FILE_MAGIC = 0x4A4E_5453  # b"STNJ"
ENTRY_MAGIC = 0x454E_5453  # b"STNE"
ENTRY_MAGIC_BYTES = b"STNE"
VERSION = 1
FILE_HEADER = struct.Struct("<IIIIQQQ")
FILE_HEADER_BYTES = 4096
ENTRY_HEADER = struct.Struct("<IIIIQQQ")
ENTRY_BYTES = 40
PART_BYTES = 8
CRC_FROM = 8
BATCH_CRC = slice(4, 8)
"""The bytes of a batch that hold its checksum."""
_ZERO = bytes(4)

assert ENTRY_HEADER.size == ENTRY_BYTES, "the entry header is as long as its specification says"


class FileHeader(NamedTuple):
    """The header of a journal file."""

    number: int
    nonce: int
    first_sequence: int


class ScannedEntry(NamedTuple):
    """An entry whose header and part table are intact; the caller checks its batches."""

    position: int
    length: int
    sequence: int
    synced_sequence: int
    sizes: tuple[int, ...]
    """Log id and byte length of each part, alternating."""
    checksums: tuple[int, ...]
    """The checksum of each part's batch; empty in entries of earlier versions."""

    @property
    def end(self) -> int:
        """The position after the entry."""
        return self.position + self.length

    def parts(self, view: memoryview) -> list[tuple[LogId, memoryview]]:
        """Return the parts as slices of the file's ``view``."""
        found: list[tuple[LogId, memoryview]] = []
        position = self.end - sum(self.sizes[1::2])
        for index in range(0, len(self.sizes), 2):
            end = position + self.sizes[index + 1]
            found.append((LogId(self.sizes[index]), view[position:end]))
            position = end
        return found


@lru_cache(maxsize=4096)
def entry_struct(part_count: int) -> struct.Struct:
    """Return a struct for entry header and part table, without the checksums."""
    return struct.Struct("<IIIIQQQ" + "I" * (2 * part_count))


def pack_checksums(parts: Iterable[Bytes]) -> bytes:
    """Return the rows of the part table that hold the batches' checksums."""
    return _ZERO.join([*[part[BATCH_CRC] for part in parts], b""])


def pack_file_header(header: FileHeader) -> bytes:
    """Return the first page of a journal file."""
    page = bytearray(FILE_HEADER_BYTES)
    FILE_HEADER.pack_into(page, 0, FILE_MAGIC, 0, VERSION, 0, *header)
    crc = crc32c(memoryview(page)[CRC_FROM:])
    struct.pack_into("<I", page, 4, crc)
    return bytes(page)


def read_file_header(page: Bytes) -> FileHeader | None:
    """Return the header in the first page of a file, or None if it is not intact."""
    if len(page) < FILE_HEADER_BYTES:
        return None
    magic, crc, version, _, number, nonce, first = FILE_HEADER.unpack_from(page, 0)
    intact = (
        magic == FILE_MAGIC
        and version == VERSION
        and crc32c(memoryview(page)[CRC_FROM:FILE_HEADER_BYTES]) == crc
    )
    return FileHeader(number, nonce, first) if intact else None


def read_entry(view: memoryview, position: int, nonce: int) -> ScannedEntry | None:
    """Return the entry at ``position`` if its header and table are intact and have the nonce."""
    room = len(view) - position
    if room < ENTRY_BYTES:
        return None
    magic, crc, length, count, sequence, synced, mark = ENTRY_HEADER.unpack_from(view, position)
    table = ENTRY_BYTES + count * PART_BYTES
    if magic != ENTRY_MAGIC or mark != nonce or not table <= length <= room or length % 8:
        return None
    if crc32c(view[position + CRC_FROM : position + table]) != crc:
        return None
    sizes = struct.unpack_from("<" + "I" * (2 * count), view, position + ENTRY_BYTES)
    if table + sum(sizes[1::2]) != length:
        return None
    checksums: tuple[int, ...] = ()
    if count and count % 2 == 0 and not any(sizes[count + 1 :: 2]):
        sizes, checksums = sizes[:count], sizes[count::2]
    return ScannedEntry(position, length, sequence, synced, sizes, checksums)


def scan_entries(view: memoryview, nonce: int) -> tuple[list[ScannedEntry], int]:
    """Return a file's intact entries, skipping corruption, and the position after the last."""
    entries: list[ScannedEntry] = []
    position = FILE_HEADER_BYTES
    while True:
        entry = read_entry(view, position, nonce) or _next_intact(view, position, nonce)
        if entry is None:
            return entries, position
        entries.append(entry)
        position = entry.end


def _next_intact(view: memoryview, position: int, nonce: int) -> ScannedEntry | None:
    """Return the first intact entry after ``position``."""
    for candidate in _candidates(view, position):
        entry = read_entry(view, candidate, nonce)
        if entry is not None:
            return entry
    return None


def _candidates(view: memoryview, position: int) -> Iterator[int]:
    """Yield positions after ``position`` at which an entry might start."""
    window = 1 << 20
    for start in range(position + 8, len(view), window):
        chunk = bytes(view[start : start + window + 4])
        found = chunk.find(ENTRY_MAGIC_BYTES)
        while found >= 0:
            if (start + found) % 8 == 0:
                yield start + found
            found = chunk.find(ENTRY_MAGIC_BYTES, found + 1)

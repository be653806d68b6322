"""The sparse index of a segment, one entry about every 32 KiB, and its file format.

Index files of both kinds (``.index``, ``.timeindex``):

    0  magic u32 "STNX"  4  crc32c u32 (everything from byte 8 on)
    8  version u32       12 kind u32 (0 offsets, 1 timestamps)
   16  log bytes u64     24 next offset i64   32 largest timestamp i64   40 entry count u64
   48  entries: key i64 · position u64

Rules: an index is only a hint that saves scanning. It is written unsynced, used if its checksum is
right and it describes no more bytes than the log file has, and otherwise rebuilt from the log.
Appends and lookups may run on different threads: keys grow before positions, and a lookup uses the
number of positions.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from strandline.checksum import crc32c
from strandline.storage.disk import Bytes

INTERVAL_BYTES = 32 << 10
MAGIC = 0x584E_5453  # b"STNX"
VERSION = 1
KIND_OFFSETS = 0
KIND_TIMES = 1
HEADER = struct.Struct("<IIIIQqqQ")
HEADER_BYTES = 48
CRC_FROM = 8

assert sys.byteorder == "little", "index files are memory dumps of little-endian integers"


class IndexFile(NamedTuple):
    """The header of an index file: the state of the log file when it was written."""

    kind: int
    log_bytes: int
    next_offset: int
    max_timestamp: int


class SparseIndex:
    """Keys that never decrease, each with a position in the log file."""

    __slots__ = ("keys", "positions")

    def __init__(self) -> None:
        self.keys: array[int] = array("q")
        self.positions: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, key: int, position: int) -> None:
        """Append an entry: a larger position than before, and a key that is not smaller."""
        self.keys.append(key)
        self.positions.append(position)

    def floor(self, key: int) -> tuple[int, int]:
        """Return (key, position) of the last entry with a key up to ``key``; (-1, 0) if none."""
        found = bisect_right(self.keys, key, 0, len(self.positions)) - 1
        return (self.keys[found], self.positions[found]) if found >= 0 else (-1, 0)

    def below(self, key: int) -> tuple[int, int]:
        """Return (key, position) of the last entry whose key is below ``key``; (-1, 0) if none."""
        found = bisect_left(self.keys, key, 0, len(self.positions)) - 1
        return (self.keys[found], self.positions[found]) if found >= 0 else (-1, 0)

    def beyond(self, position: int) -> tuple[int, int] | None:
        """Return (key, position) of the first entry after ``position`` in the log file, if any."""
        found = bisect_right(self.positions, position)
        if found == len(self.positions):
            return None
        return self.keys[found], self.positions[found]

    def offset_at(self, position: int) -> int:
        """Return the key of the last entry at or before ``position``; -1 if none."""
        found = bisect_right(self.positions, position) - 1
        return self.keys[found] if found >= 0 else -1

    def before(self, position: int) -> "SparseIndex":
        """Return a copy without the entries at or after ``position``."""
        kept = bisect_left(self.positions, position)
        copy = SparseIndex()
        copy.keys = self.keys[:kept]
        copy.positions = self.positions[:kept]
        return copy

    def encode(self, about: IndexFile) -> bytes:
        """Return the bytes of an index file."""
        count = len(self.positions)
        entries = array("q", bytes(16 * count))
        entries[0::2] = self.keys[:count]
        entries[1::2] = self.positions[:count]
        head = bytearray(HEADER_BYTES)
        kind, log_bytes, next_offset, timestamp = about
        HEADER.pack_into(head, 0, MAGIC, 0, VERSION, kind, log_bytes, next_offset, timestamp, count)
        data = bytes(head) + entries.tobytes()
        return data[:4] + struct.pack("<I", crc32c(memoryview(data)[CRC_FROM:])) + data[8:]


def decode_index(data: Bytes, kind: int) -> tuple[IndexFile, SparseIndex] | None:
    """Decode an index file; None if it is corrupt."""
    if len(data) < HEADER_BYTES:
        return None
    magic, crc, version, found_kind, *about, count = HEADER.unpack_from(data, 0)
    if magic != MAGIC or version != VERSION or found_kind != kind:
        return None
    if len(data) != HEADER_BYTES + 16 * count or crc32c(memoryview(data)[CRC_FROM:]) != crc:
        return None
    entries: array[int] = array("q")
    entries.frombytes(memoryview(data)[HEADER_BYTES:])
    index = SparseIndex()
    index.keys = entries[0::2]
    index.positions = entries[1::2]
    return IndexFile(kind, *about), index

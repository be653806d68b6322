"""Scanning batches in bytes: the hot loops of reading.

Rules: a batch counts only if its checksum is right; other bytes are a hole. The batch after a hole
is found by the corrupt header's length if that leads to one, else by searching for the magic in
steps of eight bytes. Pure functions over memoryviews. They use local variables instead of a
generator and a tuple per batch, for reads of hundreds of thousands of one-record batches.
"""

import struct
from typing import NamedTuple

from strandline.checksum import crc32c
from strandline.errors import CorruptBatchError
from strandline.record.batch import (
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_MAX,
    MAGIC,
    BatchHeader,
    check_batch,
    read_header,
)
from strandline.types import Offset

MAGIC_BYTES = struct.pack("<I", MAGIC)
_BEGINNING = struct.Struct("<IIIxxxxqII")
"""The header fields magic, checksum, length, base offset, record count, last offset delta."""
OFFSET_MAX = Offset((1 << 63) - 1)


class Run(NamedTuple):
    """Consecutive intact batches."""

    end: int
    """Position after the last of them; the start position if there is none."""
    next_offset: int
    """Offset after the last of them; -1 if there is none."""
    last: int
    """Position of the last of them; -1 if there is none."""


def scan(view: memoryview, position: int, limit: int, *, below: int, verify: bool = True) -> Run:
    """Scan intact whole batches from ``position`` to ``limit``, base offsets under ``below``."""
    unpack = _BEGINNING.unpack_from
    stop = limit - HEADER_BYTES
    last = base = -1
    delta = -1
    while position <= stop:
        magic, crc, length, next_base, _, next_delta = unpack(view, position)
        end = position + length
        if magic != MAGIC or end > limit or next_base >= below or length < HEADER_BYTES:
            break
        if verify and crc32c(view[position + CRC_FROM : end]) != crc:
            break
        base = next_base
        delta = next_delta
        last = position
        position = end
    return Run(position, base + delta + 1, last)


def header_at(view: memoryview, position: int) -> BatchHeader | None:
    """Return the header at ``position`` if it is plausible, without verifying the checksum."""
    try:
        return read_header(view, position)
    except CorruptBatchError:
        return None


def intact_at(view: memoryview, position: int) -> BatchHeader | None:
    """Return the header of the intact whole batch at ``position``, or None."""
    try:
        return check_batch(view, position)
    except CorruptBatchError:
        return None


def find_intact(view: memoryview, position: int, *, after: int, below: int) -> int:
    """Return the position of the first intact batch after the corrupt one, or -1.

    Args:
        view: the bytes, eight-byte aligned with the file.
        position: where the corruption begins.
        after: the batch's base offset must be greater than this,
        below: and lower than this, so that a record's contents cannot imitate a batch.
    """
    corrupt = header_at(view, position)
    if corrupt is not None and _fits(view, position + corrupt.length, after=after, below=below):
        return position + corrupt.length
    window = 1 << 20
    for start in range(position + 8, len(view), window):
        chunk = bytes(view[start : start + window])
        found = chunk.find(MAGIC_BYTES)
        while found >= 0:
            candidate = start + found
            if candidate % 8 == position % 8 and _fits(view, candidate, after=after, below=below):
                return candidate
            found = chunk.find(MAGIC_BYTES, found + 1)
    return -1


def _fits(view: memoryview, position: int, *, after: int, below: int) -> bool:
    """Whether an intact batch in the right range of offsets is at ``position``."""
    header = header_at(view, position)
    if header is None or header.length > LENGTH_MAX or not after < header.base_offset < below:
        return False
    return intact_at(view, position) is not None

"""The subject index of a segment, which maps subjects to records, and its file format.

    0  magic u32 "STNS"          4  crc32c u32 (everything from byte 8 to the end of the checksums)
    8  version u32              12  flags u32 (1: some records belong to transactions)
   16  log bytes u64            24  position of the segment's last batch u64
   32  base offset i64          40  next offset i64
   48  crc32c of that batch u32 52  subjects u32 · records u32 · bytes of names u32
   64  checksums: crc32c u32 of each 16 KiB of what follows, padded to 8 bytes
       ends of names i32[subjects + 1] · first records u32[subjects + 1]
       record offsets minus base u32[records], by subject; absent if one subject has every offset
       names, sorted, one after another

Rules: an index is a hint that is either right or recognised as invalid. It identifies its log file
by length and last batch, which any truncation changes. A block is checked when it is first used, so
a lookup in a large mapped file reads a few blocks only. Hidden batches are not in it; records of
transactions are, committed or not. Immutable; any thread.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.checksum import crc32c
from strandline.record.batch import Buffer
from strandline.record.subjects import has_wildcard

MAGIC: Final = 0x534E_5453  # b"STNS"
VERSION: Final = 1
HAS_TRANSACTIONS: Final = 1
BLOCK_BYTES: Final = 16 << 10
SPAN_MAX: Final = 1 << 32
"""The most offsets of a segment with an index."""
HEADER: Final = struct.Struct("<IIIIQQqqIIII")
HEADER_BYTES: Final = 64
CRC_FROM: Final = 8
_PAIR: Final = struct.Struct("<II")
_RESERVED: Final = r"^(\$|_INBOX(_PRIVATE)?(\.|$))"

Numbers = np.ndarray[Any, Any]


class DamagedIndexError(Exception):
    """A block of an index is corrupt; the log rebuilds the index."""


class SubjectRows(NamedTuple):
    """Records of a segment: their offsets and subjects, row by row."""

    offsets: Numbers
    subjects: pa.DictionaryArray


class IndexedLog(NamedTuple):
    """The log file that an index describes."""

    log_bytes: int
    last_position: int
    """The position of its last batch."""
    last_crc: int
    """The checksum of that batch."""
    base_offset: int
    next_offset: int


class SubjectIndex:
    """The records of each subject.

    Args:
        data: an index file that ``decode_subjects`` has checked, or the result of
            ``encode_subjects``.
    """

    __slots__ = (
        "_checksums", "_data", "_ends_at", "_names_at", "_offsets_at", "_seen", "_starts_at",
        "about", "flags", "records", "subjects",
    )  # fmt: skip

    def __init__(self, data: Buffer) -> None:
        fields = HEADER.unpack_from(data)
        _, _, _, self.flags, log_bytes, last, base, following, crc, *counts = fields
        self.about = IndexedLog(log_bytes, last, crc, base, following)
        self.subjects, self.records, _ = counts
        layout = _Layout.of(self.about, counts)
        self._data = memoryview(data)
        self._checksums = np.frombuffer(data, "<u4", layout.blocks, HEADER_BYTES)
        self._seen = bytearray(layout.blocks)
        self._ends_at, self._starts_at = layout.ends_at, layout.starts_at
        self._offsets_at, self._names_at = layout.offsets_at, layout.names_at

    @property
    def data(self) -> memoryview:
        """The bytes of the index file."""
        return self._data

    @property
    def size(self) -> int:
        """The size of the index file in bytes."""
        return len(self._data)

    @property
    def has_transactions(self) -> bool:
        """Whether some records belong to transactions, and may be aborted."""
        return bool(self.flags & HAS_TRANSACTIONS)

    # Lookups

    def find(self, patterns: Sequence[str]) -> Numbers:
        """Return the numbers of the subjects that match one of the patterns, in order.

        Raises:
            DamagedIndexError: the index is corrupt.
        """
        if not patterns:
            return np.arange(self.subjects)
        found = [self._find_pattern(each) for each in patterns]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def names(self, numbers: Numbers) -> list[str]:
        """Return the names of subjects."""
        if len(numbers) == 0:
            return []
        first, last = int(numbers[0]), int(numbers[-1]) + 1
        names = self._name_array(first, last)
        return list(names.take(pa.array(numbers - first)).to_pylist())

    def counts(self, numbers: Numbers) -> Numbers:
        """Return how many records each of these subjects has."""
        starts = self._integers(self._starts_at, self.subjects + 1)
        counts: Numbers = starts[numbers + 1].astype(np.int64) - starts[numbers]
        return counts

    def offsets(self, numbers: Numbers) -> Numbers:
        """Return the offsets of the records of these subjects, in order."""
        base = self.about.base_offset
        if len(numbers) == 0:
            return np.empty(0, np.int64)
        if self._is_dense:
            return np.arange(base, base + self.records, dtype=np.int64)
        if len(numbers) == self.subjects:
            return np.sort(self._integers(self._offsets_at, self.records)).astype(np.int64) + base
        parts = [self._offsets_of(int(each)) for each in numbers]
        found = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        return found.astype(np.int64) + base

    def count(self, numbers: Numbers, start: int, stop: int) -> int:
        """Return how many records of these subjects lie from ``start`` to ``stop``."""
        about = self.about
        if len(numbers) == 0 or start >= about.next_offset or stop <= about.base_offset:
            return 0
        if start <= about.base_offset and stop >= about.next_offset:
            return int(self.counts(numbers).sum())
        found = self.offsets(numbers)
        return int(np.searchsorted(found, stop) - np.searchsorted(found, start))

    def tally(
        self, numbers: Numbers, start: int, stop: int
    ) -> tuple[Numbers, list[int], list[int]]:
        """Return which of these subjects have records from ``start`` to ``stop``.

        Returns:
            Their numbers, how many records each has, and the offset of the last one.
        """
        about = self.about
        counts, lasts = self.counts(numbers), np.empty(len(numbers), np.int64)
        if self._is_dense:
            first, end = max(start, about.base_offset), min(stop, about.next_offset)
            counts, lasts = counts * 0 + max(0, end - first), counts * 0 + end - 1
        elif start <= about.base_offset and stop >= about.next_offset:
            starts = self._integers(self._starts_at, self.subjects + 1)
            every = self._integers(self._offsets_at, self.records)
            lasts = every[starts[numbers + 1] - 1].astype(np.int64) + about.base_offset
        else:
            for place, number in enumerate(numbers):
                offsets = self._offsets_of(int(number)).astype(np.int64) + about.base_offset
                low, high = np.searchsorted(offsets, (start, stop))
                counts[place], lasts[place] = high - low, offsets[high - 1]
        found = np.flatnonzero(counts)
        return numbers[found], counts[found].tolist(), lasts[found].tolist()

    def rows(self) -> SubjectRows:
        """Return all records, for merging."""
        counts = self.counts(np.arange(self.subjects))
        codes = np.repeat(np.arange(self.subjects, dtype=np.int32), counts)
        names = self._name_array(0, self.subjects)
        base = self.about.base_offset
        if self._is_dense:
            offsets = np.arange(base, base + self.records, dtype=np.int64)
        else:
            offsets = self._integers(self._offsets_at, self.records).astype(np.int64) + base
        subjects = pa.DictionaryArray.from_arrays(_int32(codes), names)
        return SubjectRows(offsets, subjects)

    def verify(self) -> None:
        """Check every block.

        Raises:
            DamagedIndexError: a block is corrupt.
        """
        self._bytes(self._ends_at, self.size - self._ends_at)

    # Layout

    @property
    def _is_dense(self) -> bool:
        return self._offsets_at < 0

    def _offsets_of(self, number: int) -> Numbers:
        first, last = _PAIR.unpack(self._bytes(self._starts_at + 4 * number, 8))
        return self._integers(self._offsets_at + 4 * first, last - first)

    def _integers(self, position: int, count: int) -> Numbers:
        return np.frombuffer(self._bytes(position, 4 * count), "<u4")

    def _bytes(self, position: int, length: int) -> memoryview:
        """Return part of the body, after verifying its checksums."""
        body, seen = self._ends_at, self._seen
        first = (position - body) // BLOCK_BYTES
        last = (position + length - 1 - body) // BLOCK_BYTES if length else first - 1
        for block in range(first, last + 1):
            if not seen[block]:
                start = body + block * BLOCK_BYTES
                if crc32c(self._data[start : start + BLOCK_BYTES]) != self._checksums[block]:
                    raise DamagedIndexError(f"block {block}")
                seen[block] = 1
        return self._data[position : position + length]

    def _name(self, number: int) -> bytes:
        start, end = _PAIR.unpack(self._bytes(self._ends_at + 4 * number, 8))
        return bytes(self._bytes(self._names_at + start, end - start))

    def _name_array(self, first: int, last: int) -> pa.Array:
        """Return the names of consecutive subjects."""
        ends = self._integers(self._ends_at + 4 * first, last - first + 1).astype("<i4")
        names = self._bytes(self._names_at + int(ends[0]), int(ends[-1] - ends[0]))
        buffers = [None, pa.py_buffer(ends - ends[0]), pa.py_buffer(names)]
        return pa.Array.from_buffers(pa.string(), last - first, buffers)

    def _bisect(self, name: bytes) -> int:
        """Return the number of the first subject that is not before ``name``."""
        low, high = 0, self.subjects
        while low < high:
            middle = (low + high) // 2
            if self._name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low

    def _find_pattern(self, pattern: str) -> Numbers:
        if not has_wildcard(pattern):
            name = pattern.encode()
            number = self._bisect(name)
            is_there = number < self.subjects and self._name(number) == name
            return np.arange(number, number + is_there)
        literal = _literal_beginning(pattern).encode()
        first = self._bisect(literal)
        # No UTF-8 text has a byte 255, so this sorts after every name with that prefix.
        last = self._bisect(literal + b"\xff") if literal else self.subjects
        if first == last or pattern == f"{literal.decode()}>" != ">":
            return np.arange(first, last)
        names = self._name_array(first, last)
        matching = pc.match_substring_regex(names, _expression(pattern))
        if pattern[0] in "*>":
            matching = pc.and_not(matching, pc.match_substring_regex(names, _RESERVED))
        return np.flatnonzero(matching.to_numpy(zero_copy_only=False)) + first


class _Layout(NamedTuple):
    """The positions of the parts of a file."""

    blocks: int
    ends_at: int
    starts_at: int
    offsets_at: int
    names_at: int
    size: int

    @classmethod
    def of(cls, about: IndexedLog, counts: Sequence[int]) -> "_Layout":
        subjects, records, names = counts
        is_dense = subjects == 1 and records == about.next_offset - about.base_offset
        tables = 8 * (subjects + 1)
        body = tables + (0 if is_dense else 4 * records) + names
        blocks = -(-body // BLOCK_BYTES)
        ends_at = HEADER_BYTES + 4 * (blocks + blocks % 2)
        return cls(
            blocks,
            ends_at,
            ends_at + tables // 2,
            -1 if is_dense else ends_at + tables,
            ends_at + body - names,
            ends_at + body,
        )


def encode_subjects(about: IndexedLog, rows: Iterable[SubjectRows], *, flags: int = 0) -> bytes:
    """Encode the index of these records.

    Args:
        about: the log file.
        rows: the rows of its visible records, in any order.
        flags: ``HAS_TRANSACTIONS`` or 0.
    """
    parts = [each for each in rows if len(each.offsets)]
    names, codes, offsets = _unified(parts)
    order = _by_code(codes)
    counts = np.bincount(codes, minlength=len(names))
    starts = np.concatenate(([0], np.cumsum(counts))).astype("<u4")
    relative = (offsets[order] - about.base_offset).astype("<u4")
    ends = _ends(names)
    text = bytes(names.buffers()[2] or b"")[int(ends[0]) : int(ends[-1])]
    layout = _Layout.of(about, (len(names), len(offsets), len(text)))
    # Sort the offsets of each subject, since merged parts may come in any order.
    relative = relative[:0] if layout.offsets_at < 0 else _sorted_within(relative, starts)
    body = b"".join(((ends - ends[0]).tobytes(), starts.tobytes(), relative.tobytes(), text))
    view = memoryview(body)
    checksums = [crc32c(view[at : at + BLOCK_BYTES]) for at in range(0, len(body), BLOCK_BYTES)]
    table = struct.pack(f"<{len(checksums)}I", *checksums) + bytes(4 * (len(checksums) % 2))
    log_bytes, last, crc, base, following = about
    head = HEADER.pack(
        MAGIC, 0, VERSION, flags, log_bytes, last, base, following, crc,
        len(names), len(offsets), len(text),
    )  # fmt: skip
    checked = head[CRC_FROM:] + table
    return b"".join((head[:4], struct.pack("<I", crc32c(checked)), checked, body))


def merge_rows(parts: list[SubjectRows]) -> SubjectRows:
    """Return a copy of the records of all parts."""
    names, codes, offsets = _unified(parts)
    return SubjectRows(offsets, pa.DictionaryArray.from_arrays(_int32(codes), names))


def decode_subjects(data: Buffer) -> SubjectIndex | None:
    """Return the index in a file; None if its header is corrupt. Blocks are checked when used."""
    if len(data) < HEADER_BYTES:
        return None
    magic, crc, version, _, log_bytes, last, base, following, last_crc, *counts = (
        HEADER.unpack_from(data)
    )
    if magic != MAGIC or version != VERSION:
        return None
    layout = _Layout.of(IndexedLog(log_bytes, last, last_crc, base, following), counts)
    if len(data) != layout.size:
        return None
    if crc32c(memoryview(data)[CRC_FROM : layout.ends_at]) != crc:
        return None
    return SubjectIndex(data)


def check_subjects(data: Buffer) -> SubjectIndex | None:
    """Return the index in a file if every byte is intact."""
    index = decode_subjects(data)
    try:
        if index is not None:
            index.verify()
    except DamagedIndexError:
        return None
    return index


def _unified(parts: list[SubjectRows]) -> tuple[pa.Array, Numbers, Numbers]:
    """Return sorted distinct names, and each record's number of its name and its offset."""
    if not parts:
        empty = np.empty(0, np.int64)
        return pa.array([], pa.string()), empty, empty
    # By sorting: looking up each name in a hash table takes ten times as long if most are new.
    dictionaries = [each.subjects.dictionary for each in parts]
    names = pa.concat_arrays(dictionaries)
    order = pc.array_sort_indices(names).to_numpy()
    names = names.take(_int64(order))
    is_new = np.ones(len(names), bool)
    is_new[1:] = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.cumsum(is_new) - 1
    firsts = np.cumsum([0, *map(len, dictionaries)])
    shifted = zip(parts, firsts.tolist(), strict=False)
    codes = rank[np.concatenate([each.subjects.indices.to_numpy() + n for each, n in shifted])]
    names = names.filter(boolean(is_new))
    used = np.bincount(codes, minlength=len(names)) > 0
    if not used.all():  # a dictionary may have names without records
        names, codes = names.filter(boolean(used)), (np.cumsum(used) - 1)[codes]
    offsets = np.concatenate([np.asarray(each.offsets, np.int64) for each in parts])
    return names, codes, offsets


def _by_code(codes: Numbers) -> Numbers:
    """Return the stable order of the records by the number of their subject."""
    # With row numbers in the keys any sort is stable, and the fastest takes a tenth of the time.
    # Both halves of a key fit, since a segment has fewer than 2^32 records.
    keys: Numbers = (codes.astype(np.uint64) << np.uint64(32)) | np.arange(len(codes), dtype="u8")
    keys.sort()
    return keys.astype(np.uint32).astype(np.intp)


def _sorted_within(relative: Numbers, starts: Numbers) -> Numbers:
    """Return offsets in order within each subject."""
    falls = np.flatnonzero(relative[1:] < relative[:-1]) + 1
    if np.isin(falls, starts).all():
        return relative
    counts: Numbers = np.diff(starts.astype(np.int64))
    owner = np.repeat(np.arange(len(counts)), counts)
    sorted_relative: Numbers = relative[np.lexsort((relative, owner))]
    return sorted_relative


def _ends(names: pa.Array) -> Numbers:
    buffer = names.buffers()[1]
    if buffer is None or not len(names):
        return np.zeros(1, "<i4")
    return np.frombuffer(buffer, "<i4", len(names) + 1, 4 * names.offset)


def boolean(mask: Numbers) -> pa.Array:
    """Return an Arrow array of booleans."""
    data = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, data])


def _int32(numbers: Numbers) -> pa.Array:
    # Not pa.array, which imports pandas first if that is installed.
    data = pa.py_buffer(np.ascontiguousarray(numbers, "<i4"))
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, data])


def _int64(numbers: Numbers) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(numbers, "<i8"))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, data])


def _literal_beginning(pattern: str) -> str:
    """Return the tokens before the first wildcard, with the dot after them."""
    tokens = pattern.split(".")
    place = next(place for place, word in enumerate(tokens) if word in "*>")
    return "".join(f"{token}." for token in tokens[:place])


@lru_cache(maxsize=256)
def _expression(pattern: str) -> str:
    """Return a regular expression equivalent to a pattern of subjects."""
    wildcards = {"*": r"[^.]+", ">": r".+"}
    tokens = (wildcards.get(token) or re.escape(token) for token in pattern.split("."))
    return rf"(?s)^{'[.]'.join(tokens)}$"

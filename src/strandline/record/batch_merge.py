"""Merges many small plain batches into one Arrow batch, in well under a microsecond each.

Batches are 8-byte aligned, so the whole buffer can be viewed as arrays of integers, from which one
index operation picks a field of all batches. Python code runs for a batch only to slice its values.
Only for batches that ``are_simple``: one subject, values only, not compressed.
"""

import struct
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.errors import CorruptBatchError
from strandline.record.batch import HEADER_BYTES, VERSION, Attributes
from strandline.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_SIMPLE_MASK = ~(int(Attributes.MESSAGE_IDS | Attributes.TRANSACTIONAL) << 16) & 0xFFFFFFFF
_SUBJECT_COUNT = 66
JOIN_BYTES_MAX = 4 << 10
_KIND_AT = 12
_KIND = struct.Struct(f"<I{_SUBJECT_COUNT - _KIND_AT - 4}xH")
"""Version, codec and attributes in one word; the subject count."""


@lru_cache(maxsize=1024)
def single_subject(name: bytes) -> pa.Array:
    """Return a dictionary of one subject; cached, because creating it takes longer than a column.

    Raises:
        CorruptBatchError: the name is not UTF-8.
    """
    subject_text(name)
    # Not pa.array: for Python objects it imports pandas first, if installed, for seconds.
    ends = pa.py_buffer(struct.pack("<ii", 0, len(name)))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(name)])


def subject_text(name: bytes) -> str:
    """Return a subject as text.

    Raises:
        CorruptBatchError: the name is not UTF-8.
    """
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise CorruptBatchError("a subject is not UTF-8") from error


def is_plain(view: memoryview, position: int) -> bool:
    """Whether a batch has one subject and plain values, and is not compressed."""
    kind, subject_count = _KIND.unpack_from(view, position + _KIND_AT)
    return bool(kind & _SIMPLE_MASK == VERSION and subject_count == 1)


class SmallBatches:
    """A run of neighbouring small batches, seen as columns of header fields.

    Args:
        view: the buffer, 8-byte aligned, a multiple of 8 bytes long.
        positions: where each batch of the run begins, ascending.
    """

    def __init__(self, view: memoryview, positions: list[int]) -> None:
        whole = view[: len(view) & ~7]
        self._view = view
        self._words32 = np.frombuffer(whole, dtype="<i4")
        self._words64 = np.frombuffer(whole, dtype="<i8")
        self.at = at = np.array(positions, dtype="<i8")
        self.lengths = self._words32[(at + 8) >> 2].astype("<i8")
        self.counts = self._words32[(at + 24) >> 2].astype("<i8")
        self.total = int(self.counts.sum())

    def are_simple(self) -> bool:
        """Whether all have one subject, plain values and no compression."""
        # version, codec and attributes share a word, subject count is the upper half of another
        kinds = self._words32[(self.at + 12) >> 2].astype("<u4") & _SIMPLE_MASK
        subject_counts = self._words32[(self.at + _SUBJECT_COUNT - 2) >> 2].astype("<u4") >> 16
        return bool((kinds == VERSION).all() and (subject_counts == 1).all())

    def gather(self, schema: pa.Schema, *, partition: int) -> pa.RecordBatch:
        """Return the records of all batches as one Arrow batch.

        Args:
            schema: the columns wanted.
            partition: value of the partition column.

        Raises:
            CorruptBatchError: lengths that do not fit a batch.
        """
        counts = self.counts
        subject_bytes = self._words32[(self.at + 36) >> 2].astype("<i8")
        subject_at = self.at + HEADER_BYTES + 8 * counts
        ends_at = subject_at + ((subject_bytes + 7) & ~7)
        data_at = ends_at + ((4 * counts + 11) & ~7)
        limit = self.at + self.lengths
        if (subject_bytes < 0).any() or (counts < 1).any() or (data_at > limit).any():
            raise CorruptBatchError("a column is longer than its batch")
        # index of each record within its own batch
        starts = np.cumsum(counts) - counts
        within = np.arange(self.total, dtype="<i8") - np.repeat(starts, counts)
        arrays = []
        for name in schema.names:
            match name:
                case "offset":
                    array = self._offsets(within)
                case "timestamp":
                    array = self._timestamps(within)
                case "subject":
                    array = self._subjects(subject_at, subject_bytes)
                case "value":
                    array = self._values(within, ends_at, data_at)
                case "key":
                    array = pa.nulls(self.total, pa.binary())
                case "headers":
                    array = pa.nulls(self.total, HEADERS_TYPE)
                case _:
                    array = pa.repeat(pa.scalar(partition, pa.int32()), self.total)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _offsets(self, within: Numbers) -> pa.Array:
        """Return each record's offset: its batch's base offset plus its index in the batch."""
        numbers = np.repeat(self._words64[(self.at + 16) >> 3], self.counts) + within
        return pa.Array.from_buffers(pa.int64(), self.total, [None, pa.py_buffer(numbers)])

    def _timestamps(self, within: Numbers) -> pa.Array:
        """Return the timestamps column, which comes first in each batch."""
        first = (self.at + HEADER_BYTES) >> 3
        numbers = self._words64[np.repeat(first, self.counts) + within]
        return pa.Array.from_buffers(TIMESTAMP_TYPE, self.total, [None, pa.py_buffer(numbers)])

    def _subjects(self, subject_at: Numbers, subject_bytes: Numbers) -> pa.Array:
        """Return dictionary-encoded subjects; each batch's one is repeated for its records."""
        names = [
            bytes(self._view[start : start + size])
            for start, size in zip(subject_at.tolist(), subject_bytes.tolist(), strict=True)
        ]
        dictionary: dict[bytes, int] = {}
        places = [dictionary.setdefault(name, len(dictionary)) for name in names]
        if len(dictionary) == 1:
            indices = np.zeros(self.total, dtype="<i4")
            subjects = single_subject(names[0])
        else:
            indices = np.repeat(np.array(places, dtype="<i4"), self.counts)
            subjects = pa.array([subject_text(name) for name in dictionary], pa.string())
        numbers = pa.Array.from_buffers(pa.int32(), self.total, [None, pa.py_buffer(indices)])
        return pa.DictionaryArray.from_arrays(numbers, subjects)

    def _values(self, within: Numbers, ends_at: Numbers, data_at: Numbers) -> pa.Array:
        """Return the values: bytes joined, offsets recomputed from each batch's own."""
        first = np.repeat(ends_at >> 2, self.counts) + within
        lengths = self._words32[first + 1] - self._words32[first]
        sizes = self._words32[(ends_at >> 2) + self.counts].astype("<i8")
        ends = data_at + sizes
        if (lengths < 0).any() or (ends > self.at + self.lengths).any():
            raise CorruptBatchError("offsets of a column do not fit its bytes")
        offsets = np.zeros(self.total + 1, dtype="<i4")
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] != sizes.sum():
            raise CorruptBatchError("offsets of a column do not match its bytes")
        data = self._joined(data_at.tolist(), ends.tolist(), int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets), data]
        return pa.Array.from_buffers(pa.binary(), self.total, buffers)

    def _joined(self, starts: list[int], ends: list[int], size: int) -> pa.Buffer:
        """Join the bytes of all ranges.

        A few large ranges are copied into Arrow's memory pool, whose pages are in use already:
        fresh pages cost more than the copy. Many small ranges are joined in one call.
        """
        view = self._view
        if size < JOIN_BYTES_MAX * len(starts):
            pieces = [view[start:end] for start, end in zip(starts, ends, strict=True)]
            return pa.py_buffer(b"".join(pieces))
        buffer = pa.allocate_buffer(size)
        target, at = memoryview(buffer), 0
        for start, end in zip(starts, ends, strict=True):
            target[at : at + end - start] = view[start:end]
            at += end - start
        return buffer

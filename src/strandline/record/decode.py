"""Decodes batches to Arrow: large ones without a copy, runs of small ones merged in one pass.

A large batch becomes Arrow arrays that point into the caller's buffer (a mapped segment). Small
batches, such as a slow trickle stored one record at a time, are merged, because an Arrow batch
costs some 20 µs whatever its size. Both give the same rows (tested).

Rules: the caller has verified checksums. Lengths are still checked, so that no input makes Arrow
read outside the buffer.
"""

import functools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from strandline.errors import CorruptBatchError
from strandline.record.batch import HEADER_BYTES, MAGIC, Attributes, read_header
from strandline.record.batch_merge import SmallBatches, is_plain, single_subject
from strandline.record.columns import Headers
from strandline.record.compression import decompress
from strandline.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE, project

_MAGIC_AND_LENGTH = struct.Struct("<III")
_INT = struct.Struct("<i")
_PAIR = struct.Struct("<ii")
_LONG = struct.Struct("<q")

SMALL_BYTES = 128 << 10
"""A batch below this is merged with its neighbours."""
PLAIN_BYTES = 512 << 10
"""A plain batch below this is merged, too. Sending a batch of a few hundred KiB on its own costs
more than copying it, since verifying its checksum has just brought it into the cache."""
MERGED_BYTES = 2 << 20
"""Merging stops at about this many bytes."""


def decode_batches(
    buffer: pa.Buffer | memoryview | bytes,
    *,
    columns: Sequence[str] | None = None,
    partition: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Decode the whole batches in ``buffer``, whose first batch begins at its first byte.

    Args:
        buffer: whole batches, 8-byte aligned; it is kept alive by the arrays made from it.
        columns: which columns of ``schema.COLUMNS`` (and ``partition``), in which order; None: all.
        partition: the value of the ``partition`` column, if asked for.

    Yields:
        record batches of ``schema.project(columns)``.

    Raises:
        CorruptBatchError: lengths that do not fit the batch.
    """
    source = buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
    decoder = _Decoder(source, project(columns), partition)
    run: list[int] = []
    run_bytes = 0
    view = memoryview(source)
    for position, length in walk(view):
        if length >= SMALL_BYTES and (length >= PLAIN_BYTES or not is_plain(view, position)):
            yield from decoder.merge(run)
            yield decoder.decode(position)
            run, run_bytes = [], 0
            continue
        run.append(position)
        run_bytes += length
        if run_bytes >= MERGED_BYTES:
            yield from decoder.merge(run)
            run, run_bytes = [], 0
    yield from decoder.merge(run)


class DecodedRecord(NamedTuple):
    """A decoded record of a batch."""

    timestamp_ns: int
    subject: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None


def decode_record(buffer: pa.Buffer, offset: int) -> DecodedRecord | None:
    """Decode one record of the whole batches in ``buffer``; None if it is not there.

    No arrays are created, so this takes a third of the time of ``decode_batches``.

    Raises:
        CorruptBatchError: as ``decode_batches``.
    """
    view = memoryview(buffer)
    for position, _ in walk(view):
        if read_header(view, position).next_offset > offset:
            try:
                return _RecordColumns(buffer, position).record(offset)
            except UnicodeDecodeError as error:
                raise CorruptBatchError("a name is not UTF-8") from error
    return None


def walk(view: memoryview) -> list[tuple[int, int]]:
    """Return position and length of each whole batch in ``view``; an incomplete last one ends it.

    Raises:
        CorruptBatchError: no batch begins where one must.
    """
    places: list[tuple[int, int]] = []
    position, size = 0, len(view)
    unpack = _MAGIC_AND_LENGTH.unpack_from
    while size - position >= HEADER_BYTES:
        magic, _, length = unpack(view, position)
        if magic != MAGIC or length <= HEADER_BYTES or length % 8:
            raise CorruptBatchError("no batch starts here", position=position)
        if position + length > size:
            break
        places.append((position, length))
        position += length
    return places


# Columns without content depend on the number of records only. Creating them takes 3 to 6 µs a
# batch, and many batches have as many records as the one before, so the last ones are cached. Only
# two, because they may be large.


@functools.lru_cache(maxsize=2)
def _zeros(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


@functools.lru_cache(maxsize=2)
def _no_keys(count: int) -> pa.Array:
    return pa.nulls(count, pa.binary())


@functools.lru_cache(maxsize=2)
def _no_headers(count: int) -> pa.Array:
    return pa.nulls(count, HEADERS_TYPE)


class _Decoder:
    """Turns batches of one buffer into Arrow batches of one schema."""

    def __init__(self, source: pa.Buffer, schema: pa.Schema, partition: int) -> None:
        self._source = source
        self._view = memoryview(source)
        self._schema = schema
        self._partition = partition

    def merge(self, run: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch for a run of neighbouring small batches, unless it is empty."""
        if not run:
            return
        if len(run) == 1:
            yield self.decode(run[0])
            return
        small = SmallBatches(self._view, run)
        if small.are_simple():
            yield small.gather(self._schema, partition=self._partition)
            return
        table = pa.Table.from_batches([self.decode(position) for position in run], self._schema)
        yield from table.unify_dictionaries().combine_chunks().to_batches()

    def decode(self, position: int) -> pa.RecordBatch:
        """Return a batch as an Arrow batch whose columns point into the buffer."""
        columns = BatchColumns(self._source, position)
        arrays = []
        for name in self._schema.names:
            if name == "partition":
                number = pa.scalar(self._partition, pa.int32())
                arrays.append(pa.repeat(number, columns.header.record_count))
            else:
                arrays.append(getattr(columns, name)())
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class BatchColumns:
    """The columns of one batch: located once, converted into Arrow arrays on demand."""

    def __init__(self, source: pa.Buffer, position: int) -> None:
        self.header = header = read_header(memoryview(source), position)
        if header.attributes & Attributes.SEALED:
            raise CorruptBatchError("the batch is still encrypted", position=position)
        self._count = count = header.record_count
        start, length = position + HEADER_BYTES, header.length - HEADER_BYTES
        if start + length > source.size:
            raise CorruptBatchError("batch is incomplete", position=position)
        body = source.slice(start, length)
        if header.codec:
            body = decompress(memoryview(body), header.codec)
        self._body = body
        self._cursor = 0
        self._timestamps = self._take(8 * count)
        self._take_subjects()
        self._key = self._take_binary(nullable=True) if self._has(Attributes.KEYS) else None
        self._value = self._take_binary(nullable=self._has(Attributes.NULL_VALUES))
        self._headers = self._take_headers() if self._has(Attributes.HEADERS) else None
        self._deltas = self._take(4 * count) if self._has(Attributes.OFFSET_DELTAS) else None

    def _has(self, attribute: Attributes) -> bool:
        return bool(self.header.attributes & attribute)

    def _take(self, length: int) -> pa.Buffer:
        """Return the next ``length`` bytes of the body, and move past them and their padding."""
        end = self._cursor + length
        if length < 0 or end > self._body.size:
            raise CorruptBatchError("a column is longer than its batch")
        taken = self._body.slice(self._cursor, length)
        self._cursor = end + (-end % 8)
        return taken

    def _take_binary(self, *, nullable: bool, count: int | None = None) -> list[pa.Buffer | None]:
        """Return validity, offsets and bytes of the next variable-length column."""
        rows = self._count if count is None else count
        validity = self._take((rows + 7) // 8) if nullable else None
        offsets = self._take(4 * (rows + 1))
        return [validity, offsets, self._take(self._last_end(offsets))]

    def _last_end(self, offsets: pa.Buffer) -> int:
        """Check the offsets of a variable-length column; return the last one."""
        ends = np.frombuffer(offsets, dtype="<i4")
        if ends[0] != 0 or (ends[1:] < ends[:-1]).any():
            raise CorruptBatchError("offsets of a column do not ascend from 0")
        return int(ends[-1])

    def _take_subjects(self) -> None:
        """Locate the subject dictionary and, with several subjects, the indices."""
        header = self.header
        self._subject_indices: pa.Buffer | None = None
        self._single_subject = b""
        if header.subject_count == 1:
            self._single_subject = bytes(memoryview(self._take(header.subject_bytes)))
            return
        if header.subject_count == 0:
            raise CorruptBatchError("a batch without subjects")
        self._subject_names = self._take_binary(nullable=False, count=header.subject_count)
        self._subject_indices = self._take(4 * self._count)
        self._check_subjects(self._subject_indices)

    def _check_subjects(self, indices: pa.Buffer) -> None:
        numbers = np.frombuffer(indices, dtype="<i4")
        if numbers.min() < 0 or numbers.max() >= self.header.subject_count:
            raise CorruptBatchError("a subject index outside the dictionary")

    def _take_headers(self) -> tuple[pa.Buffer, list[pa.Buffer | None], list[pa.Buffer | None]]:
        """Return the headers' offsets per record, names and values."""
        offsets = self._take(4 * (self._count + 1))
        pairs = self._last_end(offsets)
        names = self._take_binary(nullable=False, count=pairs)
        values = self._take_binary(nullable=False, count=pairs)
        return offsets, names, values

    def offset(self) -> pa.Array:
        """Return the offsets, int64."""
        base = self.header.base_offset
        if self._deltas is None:
            numbers = np.arange(base, base + self._count, dtype="<i8")
        else:
            numbers = np.frombuffer(self._deltas, dtype="<i4").astype("<i8") + base
        return pa.Array.from_buffers(pa.int64(), self._count, [None, pa.py_buffer(numbers)])

    def timestamp(self) -> pa.Array:
        """Return the timestamps, in ns."""
        return pa.Array.from_buffers(TIMESTAMP_TYPE, self._count, [None, self._timestamps])

    def subject(self) -> pa.Array:
        """Return the subjects, dictionary-encoded."""
        indices = self._subject_indices
        if indices is None:
            only = single_subject(self._single_subject)
            return pa.DictionaryArray.from_arrays(_zeros(self._count), only)
        names = pa.Array.from_buffers(pa.string(), self.header.subject_count, self._subject_names)
        numbers = pa.Array.from_buffers(pa.int32(), self._count, [None, indices])
        return pa.DictionaryArray.from_arrays(numbers, names)

    def key(self) -> pa.Array:
        """Return the keys, null where a record has none."""
        if self._key is None:
            return _no_keys(self._count)
        return pa.Array.from_buffers(pa.binary(), self._count, self._key)

    def value(self) -> pa.Array:
        """Return the values, null where the record is a tombstone."""
        return pa.Array.from_buffers(pa.binary(), self._count, self._value)

    def headers(self) -> pa.Array:
        """Return the headers, null where a record has none."""
        if self._headers is None:
            return _no_headers(self._count)
        offsets, names, values = self._headers
        ends = np.frombuffer(offsets, dtype="<i4")
        pairs = int(ends[-1])
        entries = pa.StructArray.from_arrays(
            [
                pa.Array.from_buffers(pa.string(), pairs, names),
                pa.Array.from_buffers(pa.binary(), pairs, values),
            ],
            fields=[HEADERS_TYPE.key_field, HEADERS_TYPE.item_field],
        )
        present = np.packbits(np.diff(ends) > 0, bitorder="little")
        return pa.Array.from_buffers(
            HEADERS_TYPE, self._count, [pa.py_buffer(present), offsets], children=[entries]
        )


class _RecordColumns(BatchColumns):
    """The columns of a batch of which one record is decoded; only the parts used are checked."""

    def _last_end(self, offsets: pa.Buffer) -> int:
        return int(_INT.unpack_from(offsets, offsets.size - _INT.size)[0])

    def _check_subjects(self, indices: pa.Buffer) -> None:
        """Do nothing: ``record`` checks the one index that it uses."""

    def record(self, offset: int) -> DecodedRecord | None:
        """Return the record at an offset; None if it was removed."""
        row = offset - self.header.base_offset
        if self._deltas is not None:
            deltas = np.frombuffer(self._deltas, dtype="<i4")
            wanted, row = row, int(deltas.searchsorted(row))
            if row == self._count or deltas[row] != wanted:
                return None
        if not 0 <= row < self._count:
            return None
        indices, headers = self._subject_indices, None
        if self._headers is not None:
            offsets, names, values = self._headers
            pairs = self._last_end(offsets)
            first, end = _PAIR.unpack_from(offsets, 4 * row)
            if not 0 <= first <= end <= pairs:
                raise CorruptBatchError("header offsets do not ascend from 0")
            headers = [
                ((_cell(names, each) or b"").decode(), _cell(values, each) or b"")
                for each in range(first, end)
            ]
        subject = self._single_subject
        if indices is not None:
            (number,) = _INT.unpack_from(indices, 4 * row)
            if not 0 <= number < self.header.subject_count:
                raise CorruptBatchError("a subject index outside the dictionary")
            subject = _cell(self._subject_names, number) or b""
        return DecodedRecord(
            _LONG.unpack_from(self._timestamps, 8 * row)[0],
            subject.decode(),
            None if self._key is None else _cell(self._key, row),
            _cell(self._value, row),
            headers or None,
        )


def _cell(column: list[pa.Buffer | None], row: int) -> bytes | None:
    """Return a value of a variable-length column."""
    validity, offsets, data = column
    assert offsets is not None, "only the validity may be absent"
    assert data is not None, "as above"
    if validity is not None and not memoryview(validity)[row >> 3] >> (row & 7) & 1:
        return None
    start, end = _PAIR.unpack_from(offsets, 4 * row)
    if not 0 <= start <= end <= data.size:
        raise CorruptBatchError("offsets of a column do not ascend from 0")
    return bytes(memoryview(data)[start:end])

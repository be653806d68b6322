"""Encodes records that arrived as an Arrow batch into one batch.

Columns are copied unchanged, except subjects, which become a dictionary, and headers.
"""

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.errors import InvalidRecordError
from strandline.record.batch import NO_PRODUCER, Attributes, BatchHeader, Buffer
from strandline.record.columns import (
    BATCH_RECORDS_MAX,
    Headers,
    Shape,
    Stamp,
    put,
    put_binary,
    put_headers,
    put_subjects,
    seal,
)
from strandline.record.compression import CODEC_NUMBERS
from strandline.record.schema import SUBJECT_TYPE

_CODEC_NAMES = {number: name for name, number in CODEC_NUMBERS.items()}


def encode_arrow(
    batch: pa.RecordBatch,
    stamp: Stamp,
    *,
    default_subject: str,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int = 0,
    timestamps_ns: pa.Array | None = None,
) -> bytearray:
    """Encode an Arrow batch with column ``value`` and perhaps key, subject and headers.

    Args:
        batch: values and keys of type binary (or string), subjects string or dictionary, headers
            map<string, binary>; 1 to 65,535 rows.
        stamp: offset, epoch, time and compression.
        default_subject: for rows without a subject.
        offset_deltas: offset of each row minus the base offset, if compaction left gaps.
        last_offset_delta: with deltas, the last offset that the batch covers minus the base offset.
        timestamps_ns: int64 array with the times of rows that are stored again; None: the stamp's.

    Raises:
        InvalidRecordError: a column of a wrong type.
    """
    count = batch.num_rows
    assert 0 < count <= BATCH_RECORDS_MAX, "the caller splits batches"
    attributes = 0
    parts: list[Buffer] = [b""]
    if timestamps_ns is None:
        parts.append(struct.pack("<q", stamp.timestamp_ns) * count)
        first = last = stamp.timestamp_ns
    else:
        times = timestamps_ns.to_numpy(zero_copy_only=False)
        parts.append(times.tobytes())
        first, last = int(times.min()), int(times.max())
    columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    subjects = columns.get("subject")
    if subjects is None or subjects.null_count == count:
        subject_count, subject_bytes = put_subjects(parts, [default_subject], count)
    else:
        subject_count, subject_bytes = _put_arrow_subjects(parts, subjects, default_subject)
    key = _as_binary(columns.get("key"), "key")
    if key is not None and key.null_count < count:
        attributes |= Attributes.KEYS
        _put_arrow_binary(parts, key, with_validity=True)
    value = _as_binary(columns.get("value"), "value")
    if value is None:
        raise InvalidRecordError("a batch needs a column named 'value' of type binary or string")
    if value.null_count:
        attributes |= Attributes.NULL_VALUES
    _put_arrow_binary(parts, value, with_validity=bool(value.null_count))
    headers = columns.get("headers")
    if headers is not None and headers.null_count < count:
        attributes |= Attributes.HEADERS
        attributes |= put_headers(parts, _headers_to_lists(headers))
    last_delta = count - 1
    if offset_deltas is not None:
        attributes |= Attributes.OFFSET_DELTAS
        deltas = np.asarray(offset_deltas, dtype="<i4")
        last_delta = max(int(deltas[-1]), last_offset_delta)
        put(parts, deltas.tobytes())
    shape = Shape(attributes, count, last_delta, subject_count, subject_bytes, first, last)
    return seal(parts, stamp, shape)


def encode_again(
    batch: pa.RecordBatch,
    header: BatchHeader,
    *,
    base_offset: int | None = None,
    attributes: int = 0,
) -> bytearray:
    """Encode the remaining records of a batch, at their offsets and times.

    The new batch covers the same offsets as the old one, and has its producer's sequences.

    Args:
        batch: the remaining records, all columns; at least one record.
        header: the header of the old batch.
        base_offset: the first offset to cover; None: that of the old batch.
        attributes: attributes besides those that the columns set.
    """
    base = header.base_offset if base_offset is None else base_offset
    last_delta = header.next_offset - 1 - base
    producer = header.producer
    if producer.producer_id != NO_PRODUCER:
        producer = producer._replace(sequence=producer.sequence + base - header.base_offset)
    stamp = Stamp(
        base_offset=base,
        leader_epoch=header.leader_epoch,
        timestamp_ns=header.first_timestamp,
        compression=_CODEC_NAMES[header.codec],
        producer=producer,
        attributes=attributes,
    )
    is_dense = batch.num_rows == last_delta + 1
    offsets = batch.column("offset").to_pylist()
    return encode_arrow(
        batch,
        stamp,
        default_subject="",
        offset_deltas=None if is_dense else [offset - base for offset in offsets],
        last_offset_delta=last_delta,
        timestamps_ns=batch.column("timestamp").cast(pa.int64()),
    )


def _headers_to_lists(headers: pa.Array) -> list[Headers | None]:
    """Return the header pairs of each row of a map<string, binary> array."""
    if not pa.types.is_map(headers.type):
        raise InvalidRecordError(f"column 'headers' is {headers.type}, not map<string, binary>")
    rows: list[Headers | None] = []
    for pairs in headers.to_pylist():
        if pairs is None:
            rows.append(None)
            continue
        rows.append(
            [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
        )
    return rows


def _as_binary(column: pa.Array | None, name: str) -> pa.Array | None:
    """Return the column as binary with 32-bit offsets; None stays None."""
    if column is None or pa.types.is_binary(column.type):
        return column
    if not _is_bytes_like(column.type):
        raise InvalidRecordError(f"column {name!r} is {column.type}, not binary or string")
    return column.cast(pa.binary())


def _is_bytes_like(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes or text."""
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_large_binary,
        pa.types.is_null,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
        pa.types.is_string_view,
    )
    return any(check(kind) for check in checks)


def _put_arrow_binary(parts: list[Buffer], column: pa.Array, *, with_validity: bool) -> None:
    """Add a binary array, rebased to start at 0 (an Arrow array may be a slice of another)."""
    count, start = len(column), column.offset
    if with_validity:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        put(parts, np.packbits(present, bitorder="little").tobytes())
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype="<i4", count=count + 1, offset=start * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    put(parts, (offsets - first).astype("<i4", copy=False).tobytes())
    put(parts, memoryview(data)[first:last] if data is not None else b"")


def _put_arrow_subjects(parts: list[Buffer], column: pa.Array, default: str) -> tuple[int, int]:
    """Add the subjects of an Arrow column; rows without one get the default."""
    if not pa.types.is_dictionary(column.type):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InvalidRecordError(f"column 'subject' is {column.type}, not string")
        column = column.fill_null(default).cast(pa.string()).dictionary_encode()
    elif column.null_count:
        column = column.cast(pa.string()).fill_null(default).dictionary_encode()
    names = [name.encode() for name in column.dictionary.to_pylist()]
    if len(names) == 1:
        put(parts, names[0])
        return 1, len(names[0])
    if len(names) > BATCH_RECORDS_MAX:
        column = column.cast(SUBJECT_TYPE.value_type).dictionary_encode()
        names = [name.encode() for name in column.dictionary.to_pylist()]
    put_binary(parts, names)
    put(parts, column.indices.to_numpy(zero_copy_only=False).astype("<i4").tobytes())
    return len(names), sum(map(len, names))

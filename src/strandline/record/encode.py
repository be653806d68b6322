"""Encodes records that arrived one by one, as Python sequences, into one batch.

``encode_arrow`` does the same for an Arrow batch.
"""

import struct
from collections.abc import Sequence

from strandline.record.batch import TIMESTAMP_MIN, Attributes, Buffer
from strandline.record.columns import (
    BATCH_RECORDS_MAX,
    FILLER_OFFSETS_MAX,
    Headers,
    Shape,
    Stamp,
    put_binary,
    put_headers,
    put_subjects,
    put_validity,
    seal,
)


def encode_records(
    values: Sequence[bytes | None],
    subjects: Sequence[str],
    stamp: Stamp,
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> bytearray:
    """Encode records that arrived one by one as one batch.

    Args:
        values: one per record; None is a tombstone.
        subjects: one per record, or a single one for all.
        stamp: offset, epoch, time and compression.
        keys: one per record, or None if no record has a key.
        headers: one per record, or None if no record has any.
    """
    count = len(values)
    assert 0 < count <= BATCH_RECORDS_MAX, "the caller splits batches"
    attributes = 0
    parts: list[Buffer] = [b"", struct.pack("<q", stamp.timestamp_ns) * count]
    subject_count, subject_bytes = put_subjects(parts, subjects, count)
    if keys is not None:
        attributes |= Attributes.KEYS
        put_validity(parts, keys)
        put_binary(parts, [key or b"" for key in keys])
    if None in values:
        attributes |= Attributes.NULL_VALUES
        put_validity(parts, values)
        values = [value or b"" for value in values]
    put_binary(parts, values)  # type: ignore[arg-type]  # no None is left in it
    if headers is not None:
        attributes |= Attributes.HEADERS
        attributes |= put_headers(parts, headers)
    now = stamp.timestamp_ns
    shape = Shape(attributes, count, count - 1, subject_count, subject_bytes, now, now)
    return seal(parts, stamp, shape)


def encode_filler(base_offset: int, next_offset: int, *, leader_epoch: int) -> bytearray:
    """Encode a placeholder batch for offsets that compaction emptied, so that a log stays dense.

    Its time is before any other, so that a search by time never finds it.
    """
    assert 0 < next_offset - base_offset <= FILLER_OFFSETS_MAX, "longer ones are split"
    parts: list[Buffer] = [b"", struct.pack("<q", TIMESTAMP_MIN)]
    subject_count, subject_bytes = put_subjects(parts, ["_"], 1)
    put_binary(parts, [b""])
    last_delta = next_offset - base_offset - 1
    times = TIMESTAMP_MIN, TIMESTAMP_MIN
    shape = Shape(Attributes.REMOVED, 1, last_delta, subject_count, subject_bytes, *times)
    return seal(parts, Stamp(base_offset, leader_epoch, TIMESTAMP_MIN), shape)

"""Search for a record by its time.

A segment's time index pairs positions with the largest timestamp before them, so it also works when
clocks step back: everything before the last entry whose key is below the wanted time is too old.

Rules: batches decide; the index only gives the position to start from. Corruption is skipped. Only
a batch's timestamps are decoded, and only if the batch spans the wanted time.
"""

from collections.abc import Callable

import pyarrow as pa

from strandline.errors import DecryptionError, UnavailableError
from strandline.record.batch import BatchHeader, Buffer
from strandline.record.codec import decode_batches
from strandline.storage.segment import Segment
from strandline.storage.walk import walk

Decrypt = Callable[[Buffer], pa.Buffer]
"""Decrypts batches, if they are encrypted."""


def first_record_at(
    segment: Segment, timestamp_ns: int, *, start: int, decrypt: Decrypt
) -> int | None:
    """Return the offset of the first record from ``start`` on that is not before the time."""
    times = segment.timestamps()
    if segment.max_timestamp < timestamp_ns:
        return None
    for found in walk(segment, times.below(timestamp_ns)[1]):
        header = found.header
        if header.last_timestamp >= timestamp_ns and header.next_offset > start:
            offset = _offset_in_batch(
                found.view, header, timestamp_ns, start=start, decrypt=decrypt
            )
            if offset is not None:
                return offset
    return None


def _offset_in_batch(
    view: memoryview, header: BatchHeader, wanted: int, *, start: int, decrypt: Decrypt
) -> int | None:
    """Return the offset of the batch's first record at or after the time; None if it has none."""
    if header.first_timestamp >= wanted and header.base_offset >= start:
        return header.base_offset
    try:
        plain = decrypt(view)
    except (UnavailableError, DecryptionError):
        # A broker has to start without the key. A result that is too early only costs time, and
        # reading there raises the error.
        return max(header.base_offset, start)
    for rows in decode_batches(plain, columns=["offset", "timestamp"]):
        times = rows.column(1).cast(pa.int64()).to_pylist()
        for offset, timestamp in zip(rows.column(0).to_pylist(), times, strict=True):
            if timestamp >= wanted and offset >= start:
                return int(offset)
    return None

"""Finding a record by its time.

The index of a segment pairs positions with the largest timestamp before them, so it works when
clocks step back: everything before the last entry whose key is under the wanted time is too old.

Rules: batches decide, the index only says where to begin; corruption is stepped over. Of the
columns of a batch only the timestamps are decoded, and only if the batch spans the wanted time.
"""

from collections.abc import Callable

import pyarrow as pa

from strandline.errors import DecryptionError, UnavailableError
from strandline.record.batch import BatchHeader, Buffer
from strandline.record.codec import decode_batches
from strandline.storage.segment import Segment
from strandline.storage.walk import walk

Opened = Callable[[Buffer], pa.Buffer]
"""Batches as they were before they were sealed, if they are."""


def first_record_at(
    segment: Segment, timestamp_ns: int, *, start: int, opened: Opened
) -> int | None:
    """Offset of the first record at or after ``timestamp_ns`` and ``start``, or None: not here."""
    times = segment.timestamps()
    if segment.max_timestamp < timestamp_ns:
        return None
    for found in walk(segment, times.below(timestamp_ns)[1]):
        header = found.header
        if header.last_timestamp >= timestamp_ns and header.next_offset > start:
            offset = _offset_in_batch(found.view, header, timestamp_ns, start=start, opened=opened)
            if offset is not None:
                return offset
    return None


def _offset_in_batch(
    view: memoryview, header: BatchHeader, wanted: int, *, start: int, opened: Opened
) -> int | None:
    """The first record of a batch that is late enough, or None."""
    if header.first_timestamp >= wanted and header.base_offset >= start:
        return header.base_offset
    try:
        plain = opened(view)
    except (UnavailableError, DecryptionError):
        # Whoever reads there is told. A broker has to start without the key, and to begin too
        # early costs it nothing but time.
        return max(header.base_offset, start)
    for rows in decode_batches(plain, columns=["offset", "timestamp"]):
        times = rows.column(1).cast(pa.int64()).to_pylist()
        for offset, timestamp in zip(rows.column(0).to_pylist(), times, strict=True):
            if timestamp >= wanted and offset >= start:
                return int(offset)
    return None

"""A window of recently stored message ids, so that a retry is stored once.

Rules: no clock. The times that callers pass come from a steady clock, which does not jump when the
wall clock is set. An id is remembered from the moment its record gets an offset, before it is
durable: a duplicate that arrives meanwhile waits for the same sync. An id whose record is not
stored is forgotten. Ids are forgotten in the order of their arrival, when the window has passed.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.errors import CorruptBatchError, OffsetOutOfRangeError
from strandline.record.batch import HEADER_BYTES, Attributes, BatchHeader, iter_headers
from strandline.record.codec import MESSAGE_ID_HEADER, as_id
from strandline.record.decode import BatchColumns
from strandline.storage.log import Log
from strandline.storage.scan import header_at
from strandline.types import Offset, TimestampNs

LOAD_READ_BYTES = 4 << 20
_ONLY_HEADERS = int(Attributes.HEADERS | Attributes.MESSAGE_IDS)
_ID_NAME = MESSAGE_ID_HEADER.encode()
_PAIR = struct.Struct("<ii")
VECTOR_RECORDS_MIN = 64


class DedupWindow:
    """Message id → offset, for the last ``window_ms``."""

    def __init__(self, window_ms: int) -> None:
        self._window_ns = window_ms * 1_000_000
        self._offsets: dict[str, Offset] = {}
        self._ages: deque[tuple[TimestampNs, str, Offset]] = deque()

    def __len__(self) -> int:
        return len(self._offsets)

    def find(self, message_id: str, now_ns: TimestampNs) -> Offset | None:
        """Return the offset stored under the id within the window, or None."""
        self.expire(now_ns)
        return self._offsets.get(message_id)

    def add(self, message_id: str, offset: Offset, now_ns: TimestampNs) -> None:
        """Remember the id of a record that has just got its offset."""
        if self._window_ns == 0:
            return
        self._offsets[message_id] = offset
        self._ages.append((now_ns, message_id, offset))
        self.expire(now_ns)

    def expire(self, now_ns: TimestampNs) -> None:
        """Forget ids older than the window."""
        horizon = now_ns - self._window_ns
        while self._ages and self._ages[0][0] < horizon:
            _, message_id, offset = self._ages.popleft()
            if self._offsets.get(message_id) == offset:
                del self._offsets[message_id]

    def forget_from(self, offset: Offset) -> None:
        """Forget the ids of records at ``offset`` and after, which were not stored."""
        while self._ages and self._ages[-1][2] >= offset:
            _, message_id, stored = self._ages.pop()
            if self._offsets.get(message_id) == stored:
                del self._offsets[message_id]

    def load(
        self,
        log: Log,
        now_ns: TimestampNs,
        steady_ns: TimestampNs,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Fill the window with the ids that the log stored within it, in the order of offsets.

        A record cannot be older than the one before it. A timestamp that is ahead of the clock, or
        earlier than the one before, comes from a wrong clock: such a record gets the time of the
        one before.

        Batches without message ids are skipped by their header. Loading takes about a microsecond
        for each record with an id, and about six in batches of one record.
        """
        horizon_ns = now_ns - self._window_ns
        newest_ns = horizon_ns - 1

        def advance(timestamp_ns: TimestampNs) -> None:
            nonlocal newest_ns
            if newest_ns < timestamp_ns <= now_ns:
                newest_ns = timestamp_ns

        def remember(timestamp_ns: TimestampNs, message_id: str, offset: Offset) -> None:
            advance(timestamp_ns)
            if newest_ns >= horizon_ns:
                self._offsets[message_id] = offset
                stored_ns = TimestampNs(steady_ns - (now_ns - newest_ns))
                self._ages.append((stored_ns, message_id, offset))

        offset = log.offset_since(TimestampNs(horizon_ns))
        while offset < log.log_end_offset and is_wanted():
            try:
                found = log.read(offset, LOAD_READ_BYTES)
            except CorruptBatchError as corruption:  # the ids of this batch are lost
                offset = Offset(max(corruption.next_offset, offset + 1))
                continue
            except OffsetOutOfRangeError:
                if offset >= log.log_start_offset:
                    raise
                offset = log.log_start_offset  # retention deleted the records meanwhile
                continue
            buffer = log.decrypted(found.buffer)
            view = memoryview(buffer)
            for position, header in iter_headers(view):
                if header.attributes == _ONLY_HEADERS and _is_single(header):
                    message_id = _id_of_single(view, position, header)
                    if message_id:
                        stamp = header.first_timestamp
                        remember(stamp, as_id(message_id), header.base_offset)
                elif header.attributes & Attributes.MESSAGE_IDS:
                    for stored in _message_ids(BatchColumns(buffer, position)):
                        remember(*stored)
                else:
                    advance(header.last_timestamp)
                offset = header.next_offset
            if not buffer.size:
                offset = found.next_offset


def load_window(
    log: Log,
    window_ms: int,
    now_ns: TimestampNs,
    *,
    steady_ns: TimestampNs | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> DedupWindow:
    """Return the window of a partition as it was before a restart, loaded from its log; any thread.

    Args:
        log: the log of the partition; while this runs, no record with an id is added.
        window_ms: how long ids are remembered.
        now_ns: the time by the wall clock, as in the records' timestamps.
        steady_ns: the time by the clock of ``find`` and ``add``; None: the wall clock.
        is_wanted: the load stops when this returns False.
    """
    window = DedupWindow(window_ms)
    steady_ns = now_ns if steady_ns is None else steady_ns
    window.load(log, now_ns, steady_ns, is_wanted=is_wanted)
    return window


def ends_with_ids(log: Log) -> bool:
    """Return whether the newest batch of a log has message ids; any thread.

    Raises:
        StrandlineError: the log cannot be read.
    """
    end = log.log_end_offset
    if end == log.log_start_offset:
        return False
    header = header_at(log.read(Offset(end - 1), HEADER_BYTES, verify=False).buffer, 0)
    return header is not None and bool(header.attributes & Attributes.MESSAGE_IDS)


def _is_single(header: BatchHeader) -> bool:
    """Whether a batch is plain and has one record, as slow publishers make them."""
    return header.record_count == 1 and header.codec == 0 and header.subject_count == 1


def _id_of_single(view: memoryview, position: int, header: BatchHeader) -> bytes:
    """Return the message id of the only record of a plain batch with headers; perhaps empty.

    Takes a tenth of the time of ``_message_ids``, since no Arrow arrays are made. The columns are
    those of docs/format.md; their checksum was verified.
    """
    at = position + HEADER_BYTES + 8 + _padded(header.subject_bytes)
    at += 8 + _padded(_PAIR.unpack_from(view, at)[1])
    count = _PAIR.unpack_from(view, at)[1]
    ends = struct.Struct(f"<{count + 1}i")
    names_at = at + 8 + _padded(ends.size)
    names = ends.unpack_from(view, at + 8)
    items_at = names_at + _padded(names[-1]) + _padded(ends.size)
    items = ends.unpack_from(view, items_at - _padded(ends.size))
    for n in range(count):
        is_id = view[names_at + names[n] : names_at + names[n + 1]] == _ID_NAME
        if is_id and items[n] < items[n + 1]:
            return bytes(view[items_at + items[n] : items_at + items[n + 1]])
    return b""


def _padded(size: int) -> int:
    """Return a column's length with its padding."""
    return size + -size % 8


def _message_ids(batch: BatchColumns) -> Iterator[tuple[TimestampNs, str, Offset]]:
    """Yield (timestamp, id, offset) of the records with an id; the first id of a record counts."""
    headers = batch.headers()
    if len(headers) < VECTOR_RECORDS_MIN:
        places, ids = _ids_one_by_one(headers)
    else:
        places, ids = _ids_at_once(headers)
    offsets = batch.offset().to_numpy()[places].tolist()
    times = batch.timestamp().cast(pa.int64()).to_numpy()[places].tolist()
    for time_ns, message_id, offset in zip(times, ids, offsets, strict=True):
        yield time_ns, as_id(message_id), offset


def _ids_one_by_one(headers: pa.Array) -> tuple[list[int], list[bytes]]:
    """Return the rows with an id, and the ids; faster than ``_ids_at_once`` for few records."""
    found = {
        place: value
        for place, pairs in enumerate(headers.to_pylist())
        for name, value in reversed(pairs or ())
        if name == MESSAGE_ID_HEADER and value
    }
    return list(found), list(found.values())


def _ids_at_once(headers: pa.Array) -> tuple[list[int], list[bytes]]:
    """Return the rows with an id, and the ids, without a Python object for each header."""
    is_id = pc.equal(headers.keys, MESSAGE_ID_HEADER)
    is_id = pc.and_(is_id, pc.greater(pc.binary_length(headers.items), 0))
    pairs = pc.indices_nonzero(is_id).to_numpy()
    places = headers.offsets.to_numpy().searchsorted(pairs, side="right") - 1
    places, first = np.unique(places, return_index=True)
    return places.tolist(), headers.items.filter(is_id).take(pa.array(first)).to_pylist()

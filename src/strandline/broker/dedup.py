"""Which message ids a partition has stored lately, so that a retry is stored once.

Rules: no clock. An id is remembered from the moment its record gets an offset, before it is
durable: a duplicate that arrives meanwhile waits for the same sync. A record that is not stored is
forgotten. Ids leave in the order they came, when the window has passed.
"""

from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from strandline.record.batch import Attributes, iter_headers
from strandline.record.codec import MESSAGE_ID_HEADER, decode_batches
from strandline.storage.log import Log
from strandline.types import Offset, TimestampNs

LOAD_READ_BYTES = 4 << 20


class DedupWindow:
    """Message id → offset, for the last ``window_ms``."""

    def __init__(self, window_ms: int) -> None:
        self._window_ns = window_ms * 1_000_000
        self._offsets: dict[str, Offset] = {}
        self._ages: deque[tuple[TimestampNs, str, Offset]] = deque()

    def __len__(self) -> int:
        return len(self._offsets)

    def find(self, message_id: str) -> Offset | None:
        """The offset stored under the id, or None."""
        return self._offsets.get(message_id)

    def add(self, message_id: str, offset: Offset, now_ns: TimestampNs) -> None:
        """Remember the id of a record that has just got its offset."""
        if self._window_ns == 0:
            return
        self._offsets[message_id] = offset
        self._ages.append((now_ns, message_id, offset))
        self.expire(now_ns)

    def expire(self, now_ns: TimestampNs) -> None:
        """Forget what is older than the window."""
        horizon = now_ns - self._window_ns
        while self._ages and self._ages[0][0] < horizon:
            _, message_id, offset = self._ages.popleft()
            if self._offsets.get(message_id) == offset:
                del self._offsets[message_id]

    def forget_from(self, offset: Offset) -> None:
        """Forget records at ``offset`` and after: they were not stored."""
        while self._ages and self._ages[-1][2] >= offset:
            _, message_id, stored = self._ages.pop()
            if self._offsets.get(message_id) == stored:
                del self._offsets[message_id]

    def _remember(self, timestamp_ns: TimestampNs, message_id: str, offset: Offset) -> None:
        """Take an id that the log holds."""
        self._offsets[message_id] = offset
        self._ages.append((timestamp_ns, message_id, offset))

    def load(self, log: Log, now_ns: TimestampNs) -> None:
        """Fill from the records the log stored within the window, in offset order.

        Batches without message ids are skipped by their header. Blocks for about a microsecond a
        record that has an id.
        """
        offset = log.offset_for_timestamp(TimestampNs(now_ns - self._window_ns))
        while offset < log.log_end_offset:
            found = log.read(offset, LOAD_READ_BYTES)
            for position, header in iter_headers(found.buffer):
                if header.attributes & Attributes.MESSAGE_IDS:
                    for stored in _message_ids(found.buffer[position : position + header.length]):
                        self._remember(*stored)
            offset = found.next_offset


def load_window(log: Log, window_ms: int, now_ns: TimestampNs) -> DedupWindow:
    """The window of a partition whose log is ``log``, as it was before a restart."""
    window = DedupWindow(window_ms)
    window.load(log, now_ns)
    return window


def _message_ids(batch: memoryview) -> Iterator[tuple[TimestampNs, str, Offset]]:
    """(timestamp, id, offset) of the records of a batch that have an id."""
    for rows in decode_batches(batch, columns=("offset", "timestamp", "headers")):
        offsets = rows.column(0).to_pylist()
        times = rows.column(1).cast(pa.int64()).to_pylist()
        for offset, time_ns, pairs in zip(offsets, times, rows.column(2).to_pylist(), strict=True):
            for name, value in pairs or ():
                if name == MESSAGE_ID_HEADER:
                    yield TimestampNs(time_ns), value.decode(errors="replace"), Offset(offset)

"""The state of streams: how many records they have and where they begin; on threads.

Rules: an uncompacted log has a record at every offset, except for those that transactions hide,
    which
its partition counts. The batches of a compacted log have gaps, so their headers are read. Counts of
sealed segments are remembered. One request reads at most ``COUNT_BYTES_MAX``: a larger log is
counted by several requests.
"""

from typing import Final

import msgspec

from strandline.broker.read_path.subject_retention import RetainedSearch
from strandline.broker.write_path.partition import Partition
from strandline.record.batch import read_header
from strandline.record.decode import walk
from strandline.record.visible import always_committed, visible_stretches
from strandline.servers.nats.jetstream.errors import UNAVAILABLE, reject
from strandline.servers.nats.jetstream.records import (
    message_at,
    newest_offset,
    next_message,
    open_cursor,
)
from strandline.servers.nats.jetstream.times import ZERO_TIME, format_time
from strandline.storage.segment import Segment
from strandline.types import LogId, Offset

COUNT_BYTES_MAX: Final = 1 << 30
READ_BYTES: Final = 16 << 20
SEGMENTS_MAX: Final = 65_536


class StreamState(msgspec.Struct, kw_only=True):
    """The ``state`` of a stream in an answer."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: str = ZERO_TIME
    last_seq: int = 0
    last_ts: str = ZERO_TIME
    num_deleted: int = 0
    consumer_count: int = 0
    subjects: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


def summed_state(states: list[StreamState]) -> StreamState:
    """Return the total state of several partitions; the sequences become counts.

    As in one partition, there are ``last_seq - first_seq + 1`` messages, less ``num_deleted``.
    """
    filled = [each for each in states if each.messages]
    begun = [each for each in states if each.last_seq]
    return StreamState(
        messages=sum(each.messages for each in states),
        bytes=sum(each.bytes for each in states),
        first_seq=sum(each.first_seq - 1 for each in begun) + 1 if begun else 0,
        first_ts=min((each.first_ts for each in filled), default=ZERO_TIME),
        last_seq=sum(each.last_seq for each in states),
        last_ts=max((each.last_ts for each in filled), default=ZERO_TIME),
        num_deleted=sum(each.num_deleted for each in states),
    )


class RecordCounter:
    """A counter of partitions' records that remembers the counts of sealed segments."""

    def __init__(self) -> None:
        self._known: dict[tuple[LogId, int, int, int], int] = {}

    def state(self, partition: Partition) -> StreamState:
        """Return the state of a partition.

        Raises:
            ApiRejection: the count is not complete; a repeated request continues it.
        """
        start, end = partition.log_start_offset, partition.last_stable_offset
        state = StreamState(bytes=partition.log.size_bytes, last_seq=end)
        first, newest = next_message(partition, start), newest_offset(partition)
        last = None if newest is None else message_at(partition, newest)
        if first is None or last is None:
            state.first_seq = end + 1 if end else 0
            return state
        state.first_seq, state.first_ts = first.sequence, format_time(first.time_ns)
        state.last_ts = format_time(last.time_ns)
        state.messages = self.count(partition, start, end)
        state.num_deleted = max(0, end - first.sequence + 1 - state.messages)
        return state

    def is_dense(self, partition: Partition) -> bool:
        """Return whether records can be counted without reading files."""
        return partition.retention is None and not partition.config.has_gaps

    def count(self, partition: Partition, start: int, end: int) -> int:
        """Return how many records readers see from ``start`` up to ``end``.

        Raises:
            ApiRejection: the count is not complete; a repeated request continues it.
        """
        if partition.retention is not None:
            return RetainedSearch(partition.retention, ()).count(start, end)[0]
        if not partition.config.has_gaps:
            return end - start - partition.hidden_between(start, end)
        count = read = 0
        for segment in partition.log.segments:
            first, last = max(start, segment.base_offset), min(end, segment.next_offset)
            if first >= last:
                continue
            if (first, last) != (segment.base_offset, segment.next_offset) or not segment.sealed:
                count += _count_offsets(partition, first, last)
                continue
            key = (partition.log_id, segment.base_offset, segment.next_offset, segment.size)
            if key not in self._known:
                read += segment.size
                if read > max(COUNT_BYTES_MAX, segment.size):
                    reject(UNAVAILABLE, "the records of a compacted stream are counted; ask again")
                if len(self._known) >= SEGMENTS_MAX:
                    self._known.clear()
                self._known[key] = _count_segment(partition, segment)
            count += self._known[key]
        return count


def _count_offsets(partition: Partition, start: int, end: int) -> int:
    """Count the records in a range of offsets one by one."""
    cursor, count = open_cursor(partition, start, end, columns=["offset"]), 0
    while cursor.has_more:
        count += sum(batch.num_rows for batch, _ in cursor.read())
    return count


def _count_segment(partition: Partition, segment: Segment) -> int:
    """Count the records of a whole segment by its batches' headers."""
    index = partition.transaction_index
    is_committed = always_committed if index is None else index.is_committed
    count, offset, end = 0, segment.base_offset, Offset(segment.next_offset)
    while offset < end:
        found = partition.log.read(offset, READ_BYTES, below=end, verify=False)
        for piece in visible_stretches(memoryview(found.buffer), is_committed):
            count += sum(read_header(piece, at).record_count for at, _ in walk(piece))
        if found.next_offset <= offset:
            break  # the segment has been truncated
        offset = found.next_offset
    return count

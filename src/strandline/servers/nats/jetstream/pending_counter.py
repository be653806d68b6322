"""The number of records that a consumer has not been sent yet."""

import threading
from typing import NamedTuple

from strandline.broker.write_path.partition import Partition
from strandline.servers.nats.jetstream.records import count_matching
from strandline.servers.nats.jetstream.starts import SubjectHeads
from strandline.servers.nats.jetstream.state import RecordCounter


class _Counted(NamedTuple):
    """The number of matching records in a half-open range of offsets."""

    start: int
    stop: int
    records: int


class PendingCounter:
    """A counter of the records that a consumer has not been sent yet.

    Args:
        partition: the partition.
        counter: counts records where there are no patterns.
        patterns: patterns of the records' subjects; if empty, all records count.
    """

    def __init__(
        self, partition: Partition, counter: RecordCounter, patterns: tuple[str, ...]
    ) -> None:
        self._partition = partition
        self._counter = counter
        self._patterns = patterns
        self._counted = _Counted(-1, -1, 0)
        self._lock = threading.Lock()
        """Held to replace the count, but never while files are read."""
        self.heads: SubjectHeads | None = None
        """The records that a consumer of the last record per subject begins with."""

    @property
    def reads_nothing(self) -> bool:
        """Whether counting needs no files, so that it is quick enough for the loop."""
        is_plain = not self._patterns and self.heads is None
        return is_plain and self._counter.is_dense(self._partition)

    def refresh(self, after: int) -> int:
        """Return how many records follow a sequence; reads records not counted yet; any thread."""
        if self.heads is None:
            return self._refresh(after)
        return self.heads.count_after(after) + self._refresh(max(after, self.heads.end))

    def _refresh(self, after: int) -> int:
        partition = self._partition
        first, end = max(after, partition.log_start_offset), partition.last_stable_offset
        if not self._patterns:
            return self._counter.count(partition, first, end) if first < end else 0
        if partition.retention is not None:  # records counted earlier may have been replaced
            return count_matching(partition, first, end, patterns=self._patterns)
        before = counted = self._counted
        if first != counted.start or end < counted.stop:
            counted = _Counted(first, first, 0)
        more = count_matching(partition, counted.stop, end, patterns=self._patterns)
        counted = _Counted(first, max(counted.stop, end), counted.records + more)
        with self._lock:
            if self._counted is before:  # otherwise a delivery or another thread has changed it
                self._counted = counted
        return counted.records

    def passed(self, after: int, count: int) -> None:
        """Note that ``count`` records up to a sequence were delivered."""
        if self.heads is not None and after <= self.heads.end:
            return
        with self._lock:
            _, stop, left = self._counted
            self._counted = _Counted(after, max(stop, after), max(0, left - count))

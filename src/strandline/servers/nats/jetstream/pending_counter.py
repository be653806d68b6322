"""The number of records that a consumer has still to get."""

from strandline.broker.write_path.partition import Partition
from strandline.servers.nats.jetstream.records import count_matching
from strandline.servers.nats.jetstream.starts import SubjectHeads
from strandline.servers.nats.jetstream.state import RecordCounter


class PendingCounter:
    """Counts the records that a consumer has still to get.

    Args:
        partition: of the records.
        counter: counts records without a filter.
        patterns: of the subjects; none: all records count.
    """

    def __init__(
        self, partition: Partition, counter: RecordCounter, patterns: tuple[str, ...]
    ) -> None:
        self._partition = partition
        self._counter = counter
        self._patterns = patterns
        self._from = self._to = -1
        self._count = 0
        self.heads: SubjectHeads | None = None
        """Those that a consumer of the last record per subject begins with."""

    def refresh(self, after: int) -> int:
        """Return how many records follow a sequence; reads only new ones; on a thread."""
        if self.heads is None:
            return self._refresh(after)
        return self.heads.count_after(after) + self._refresh(max(after, self.heads.end))

    def _refresh(self, after: int) -> int:
        partition = self._partition
        first, end = max(after, partition.log_start_offset), partition.last_stable_offset
        if not self._patterns:
            return self._counter.count(partition, first, end) if first < end else 0
        if partition.retention is not None:  # counted records may have been replaced since
            return count_matching(partition, first, end, patterns=self._patterns)
        if first != self._from or end < self._to:
            self._from = self._to = first
            self._count = 0
        self._count += count_matching(partition, self._to, end, patterns=self._patterns)
        self._to = max(self._to, end)
        return self._count

    def passed(self, after: int, count: int) -> None:
        """``count`` records up to a sequence were delivered."""
        if self.heads is not None and after <= self.heads.end:
            return
        self._from, self._count = after, max(0, self._count - count)
        self._to = max(self._to, after)

"""The record accumulator of a producer: collects records into one batch per partition.

Rules: pure; the caller passes the time and holds the lock. The records of one partition keep their
order. ``in_flight_batches`` keeps the batches that leave here.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar


class ProducerRecord(NamedTuple):
    """A record passed to a producer."""

    value: bytes | None
    key: bytes | None
    subject: str | None
    headers: list[tuple[str, bytes]] | None
    message_id: str | None


FutureT = TypeVar("FutureT")


class RecordProducerBatch(Generic[FutureT]):
    """The records of a batch of one partition, each with its future."""

    __slots__ = ("deadline_s", "futures", "has_ids", "partition", "records", "since_s", "size")

    def __init__(
        self, partition: int, *, now_s: float, deadline_s: float, has_ids: bool = False
    ) -> None:
        self.partition = partition
        self.records: list[ProducerRecord] = []
        self.futures: list[FutureT] = []
        self.size = 0
        self.since_s = now_s
        self.deadline_s = deadline_s
        self.has_ids = has_ids
        """Whether all records have a message id; otherwise none has."""

    @property
    def rows(self) -> int:
        """Return the number of records."""
        return len(self.records)


class RecordAccumulator(Generic[FutureT]):
    """Collects records into batches.

    Args:
        batch_bytes: a batch of this size is ready.
        batch_records: a batch of so many records is ready.
        linger_s: a batch of this age is ready.
        delivery_timeout_s: the time from a batch's first record to its deadline.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        batch_records: int,
        linger_s: float,
        delivery_timeout_s: float,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._open: dict[int, RecordProducerBatch[FutureT]] = {}
        self._ready: deque[RecordProducerBatch[FutureT]] = deque()
        self._sticky_partition = 0
        self.size = 0
        """The bytes of all records here, ready or not."""

    def __bool__(self) -> bool:
        """Whether there are any records."""
        return bool(self._open or self._ready)

    def sticky_partition(self, partitions: int) -> int:
        """Return the partition of a keyless record; the same as long as its batch is open."""
        if self._sticky_partition not in self._open:
            self._sticky_partition = (self._sticky_partition + 1) % partitions
        return self._sticky_partition

    def add(
        self, partition: int, record: ProducerRecord, future: FutureT, *, size: int, now_s: float
    ) -> bool:
        """Add a record; return whether that started or completed a batch, to wake the senders."""
        batch = self._open.get(partition)
        has_ids = record.message_id is not None
        is_first = batch is None or batch.has_ids != has_ids
        if batch is None or batch.has_ids != has_ids:
            self.seal(partition)  # brokers deduplicate a batch either by sequence or by ids
            batch = self._open[partition] = RecordProducerBatch(
                partition,
                now_s=now_s,
                deadline_s=now_s + self._delivery_timeout_s,
                has_ids=has_ids,
            )
        batch.records.append(record)
        batch.futures.append(future)
        batch.size += size
        self.size += size
        if batch.size >= self._batch_bytes or len(batch.records) >= self._batch_records:
            self.seal(partition)
            return True
        return is_first

    def seal(self, partition: int) -> None:
        """Make a partition's open batch ready, so that later records come after it."""
        batch = self._open.pop(partition, None)
        if batch is not None:
            self._ready.append(batch)

    def take_ready(
        self, now_s: float, *, everything: bool = False
    ) -> Iterator[RecordProducerBatch[FutureT]]:
        """Yield the batches that are ready, oldest first; with ``everything``, all batches."""
        for partition, batch in list(self._open.items()):
            if everything or now_s - batch.since_s >= self._linger_s:
                self.seal(partition)
        while self._ready:
            batch = self._ready.popleft()
            self.size -= batch.size
            yield batch

    def due_s(self) -> float | None:
        """Return the time at which the next open batch becomes ready; None if no batch is open."""
        if not self._open:
            return None
        return min(batch.since_s for batch in self._open.values()) + self._linger_s

"""Records into lots: a producer collects them per partition until a lot is large or old enough.

Rules: pure; the caller tells the time and holds the lock. Records of one partition never overtake
each other. What becomes of a lot then is the ``outbox``'s business.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar


class Record(NamedTuple):
    """One record as given to a producer."""

    value: bytes | None
    key: bytes | None
    subject: str | None
    headers: list[tuple[str, bytes]] | None
    message_id: str | None


FutureT = TypeVar("FutureT")


class RecordProducerBatch(Generic[FutureT]):
    """Records of one partition, with the future of each."""

    __slots__ = ("deadline_s", "futures", "has_ids", "partition", "records", "since_s", "size")

    def __init__(
        self, partition: int, *, now_s: float, deadline_s: float, has_ids: bool = False
    ) -> None:
        self.partition = partition
        self.records: list[Record] = []
        self.futures: list[FutureT] = []
        self.size = 0
        self.since_s = now_s
        self.deadline_s = deadline_s
        self.has_ids = has_ids
        """Whether each record has a message id, or none."""

    @property
    def rows(self) -> int:
        """How many records there are."""
        return len(self.records)


class BatchAccumulator(Generic[FutureT]):
    """Collects records into lots.

    Args:
        batch_bytes: a lot this large is ready.
        batch_records: a lot of this many records is ready.
        linger_s: a lot this old is ready.
        delivery_timeout_s: a lot's deadline is this long after its first record.
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
        self._turn = 0
        self.size = 0
        """Bytes held, ready or not."""

    def __bool__(self) -> bool:
        """Whether any record is held."""
        return bool(self._open or self._ready)

    def anywhere(self, partitions: int) -> int:
        """A partition for a record that any will do for: the next with each lot, so lots fill."""
        if self._turn not in self._open:
            self._turn = (self._turn + 1) % partitions
        return self._turn

    def add(
        self, partition: int, record: Record, future: FutureT, *, size: int, now_s: float
    ) -> bool:
        """Take a record; True if the holder should look: it began or completed a lot."""
        lot = self._open.get(partition)
        has_ids = record.message_id is not None
        is_first = lot is None or lot.has_ids != has_ids
        if lot is None or lot.has_ids != has_ids:
            self.seal(partition)  # brokers know either by their numbers or by their ids
            lot = self._open[partition] = RecordProducerBatch(
                partition,
                now_s=now_s,
                deadline_s=now_s + self._delivery_timeout_s,
                has_ids=has_ids,
            )
        lot.records.append(record)
        lot.futures.append(future)
        lot.size += size
        self.size += size
        if lot.size >= self._batch_bytes or len(lot.records) >= self._batch_records:
            self.seal(partition)
            return True
        return is_first

    def seal(self, partition: int) -> None:
        """Make what is open for a partition ready, so that what follows comes after it."""
        lot = self._open.pop(partition, None)
        if lot is not None:
            self._ready.append(lot)

    def take_ready(
        self, now_s: float, *, everything: bool = False
    ) -> Iterator[RecordProducerBatch[FutureT]]:
        """Hand out the lots that are ready, or all of them, oldest first."""
        for partition, lot in list(self._open.items()):
            if everything or now_s - lot.since_s >= self._linger_s:
                self.seal(partition)
        while self._ready:
            lot = self._ready.popleft()
            self.size -= lot.size
            yield lot

    def due_s(self) -> float | None:
        """The time at which the next open lot becomes ready; None if nothing is open."""
        if not self._open:
            return None
        return min(lot.since_s for lot in self._open.values()) + self._linger_s

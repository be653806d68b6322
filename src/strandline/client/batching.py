"""Records into lots, lots out in order: the bookkeeping of a producer.

``BatchAccumulator`` collects records per partition until a lot is large or old enough.
``Outbox`` holds lots from then until they are acknowledged: queued, then in flight, and back to the
queue, in order, when the connection is lost.

Rules: pure; the caller tells the time, holds the lock, and does what is asked. Records of one
partition never overtake each other.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar


class Record(NamedTuple):
    """One record as given to a producer."""

    value: bytes | None
    key: bytes | None
    subject: str | None
    headers: list[tuple[str, bytes]] | None
    message_id: str | None


FutureT = TypeVar("FutureT")


class Lot(Protocol):
    """What travels as one record batch to one partition."""

    partition: int
    size: int
    deadline_s: float


LotT = TypeVar("LotT", bound=Lot)


class RecordLot(Generic[FutureT]):
    """Records of one partition, with the future of each."""

    __slots__ = ("deadline_s", "futures", "partition", "records", "since_s", "size")

    def __init__(self, partition: int, *, now_s: float, deadline_s: float) -> None:
        self.partition = partition
        self.records: list[Record] = []
        self.futures: list[FutureT] = []
        self.size = 0
        self.since_s = now_s
        self.deadline_s = deadline_s


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
        self._open: dict[int, RecordLot[FutureT]] = {}
        self._ready: deque[RecordLot[FutureT]] = deque()
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
        is_first = lot is None
        if lot is None:
            deadline_s = now_s + self._delivery_timeout_s
            lot = self._open[partition] = RecordLot(partition, now_s=now_s, deadline_s=deadline_s)
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

    def take_ready(self, now_s: float, *, everything: bool = False) -> Iterator[RecordLot[FutureT]]:
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


class Outbox(Generic[LotT]):
    """Lots on their way.

    Args:
        window_bytes: no more than about this is in flight.
        window_lots: no more lots than this are in flight.
    """

    def __init__(self, *, window_bytes: int, window_lots: int) -> None:
        self._window_bytes = window_bytes
        self._window_lots = window_lots
        self._queued: deque[tuple[int, LotT]] = deque()
        self._in_flight: OrderedDict[int, LotT] = OrderedDict()
        self._bytes_in_flight = 0
        self._next_sequence = 0
        self.size = 0
        """Bytes held, queued or in flight."""

    def __bool__(self) -> bool:
        """Whether any lot is held."""
        return bool(self._queued or self._in_flight)

    @property
    def next_sequence(self) -> int:
        """The number of the next lot put; all before it have smaller ones."""
        return self._next_sequence

    def holds_below(self, sequence: int) -> bool:
        """Whether any lot with a smaller number is held."""
        if self._queued and self._queued[0][0] < sequence:
            return True
        return any(number < sequence for number in self._in_flight)

    @property
    def in_flight(self) -> int:
        """Lots in flight."""
        return len(self._in_flight)

    def put(self, lot: LotT) -> None:
        """Take a lot; it goes out after those taken before."""
        self._queued.append((self._next_sequence, lot))
        self._next_sequence += 1
        self.size += lot.size

    def send(self) -> tuple[int, LotT] | None:
        """The next lot to send, now in flight; None while the window is full or nothing waits."""
        if not self._queued:
            return None
        if self._in_flight:
            size = self._bytes_in_flight + self._queued[0][1].size
            if size > self._window_bytes or len(self._in_flight) >= self._window_lots:
                return None
        sequence, lot = self._queued.popleft()
        self._in_flight[sequence] = lot
        self._bytes_in_flight += lot.size
        return sequence, lot

    def answered(self, sequence: int) -> LotT | None:
        """Let go of the lot of an ack; None if it has been given up meanwhile."""
        lot = self._in_flight.pop(sequence, None)
        if lot is not None:
            self._bytes_in_flight -= lot.size
            self.size -= lot.size
        return lot

    def rewind(self) -> None:
        """The connection is lost: what is in flight must be sent again, first and in order."""
        self._queued.extendleft(sorted(self._in_flight.items(), key=_sequence, reverse=True))
        self._in_flight.clear()
        self._bytes_in_flight = 0

    def expire(self, now_s: float) -> list[tuple[LotT, bool]]:
        """Give up lots past their deadline; returns each and whether it was in flight."""
        expired = [(s, lot) for s, lot in self._in_flight.items() if lot.deadline_s <= now_s]
        gone = [(lot, True) for sequence, lot in expired if self.answered(sequence) is lot]
        while self._queued and self._queued[0][1].deadline_s <= now_s:
            _, lot = self._queued.popleft()
            self.size -= lot.size
            gone.append((lot, False))
        return gone

    def drop_all(self) -> list[LotT]:
        """Give up everything."""
        lots = [*self._in_flight.values(), *(lot for _, lot in self._queued)]
        self._in_flight.clear()
        self._queued.clear()
        self._bytes_in_flight = self.size = 0
        return lots


def _sequence(item: tuple[int, object]) -> int:
    return item[0]

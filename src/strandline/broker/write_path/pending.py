"""Records that have an offset and wait for the next group commit: chunks, each to become a batch.

A chunk is either records that arrived one by one or an Arrow batch that arrived whole. Chunks keep
the order in which the partition accepted them.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.checksum import crc32c
from strandline.config import Acks
from strandline.errors import StrandlineError
from strandline.record.batch import Attributes
from strandline.record.codec import (
    BATCH_RECORDS_MAX,
    NOBODY,
    Headers,
    Stamp,
    encode_arrow,
    encode_records,
)
from strandline.speedups import encode_record
from strandline.storage.subject_history import format_purge
from strandline.types import Offset, PartitionName, ProducerStamp, TimestampNs

CHUNK_BYTES_MAX = 4 << 20
TIME_AHEAD_NS_MAX = 1_000_000_000
"""The most that batch times stay ahead of a clock that was set back; then they follow it."""
TIMES_KEPT = 8
"""More than the batches of a partition that are on their way to other replicas."""
MARKER_SUBJECT = "_"
"""The subject of a marker's batch: a batch must have one, but readers never see a marker."""


class AckSink(Protocol):
    """Receives the outcome of each append that names it, on the loop's thread.

    Calls must not raise and must not block: queue output, and send it when the broker says so
    (``Broker.on_answered``).
    """

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Receive the ack of an append; ``offset`` is that of its first record.

        ``duplicate``: the record was stored earlier, under the same message id.
        """
        ...

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Receive an error: the append was not stored, or may be after a failed write or sync."""
        ...


class CommitWaiter:
    """An ack sink that waits for one append."""

    def __init__(self) -> None:
        self._stored: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()

    def acked(
        self,
        token: object,  # noqa: ARG002  the ack sink's signature
        partition: PartitionName,  # noqa: ARG002  see above
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  see above
    ) -> None:
        """Complete with the offset."""
        if not self._stored.done():
            self._stored.set_result(offset)

    def rejected(self, token: object, error: StrandlineError) -> None:  # noqa: ARG002  see above
        """Complete with the error."""
        if not self._stored.done():
            self._stored.set_exception(error)

    async def wait(self) -> Offset:
        """Return the record's offset once it is as safe as required.

        Raises:
            StrandlineError: the record was rejected, or it is unknown whether it was stored.
        """
        return await self._stored


class ChunkAckSink(AckSink, Protocol):
    """An ack sink for records that are accepted in chunks."""

    def acked_many(
        self, tokens: Sequence[object], partition: PartitionName, offset: Offset
    ) -> None:
        """Receive the acks of consecutive records, the first at ``offset``.

        The token None stands for a record whose publisher asked for no ack.
        """
        ...


class AckWaiter(msgspec.Struct):
    """The receiver of the ack for the record at ``offset``."""

    ack_sink: AckSink
    token: object
    offset: Offset
    duplicate: bool = False

    def acked(self, partition: PartitionName) -> int:
        """Acknowledge the record; return the number of acks."""
        self.ack_sink.acked(self.token, partition, self.offset, duplicate=self.duplicate)
        return 1

    def rejected(self, error: StrandlineError) -> None:
        """Report that the record was not stored, or that this is unknown."""
        self.ack_sink.rejected(self.token, error)


class AckRun(msgspec.Struct):
    """The receiver of the acks for consecutive records, the first at ``offset``.

    The token None stands for a record whose publisher asked for no ack.
    """

    ack_sink: ChunkAckSink
    tokens: Sequence[object]
    offset: Offset

    def acked(self, partition: PartitionName) -> int:
        """Acknowledge the records; return the number of acks."""
        self.ack_sink.acked_many(self.tokens, partition, self.offset)
        return len(self.tokens) - self.tokens.count(None)

    def rejected(self, error: StrandlineError) -> None:
        """Report that the records were not stored, or that this is unknown."""
        for token in self.tokens:
            if token is not None:
                self.ack_sink.rejected(token, error)


Waiting = AckWaiter | AckRun


class PendingRecords(msgspec.Struct, eq=False):
    """Records that arrived one by one, as columns."""

    base_offset: Offset
    count: int = 0
    values: list[bytes | None] = msgspec.field(default_factory=list)
    subjects: list[str] = msgspec.field(default_factory=list)
    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    waiting: list[Waiting] = msgspec.field(default_factory=list)
    early: list[Waiting] | None = None
    on_disk: list[Waiting] | None = None
    size: int = 0

    @property
    def is_transactional(self) -> bool:
        """Always False: records that arrive one by one belong to no transaction."""
        return False

    def add(self, value: bytes | None, subject: str) -> None:
        """Add a record without key or headers."""
        self.count += 1
        self.values.append(value)
        self.subjects.append(subject)
        if self.keys is not None:
            self.keys.append(None)
        if self.headers is not None:
            self.headers.append(None)

    def add_many(self, values: Sequence[bytes], subjects: Sequence[str]) -> None:
        """Add records without key or headers.

        Args:
            values: at least one value.
            subjects: one for each record, or one for all.
        """
        count = len(values)
        self.count += count
        self.values += values
        self.subjects += subjects if len(subjects) == count else [subjects[0]] * count
        if self.keys is not None:
            self.keys += [None] * count
        if self.headers is not None:
            self.headers += [None] * count

    def decorate(self, key: bytes | None, headers: Headers | None) -> None:
        """Set the key and headers of the record added last."""
        before = len(self.values) - 1
        if key is not None:
            if self.keys is None:
                self.keys = [None] * (before + 1)
            self.keys[before] = key
        if headers:
            if self.headers is None:
                self.headers = [None] * (before + 1)
            self.headers[before] = headers

    def encode(self, stamp: Stamp) -> bytes | bytearray:
        """Encode the chunk as a batch."""
        value = self.values[0]
        is_plain = self.count == 1 and self.keys is None and self.headers is None
        if is_plain and value is not None and stamp.compression == "none":
            # A hundred of these in a group commit.
            return encode_record(
                value,
                self.subjects[0].encode(),
                crc32c,
                base_offset=stamp.base_offset,
                leader_epoch=stamp.leader_epoch,
                timestamp_ns=stamp.timestamp_ns,
            )
        return encode_records(
            self.values, self.subjects, stamp, keys=self.keys, headers=self.headers
        )


class PendingArrowBatch:
    """Records that arrived as one Arrow batch."""

    __slots__ = (
        "attributes",
        "base_offset",
        "batch",
        "default_subject",
        "early",
        "on_disk",
        "producer",
        "size",
        "waiting",
    )

    def __init__(self, base_offset: Offset, batch: pa.RecordBatch, default_subject: str) -> None:
        self.base_offset = base_offset
        self.batch = batch
        self.default_subject = default_subject
        self.producer: ProducerStamp = NOBODY
        self.attributes = 0
        self.size = int(batch.nbytes)
        self.waiting: list[Waiting] = []
        self.early: list[Waiting] | None = None
        self.on_disk: list[Waiting] | None = None

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction: its ack then waits until it is committed."""
        return bool(self.attributes)

    @property
    def count(self) -> int:
        """The number of records in the chunk."""
        return int(self.batch.num_rows)

    def encode(self, stamp: Stamp) -> bytearray:
        """Encode the chunk as a batch."""
        stamp = replace(stamp, producer=self.producer, attributes=self.attributes)
        return encode_arrow(self.batch, stamp, default_subject=self.default_subject)


class PendingMarker:
    """The marker that begins or ends a transaction."""

    __slots__ = (
        "attributes",
        "base_offset",
        "early",
        "on_disk",
        "producer",
        "size",
        "waiting",
    )

    def __init__(self, base_offset: Offset, producer: ProducerStamp, attributes: int) -> None:
        self.base_offset = base_offset
        self.producer = producer
        self.attributes = attributes
        self.size = 0
        self.waiting: list[Waiting] = []
        self.early: list[Waiting] | None = None
        self.on_disk: list[Waiting] | None = None

    @property
    def is_transactional(self) -> bool:
        """Always True: a marker begins or ends a transaction."""
        return True

    @property
    def count(self) -> int:
        """Always 1: a marker takes one offset, which readers never see."""
        return 1

    def encode(self, stamp: Stamp) -> bytearray:
        """Encode the marker as a batch."""
        stamp = replace(stamp, producer=self.producer, attributes=self.attributes)
        return encode_records([b""], [MARKER_SUBJECT], stamp)


class PendingPurge(PendingMarker):
    """A pending purge: removes the records below an offset whose subjects match a pattern."""

    __slots__ = ("_below", "_pattern")

    def __init__(self, base_offset: Offset, pattern: str, below: Offset) -> None:
        super().__init__(base_offset, NOBODY, int(Attributes.PURGE))
        self._pattern = pattern
        self._below = below

    def encode(self, stamp: Stamp) -> bytearray:
        """Encode the purge as a batch."""
        stamp = replace(stamp, attributes=self.attributes)
        return encode_records([format_purge(self._below)], [self._pattern], stamp)


Chunk = PendingRecords | PendingArrowBatch | PendingMarker


class PendingQueue:
    """The accepted records of one partition that no group commit has taken yet, in order."""

    __slots__ = ("_open", "batches")

    def __init__(self) -> None:
        self.batches: list[Chunk] = []
        self._open: PendingRecords | None = None

    def add_record(self, offset: Offset, value: bytes | None, subject: str) -> PendingRecords:
        """Add a record without key and headers; return its batch."""
        batch = self._open
        if batch is None or batch.size >= CHUNK_BYTES_MAX or batch.count == BATCH_RECORDS_MAX:
            batch = self._open = PendingRecords(offset, 1, [value], [subject])
            self.batches.append(batch)
        else:
            batch.add(value, subject)
        return batch

    def open_batch(self, base_offset: Offset, records: int = 1) -> PendingRecords:
        """Return the batch to which records from ``base_offset`` on can be added.

        Args:
            base_offset: the offset of the first of them.
            records: how many will be added.
        """
        batch = self._open
        if (
            batch is None
            or batch.size >= CHUNK_BYTES_MAX
            or batch.count + records > BATCH_RECORDS_MAX
        ):
            batch = self._open = PendingRecords(base_offset)
            self.batches.append(batch)
        return batch

    def add(self, batch: Chunk) -> None:
        """Add a batch to which no record can be added."""
        self.batches.append(batch)
        self._open = None

    def take(self, bytes_max: int, records_max: int) -> tuple[list[Chunk], int, int]:
        """Take batches for a group commit: at least one, and no more than the limits allow.

        Returns:
            The batches, their bytes, and their records.
        """
        if len(self.batches) == 1:  # the usual case
            [batch], self._open = self.batches, None
            batches, self.batches = self.batches, []
            return batches, batch.size, batch.count
        taken, size, records = 0, 0, 0
        for batch in self.batches:
            next_size, next_records = size + batch.size, records + batch.count
            if taken and (next_size > bytes_max or next_records > records_max):
                break
            taken, size, records = taken + 1, next_size, next_records
        batches, self.batches = self.batches[:taken], self.batches[taken:]
        if not self.batches:
            self._open = None
        return batches, size, records

    def clear(self) -> list[Chunk]:
        """Take all batches."""
        batches, self.batches = self.batches, []
        self._open = None
        return batches

    def holder_of(self, offset: Offset) -> Chunk:
        """Return the pending batch that has the record at ``offset``."""
        return next(batch for batch in reversed(self.batches) if batch.base_offset <= offset)


class BatchTimes:
    """The times of a partition's batches; they stay steady if a clock is set back a little."""

    __slots__ = ("_last", "_newest")

    def __init__(self) -> None:
        self._last = TimestampNs(0)
        self._newest: deque[tuple[Offset, Offset, TimestampNs]] = deque(maxlen=TIMES_KEPT)
        """The first offset, the end offset and the time of the batches written last."""

    def next(self, base_offset: Offset, next_offset: Offset, now_ns: TimestampNs) -> TimestampNs:
        """Return the time of the next batch, and remember it.

        If the batch is not stored, the one that gets its offsets is found before it.
        """
        if 0 < self._last - now_ns <= TIME_AHEAD_NS_MAX:
            now_ns = self._last
        self._last = now_ns
        self._newest.append((base_offset, next_offset, now_ns))
        return now_ns

    def find(self, offset: Offset) -> TimestampNs | None:
        """Return the time of a record; None if its batch is not among the newest."""
        for base, end, time_ns in reversed(self._newest):
            if base <= offset < end:
                return time_ns
        return None


def extra_bytes(key: bytes | None, headers: Headers | None) -> int:
    """Return the bytes of a record's key and headers."""
    size = len(key) if key is not None else 0
    for name, value in headers or ():
        size += len(name) + len(value)
    return size


def waiters_at(chunk: Chunk, acks: Acks | None, full: Acks) -> list[Waiting]:
    """Return a batch's waiters for a level of acks; ``full`` is the stream's level."""
    if acks == "memory":
        chunk.early = chunk.early or []
        return chunk.early
    if acks == "disk" and full == "replicated":
        chunk.on_disk = chunk.on_disk or []
        return chunk.on_disk
    return chunk.waiting


def reject_waiting(chunks: Iterable[Chunk], error: StrandlineError) -> None:
    """Reject all records of chunks; forget the waiters, so that none is notified twice."""
    for chunk in chunks:
        waiting = [*(chunk.early or ()), *(chunk.on_disk or ()), *chunk.waiting]
        chunk.early = chunk.on_disk = None
        chunk.waiting.clear()
        for each in waiting:
            each.rejected(error)

"""Records that have an offset and wait for the next turn: chunks, each to become one batch.

A chunk is either records that came one by one or an Arrow batch that came whole; chunks keep the
order in which the partition accepted them.
"""

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from strandline.broker.write_path.ack_sink import AckSink
from strandline.errors import StrandlineError
from strandline.record.codec import (
    BATCH_RECORDS_MAX,
    NOBODY,
    Headers,
    Stamp,
    encode_arrow,
    encode_one,
    encode_records,
)
from strandline.types import Offset, ProducerStamp

CHUNK_BYTES_MAX = 4 << 20
MARKER_SUBJECT = "_"
"""A batch has a subject; nobody sees that of a marker."""


class AckWaiter(NamedTuple):
    """The receiver of the ack for the record at ``offset``."""

    ack_sink: AckSink
    token: object
    offset: Offset
    duplicate: bool = False


class PendingRecords:
    """Records that came one by one, as columns."""

    __slots__ = (
        "base_offset",
        "early",
        "headers",
        "keys",
        "on_disk",
        "size",
        "subjects",
        "values",
        "waiting",
    )

    def __init__(self, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self.values: list[bytes | None] = []
        self.subjects: list[str] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.waiting: list[AckWaiter] = []
        self.early: list[AckWaiter] = []
        self.on_disk: list[AckWaiter] = []
        self.size = 0

    @property
    def is_transactional(self) -> bool:
        """Never: records that come one by one belong to no transaction."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether the next record belongs into another chunk."""
        return self.size >= CHUNK_BYTES_MAX or len(self.values) >= BATCH_RECORDS_MAX

    @property
    def count(self) -> int:
        """Records in the chunk."""
        return len(self.values)

    def add(self, value: bytes | None, subject: str) -> None:
        """Take a record without key and headers."""
        self.values.append(value)
        self.subjects.append(subject)
        if self.keys is not None:
            self.keys.append(None)
        if self.headers is not None:
            self.headers.append(None)

    def decorate(self, key: bytes | None, headers: Headers | None) -> None:
        """Give the record just taken its key and headers."""
        before = len(self.values) - 1
        if key is not None:
            if self.keys is None:
                self.keys = [None] * (before + 1)
            self.keys[before] = key
        if headers:
            if self.headers is None:
                self.headers = [None] * (before + 1)
            self.headers[before] = headers

    def encode(self, stamp: Stamp) -> bytearray:
        """The chunk as a batch."""
        value = self.values[0]
        is_plain = len(self.values) == 1 and self.keys is None and self.headers is None
        if is_plain and value is not None and stamp.compression == "none":
            return encode_one(value, self.subjects[0], stamp)
        return encode_records(
            self.values, self.subjects, stamp, keys=self.keys, headers=self.headers
        )


class PendingArrowBatch:
    """Records that came as one Arrow batch."""

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
        self.waiting: list[AckWaiter] = []
        self.early: list[AckWaiter] = []
        self.on_disk: list[AckWaiter] = []

    @property
    def is_full(self) -> bool:
        """Always: an Arrow batch stays as it came."""
        return True

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction: then nobody hears of it before it is committed."""
        return bool(self.attributes)

    @property
    def count(self) -> int:
        """Records in the chunk."""
        return int(self.batch.num_rows)

    def encode(self, stamp: Stamp) -> bytearray:
        """The chunk as a batch."""
        stamp = stamp._replace(producer=self.producer, attributes=self.attributes)
        return encode_arrow(self.batch, stamp, default_subject=self.default_subject)


class PendingMarker:
    """The beginning or the end of a transaction."""

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
        self.waiting: list[AckWaiter] = []
        self.early: list[AckWaiter] = []
        self.on_disk: list[AckWaiter] = []

    @property
    def is_full(self) -> bool:
        """Always: nothing else is in its batch."""
        return True

    @property
    def is_transactional(self) -> bool:
        """Always: it begins or ends a transaction."""
        return True

    @property
    def count(self) -> int:
        """One, which readers never see."""
        return 1

    def encode(self, stamp: Stamp) -> bytearray:
        """The chunk as a batch."""
        stamp = stamp._replace(producer=self.producer, attributes=self.attributes)
        return encode_records([b""], [MARKER_SUBJECT], stamp)


Chunk = PendingRecords | PendingArrowBatch | PendingMarker


class PendingQueue:
    """The accepted records of one partition that no group commit has taken yet, in order."""

    __slots__ = ("_open", "batches")

    def __init__(self) -> None:
        self.batches: list[Chunk] = []
        self._open: PendingRecords | None = None

    def open_batch(self, base_offset: Offset) -> PendingRecords:
        """Return the batch that the record at ``base_offset`` joins, or begins."""
        batch = self._open
        if batch is None or batch.is_full:
            batch = self._open = PendingRecords(base_offset)
            self.batches.append(batch)
        return batch

    def add(self, batch: Chunk) -> None:
        """Add a batch that no further record joins."""
        self.batches.append(batch)
        self._open = None

    def take(self, bytes_max: int, records_max: int) -> tuple[list[Chunk], int, int]:
        """Take batches for a group commit, at least one, up to so many bytes and records.

        Returns:
            The batches, how many bytes they have and how many records.
        """
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
        """Take everything."""
        batches, self.batches = self.batches, []
        self._open = None
        return batches

    def holder_of(self, offset: Offset) -> Chunk:
        """Return the batch with the record at ``offset``, which is pending."""
        return next(batch for batch in reversed(self.batches) if batch.base_offset <= offset)


def reject_waiting(chunks: Iterable[Chunk], error: StrandlineError) -> None:
    """Tell everyone who waits for the chunks, and forget them: nobody is told twice."""
    for chunk in chunks:
        waiting = [*chunk.early, *chunk.on_disk, *chunk.waiting]
        chunk.early.clear()
        chunk.on_disk.clear()
        chunk.waiting.clear()
        for each in waiting:
            each.ack_sink.rejected(each.token, error)

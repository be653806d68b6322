"""A producer: batches records, sends them pipelined, and gives a future for each.

Records reach the broker at least once and, per partition, in the order in which they were given.
After a lost connection what was not acknowledged is sent again until ``delivery_timeout_s``; give
message ids, or ``deduplicate=True``, to have a record sent twice stored once.

Threads: callers add records; one sender thread builds and writes batches; the ack thread of a
``PutStream`` resolves futures. One lock guards the accumulator and the outbox.
"""

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from strandline.client.batching import BatchAccumulator, Outbox, Record, RecordLot
from strandline.client.connection import Connection
from strandline.client.lots import (
    TableLot,
    TablePromise,
    batch_of,
    batches_from,
    pad,
    resolve_records,
)
from strandline.client.put_stream import PutStream
from strandline.client.results import Ack, AckFuture, BatchAck
from strandline.client.retry import Backoff, is_connection_loss
from strandline.config import Acks
from strandline.errors import (
    DisconnectedError,
    InvalidRecordError,
    InvalidRequestError,
    RecordTooLargeError,
    RequestTimeoutError,
    StrandlineError,
    UnknownPartitionError,
)
from strandline.protocol.admin import ServerInfo, StreamInfo
from strandline.protocol.put import BatchTag, PutAck, PutRequest, put_schema
from strandline.protocol.routing import Router
from strandline.record.subjects import validate_subject

Headers = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]
SomeLot = RecordLot[AckFuture[Ack]] | TableLot

BATCH_RECORDS_MAX = 32_768
WINDOW_BYTES = 16 << 20
WINDOW_LOTS = 64
RECORD_OVERHEAD_BYTES = 64
"""Counted for a record besides its bytes: what its Python objects weigh."""
KNOWN_SUBJECTS_MAX = 10_000
KEPT_FAILURES_MAX = 1000


class Producer:
    """Appends to one stream; safe to use from several threads. Use it as a context, or ``close``.

    Args:
        connection: to the broker.
        stream: to append to.
        server: whose limits hold.
        acks: what to wait for; None: the most the stream gives.
        linger_ms: how long a record may wait for others to share its batch.
        batch_bytes: size at which a batch is sent at once.
        buffer_bytes: what may be unacknowledged; ``append`` then waits.
        delivery_timeout_s: how long to try, and to wait for an ack.
        deduplicate: give every record without a message id one of ours.
    """

    def __init__(
        self,
        connection: Connection,
        stream: StreamInfo,
        *,
        server: ServerInfo,
        acks: Acks | None = None,
        linger_ms: float = 2.0,
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_s: float = 30.0,
        deduplicate: bool = False,
    ) -> None:
        if batch_bytes < 1 or buffer_bytes < 1 or linger_ms < 0 or delivery_timeout_s <= 0:
            raise InvalidRequestError("sizes and times of a producer must be positive")
        self._connection = connection
        self._request = PutRequest(stream=stream.name, acks=acks)
        self._record_bytes_max = server.record_bytes_max
        self._batch_bytes = min(batch_bytes, max(1, server.batch_bytes_max // 2))
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._router = Router(stream.config)
        self._spread = 0
        self._id_prefix = secrets.token_hex(8) if deduplicate else ""
        self._ids = 0
        self._subjects: set[str] = set()
        self._changed = threading.Condition()
        self._accumulator: BatchAccumulator[AckFuture[Ack]] = BatchAccumulator(
            batch_bytes=self._batch_bytes,
            batch_records=BATCH_RECORDS_MAX,
            linger_s=linger_ms / 1e3,
            delivery_timeout_s=delivery_timeout_s,
        )
        self._outbox: Outbox[SomeLot] = Outbox(window_bytes=WINDOW_BYTES, window_lots=WINDOW_LOTS)
        self._failures: list[tuple[AckFuture[Any], StrandlineError]] = []
        self._flushing = 0
        self._is_closing = False
        self._sender = Sender(self)
        self._sender.start()

    # Adding

    def append(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        subject: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: str | None = None,
    ) -> AckFuture[Ack]:
        """Append a record; the future gives its offset once it is safe.

        Args:
            value: the payload; None deletes its key when the stream is compacted. Text is UTF-8.
            key: for compaction and partitioning.
            subject: a plain NATS subject; by default the stream's.
            headers: a mapping, or (name, value) pairs to keep order and repeats.
            partition: where to append; by default as ``protocol.routing`` says.
            message_id: makes a repeat within the stream's window a duplicate.

        Raises:
            RecordTooLargeError: over the broker's limit.
            InvalidRecordError, InvalidSubjectError, UnknownPartitionError: as they say.
            RequestTimeoutError: the buffer stayed full for ``delivery_timeout_s``.
            DisconnectedError: the producer is closed.
        """
        record = self._record(value, key, subject=subject, headers=headers, message_id=message_id)
        size = _size_of(record)
        if size > self._record_bytes_max:
            raise RecordTooLargeError(
                f"record of {size} bytes; the broker's limits.record_bytes is "
                f"{self._record_bytes_max}"
            )
        future: AckFuture[Ack] = AckFuture()
        with self._changed:
            self._wait_for_room()
            number = self._partition(record, partition)
            if self._accumulator.add(
                number,
                record,
                future,
                size=size + RECORD_OVERHEAD_BYTES,
                now_s=time.monotonic(),
            ):
                self._spread += 1
                self._changed.notify_all()
        return future

    def append_batch(self, data: Any, *, partition: int | None = None) -> AckFuture[BatchAck]:
        """Append the rows of a table; the future gives where they went once all are safe.

        Args:
            data: column ``value``, perhaps ``key``, ``subject``, ``headers``, ``message_id``; a
                pyarrow table, batch or reader, or what has ``__arrow_c_stream__``.
            partition: where to append; by default each row goes as ``protocol.routing`` says.

        Raises:
            InvalidRecordError: columns that cannot be appended.
            UnknownPartitionError: the stream has no such partition.
            RequestTimeoutError, DisconnectedError: as ``append``.
        """
        if partition is not None:
            self._check_partition(partition)
        future: AckFuture[BatchAck] = AckFuture()
        batches = [
            self._with_ids(batch) for batch in batches_from(data, batch_bytes=self._batch_bytes)
        ]
        deadline_s = time.monotonic() + self._delivery_timeout_s
        lots = [
            TableLot(number, piece, deadline_s=deadline_s)
            for batch in batches
            for number, piece in self._split(batch, partition)
        ]
        if not lots:
            future.set_result(BatchAck(0, ()))
            return future
        rows = sum(batch.num_rows for batch in batches)
        promise = TablePromise(future, lots=len(lots), rows=rows)
        for lot in lots:
            lot.promise = promise
            with self._changed:
                self._wait_for_room()
                self._accumulator.seal(lot.partition)
                self._collect(time.monotonic())
                self._outbox.put(lot)
                self._changed.notify_all()
        return future

    def has_room(self) -> bool:
        """Whether ``append`` would not have to wait."""
        return self._accumulator.size + self._outbox.size < self._buffer_bytes

    def flush(self) -> None:
        """Send everything and wait until all of it is answered.

        Raises:
            StrandlineError: the first failure that nobody has looked at.
        """
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            while self._accumulator or self._outbox:
                self._changed.wait()
            self._flushing -= 1
            failures, self._failures = self._failures, []
        unseen = [error for future, error in failures if not future.seen]
        if unseen:
            error = unseen[0]
            if len(unseen) > 1:
                error.add_note(f"and {len(unseen) - 1} more records failed")
            raise error

    def close(self) -> None:
        """Flush and end; harmless when repeated.

        Raises:
            StrandlineError: the first failure that nobody has looked at.
        """
        try:
            self.flush()
        finally:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._sender.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StrandlineError as failure:
            if error is None:
                raise
            error.add_note(f"besides, records were not stored: {failure.message}")

    # Inside; the lock is held where a method says so

    def _record(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        *,
        subject: str | None,
        headers: Headers | None,
        message_id: str | None,
    ) -> Record:
        """A record in the types that travel."""
        if subject is not None and subject not in self._subjects:
            validate_subject(subject)
            if len(self._subjects) >= KNOWN_SUBJECTS_MAX:
                self._subjects.clear()
            self._subjects.add(subject)
        if message_id is None and self._id_prefix:
            with self._changed:
                self._ids += 1
                message_id = f"{self._id_prefix}-{self._ids}"
        return Record(
            _bytes(value, "value"),
            _bytes(key, "key"),
            subject,
            _pairs(headers) if headers else None,
            message_id,
        )

    def _with_ids(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with message ids of ours, if the producer deduplicates."""
        if not self._id_prefix or "message_id" in batch.schema.names:
            return batch
        with self._changed:
            first, self._ids = self._ids + 1, self._ids + batch.num_rows
        ids = [f"{self._id_prefix}-{number}" for number in range(first, self._ids + 1)]
        return batch.append_column("message_id", pa.array(ids[: batch.num_rows], pa.string()))

    def _partition(self, record: Record, given: int | None) -> int:
        """Where a record goes; the lock is held."""
        if given is not None:
            self._check_partition(given)
            return given
        return self._router.of_record(
            record.key, record.subject, message_id=record.message_id, spread=self._spread
        )

    def _check_partition(self, number: int) -> None:
        if not 0 <= number < self._router.partitions:
            raise UnknownPartitionError(
                f"stream {self._request.stream!r} has partitions 0 to "
                f"{self._router.partitions - 1}, not {number}"
            )

    def _split(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> list[tuple[int, pa.RecordBatch]]:
        """A batch by partition."""
        if partition is not None:
            return [(partition, batch)]
        self._spread += 1
        split = self._router.of_batch(batch, spread=self._spread)
        return [(number, piece) for number, piece, _ in split]

    def _wait_for_room(self) -> None:
        """Wait while the buffer is full; the lock is held."""
        deadline_s = None
        while True:
            if self._is_closing:
                raise DisconnectedError("this producer is closed; make another")
            if self.has_room():
                return
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + self._delivery_timeout_s
            if now_s >= deadline_s:
                raise RequestTimeoutError(
                    f"the buffer of {self._buffer_bytes} bytes stayed full for "
                    f"{self._delivery_timeout_s:g} s: the broker does not keep up"
                )
            self._changed.wait(deadline_s - now_s)

    def _collect(self, now_s: float) -> None:
        """Move what is ready from the accumulator to the outbox; the lock is held."""
        everything = self._flushing > 0 or self._is_closing
        for lot in self._accumulator.take_ready(now_s, everything=everything):
            self._outbox.put(lot)

    def _acked(self, ack: PutAck) -> None:
        """An ack came; on the ack thread."""
        with self._changed:
            lot = self._outbox.answered(ack.sequence)
        if lot is None:
            return
        if isinstance(lot, TableLot):
            lot.resolve(ack, self._failed)
        else:
            resolve_records(lot, ack, self._failed)
        with self._changed:
            self._changed.notify_all()

    def _give_up(self, lots: Sequence[SomeLot], error: StrandlineError) -> None:
        """Fail everything in ``lots``; without the lock."""
        for lot in lots:
            if isinstance(lot, TableLot):
                lot.promise.failed(error)
                lot.promise.settle(self._failed)
                continue
            for future in lot.futures:
                self._failed(future, error)
        with self._changed:
            self._changed.notify_all()

    def _failed(self, future: AckFuture[Any], error: StrandlineError) -> None:
        """Give a future its failure, and remember it for ``flush``."""
        with self._changed:
            if len(self._failures) < KEPT_FAILURES_MAX:
                self._failures.append((future, error))
        future.set_exception(error)


class Sender(threading.Thread):
    """The thread of a producer that writes batches and begins anew after a lost connection."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(name="strandline-producer", daemon=True)
        self._producer = producer
        self._changed = producer._changed  # noqa: SLF001 - two halves of one thing

"""A producer: batches records, pipelines the batches, and returns a future for each record.

Each record is stored once and, within a partition, in the order of the calls. An unacknowledged
batch is sent again, to the current leader, until ``delivery_timeout_s``; brokers deduplicate it by
its sequence. A restarted producer begins a new sequence; use message ids to deduplicate across
restarts.

This module checks and routes records; ``delivery`` sends them.
"""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, get_args

import msgspec
import pyarrow as pa

from strandline.api.admin import ServerInfo, StreamInfo
from strandline.api.put import PRODUCER_MEMORY_S, PutRequest
from strandline.api.routing import Router
from strandline.client.arguments import check_number, options_of, utf8, whole_number
from strandline.client.close_on_exit import ClosesOnExit
from strandline.client.cluster_client import ClusterClient
from strandline.client.producer.accumulator import ProducerRecord
from strandline.client.producer.delivery import DeliveryOptions, ProducerDelivery
from strandline.client.producer.table_batches import (
    TableAck,
    TableProducerBatch,
    batches_from,
    runs_of_ids,
)
from strandline.client.reader.results import Ack, AckFuture, BatchAck
from strandline.client.transactions.transaction_context import TransactionContext
from strandline.config import Acks
from strandline.errors import (
    InvalidRecordError,
    InvalidRequestError,
    RecordTooLargeError,
    UnknownPartitionError,
)
from strandline.record.subjects import validate_subject

Headers = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]

RECORD_OVERHEAD_BYTES = 64
"""The buffer space counted for a record's Python objects."""
KNOWN_SUBJECTS_MAX = 10_000
IDEMPOTENT_TIMEOUT_S_MAX = PRODUCER_MEMORY_S // 2


class RecordOptions(TypedDict, total=False):
    """The optional arguments of an append; see ``Producer.append``."""

    key: bytes | str | None
    subject: str | None
    headers: Headers | None
    partition: int | None


class AppendOptions(RecordOptions, total=False):
    """The options of an append outside of transactions: ``RecordOptions`` and a message id."""

    message_id: str | None


class Producer(ClosesOnExit):
    """Appends to one stream; safe to use from several threads. Use it in ``with``, or ``close`` it.

    Args:
        brokers: the brokers of the cluster.
        stream: the stream to append to.
        server: the version and limits of the broker.
        acks: the level of acks; None: the stream's own, which is also the highest allowed.
        linger_ms: how long a record may wait for others to share its batch.
        batch_bytes: a batch of this size is sent at once.
        buffer_bytes: the limit of unacknowledged bytes; beyond it ``append`` blocks.
        delivery_timeout_s: how long to try to deliver a record, including the wait for its ack.
        idempotent: number the records, so that a record sent twice is stored once.
        transaction: the transaction of the records; see ``Client.transaction``.

    Raises:
        InvalidRequestError: a size or time is not positive, or the timeout is too long for an
            idempotent producer.
    """

    def __init__(
        self,
        brokers: ClusterClient,
        stream: StreamInfo,
        *,
        server: ServerInfo,
        acks: Acks | None = None,
        linger_ms: float = 2.0,
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_s: float = 30.0,
        idempotent: bool = True,
        transaction: TransactionContext | None = None,
    ) -> None:
        check_number(batch_bytes, "batch_bytes", least=1)
        check_number(buffer_bytes, "buffer_bytes", least=1)
        check_number(linger_ms, "linger_ms")
        check_number(delivery_timeout_s, "delivery_timeout_s", least=1e-3)
        if acks not in (None, *get_args(Acks)):
            raise InvalidRequestError(
                f"acks must be one of {', '.join(get_args(Acks))}, got {acks!r}"
            )
        if idempotent and delivery_timeout_s > IDEMPOTENT_TIMEOUT_S_MAX:
            raise InvalidRequestError(
                f"delivery_timeout_s must be at most {IDEMPOTENT_TIMEOUT_S_MAX} s for an "
                f"idempotent producer, got {delivery_timeout_s:g}: brokers remember sequences "
                "for a limited time. Shorten it, or use idempotent=False and message ids"
            )
        self._brokers = brokers
        self._stream = stream.name
        self._config = stream.config
        self._record_bytes_max = server.record_bytes_max
        self._batch_bytes = min(batch_bytes, max(1, server.batch_bytes_max // 2))
        self._last_router = Router(stream.config)
        self._spread = itertools.count()
        self._subjects: set[str] = set()
        self._transaction = transaction
        options = DeliveryOptions(
            batch_bytes=self._batch_bytes,
            buffer_bytes=buffer_bytes,
            linger_s=linger_ms / 1e3,
            timeout_s=delivery_timeout_s,
            is_idempotent=idempotent,
            transaction=transaction,
        )
        self._delivery = ProducerDelivery(
            brokers,
            PutRequest(stream=stream.name, acks=acks, transactional=transaction is not None),
            routes={each.partition: each for each in stream.partitions},
            options=options,
        )
        # The threads of a garbage-collected producer end when they have delivered its records.
        weakref.finalize(self, self._delivery.end_when_empty).atexit = False

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
        """Append a record; the future returns its offset once it is acknowledged.

        Args:
            value: the payload; None deletes the key's records when the stream is compacted. Text is
                encoded as UTF-8.
            key: the key for compaction and partitioning.
            subject: a plain NATS subject; by default the stream's.
            headers: a mapping, or (name, value) pairs to keep order and repeats.
            partition: the partition to append to; by default as in ``api.routing``.
            message_id: deduplicates a repeat in the same partition within the stream's window.

        Raises:
            RecordTooLargeError: the record is larger than the broker's limit.
            InvalidRecordError, InvalidSubjectError, UnknownPartitionError: an argument is invalid.
            InvalidRequestError: the partition is not a number.
            RequestTimeoutError: the buffer stayed full for ``delivery_timeout_s``.
            DisconnectedError: the producer is closed.
        """
        if subject is not None and subject not in self._subjects:
            self._learn(subject)
        pairs = _pairs(headers) if headers else None
        if message_id is not None:
            _check_id(message_id)
        record = ProducerRecord(
            _bytes(value, "value"), _bytes(key, "key"), subject, pairs, message_id
        )
        size = _size_of(record)
        if size > self._record_bytes_max:
            raise RecordTooLargeError(
                f"record of {size} bytes is larger than the broker's limits.record_bytes of "
                f"{self._record_bytes_max}; split it"
            )
        router = self._router
        if partition is not None:
            number: int | None = self._checked(partition)
        else:
            number = router.of_record(record.key, subject, message_id)
        if self._transaction is not None:
            # A transaction must add a partition before using it, so keyless records use only one.
            number = self._transaction.producer_id % router.partitions if number is None else number
            self._transaction.add_partitions((number,))
        return self._delivery.add_record(
            number, record, partitions=router.partitions, size=size + RECORD_OVERHEAD_BYTES
        )

    def append_batch(self, data: Any, *, partition: int | None = None) -> AckFuture[BatchAck]:
        """Append the rows of a table; the future returns their offsets once all are acknowledged.

        Args:
            data: a pyarrow table, batch or reader, or an object with ``__arrow_c_stream__``. Its
                columns
                are ``value`` and, optionally, ``key``, ``subject``, ``headers`` and ``message_id``.
                Headers are a map, a list of structs, or, in pandas, lists of pairs.
            partition: the partition to append to; by default each row is routed as in
                ``api.routing``.

        Raises:
            InvalidRecordError: a column cannot be appended.
            UnknownPartitionError: the stream has no such partition.
            RequestTimeoutError, DisconnectedError: as for ``append``.
        """
        if partition is not None:
            partition = self._checked(partition)
        future: AckFuture[BatchAck] = AckFuture()
        pieces = [
            (number, piece)
            for batch in batches_from(data, batch_bytes=self._batch_bytes)
            for number, share in self._split(batch, partition)
            for piece in runs_of_ids(share)
        ]
        if not pieces:
            future.set_result(BatchAck(0, ()))
            return future
        if self._transaction is not None:
            self._transaction.add_partitions({number for number, _ in pieces})
        rows = sum(piece.num_rows for _, piece in pieces)
        table_ack = TableAck(future, batches=len(pieces), rows=rows)
        for number, piece in pieces:
            self._delivery.add_batch(TableProducerBatch(number, piece, table_ack))
        return future

    @property
    def is_usable(self) -> bool:
        """Return whether records are accepted, and the stream exists as far as known."""
        return self._delivery.is_usable

    @property
    def has_room(self) -> bool:
        """Return whether ``append`` would not block."""
        return self._delivery.has_room

    def wait_for_room(self) -> None:
        """Wait until ``append`` would not block.

        Raises:
            RequestTimeoutError: it would still block after ``delivery_timeout_s``.
        """
        self._delivery.wait_for_room()

    def flush(self) -> None:
        """Send all records appended so far; wait until each is acknowledged or has failed.

        Raises:
            StrandlineError: the first failure whose future was not examined.
        """
        self._delivery.flush()

    def abandon(self) -> None:
        """Accept no more records; deliver those accepted, without waiting for that."""
        self._delivery.end_when_empty()

    def close(self) -> None:
        """Flush, then close; has no effect when repeated.

        Raises:
            StrandlineError: the first failure whose future was not examined.
        """
        self._delivery.close()

    def _end_context(self, _: BaseException | None, /) -> None:
        self.close()

    def _learn(self, subject: str) -> None:
        """Check a subject that was not used before."""
        validate_subject(subject)
        if len(self._subjects) >= KNOWN_SUBJECTS_MAX:
            self._subjects.clear()
        self._subjects.add(subject)

    def _checked(self, number: int) -> int:
        """Check that a partition exists; return its number."""
        number = whole_number(number, "partition")
        if number >= self._router.partitions:
            self._look_for_more()
        known = self._router.partitions
        if not 0 <= number < known:
            raise UnknownPartitionError(
                f"stream {self._stream!r} has no partition {number}; it has 0 to {known - 1}"
            )
        return number

    @property
    def _router(self) -> Router:
        """Return the router for the number of partitions known now."""
        router, known = self._last_router, self._delivery.partitions
        if known > router.partitions:
            config = msgspec.structs.replace(self._config, partitions=known)
            router = self._last_router = Router(config)
        return router

    def _look_for_more(self) -> None:
        """Look up partitions added to the stream."""
        known = self._delivery.partitions
        added = {n: each for n, each in self._brokers.routes(self._stream).items() if n >= known}
        if added:
            self._delivery.add_partitions(added)

    def _split(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> list[tuple[int, pa.RecordBatch]]:
        """Split a batch by partition."""
        if partition is not None:
            return [(partition, batch)]
        split = self._router.of_batch(batch, spread=next(self._spread))
        return [(number, piece) for number, piece, _ in split]


def _bytes(data: bytes | str | None, what: str) -> bytes | None:
    """Return bytes unchanged, and text encoded as UTF-8."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return utf8(data, what)
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidRecordError(
        f"a {what} must be bytes or text, got {type(data).__name__}; encode it, e.g. as JSON"
    )


def _check_id(message_id: str) -> None:
    if not isinstance(message_id, str):
        raise InvalidRecordError(f"a message id must be text, got {type(message_id).__name__}")
    utf8(message_id, "message id")


def _pairs(headers: Headers) -> list[tuple[str, bytes]]:
    """Convert headers to their wire form."""
    items = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return [(_name(name), _header_value(name, value)) for name, value in items]
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"headers must be a mapping or (name, value) pairs, got {type(headers).__name__}"
        ) from error


def _header_value(name: Any, value: Any) -> bytes:
    data = _bytes(value, "header")
    if data is None:
        raise InvalidRecordError(f"header {name!r} has no value (None); omit it, or give b''")
    return data


def _name(name: Any) -> str:
    found = str(name)
    utf8(found, "header's name")
    return found


def _size_of(record: ProducerRecord) -> int:
    """Return the total bytes of value, key and headers."""
    size = len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers or ():
        size += len(name.encode()) + len(value)
    return size


APPEND_OPTIONS = options_of(Producer.append)

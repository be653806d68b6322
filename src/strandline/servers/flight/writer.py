"""A DoPut call: receives batches and sends acks as metadata while the client keeps sending.

Three threads work together: the call's own thread reads and checks batches, the broker's loop
appends them and receives the outcomes, and a third thread writes the acks. So an ack never waits
for the next batch.

Rules: each call may have at most a window of bytes in flight, and reads nothing while the broker
    has
``limits.pending_bytes`` waiting; TCP flow control then holds back the client. Each counter is
written by one thread only.
"""

import itertools
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.put import BatchTag, PutAck, PutRequest
from strandline.api.routing import Router
from strandline.api.status import to_body
from strandline.api.wire import decode, encode
from strandline.broker.broker import Broker
from strandline.broker.internal import check_public
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.schema_check import SchemaVerdict
from strandline.config import Acks, StreamConfig
from strandline.errors import (
    InvalidRecordError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.servers.flight.checks import BatchChecker
from strandline.servers.flight.lifecycle import LISTENER, POLL_S, ServerLifecycle
from strandline.servers.flight.tracking import BatchInFlight, Row, rows_of
from strandline.servers.metering import Allowance, counted
from strandline.types import Offset, PartitionName, ProducerStamp

logger = logging.getLogger(__name__)

WINDOW_BYTES = 32 << 20
WINDOW_BATCHES = 1024
UNSENT_ACKS_MAX = 100_000
ROWS_PER_HOP = 256
"""Rows with message ids that the loop appends, one by one, before it does other work."""
BACK_PRESSURE_S = 0.005


class UploadedPiece(NamedTuple):
    """The rows of a batch that belong to one partition."""

    partition: Partition
    batch: pa.RecordBatch
    rows: list[Row] | None
    """The rows one by one if they have message ids or an expected offset, else None."""
    producer: ProducerStamp | None
    """The producer id, epoch and sequence of the rows."""
    expected: int | None = None
    """The offset that a single row must get; None: any."""


class PutSession:
    """A put; it is also the ack sink of its appends.

    Args:
        broker: the broker to append to.
        request: the target of the put.
        lifecycle: the lifecycle of the Flight server.
        send_ack: writes one metadata message to the client.
        is_cancelled: returns whether the client has disconnected.
        check_allowed: raises an error if the caller may no longer publish.
        check_producer: raises an error if a producer id belongs to another principal.
        allowance: the caller's quota; None if it is not metered.

    Raises:
        UnknownStreamError, UnknownPartitionError: the partition does not exist.
        InvalidRequestError: the requested acks are stronger than the stream's.
    """

    def __init__(
        self,
        broker: Broker,
        request: PutRequest,
        lifecycle: ServerLifecycle,
        *,
        send_ack: Callable[[bytes], None],
        is_cancelled: Callable[[], bool],
        check_allowed: Callable[[], None] = lambda: None,
        check_producer: Callable[[int], None] = lambda _: None,
        allowance: Allowance | None = None,
    ) -> None:
        self._broker = broker
        self._request = request
        self._lifecycle = lifecycle
        self._send_ack = send_ack
        self._is_cancelled = is_cancelled
        self._check_allowed = check_allowed
        self._check_producer = check_producer
        self._allowance = allowance
        check_public(request.stream)
        self._stream: Stream = broker.stream(request.stream)
        if request.partition is not None:
            self._stream.partition(request.partition)
        config = self._stream.config
        _check_acks(request.acks, config)
        self._checker = BatchChecker(broker.config.limits, config.subject)
        self._router = Router(config)
        self._is_replaced = False
        """Whether the stream was deleted and recreated under its name, which ends the put."""
        self._acks: queue.SimpleQueue[PutAck | None] = queue.SimpleQueue()
        self._finished_something = threading.Event()
        self._batches_in = self._bytes_in = 0
        self._batches_out = self._bytes_out = 0
        self._refused: OrderedDict[int, StrandlineError] = OrderedDict()
        """Rejected batches that may be sent again, by sequence; used on the loop only."""

    # Methods for the call's thread

    def run(self, read: Callable[[], fl.FlightStreamChunk]) -> None:
        """Read batches until the client is done, then wait for all outcomes.

        Args:
            read: returns the next chunk; raises StopIteration at the end.

        Raises:
            ShuttingDownError: the broker is stopping; batches without an ack may not be stored.
            QuotaExceededError: the principal has too many reads and appends open.
            InvalidRecordError: the data is not an Arrow stream.
        """
        acker = threading.Thread(target=self._write_acks, name="flight-acker", daemon=True)
        acker.start()
        try:
            with self._lifecycle.stream(), counted(self._allowance):
                try:
                    self._take_all(read)
                finally:
                    self._wait_until(lambda: self._batches_in == self._batches_out)
        finally:
            self._acks.put(None)
            acker.join()

    def _take_all(self, read: Callable[[], fl.FlightStreamChunk]) -> None:
        if self._allowance is not None:  # closing the call must not evade a negative quota balance
            self._hold(self._allowance, 0)
        for sequence in itertools.count():
            self._wait_until(self._has_room)
            self._lifecycle.check()
            if self._is_cancelled():
                return
            try:
                with self._lifecycle.idle():
                    chunk = read()
            except StopIteration:
                return
            except (OSError, pa.ArrowMemoryError) as error:  # invalid lengths or offsets
                raise InvalidRecordError(f"not valid Arrow data: {error}") from None
            self._take(sequence, chunk)
            if self._is_replaced:
                return

    def _take(self, sequence: int, chunk: fl.FlightStreamChunk) -> None:
        """Check one batch and pass it to the loop; answer an invalid one at once."""
        tag = BatchTag(sequence=sequence)
        try:
            self._check_allowed()
            if chunk.app_metadata is not None:
                tag = decode(chunk.app_metadata.to_pybytes(), BatchTag, what="batch metadata")
            if chunk.data is None or not chunk.data.num_rows:
                raise InvalidRecordError("metadata needs at least one row")
            batch = self._checker.check(chunk.data)
            self._update_stream()
            pieces = self._pieces(batch, tag, spread=sequence)
        except StrandlineError as error:
            self._acks.put(PutAck(sequence=tag.sequence, error=to_body(error)))
            return
        size = batch.nbytes
        waiting = BatchInFlight(tag.sequence, size, is_single=len(pieces) == 1)
        for piece in pieces:
            waiting.expect(piece.partition.name, piece.batch.num_rows, rows=piece.rows)
        self._batches_in += 1
        self._bytes_in += size
        self._broker.telemetry.count_listener(LISTENER, messages=batch.num_rows)
        if tag.after is not None or self._refused:
            self._broker.call_soon(self._check_before, waiting, tag.after)
        for number, piece in enumerate(pieces):
            self._submit(waiting, number, piece)
        if self._allowance is not None:
            self._hold(self._allowance, size)

    def _hold(self, allowance: Allowance, size: int) -> None:
        """Wait until the published bytes are within the quota."""
        self._lifecycle.hold(
            allowance.publish(size), lambda: allowance.publish(0), self._is_cancelled
        )

    def _update_stream(self) -> None:
        """Take over the stream's current partitions, which moves replace and orders may add."""
        try:
            found, known = self._broker.stream(self._request.stream), self._stream
        except (UnknownStreamError, UnavailableError):
            return  # the old partitions reject the records and report why
        # A recreated stream needs a new put, because its acks and partitions may differ.
        self._is_replaced = found.created_ns != known.created_ns
        if found is not known and not self._is_replaced:
            self._stream, self._router = found, Router(found.config)

    def _pieces(self, batch: pa.RecordBatch, tag: BatchTag, *, spread: int) -> list[UploadedPiece]:
        """Split a checked batch by partition.

        Raises:
            InvalidRequestError: rows with a producer's numbers name no partition, or have message
                ids; a transaction's rows lack such numbers; an expected offset is given for several
                rows, or without a partition.
        """
        number = self._request.partition if tag.partition is None else tag.partition
        if number is not None:
            split = [(self._stream.partition(number).name.partition, batch, None)]
        else:
            split = self._router.of_batch(batch, spread=spread)
        has_ids = (
            "message_id" in batch.schema.names
            and batch.column("message_id").null_count < batch.num_rows
        )
        producer = None
        if tag.producer is not None:
            if number is None or has_ids:
                raise InvalidRequestError(
                    "a batch with the numbers of a producer names a partition, and its rows have "
                    "no message ids"
                )
            self._check_producer(tag.producer.producer_id)
            producer = ProducerStamp(*msgspec.structs.astuple(tag.producer))
        elif self._request.transactional:
            raise InvalidRequestError("a batch of a transaction has the numbers of its producer")
        is_expected = tag.expected_offset is not None
        if is_expected and (number is None or batch.num_rows > 1 or producer is not None):
            raise InvalidRequestError(
                "a batch with an expected offset is one record, names a partition, and has no "
                "numbers of a producer"
            )
        return [
            UploadedPiece(
                self._stream.partition(number),
                rows.drop_columns(["message_id"]) if "message_id" in rows.schema.names else rows,
                rows_of(rows, row_indexes, self._stream.config.subject)
                if has_ids or is_expected
                else None,
                producer,
                tag.expected_offset,
            )
            for number, rows, row_indexes in split
        ]

    def _submit(self, waiting: BatchInFlight, number: int, piece: UploadedPiece) -> None:
        """Pass one piece to the loop; in parts if its rows are appended one by one."""
        if piece.rows is None:
            check = piece.partition.schema_check
            verdict = None if check is None else check.batch(piece.batch)
            append = partial(self._append_batch, waiting, number, piece, verdict=verdict)
            self._broker.call_soon(append)
            return
        for start in range(0, len(piece.rows), ROWS_PER_HOP):
            rows = piece.rows[start : start + ROWS_PER_HOP]
            self._broker.call_soon(self._append_rows, waiting, piece, rows)

    def _has_room(self) -> bool:
        return (
            self._bytes_in - self._bytes_out < WINDOW_BYTES
            and self._batches_in - self._batches_out < WINDOW_BATCHES
            and self._acks.qsize() < UNSENT_ACKS_MAX
            and self._broker.admission.pending_bytes < self._broker.config.limits.pending_bytes
        )

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds, the client disconnects, or the broker stops waiting."""
        while not is_so() and not self._is_cancelled():
            self._finished_something.clear()
            if is_so():
                return
            others_fill_it = self._batches_in == self._batches_out
            self._finished_something.wait(BACK_PRESSURE_S if others_fill_it else POLL_S)
            if self._lifecycle.gave_up.is_set():
                return

    # Methods for the loop's thread

    def _check_before(self, waiting: BatchInFlight, after: int | None) -> None:
        """Reject a batch if the batch that it follows was rejected and not sent again."""
        self._refused.pop(waiting.sequence, None)
        if after is not None:
            waiting.rejection = self._refused.get(after)

    def _append_batch(
        self,
        waiting: BatchInFlight,
        number: int,
        piece: UploadedPiece,
        *,
        verdict: SchemaVerdict | None,
    ) -> None:
        token = (waiting, number)
        append = partial(
            piece.partition.append_arrow,
            piece.batch,
            ack_sink=self,
            token=token,
            acks=self._request.acks,
            producer=piece.producer,
            is_transactional=self._request.transactional,
            verdict=verdict,
        )
        self._answered(append, token)

    def _append_rows(self, waiting: BatchInFlight, piece: UploadedPiece, rows: list[Row]) -> None:
        for row in rows:
            token = (waiting, row.row_index)
            append = partial(
                piece.partition.append,
                row.value,
                subject=row.subject,
                key=row.key,
                headers=row.headers,
                message_id=row.message_id,
                ack_sink=self,
                token=token,
                acks=self._request.acks,
                expected_last=piece.expected,
            )
            self._answered(append, token)

    def _answered(self, append: Callable[[], None], token: tuple[BatchInFlight, int]) -> None:
        """Append rows; report any failure to the client, so that the loop continues."""
        if (rejection := token[0].rejection) is not None:
            self.rejected(token, rejection)
            return
        try:
            append()
        except StrandlineError as error:
            self.rejected(token, error)
        except Exception:
            logger.exception("appending to %s failed", self._request.stream)
            self.rejected(token, StrandlineError("internal error; see the broker's log"))

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002 - the token has the partition
        offset: Offset,
        *,
        duplicate: bool,
    ) -> None:
        """Record that rows were stored with the requested safety."""
        waiting, number = _known(token)
        waiting.acked(number, offset, duplicate=duplicate)
        self._finish(waiting)

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Record that rows were rejected."""
        waiting, _ = _known(token)
        waiting.rejected(error)
        if waiting.rejection is not None:
            self._refused[waiting.sequence] = error
            if len(self._refused) > WINDOW_BATCHES:
                self._refused.popitem(last=False)
        self._finish(waiting)

    def _finish(self, waiting: BatchInFlight) -> None:
        """Queue the ack of a batch whose outcomes are all known."""
        if not waiting.is_complete:
            return
        self._batches_out += 1
        self._bytes_out += waiting.size
        self._acks.put(waiting.ack())
        self._finished_something.set()

    # Methods for the thread that writes acks

    def _write_acks(self) -> None:
        """Send acks until None is queued, or the client has disconnected."""
        while (ack := self._acks.get()) is not None:
            try:
                self._send_ack(encode(ack))
            except (fl.FlightError, pa.ArrowException, OSError) as error:
                logger.debug("a client left before its acks: %s", error)
                return


def _check_acks(asked: Acks | None, config: StreamConfig) -> None:
    """Reject acks stronger than the stream's."""
    if asked is not None and not config.promises(asked):
        raise InvalidRequestError(
            f"acks '{asked}' are more than stream '{config.name}' gives, '{config.acks_in_force}'; "
            "ask for no more, or append to a stream that was created for it"
        )


def _known(token: object) -> tuple[BatchInFlight, int]:
    assert isinstance(token, tuple), "the broker hands back what it was given"
    return token

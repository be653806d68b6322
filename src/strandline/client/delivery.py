"""Delivery of a producer's records: buffer, send in order, resend after a loss, time out.

Threads: callers add; the sender builds and writes batches and begins anew after a lost connection;
the ack thread of a ``PutStream`` resolves futures; a watchdog gives up what is too old, even while
the sender is stuck in a write. One lock guards the accumulator and the outbox; futures are resolved
without it, because their callbacks are the user's.

The put's schema only widens: a batch with a new column ends the put and begins a wider one, so
that records keep their order and a value-only producer sends no empty columns.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from strandline.client.batching import BatchAccumulator, Outbox, Record
from strandline.client.connection import Connection
from strandline.client.lots import SomeLot, TableLot, batch_of, fail, pad, resolve
from strandline.client.put_stream import PutStream
from strandline.client.results import Ack, AckFuture
from strandline.client.retry import Backoff, is_connection_loss
from strandline.errors import (
    DisconnectedError,
    InvalidRecordError,
    RequestTimeoutError,
    StrandlineError,
)
from strandline.protocol.put import BatchTag, PutAck, PutRequest, put_schema

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 32_768
WINDOW_BYTES = 16 << 20
WINDOW_LOTS = 64
KEPT_FAILURES_MAX = 1000
WATCH_INTERVAL_S = 0.5
JOIN_TIMEOUT_S = 10.0


class DeliveryOptions(NamedTuple):
    """How a producer batches and how long it tries."""

    batch_bytes: int
    buffer_bytes: int
    linger_s: float
    timeout_s: float


class Delivery:
    """The way of records from a producer to a stream.

    Args:
        connection: to the broker.
        request: of the puts.
        options: sizes and times.
    """

    def __init__(
        self, connection: Connection, request: PutRequest, *, options: DeliveryOptions
    ) -> None:
        self._connection = connection
        self._request = request
        self._options = options
        self._changed = threading.Condition()
        self._accumulator: BatchAccumulator[AckFuture[Ack]] = BatchAccumulator(
            batch_bytes=options.batch_bytes,
            batch_records=BATCH_RECORDS_MAX,
            linger_s=options.linger_s,
            delivery_timeout_s=options.timeout_s,
        )
        self._outbox: Outbox[SomeLot] = Outbox(window_bytes=WINDOW_BYTES, window_lots=WINDOW_LOTS)
        self._resolving = 0
        self._failures: list[tuple[AckFuture[Any], StrandlineError]] = []
        self._closing = threading.Event()
        # The sender's own:
        self._stream: PutStream | None = None
        self._columns: set[str] = set()
        self._backoff = Backoff()
        self._last_loss: StrandlineError | None = None
        self._sender = threading.Thread(
            target=self._send_all, name="strandline-sender", daemon=True
        )
        self._sender.start()
        # Not a daemon: a program does not end before what it appended is delivered or given up.
        threading.Thread(target=self._watch, name="strandline-watchdog").start()

    # Callers

    def add_record(
        self, partition: int | None, record: Record, *, partitions: int, size: int
    ) -> AckFuture[Ack]:
        """Take a record.

        Args:
            partition: where it goes; None: any of ``partitions``.
            record: what to append.
            partitions: how many there are.
            size: bytes to count for it.

        Raises:
            RequestTimeoutError: the buffer stayed full.
            DisconnectedError: closed.
        """
        future: AckFuture[Ack] = AckFuture()
        accumulator = self._accumulator
        with self._changed:
            if not self.has_room or self._closing.is_set():
                self._wait_for_room()
            if partition is None:
                partition = accumulator.anywhere(partitions)
            if accumulator.add(partition, record, future, size=size, now_s=time.monotonic()):
                self._changed.notify_all()
        return future

    def add_lot(self, lot: TableLot) -> None:
        """Take rows of a table, after the records of their partition added before.

        Raises:
            RequestTimeoutError, DisconnectedError: as ``add_record``.
        """
        with self._changed:
            self._wait_for_room()
            now_s = time.monotonic()
            lot.deadline_s = now_s + self._options.timeout_s
            self._accumulator.seal(lot.partition)
            self._collect(now_s)
            self._outbox.put(lot)
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether adding would not have to wait."""
        return self._accumulator.size + self._outbox.size < self._options.buffer_bytes

    def wait_for_room(self) -> None:
        """Wait until adding would not have to.

        Raises:
            RequestTimeoutError, DisconnectedError: as ``add_record``.
        """
        with self._changed:
            self._wait_for_room()

    def flush(self) -> None:
        """Send what was added so far and wait until all of it is answered.

        Raises:
            StrandlineError: the first failure that nobody has looked at.
        """
        with self._changed:
            self._collect(time.monotonic(), everything=True)
            mark = self._outbox.next_sequence
            self._changed.notify_all()
            while self._outbox.holds_below(mark) or self._resolving:
                self._changed.wait()
            failures, self._failures = self._failures, []
        unseen = [error for future, error in failures if not future.seen]
        if not unseen:
            return
        if len(unseen) > 1:
            unseen[0].add_note(f"and {len(unseen) - 1} more were not stored")
        raise unseen[0]

    def close(self) -> None:
        """Flush and end the threads; harmless when repeated.

        Raises:
            StrandlineError: as ``flush``.
        """
        try:
            self.flush()
        finally:
            self.end_when_empty()
            self._sender.join(JOIN_TIMEOUT_S)

    def end_when_empty(self) -> None:
        """Take no more; what was taken is still delivered. Does not wait."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        """Wait while the buffer is full; the lock is held."""
        deadline_s = None
        while not self.has_room and not self._closing.is_set():
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + self._options.timeout_s
            if now_s >= deadline_s:
                raise RequestTimeoutError(
                    f"the buffer of {self._options.buffer_bytes} bytes stayed full for "
                    f"{self._options.timeout_s:g} s: the broker does not keep up"
                )
            self._changed.wait(deadline_s - now_s)
        if self._closing.is_set():
            raise DisconnectedError("this producer is closed; make another")

    def _collect(self, now_s: float, *, everything: bool = False) -> None:
        """Move what is ready from the accumulator to the outbox; the lock is held."""
        for lot in self._accumulator.take_ready(now_s, everything=everything):
            self._outbox.put(lot)

    # Outcomes, on the ack thread, the watchdog or the sender, without the lock

    def _acked(self, ack: PutAck) -> None:
        """An ack came."""
        with self._changed:
            lot = self._outbox.answered(ack.sequence)
            if lot is None:
                return
            self._resolving += 1
            self._backoff.succeeded()
        try:
            resolve(lot, ack, self._failed)
        finally:
            self._resolved()

    def _give_up(self, lots: Iterable[tuple[SomeLot, StrandlineError]]) -> None:
        """Fail lots that have left the outbox; the caller has counted them as resolving."""
        try:
            for lot, error in lots:
                fail(lot, error, self._failed)
        finally:
            self._resolved()

    def _resolved(self) -> None:
        with self._changed:
            self._resolving -= 1
            self._changed.notify_all()

    def _failed(self, future: AckFuture[Any], error: StrandlineError) -> None:
        """Give a future its failure, and remember it for ``flush``."""
        with self._changed:
            if len(self._failures) < KEPT_FAILURES_MAX:
                self._failures.append((future, error))
        future.set_exception(error)

    def _watch(self) -> None:
        """Give up what is past its deadline; at the end of the program, have the rest sent."""
        main, is_exit = threading.main_thread(), False
        while self._sender.is_alive():
            self._sender.join(WATCH_INTERVAL_S)
            if not main.is_alive() and not self._closing.is_set():
                is_exit = True
                self.end_when_empty()
            with self._changed:
                now_s = time.monotonic()
                self._collect(now_s, everything=self._closing.is_set())
                expired = self._outbox.expire(now_s)
                self._resolving += bool(expired)
                is_over = self._closing.is_set() and not self._outbox
            if expired:
                self._give_up([(lot, self._timeout(was_sent=sent)) for lot, sent in expired])
            if is_over:
                break
        if is_exit and self._failures:
            logger.error("records were not stored: %s", self._failures[0][1])

    def _timeout(self, *, was_sent: bool) -> StrandlineError:
        """The error of a lot past its deadline."""
        limit = f"{self._options.timeout_s:g} s"
        if was_sent:
            return RequestTimeoutError(
                f"no ack from {self._connection.address} within {limit}; "
                "whether the record was stored is unknown"
            )
        if self._last_loss is not None:
            return DisconnectedError(f"not delivered within {limit}: {self._last_loss.message}")
        return RequestTimeoutError(f"not sent within {limit}: the broker does not keep up")

    # The sender

    def _send_all(self) -> None:
        """Send until closed and empty."""
        try:
            while self._step():
                pass
            if self._stream is not None:
                self._stream.finish()
        except Exception:
            # A bug of ours must not leave callers waiting for ever.
            logger.exception("the sender of stream %s failed", self._request.stream)
            self._closing.set()
            self._lost(StrandlineError("the producer failed; see the log"))

    def _step(self) -> bool:
        """Do the next thing, or wait for one; False at the end."""
        with self._changed:
            now_s = time.monotonic()
            self._collect(now_s, everything=self._closing.is_set())
            has_ended = self._stream is not None and self._stream.has_ended
            pauses = self._backoff.wait_s(now_s) > 0
            item = None if has_ended or pauses else self._outbox.send()
            if item is None and not has_ended:
                if self._closing.is_set() and not (self._outbox or self._accumulator):
                    return False
                self._changed.wait(self._pause_s(now_s))
                return True
        if item is None:
            self._lost(self._end_stream() or DisconnectedError("the broker ended the put"))
        else:
            self._deliver(*item)
        return True

    def _pause_s(self, now_s: float) -> float | None:
        """How long there is nothing to do unless something changes."""
        times = [self._accumulator.due_s()]
        if self._outbox:
            times.append(self._backoff.not_before_s or None)
        pending = [max(0.0, moment - now_s) for moment in times if moment is not None]
        return min(pending, default=None)

    def _deliver(self, sequence: int, lot: SomeLot) -> None:
        """Write one lot that is now in flight."""
        try:
            batch = batch_of(lot)
        except InvalidRecordError as error:
            self._drop(sequence, error)
            return
        try:
            stream = self._stream_for(batch.schema.names)
        except StrandlineError as error:
            self._lost(error)
            return
        tag = BatchTag(sequence=sequence, partition=lot.partition)
        if stream.write(pad(batch, stream.schema), tag):
            return
        self._lost(self._end_stream() or DisconnectedError("the broker ended the put"))

    def _stream_for(self, columns: list[str]) -> PutStream:
        """A put with at least these columns.

        Raises:
            StrandlineError: it could not begin, or the narrower one before it failed.
        """
        if self._stream is not None and not self._columns.issuperset(columns):
            error = self._end_stream()
            if error is None and self._outbox.in_flight > 1:
                error = DisconnectedError("the broker ended the put")
            if error is not None:
                raise error
        if self._stream is None:
            self._columns.update(columns)
            self._stream = PutStream(
                self._connection,
                self._request,
                put_schema(list(self._columns)),
                on_ack=self._acked,
                on_end=self._on_end,
            )
        return self._stream

    def _on_end(self, _: PutStream) -> None:
        """No more acks will come; on the ack thread."""
        with self._changed:
            self._changed.notify_all()

    def _end_stream(self) -> StrandlineError | None:
        """End the put; returns why it failed, if it did."""
        assert self._stream is not None, "there is one to end"
        error = self._stream.finish()
        self._stream = None
        return error

    def _lost(self, error: StrandlineError) -> None:
        """The put failed: send again after a lost connection, else give everything up."""
        self._last_loss = error
        if is_connection_loss(error):
            with self._changed:
                self._outbox.rewind()
                self._backoff.failed(time.monotonic())
            self._connection.reset()
            return
        with self._changed:
            lots = self._outbox.drop_all()
            self._resolving += 1
        self._give_up([(lot, error) for lot in lots])

    def _drop(self, sequence: int, error: StrandlineError) -> None:
        """Give up one lot that cannot be sent."""
        with self._changed:
            lot = self._outbox.answered(sequence)
            self._resolving += 1
        self._give_up([] if lot is None else [(lot, error)])

"""The delivery of a producer's records: buffers, sends in order to leaders, retries, times out.

Threads: callers add records. One sender per leader sends batches and receives acks.
    ``PartitionMetadata`` looks up leaders while a partition has none. A watchdog fails expired
    batches, even while a sender blocks in a write. One lock guards the accumulator, the batches in
    flight and the leaders; futures are resolved without the lock, because their callbacks are the
    user's code.

Rule: in a cluster a leader that has not answered for ``SILENCE_S`` is no longer used, until other
brokers name it again.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from strandline.api import admin
from strandline.api.put import NUMBERED_RECORDS_MAX, PutAck, PutRequest
from strandline.api.status import from_body
from strandline.client.cluster_client import ClusterClient
from strandline.client.deadline import limited
from strandline.client.metadata import Routes
from strandline.client.partition_metadata import FAILED, PartitionMetadata
from strandline.client.producer.accumulator import ProducerRecord, RecordAccumulator
from strandline.client.producer.broker_sender import BrokerSender
from strandline.client.producer.in_flight_batch import ExpiredBatch, InFlightBatch
from strandline.client.producer.in_flight_batches import InFlightBatches
from strandline.client.producer.table_batches import (
    AnyProducerBatch,
    TableProducerBatch,
    fail,
    resolve,
)
from strandline.client.reader.results import Ack, AckFuture
from strandline.client.retry_policy import unknown_outcome
from strandline.client.transactions.transaction_context import TransactionContext
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 32_768
WINDOW_BYTES = 16 << 20
WINDOW_BATCHES = 64
KEPT_FAILURES_MAX = 1000
WATCH_INTERVAL_S = 0.5
JOIN_TIMEOUT_S = 10.0
IDLE_S = 0.5
IDLE_PUT_S = 5.0
"""After so long without records a producer ends its puts, which frees threads on both sides."""
SILENCE_S = 5.0
LOG_DELAY_S = 5.0
"""A missing ack is logged after this time; an election takes less."""

_THREAD = threading.local()
"""Per thread: whether it is resolving futures, and so runs users' callbacks."""

assert BATCH_RECORDS_MAX <= NUMBERED_RECORDS_MAX, "the broker stores a producer batch as one batch"


class DeliveryOptions(NamedTuple):
    """The options of a producer for batching and timeouts."""

    batch_bytes: int
    buffer_bytes: int
    linger_s: float
    timeout_s: float
    is_idempotent: bool = True
    transaction: TransactionContext | None = None
    """The transaction that the records belong to, or None."""


class ProducerDelivery:
    """The path of records from a producer to a stream.

    Args:
        brokers: the brokers of the cluster.
        request: the request with which each put begins.
        routes: the leaders of the stream's partitions, as far as known.
        options: sizes and times.
    """

    def __init__(
        self,
        brokers: ClusterClient,
        request: PutRequest,
        *,
        routes: Routes,
        options: DeliveryOptions,
    ) -> None:
        self._brokers = brokers
        self._request = request
        self._options = options
        self._lock = threading.RLock()
        """The lock inside ``_changed``; using it directly takes a third of the time."""
        self._changed = threading.Condition(self._lock)
        self._accumulator: RecordAccumulator[AckFuture[Ack]] = RecordAccumulator(
            batch_bytes=options.batch_bytes,
            batch_records=BATCH_RECORDS_MAX,
            linger_s=options.linger_s,
            delivery_timeout_s=options.timeout_s,
        )
        self._in_flight: InFlightBatches[AnyProducerBatch] = InFlightBatches(
            window_bytes=WINDOW_BYTES,
            window_batches=WINDOW_BATCHES,
            is_numbered=options.is_idempotent,
            only_epoch=options.transaction.epoch if options.transaction is not None else None,
        )
        self._resolving: list[int] = []
        """Ids of the threads that resolve futures, and so run users' callbacks."""
        self._is_watched = False
        self._is_gone = False
        self._delayed_since_s: float | None = None
        """The time since which acks have been missing, if that was logged; else None."""
        self._timed_out = 0
        """The number of records that have timed out since then."""
        self._failures: list[tuple[AckFuture[Any], StrandlineError]] = []
        self._closing = threading.Event()
        self._is_over = threading.Event()
        transaction = options.transaction
        self._producer_ids = [] if transaction is None else [transaction.producer_id]
        self._producer_lock = threading.Lock()
        self._senders: dict[str, BrokerSender] = {}
        self._leaders = PartitionMetadata(
            brokers, request.stream, self, changed=self._changed, is_over=self._is_over
        )
        with self._changed:
            self._leaders.take(routes)
            self._watch_over()

    # Callers

    def add_record(
        self, partition: int | None, record: ProducerRecord, *, partitions: int, size: int
    ) -> AckFuture[Ack]:
        """Add a record.

        Args:
            partition: the record's partition; None: any of ``partitions``.
            record: the record to append.
            partitions: the number of partitions.
            size: the bytes to count for the record.

        Raises:
            RequestTimeoutError: the buffer stayed full.
            DisconnectedError: the producer is closed.
        """
        future: AckFuture[Ack] = AckFuture()
        accumulator = self._accumulator
        with self._lock:
            if not self.has_room or self._closing.is_set():
                self._wait_for_room()
            if partition is None:
                partition = accumulator.sticky_partition(partitions)
            if accumulator.add(partition, record, future, size=size, now_s=time.monotonic()):
                self._awake(partition)
        return future

    def add_batch(self, batch: TableProducerBatch) -> None:
        """Add rows of a table, after the records added to their partition before.

        Raises:
            RequestTimeoutError, DisconnectedError: as for ``add_record``.
        """
        with self._changed:
            self._wait_for_room()
            now_s = time.monotonic()
            batch.deadline_s = now_s + self._options.timeout_s
            self._accumulator.seal(batch.partition)
            self._collect(now_s)
            self._in_flight.put(batch)
            self._awake(batch.partition)

    def add_partitions(self, routes: Routes) -> None:
        """Note the leaders of partitions added to the stream."""
        with self._changed:
            self._leaders.take(routes)

    @property
    def partitions(self) -> int:
        """Return the number of known partitions, which only grows."""
        return self._leaders.partitions

    @property
    def is_usable(self) -> bool:
        """Return whether records are accepted, and the stream exists as far as known."""
        return not (self._closing.is_set() or self._is_gone)

    @property
    def has_room(self) -> bool:
        """Return whether adding a record would not block."""
        return self._accumulator.size + self._in_flight.size < self._options.buffer_bytes

    def wait_for_room(self) -> None:
        """Wait until adding a record would not block.

        Raises:
            RequestTimeoutError, DisconnectedError: as for ``add_record``.
        """
        with self._changed:
            self._wait_for_room()

    def flush(self) -> None:
        """Send all records added so far; wait until each is acknowledged or has failed.

        Raises:
            InvalidRequestError: called in a future's callback, which it would have to wait for.
            StrandlineError: the first failure whose future was not examined.
        """
        with self._changed:
            if threading.get_ident() in self._resolving:
                raise InvalidRequestError(
                    "a producer cannot be flushed or closed in a callback of its own futures; use "
                    "another thread"
                )
            self._collect(time.monotonic(), everything=True)
            mark = self._in_flight.next_number
            self._changed.notify_all()
            while self._in_flight.holds_below(mark) or self._resolving:
                self._changed.wait()
            failures, self._failures = self._failures, []
        unseen = [error for future, error in failures if not future.seen]
        if not unseen:
            return
        if len(unseen) > 1:
            unseen[0].add_note(f"and {len(unseen) - 1} more failed")
        raise unseen[0]

    def close(self) -> None:
        """Flush, then end the threads; has no effect when repeated.

        Raises:
            StrandlineError: as for ``flush``.
        """
        try:
            self.flush()
        finally:
            self.end_when_empty()
            deadline_s = time.monotonic() + JOIN_TIMEOUT_S
            for sender in list(self._senders.values()):
                # A sender without a put may be waiting for a broker for long, and has nothing to
                # end.
                sender.join(max(0.0, deadline_s - time.monotonic()) if sender.has_put else IDLE_S)

    def end_when_empty(self) -> None:
        """Accept no more records; deliver those accepted, without waiting for that."""
        self._closing.set()
        self.wake()

    def _wait_for_room(self) -> None:
        """Wait while the buffer is full; called with the lock.

        Does not wait in a future's callback: only its own thread, or one that waits for it, could
        make room. So records appended in callbacks may exceed the limit.
        """
        is_callback = getattr(_THREAD, "is_resolving", False)
        limit_s = limited(self._options.timeout_s)
        deadline_s = time.monotonic() + limit_s
        while not (self.has_room or is_callback or self._closing.is_set()):
            now_s = time.monotonic()
            if now_s >= deadline_s:
                raise RequestTimeoutError(
                    f"the buffer of {self._options.buffer_bytes} bytes stayed full for "
                    f"{limit_s:.3g} s: append more slowly, or raise buffer_bytes"
                )
            self._changed.wait(deadline_s - now_s)
        if self._closing.is_set():
            raise DisconnectedError("this producer is closed; create another")

    def _awake(self, partition: int) -> None:
        """Wake the threads that deliver a partition's records; called with the lock."""
        if leader := self._leaders[partition]:
            self.send_to((leader,))  # its sender may have ended after being idle
        if not self._is_watched:
            self._watch_over()
        self._changed.notify_all()

    def _watch_over(self) -> None:
        """Start the watchdog; called with the lock."""
        self._is_watched = True
        # No daemon: the program ends only when its records were delivered or have timed out.
        threading.Thread(target=self._watch, name="strandline-watchdog").start()

    def _collect(self, now_s: float, *, everything: bool = False) -> None:
        """Move ready batches from the accumulator to the queues; called with the lock."""
        for batch in self._accumulator.take_ready(now_s, everything=everything):
            self._in_flight.put(batch)

    # Outcomes: called without the lock by an ack thread, the watchdog or a sender

    def acked(self, sender: BrokerSender, ack: PutAck) -> None:
        """Resolve a batch by its ack; see ``SenderCallbacks``."""
        error = None if ack.error is None else from_body(ack.error)
        with self._changed:
            answered = self._in_flight.complete(sender, ack.sequence, error)
            sender.waits_since_s = time.monotonic() if self._in_flight.in_flight(sender) else None
            if error is None:
                self._leaders.answered()
            self._is_gone = self._is_gone or isinstance(error, UnknownStreamError)
            if answered is None:
                partition = self._in_flight.partition_of(ack.sequence)
                # If an earlier batch of the partition is sent again, this one needs no lookup of
                # its own.
                is_behind = isinstance(error, OutOfOrderSequenceError)
                if error is not None and partition is not None and not is_behind:
                    self._leaders.look_up([partition], error)
                self._changed.notify_all()
                return
            self._resolving.append(threading.get_ident())
        _THREAD.is_resolving = True
        try:
            resolve(answered[0], ack, self._failed, error=answered[1])
        finally:
            self._resolved()

    def refused(self, sender: BrokerSender, number: int, error: StrandlineError) -> None:
        """Fail a batch that cannot be sent; see ``SenderCallbacks``."""
        with self._changed:
            answered = self._in_flight.complete(sender, number, error)
            self._resolving.append(threading.get_ident())
        self._fail_batches([] if answered is None else [(answered[0], answered[1] or error)])

    def _fail_batches(self, batches: Iterable[tuple[AnyProducerBatch, StrandlineError]]) -> None:
        """Fail batches that were removed; the caller has added its thread to ``_resolving``."""
        _THREAD.is_resolving = True
        try:
            for batch, error in batches:
                fail(batch, error, self._failed)
        finally:
            self._resolved()

    def _resolved(self) -> None:
        _THREAD.is_resolving = False
        with self._changed:
            self._resolving.remove(threading.get_ident())
            self._changed.notify_all()

    def _failed(self, future: AckFuture[Any], error: StrandlineError) -> None:
        """Fail a future; keep the error for ``flush`` unless the future was examined."""
        with self._changed:
            if not future.seen and len(self._failures) < KEPT_FAILURES_MAX:
                self._failures.append((future, error))
        future.set_exception(error)

    # The watchdog

    def _watch(self) -> None:
        """Fail expired batches; when the program ends, see that the rest is sent."""
        main, is_exit, looked = threading.main_thread(), False, 0
        while not self._is_over.wait(WATCH_INTERVAL_S):
            if not main.is_alive() and not self._closing.is_set():
                is_exit = True
                self.end_when_empty()
            with self._changed:
                now_s = time.monotonic()
                self._collect(now_s, everything=self._closing.is_set())
                expired = self._in_flight.expire(now_s)
                self._timed_out += sum(each.batch.rows for each in expired)
                if expired:
                    self._resolving.append(threading.get_ident())
                self._leave_silent(now_s)
                self._log_delay(now_s)
                if self._in_flight.next_number > looked:  # not while the producer is idle
                    looked = self._in_flight.next_number
                    self._leaders.refresh_partitions(now_s)
                self._note_end()
                self._changed.notify_all()
                if not (self._holds_any or self._senders or self._failures or expired):
                    self._is_watched = False
                    return
            if expired:
                self._fail_batches([(each.batch, self._timeout(each)) for each in expired])
        with self._changed:
            self._log_delay(time.monotonic())
        if is_exit and self._failures:
            logger.error(
                "records failed, and their futures were not examined: %s", self._failures[0][1]
            )

    def _note_end(self) -> None:
        """Set ``_is_over`` if closing and empty; called with the lock."""
        if self._closing.is_set() and not self._holds_any:
            self._is_over.set()

    @property
    def _holds_any(self) -> bool:
        """Return whether any record is left; called with the lock."""
        return bool(self._in_flight or self._accumulator)

    def _log_delay(self, now_s: float) -> None:
        """Log that acks are missing, and why, long before the records time out.

        Called with the lock. Acks of other partitions do not end a delay: the oldest record counts.
        """
        oldest = self._in_flight.oldest
        since_s = now_s if oldest is None else oldest.deadline_s - self._options.timeout_s
        if now_s - since_s < LOG_DELAY_S:
            self._log_delay_end(now_s)
            return
        if oldest is None or self._delayed_since_s is not None:
            return
        loss = self._no_leader(oldest.partition) or self._leaders.loss_since(since_s)
        if loss is not None:
            self._delayed_since_s = since_s
            logger.warning(
                "no ack for records of %s in %.0f s; they time out in %.0f s: %s",
                self._request.stream,
                now_s - since_s,
                oldest.deadline_s - now_s,
                loss.message,
            )

    def _log_delay_end(self, now_s: float) -> None:
        """Log the end of a delay that was logged; called with the lock."""
        since_s, self._delayed_since_s = self._delayed_since_s, None
        if since_s is not None:
            logger.warning(
                "records of %s no longer wait for acks, after %.0f s; %d of them timed out",
                self._request.stream,
                now_s - since_s,
                self._timed_out,
            )
        self._timed_out = 0

    def _leave_silent(self, now_s: float) -> None:
        """Send batches to others if their broker has been silent for long; called with the lock."""
        if not self._brokers.is_cluster:
            return
        for sender in list(self._senders.values()):
            since_s = sender.waits_since_s
            if since_s is not None and now_s - since_s > SILENCE_S:
                error = DisconnectedError(f"{sender.address} does not answer")
                self._in_flight.lost(sender)
                sender.is_over = True
                del self._senders[sender.address]
                self._leaders.look_up(self._leaders.led_by(sender.address), error)
                sender.reset()

    def _no_leader(self, partition: int) -> StrandlineError | None:
        """Return the error of a partition that has no leader according to the brokers."""
        if self._leaders[partition]:
            return None
        return NotLeaderError(
            f"{self._request.stream}/{partition} has no leader; 'strandline cluster status' names "
            "the brokers that are away"
        )

    def _timeout(self, expired: ExpiredBatch[AnyProducerBatch]) -> StrandlineError:
        """Return the error of a batch whose deadline has passed."""
        limit = f"{self._options.timeout_s:g} s"
        reason = (
            expired.error or self._no_leader(expired.batch.partition) or self._leaders.last_loss
        )
        if expired.is_in_flight:
            what = f"no ack from {self._leaders[expired.batch.partition]} within {limit}"
            loss = self._leaders.loss_since(expired.batch.deadline_s - self._options.timeout_s)
            before = f"; before that: {loss.message}" if loss is not None else ""
            error: StrandlineError = RequestTimeoutError(what + before)
        elif isinstance(reason, UnavailableError):
            error = type(reason)(f"not delivered within {limit}: {reason.message}")
        else:
            error = RequestTimeoutError(f"not sent within {limit}: the broker is too slow")
        if expired.in_doubt:
            return unknown_outcome(error)
        return type(error)(f"{error.message}; it was not stored")

    # Senders

    def next_for(self, sender: BrokerSender) -> InFlightBatch[AnyProducerBatch] | None:
        """Wait for a sender's next batch; see ``SenderCallbacks``."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                self._collect(now_s, everything=self._closing.is_set())
                if sender.is_over or sender.has_lost_put:
                    return None
                entry = self._in_flight.next_batch(
                    sender, lambda p: self._leaders.may_send(p, sender.address)
                )
                if entry is not None:
                    sender.waits_since_s = sender.waits_since_s or now_s
                    sender.used_s = now_s
                    return entry
                self._note_end()
                if self._is_over.is_set():
                    sender.is_over = True
                    self._changed.notify_all()
                    return None
                idle_s = sender.used_s + IDLE_PUT_S - now_s
                if not self._holds_any and idle_s <= 0:
                    sender.is_over = True
                    del self._senders[sender.address]
                    return None
                due_s = self._accumulator.due_s()
                if due_s is not None:
                    self._changed.wait(max(0.0, due_s - now_s))
                else:
                    self._changed.wait(None if self._in_flight else idle_s)

    def writes(self, sender: BrokerSender, entry: InFlightBatch[AnyProducerBatch]) -> bool:
        """Note that a batch is about to be written; see ``SenderCallbacks``."""
        with self._changed:
            return self._in_flight.writes(sender, entry)

    def in_flight(self, sender: BrokerSender) -> int:
        """Return how many of a sender's batches have no answer yet; see ``SenderCallbacks``."""
        with self._changed:
            return self._in_flight.in_flight(sender)

    def producer_id(self, sender: BrokerSender, producer: int) -> int:
        """Return a producer id, and request each only once; see ``SenderCallbacks``."""
        with self._producer_lock:
            while len(self._producer_ids) <= producer:
                sender.waits_since_s = None  # nothing was sent yet, so the broker owes no ack
                try:
                    [info] = self._brokers.ask(admin.NEW_PRODUCER, None)
                except RequestTimeoutError as error:  # nothing was sent, so this is retried
                    raise UnavailableError(error.message) from error
                self._producer_ids.append(info.producer_id)
                sender.waits_since_s = time.monotonic()
            return self._producer_ids[producer]

    def lost(self, sender: BrokerSender, error: StrandlineError) -> None:
        """Send the batches of a failed put again, or fail them; see ``SenderCallbacks``."""
        is_unknown = self._brokers.is_cluster and isinstance(error, UnknownStreamError)
        if sender.is_over:
            return
        if error.passes_soon or is_unknown:
            with self._changed:
                self._in_flight.lost(sender)
                sender.waits_since_s = None
                self._leaders.look_up(self._leaders.led_by(sender.address), error)
            sender.reset()
            return
        with self._changed:
            if isinstance(error, InvalidRequestError):
                self._in_flight.refused(sender)
            batches = self._in_flight.drop(lambda p: self._leaders[p] == sender.address)
            self._in_flight.lost(sender)  # also partitions that another broker leads by now
            sender.waits_since_s = None
            self._resolving.append(threading.get_ident())
        self._fail_batches(_outcomes(batches, error))

    def wake(self) -> None:
        """Wake all waiting threads; see ``SenderCallbacks``."""
        with self._changed:
            self._note_end()
            self._changed.notify_all()

    def failed(self) -> None:
        """After a bug in a sender, fail all undelivered batches, so that no caller hangs."""
        self.fail_all(StrandlineError(FAILED))

    def fail_partitions(self, partitions: Collection[int], error: StrandlineError) -> None:
        """Fail undelivered batches of some partitions; see ``MetadataListener``."""
        self._fail(lambda partition: partition in partitions, error)

    def fail_all(self, error: StrandlineError) -> None:
        """Fail all undelivered batches; see ``MetadataListener``."""
        self._closing.set()
        self._fail(lambda _: True, error)

    def _fail(self, matches: Callable[[int], bool], error: StrandlineError) -> None:
        """Fail the undelivered batches of the partitions that match."""
        with self._changed:
            self._collect(time.monotonic(), everything=True)
            batches = self._in_flight.drop(matches)
            self._resolving.append(threading.get_ident())
        self._fail_batches(_outcomes(batches, error))

    def send_to(self, addresses: Iterable[str]) -> None:
        """Start a sender for each address that has none; called with the lock."""
        for address in addresses:
            if address not in self._senders:
                sender = BrokerSender(self._brokers.connection(address), self._request, self)
                self._senders[sender.address] = sender
                sender.start()


def _outcomes(
    dropped: Iterable[ExpiredBatch[AnyProducerBatch]], error: StrandlineError
) -> list[tuple[AnyProducerBatch, StrandlineError]]:
    """Pair dropped batches with an error; for a batch in doubt it says that it may be stored."""
    return [(each.batch, unknown_outcome(error) if each.in_doubt else error) for each in dropped]

"""Delivery of a producer's records: buffer, send in order to leaders, send again, time out.

Threads: callers add; a sender for each leader sends and receives acks; ``PartitionMetadata``
looks for leaders while somebody waits for one; a watchdog gives up what is too old, even while a
sender is stuck in a write. One lock guards the accumulator, the outbox and who leads; futures are
resolved without it, because their callbacks are the user's.

Rules: a leader of several that has not answered for ``SILENCE_S`` is left, and asked again when
others name it still.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from strandline.client.accumulator import RecordAccumulator
from strandline.client.batching import BatchAccumulator, Record
from strandline.client.broker_sender import BrokerSender
from strandline.client.cluster_client import ClusterClient, Routes
from strandline.client.deadline import limited
from strandline.client.in_flight import Expired, InFlightBatch
from strandline.client.partition_metadata import FAILED, PartitionMetadata
from strandline.client.results import Ack, AckFuture
from strandline.client.retry import is_worth_a_retry, unknown_outcome
from strandline.client.table_batches import SomeLot, TableProducerBatch, fail, resolve
from strandline.client.transaction_context import TransactionContext
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.protocol import admin
from strandline.protocol.put import NUMBERED_RECORDS_MAX, PutAck, PutRequest
from strandline.protocol.status import from_body

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 32_768
WINDOW_BYTES = 16 << 20
WINDOW_LOTS = 64
KEPT_FAILURES_MAX = 1000
WATCH_INTERVAL_S = 0.5
JOIN_TIMEOUT_S = 10.0
IDLE_S = 0.5
IDLE_PUT_S = 5.0
"""A producer that has had nothing to send for so long ends its puts, and with them its threads here
and at the brokers."""
SILENCE_S = 5.0
TELL_S = 5.0
"""After so long people are told why nothing is acknowledged; an election takes less."""

_THREAD = threading.local()
"""Whether the thread gives futures their outcomes, and so runs users' callbacks."""

assert BATCH_RECORDS_MAX <= NUMBERED_RECORDS_MAX, "a lot is stored as one batch"


class DeliveryOptions(NamedTuple):
    """How a producer batches and how long it tries."""

    batch_bytes: int
    buffer_bytes: int
    linger_s: float
    timeout_s: float
    is_idempotent: bool = True
    enlisted: TransactionContext | None = None
    """In a transaction: who numbers the records."""


class Delivery:
    """The way of records from a producer to a stream.

    Args:
        brokers: of the cluster.
        request: of the puts.
        routes: who leads the stream's partitions, as far as known.
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
        self._changed = threading.Condition()
        self._accumulator: BatchAccumulator[AckFuture[Ack]] = BatchAccumulator(
            batch_bytes=options.batch_bytes,
            batch_records=BATCH_RECORDS_MAX,
            linger_s=options.linger_s,
            delivery_timeout_s=options.timeout_s,
        )
        self._outbox: RecordAccumulator[SomeLot] = RecordAccumulator(
            window_bytes=WINDOW_BYTES,
            window_lots=WINDOW_LOTS,
            is_numbered=options.is_idempotent,
            only_epoch=options.enlisted.epoch if options.enlisted is not None else None,
        )
        self._resolving: list[int] = []
        """The threads that give futures their outcomes, and so run users' callbacks."""
        self._is_watched = False
        self._is_gone = False
        self._has_told = False
        """Whether people know why nothing is acknowledged."""
        self._failures: list[tuple[AckFuture[Any], StrandlineError]] = []
        self._closing = threading.Event()
        self._is_over = threading.Event()
        enlisted = options.enlisted
        self._producer_ids = [] if enlisted is None else [enlisted.producer_id]
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
                self._awake(partition)
        return future

    def add_lot(self, lot: TableProducerBatch) -> None:
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
            self._awake(lot.partition)

    def add_partitions(self, routes: Routes) -> None:
        """Know the leaders of partitions that the stream was given meanwhile."""
        with self._changed:
            self._leaders.take(routes)

    @property
    def partitions(self) -> int:
        """How many the stream has, as far as known; it only grows."""
        return self._leaders.partitions

    @property
    def is_usable(self) -> bool:
        """Whether it takes records, of a stream that is there as far as it knows."""
        return not (self._closing.is_set() or self._is_gone)

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
            InvalidRequestError: in a future's callback, for which it would have to wait.
            StrandlineError: the first failure that nobody has looked at.
        """
        with self._changed:
            if threading.get_ident() in self._resolving:
                raise InvalidRequestError(
                    "a producer cannot be flushed or closed in a callback of one of its futures"
                )
            self._collect(time.monotonic(), everything=True)
            mark = self._outbox.next_number
            self._changed.notify_all()
            while self._outbox.holds_below(mark) or self._resolving:
                self._changed.wait()
            failures, self._failures = self._failures, []
        unseen = [error for future, error in failures if not future.seen]
        if not unseen:
            return
        if len(unseen) > 1:
            unseen[0].add_note(f"and {len(unseen) - 1} more failed")
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
            deadline_s = time.monotonic() + JOIN_TIMEOUT_S
            for sender in list(self._senders.values()):
                # One without a put has nothing to end, and may wait for a broker for long.
                sender.join(max(0.0, deadline_s - time.monotonic()) if sender.has_put else IDLE_S)

    def end_when_empty(self) -> None:
        """Take no more; what was taken is still delivered. Does not wait."""
        self._closing.set()
        self.wake()

    def _wait_for_room(self) -> None:
        """Wait while the buffer is full; the lock is held.

        A callback of a future does not wait, whoever's: only its thread, or one that waits for it,
        could make room. What it appends goes past the limit.
        """
        is_callback = getattr(_THREAD, "is_resolving", False)
        limit_s = limited(self._options.timeout_s)
        deadline_s = time.monotonic() + limit_s
        while not (self.has_room or is_callback or self._closing.is_set()):
            now_s = time.monotonic()
            if now_s >= deadline_s:
                raise RequestTimeoutError(
                    f"the buffer of {self._options.buffer_bytes} bytes stayed full for "
                    f"{limit_s:.3g} s: the broker does not keep up"
                )
            self._changed.wait(deadline_s - now_s)
        if self._closing.is_set():
            raise DisconnectedError("this producer is closed; make another")

    def _awake(self, partition: int) -> None:
        """Have the threads that deliver records of a partition look; the lock is held."""
        if leader := self._leaders[partition]:
            self.send_to((leader,))  # its lane ends when nothing is to be sent for a while
        if not self._is_watched:
            self._watch_over()
        self._changed.notify_all()

    def _watch_over(self) -> None:
        """Start the watchdog; the lock is held."""
        self._is_watched = True
        # Not a daemon: a program does not end before what it appended is delivered or given up.
        threading.Thread(target=self._watch, name="strandline-watchdog").start()

    def _collect(self, now_s: float, *, everything: bool = False) -> None:
        """Move what is ready from the accumulator to the outbox; the lock is held."""
        for lot in self._accumulator.take_ready(now_s, everything=everything):
            self._outbox.put(lot)

    # Outcomes, on an ack thread, the watchdog or a lane, without the lock

    def acked(self, sender: BrokerSender, ack: PutAck) -> None:
        """An ack came; see ``Office``."""
        error = None if ack.error is None else from_body(ack.error)
        with self._changed:
            answered = self._outbox.answered(sender, ack.sequence, error)
            sender.waits_since_s = time.monotonic() if self._outbox.in_flight(sender) else None
            if error is None:
                self._leaders.answered()
                self._has_told = False
            self._is_gone = self._is_gone or isinstance(error, UnknownStreamError)
            if answered is None:
                partition = self._outbox.partition_of(ack.sequence)
                # What is behind a lot that is sent again waits with it.
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
        """A lot cannot be sent at all; see ``Office``."""
        with self._changed:
            answered = self._outbox.answered(sender, number, error)
            self._resolving.append(threading.get_ident())
        self._give_up([] if answered is None else [(answered[0], answered[1] or error)])

    def _give_up(self, lots: Iterable[tuple[SomeLot, StrandlineError]]) -> None:
        """Fail lots that have left the outbox; the caller has counted them as resolving."""
        _THREAD.is_resolving = True
        try:
            for lot, error in lots:
                fail(lot, error, self._failed)
        finally:
            self._resolved()

    def _resolved(self) -> None:
        _THREAD.is_resolving = False
        with self._changed:
            self._resolving.remove(threading.get_ident())
            self._changed.notify_all()

    def _failed(self, future: AckFuture[Any], error: StrandlineError) -> None:
        """Give a future its failure, and remember it for ``flush`` unless somebody looks at it."""
        with self._changed:
            if not future.seen and len(self._failures) < KEPT_FAILURES_MAX:
                self._failures.append((future, error))
        future.set_exception(error)

    # The watchdog

    def _watch(self) -> None:
        """Give up what is past its deadline; at the end of the program, have the rest sent."""
        main, is_exit, looked = threading.main_thread(), False, 0
        while not self._is_over.wait(WATCH_INTERVAL_S):
            if not main.is_alive() and not self._closing.is_set():
                is_exit = True
                self.end_when_empty()
            with self._changed:
                now_s = time.monotonic()
                self._collect(now_s, everything=self._closing.is_set())
                expired = self._outbox.expire(now_s)
                if expired:
                    self._resolving.append(threading.get_ident())
                self._leave_silent(now_s)
                self._tell(now_s)
                if self._outbox.next_number > looked:  # one that is idle asks nobody
                    looked = self._outbox.next_number
                    self._leaders.look_for_more(now_s)
                self._note_end()
                self._changed.notify_all()
                if not (self._holds_any or self._senders or self._failures or expired):
                    self._is_watched = False
                    return
            if expired:
                self._give_up([(each.lot, self._timeout(each)) for each in expired])
        if is_exit and self._failures:
            logger.error("records failed: %s", self._failures[0][1])

    def _note_end(self) -> None:
        """Whether everything is over; the lock is held."""
        if self._closing.is_set() and not self._holds_any:
            self._is_over.set()

    @property
    def _holds_any(self) -> bool:
        """Whether any record is held; with the lock."""
        return bool(self._outbox or self._accumulator)

    def _tell(self, now_s: float) -> None:
        """Say, once, why nothing is acknowledged, long before it is given up; the lock is held."""
        oldest = self._outbox.oldest
        if oldest is None or self._has_told:
            return
        since_s = oldest.deadline_s - self._options.timeout_s
        loss = self._leaders.loss_since(since_s)
        if now_s - since_s >= TELL_S and loss is not None:
            self._has_told = True
            logger.warning(
                "records for %s wait for %.0f s, and %.0f more at most: %s",
                self._request.stream,
                now_s - since_s,
                oldest.deadline_s - now_s,
                loss.message,
            )

    def _leave_silent(self, now_s: float) -> None:
        """Send elsewhere what a broker has not answered for long; the lock is held."""
        if not self._brokers.is_cluster:
            return
        for sender in list(self._senders.values()):
            since_s = sender.waits_since_s
            if since_s is not None and now_s - since_s > SILENCE_S:
                error = DisconnectedError(f"{sender.address} does not answer")
                self._outbox.lost(sender)
                sender.is_over = True
                del self._senders[sender.address]
                self._leaders.look_up(self._leaders.led_by(sender.address), error)
                sender.reset()

    def _timeout(self, expired: Expired[SomeLot]) -> StrandlineError:
        """The error of a lot past its deadline."""
        limit = f"{self._options.timeout_s:g} s"
        reason = expired.error or self._leaders.last_loss
        if expired.is_in_flight:
            what = f"no ack from {self._leaders[expired.lot.partition]} within {limit}"
            loss = self._leaders.loss_since(expired.lot.deadline_s - self._options.timeout_s)
            before = f"; before that: {loss.message}" if loss is not None else ""
            error: StrandlineError = RequestTimeoutError(what + before)
        elif isinstance(reason, UnavailableError):
            error = type(reason)(f"not delivered within {limit}: {reason.message}")
        else:
            error = RequestTimeoutError(f"not sent within {limit}: the broker does not keep up")
        if expired.in_doubt:
            return unknown_outcome(error)
        return type(error)(f"{error.message}; it was not stored")

    # Lanes

    def next_for(self, sender: BrokerSender) -> InFlightBatch[SomeLot] | None:
        """The next lot of a lane, or None if it has to look after itself; see ``Office``."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                self._collect(now_s, everything=self._closing.is_set())
                if sender.is_over or sender.has_lost_put:
                    return None
                entry = self._outbox.send(
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
                    self._changed.wait(None if self._outbox else idle_s)

    def writes(self, sender: BrokerSender, entry: InFlightBatch[SomeLot]) -> bool:
        """A lot is about to be written; False: it was given up; see ``Office``."""
        with self._changed:
            return self._outbox.writes(sender, entry)

    def in_flight(self, sender: BrokerSender) -> int:
        """How many lots of a lane are not answered; see ``Office``."""
        with self._changed:
            return self._outbox.in_flight(sender)

    def producer_id(self, sender: BrokerSender, producer: int) -> int:
        """Who numbers the lots, each asked for once; see ``Office``."""
        with self._producer_lock:
            while len(self._producer_ids) <= producer:
                sender.waits_since_s = (
                    None  # nothing of it is sent yet, so its broker is not silent
                )
                try:
                    [info] = self._brokers.ask(admin.NEW_PRODUCER, None, admin.ProducerInfo)
                except RequestTimeoutError as error:  # nothing was sent, so it is tried again
                    raise UnavailableError(error.message) from error
                self._producer_ids.append(info.producer_id)
                sender.waits_since_s = time.monotonic()
            return self._producer_ids[producer]

    def lost(self, sender: BrokerSender, error: StrandlineError) -> None:
        """A put failed: send again if that may help, else give everything up; see ``Office``."""
        is_unknown = self._brokers.is_cluster and isinstance(error, UnknownStreamError)
        if sender.is_over:
            return
        if is_worth_a_retry(error) or is_unknown:
            with self._changed:
                self._outbox.lost(sender)
                sender.waits_since_s = None
                self._leaders.look_up(self._leaders.led_by(sender.address), error)
            sender.reset()
            return
        with self._changed:
            if isinstance(error, InvalidRequestError):
                self._outbox.refused(sender)
            lots = self._outbox.drop(lambda p: self._leaders[p] == sender.address)
            self._outbox.lost(sender)  # partitions that another leads by now
            sender.waits_since_s = None
            self._resolving.append(threading.get_ident())
        self._give_up(_outcomes(lots, error))

    def wake(self) -> None:
        """Let everybody look again; see ``Office``."""
        with self._changed:
            self._note_end()
            self._changed.notify_all()

    def failed(self) -> None:
        """A bug of ours ended a lane: nobody waits for ever; see ``Office``."""
        self.give_all_up(StrandlineError(FAILED))

    def give_all_up(self, error: StrandlineError) -> None:
        """Deliver nothing more; see ``Sender``."""
        self._closing.set()
        with self._changed:
            self._collect(time.monotonic(), everything=True)
            lots = self._outbox.drop(lambda _: True)
            self._resolving.append(threading.get_ident())
        self._give_up(_outcomes(lots, error))

    def send_to(self, addresses: Iterable[str]) -> None:
        """Have a lane to each of these; the lock is held."""
        for address in addresses:
            if address not in self._senders:
                sender = BrokerSender(self._brokers.connection(address), self._request, self)
                self._senders[sender.address] = sender
                sender.start()


def _outcomes(
    dropped: Iterable[Expired[SomeLot]], error: StrandlineError
) -> list[tuple[SomeLot, StrandlineError]]:
    """The error of lots that are given up: of what was sent and not answered nobody knows."""
    return [(each.lot, unknown_outcome(error) if each.in_doubt else error) for each in dropped]

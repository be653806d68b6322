"""Publishes for partitions that another broker leads: forwarded to it by a client of our own.

Liftbridge's clients publish to any broker, and so do NATS publishers at a broker's own listener or
at a nats-server that meets no other. The client here finds leaders, waits through elections and
stores a retry once. Records with an expected offset go one by one, and a retry of those is the
publisher's business, as with the leader itself. With TLS it trusts the authority of the clients'
certificates, or else that of the peer link's, or else whom gRPC trusts.

Rules: the order of one partition's publishes is kept, also when its leadership comes here while
some are under way; an outcome reaches its responder on the loop. A stream that is published to has
a producer, with threads here and at the leader, which keeps the log's files open there: so that of
a deleted stream is ended, and of the others no more stay than ``PRODUCERS_MAX``.
"""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from strandline.broker.cluster.broker import ClusterBroker
from strandline.broker.write_path.ack_sink import AckSink
from strandline.client.client import Client
from strandline.client.cluster_client import ClusterClient
from strandline.client.producer.accumulator import ProducerRecord
from strandline.client.producer.conditional_appender import ConditionalAppender
from strandline.client.producer.producer import Producer
from strandline.client.reader.results import Ack
from strandline.client.tls import Credentials
from strandline.core.metadata.commands import PausePartitions
from strandline.core.metadata.image import PartitionImage
from strandline.errors import (
    NotEnoughReplicasError,
    StrandlineError,
    UnauthenticatedError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.servers.forwarding import PendingForward
from strandline.servers.own_token import own_token, wait_until_known
from strandline.servers.resume_forwarder import ForwardedPublish, Outcome, ResumeForwarder
from strandline.types import BrokerId, Offset, PartitionName

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
"""Publishes under way to other brokers; streams of them wait for room, others are refused."""
PENDING_BYTES_MAX: Final = 32 << 20
"""Of their values; less than a producer buffers, which would block the thread that all share."""
PRODUCERS_MAX: Final = 256
"""Of streams to which nothing is under way, those used last."""
ASK_TIMEOUT_S: Final = 10.0
ONE_TIMEOUT_S: Final = 30.0
"""How long a record that goes by itself is tried for, as long as the others."""
STOP_WAIT_S: Final = 1.0
STOP_POLL_S: Final = 0.01
A_BUG: Final = "internal error; see the broker's log"


class LeaderLinks(NamedTuple):
    """The ways to the leaders."""

    client: Client
    expecting: ConditionalAppender
    producers: dict[str, Producer]
    """Stream → who appends to it; the one used last is the last."""

    def producer(self, stream: str) -> Producer:
        """Who appends to a stream.

        Raises:
            UnknownStreamError: there is none.
        """
        found = self.producers.pop(stream, None)
        if found is not None and not found.is_usable:
            found.abandon()
            found = None
        made = self.producers[stream] = found or self.client.producer(stream, linger_ms=0)
        return made

    def let_go(self, stream: str) -> None:
        """Need a stream's producer no more."""
        found = self.producers.pop(stream, None)
        if found is not None:
            found.abandon()

    def abandon(self) -> None:
        """End them at once; the outcome of what is under way is unknown."""
        self.expecting.close()
        self.client.abandon()

    def close(self) -> None:
        """End them, once what is under way is answered.

        Raises:
            StrandlineError: an append nobody waited for failed.
        """
        self.expecting.close()
        self.client.close()


class Forwarder:
    """Forwards publishes; loop thread. Shared by the front ends, so that no order changes.

    Args:
        broker: whose cluster it is.
    """

    def __init__(self, broker: ClusterBroker) -> None:
        self._broker = broker
        self._waking = ResumeForwarder(self._resume)
        # One thread each: what it is given leaves in that order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forward")
        self._single = ThreadPoolExecutor(1, thread_name_prefix="forward-one")
        self._lock = threading.Lock()
        self._sending_one = threading.Lock()
        self._link: LeaderLinks | None = None
        self._pending: Counter[PartitionName] = Counter()
        self._pending_bytes = 0
        self._created_ns: dict[str, int] = {}
        self._has_room = asyncio.Event()
        self._is_flushing = self._is_stopping = False
        broker.on_streams_changed(self._streams_changed)

    @property
    def is_busy(self) -> bool:
        """Whether any publish is under way."""
        return bool(self._pending)

    @property
    def fullness(self) -> float:
        """How much of what may be under way is: at 1.0 publishes are refused."""
        return max(self._pending.total() / PENDING_MAX, self._pending_bytes / PENDING_BYTES_MAX)

    def is_led_elsewhere(self, partition: PartitionName) -> bool:
        """Whether another broker leads a partition, or is still forwarded what came before."""
        if partition in self._pending:
            return True
        image = self._image_of(partition)
        return image is not None and image.leader not in (None, self._broker.membership.me)

    def is_busy_with(self, partition: PartitionName) -> bool:
        """Whether publishes to a partition are under way, which others must not overtake."""
        return partition in self._pending

    def _streams_changed(self) -> None:
        """Let go of what was deleted, also if it was made again."""
        before = self._created_ns
        self._created_ns = {each.name: each.created_ns for each in self._broker.streams()}
        gone = [name for name, at_ns in before.items() if self._created_ns.get(name) != at_ns]
        if gone and not self._is_stopping:
            self._thread.submit(self._let_go_of, gone)

    def _image_of(self, name: PartitionName) -> PartitionImage | None:
        """Return what the newest image says of a partition; None: it has just been deleted."""
        try:
            return self._broker.image.partition(name.stream, name.partition)
        except (UnknownStreamError, UnknownPartitionError):
            return None

    async def _resume(self, name: PartitionName) -> None:
        """Resume a partition that its leader has found paused, unless somebody else has by now.

        Raises:
            StrandlineError: it cannot be stored now, or nobody says what was decided.
        """
        broker = self._broker
        await broker.membership.newest.know()
        stream = broker.image.streams.get(name.stream)
        state = stream.states.get(name.partition) if stream is not None else None
        if state is not None and state.is_paused:
            now_ns = broker.clock.now_ns()
            numbers = (name.partition,)
            await broker.change(PausePartitions(name.stream, numbers, is_on=False, now_ns=now_ns))

    async def room(self) -> None:
        """Wait until another publish is taken."""
        while self.fullness >= 1:
            self._has_room.clear()
            await self._has_room.wait()

    def append(
        self,
        record: PendingForward,
        *,
        ack_sink: AckSink | None,
        token: object,
        expects: bool = False,
        expected: int | None = None,
    ) -> None:
        """Hand a record on; the outcome reaches the responder.

        Args:
            record: what to store.
            ack_sink: whom to tell; None: nobody.
            token: comes back with the outcome.
            expects: whether the stream checks expected offsets.
            expected: the offset; None: whichever is next.
        """
        refusal = self._refusal(record.partition)
        if refusal is not None:
            self._reject(record.partition, refusal, sink=ack_sink, token=token)
            return
        size = len(record.value or b"")
        self._pending[record.partition] += 1
        self._pending_bytes += size

        def tell(outcome: Outcome) -> None:
            self._pending_bytes -= size
            self._pending[record.partition] -= 1
            if not self._pending[record.partition]:
                del self._pending[record.partition]
            self._has_room.set()
            if isinstance(outcome, StrandlineError):
                self._reject(record.partition, outcome, sink=ack_sink, token=token)
            elif ack_sink is not None:
                offset = Offset(outcome.offset)
                ack_sink.acked(token, record.partition, offset, duplicate=outcome.duplicate)
            self._flush_soon()

        def send(errand: ForwardedPublish) -> None:
            done = partial(self._waking.answered, errand)
            if expects:
                self._single.submit(self._send_one, record, done, expected)
            else:
                self._thread.submit(self._send, record, done)

        self._waking.hand_on(ForwardedPublish(record.partition, send, tell, wakes=record.wakes))

    def _reject(
        self, name: PartitionName, error: StrandlineError, *, sink: AckSink | None, token: object
    ) -> None:
        self._broker.admission.reject(error, sink, token, stream=name.stream)

    def _flush_soon(self) -> None:
        """Have the front ends send outcomes, and read on, once in this round of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        self._broker.send_answers()

    def _refusal(self, partition: PartitionName) -> StrandlineError | None:
        """Why a record is not handed on; what the leader would refuse is refused here, at once."""
        if self.fullness >= 1:
            return UnavailableError(
                f"{self._pending.total()} publishes wait for other brokers; retry later"
            )
        try:
            self._broker.check_quorum()
        except UnavailableError as error:
            return error
        stream = self._broker.image.streams.get(partition.stream)
        if stream is None or partition.partition >= len(stream.partitions):
            return None  # the leader may know it
        found, few = stream.partitions[partition.partition], stream.config.min_isr
        if found.leader is not None and len(found.isr) < few:
            return NotEnoughReplicasError(
                f"fewer than {few} replicas of {partition} are in sync; retry later"
            )
        return None

    def _send(self, record: PendingForward, done: Callable[[Outcome], None]) -> None:
        """On the thread: give the record to the client."""

        def finished(future: "Future[Ack]") -> None:
            failure = future.exception()
            self._tell(done, future.result() if failure is None else self._explained(failure))

        try:
            link = self._linked()
            future = link.producer(record.partition.stream).append(
                record.value,
                key=record.key,
                subject=record.subject,
                headers=record.headers,
                partition=record.partition.partition,
                message_id=record.message_id,
            )
        except Exception as error:  # noqa: BLE001 - whoever published is told
            self._tell(done, self._explained(error))
        else:
            future.add_done_callback(finished)
            if len(link.producers) > PRODUCERS_MAX:
                self._let_go_of_idle(link)

    def _let_go_of_idle(self, link: LeaderLinks) -> None:
        """On the thread: end producers that were not used for long, so that no order changes."""
        busy = {partition.stream for partition in list(self._pending)}
        for stream in list(link.producers)[:-PRODUCERS_MAX]:
            if stream not in busy:
                link.let_go(stream)

    def _let_go_of(self, streams: list[str]) -> None:
        """On the thread: these were deleted."""
        if self._link is not None:
            for stream in streams:
                self._link.let_go(stream)

    def _send_one(
        self, record: PendingForward, done: Callable[[Outcome], None], expected: int | None
    ) -> None:
        """On its thread: store a record before the next one."""
        outcome: Outcome
        handed = ProducerRecord(
            record.value, record.key, record.subject, record.headers, record.message_id
        )
        stream, number = record.partition
        try:
            with self._sending_one:
                link = self._linked()
                outcome = link.expecting.append(stream, number, handed, expected_offset=expected)
        except Exception as error:  # noqa: BLE001 - whoever published is told
            outcome = self._explained(error)
        self._tell(done, outcome)

    def _linked(self) -> LeaderLinks:
        """The ways to the leaders, made when they are first needed; blocks.

        Raises:
            StrandlineError: as ``_connect``.
        """
        with self._lock:
            if self._link is None:
                self._link = _connect(self._broker)
            return self._link

    def _explained(self, error: BaseException) -> StrandlineError:
        """What the caller is told: that our token was refused, or a bug, is no fault of its own."""
        if not isinstance(error, StrandlineError):
            logger.error("a publish could not be handed on", exc_info=error)
            return UnavailableError(A_BUG)
        if not isinstance(error, UnauthenticatedError):
            return error
        if not self._is_stopping:
            self.renew_client()
        return UnavailableError("the leader did not take this broker's own token; retry")

    def _tell(self, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._broker.call_soon(done, outcome)

    def renew_client(self) -> None:
        """Begin again with a client that reads the certificates anew; the old one finishes."""
        self._thread.submit(self._let_go)

    def _let_go(self) -> None:
        """On the thread: what is under way is waited for, so that the order is kept."""
        with self._sending_one:
            self._close()

    def _close(self) -> None:
        """End the clients; what goes by itself is not waited for."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            try:
                link.close()
            except StrandlineError as error:
                logger.warning("a publish that was handed on failed: %s", error)

    async def quiesce(self) -> None:
        """Wait for what is under way, but not for long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + STOP_WAIT_S
        while self._pending and loop.time() < deadline_s:  # noqa: ASYNC110  once, at the end
            await asyncio.sleep(STOP_POLL_S)

    async def stop(self) -> None:
        """Let go of the client; what is under way is told that its outcome is unknown."""
        self._is_stopping = True
        await self._waking.stop()
        for thread in (self._thread, self._single):
            thread.shutdown(wait=False, cancel_futures=True)
        await self.quiesce()
        await asyncio.to_thread(self._abandon)

    def _abandon(self) -> None:
        if not self._lock.acquire(timeout=STOP_WAIT_S):
            return  # they are just being made, and will find that the broker stops
        link, self._link = self._link, None
        self._lock.release()
        if link is not None:
            link.abandon()


def _connect(broker: ClusterBroker) -> LeaderLinks:
    """Clients of the cluster, which show this broker's certificate where there is TLS.

    Raises:
        StrandlineError: the cluster is not known yet, or its certificates are not trusted.
    """
    address, tls, token = _own_address(broker), broker.config.tls, own_token(broker)
    scheme, credentials = "grpc", Credentials(token=token or "")
    if tls.is_on:
        authority = tls.authority or broker.config.cluster.tls_authority
        scheme = "tls"
        credentials = Credentials(authority, tls.certificate, tls.key, token or "")
    if token is not None:
        for other in broker.flight_addresses:
            wait_until_known(f"{scheme}://{other}", credentials, broker.clock)
    brokers = ClusterClient(
        f"{scheme}://{address}", timeout_s=ASK_TIMEOUT_S, credentials=credentials
    )
    brokers.server_info()  # learns of the others
    return LeaderLinks(
        Client(f"{scheme}://{address}", credentials=credentials),
        ConditionalAppender(brokers, timeout_s=ONE_TIMEOUT_S),
        {},
    )


def _own_address(broker: ClusterBroker) -> str:
    """Where Flight listens: the client learns of the others there.

    Raises:
        UnavailableError: the cluster does not know this broker yet.
    """
    mine = broker.image.brokers.get(BrokerId(broker.config.cluster.broker_id))
    if mine is None or not mine.flight_address:
        raise UnavailableError("this broker has not joined the cluster yet; retry")
    return mine.flight_address

"""Publishes for partitions that another broker leads: handed on by a client of our own.

Liftbridge's clients publish to any broker. The client here finds leaders, waits through elections
and stores a retry once. Records of streams that check expected offsets go one by one, and a retry
of those is the publisher's business, as with the leader itself. With TLS it trusts the authority of
the clients' certificates, or else that of the peer link's, or else whom gRPC trusts.

Rules: the order of one partition's publishes is kept, also when its leadership comes here while
some are under way; an outcome reaches its responder on the loop. A stream that is published to has
a producer, with threads here and at the leader, which keeps the log's files open there: so that of
a deleted stream is ended, and of the others no more stay than ``PRODUCERS_MAX``.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from strandline.broker.ack_sink import AckSink
from strandline.broker.broker import Broker
from strandline.client.accumulator import ProducerRecord
from strandline.client.client import Client
from strandline.client.cluster_client import ClusterClient
from strandline.client.conditional_appender import ConditionalAppender
from strandline.client.producer import Producer
from strandline.client.results import Ack
from strandline.client.tls import Credentials
from strandline.errors import (
    NotEnoughReplicasError,
    StrandlineError,
    UnauthenticatedError,
    UnavailableError,
)
from strandline.frontends.grpc.liftbridge.own_token import own_token, wait_until_known
from strandline.frontends.grpc.liftbridge.resume_forwarder import (
    ForwardedPublish,
    Outcome,
    ResumeForwarder,
)
from strandline.record.codec import Headers
from strandline.types import BrokerId, Offset, PartitionName

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
"""Publishes under way to other brokers; streams of them wait for room, others are refused."""
PRODUCERS_MAX: Final = 256
"""Of streams to which nothing is under way, those used last."""
ASK_TIMEOUT_S: Final = 10.0
ONE_TIMEOUT_S: Final = 30.0
"""How long a record that goes by itself is tried for, as long as the others."""
STOP_WAIT_S: Final = 1.0
STOP_POLL_S: Final = 0.01
A_BUG: Final = "internal error; see the broker's log"


class PendingForward(NamedTuple):
    """A record to hand on."""

    partition: PartitionName
    value: bytes
    subject: str
    key: bytes | None
    headers: Headers | None
    message_id: str | None
    wakes: bool = False
    """Whether the partition is resumed for it, if it is paused."""


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
    """Hands publishes on; loop thread.

    Args:
        broker: whose cluster it is.
        wake: resumes a partition, if it is paused.
    """

    def __init__(self, broker: Broker, wake: Callable[[PartitionName], Awaitable[None]]) -> None:
        self._broker = broker
        self._waking = ResumeForwarder(wake)
        self._loop = asyncio.get_running_loop()
        # One thread each: what it is given leaves in that order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpc-forward")
        self._single = ThreadPoolExecutor(1, thread_name_prefix="grpc-forward-one")
        self._lock = threading.Lock()
        self._sending_one = threading.Lock()
        self._link: LeaderLinks | None = None
        self._pending: Counter[PartitionName] = Counter()
        self._created_ns: dict[str, int] = {}
        self._has_room = asyncio.Event()
        self._is_stopping = False

    def is_busy_with(self, partition: PartitionName) -> bool:
        """Whether publishes to a partition are under way, which others must not overtake."""
        return partition in self._pending

    def streams_changed(self, created_ns: dict[str, int]) -> None:
        """Let go of what was deleted, also if it was made again.

        Args:
            created_ns: when each stream there is was made.
        """
        before, self._created_ns = self._created_ns, created_ns
        gone = [name for name, at_ns in before.items() if created_ns.get(name) != at_ns]
        if gone and not self._is_stopping:
            self._thread.submit(self._let_go_of, gone)

    async def room(self) -> None:
        """Wait until another publish is taken."""
        while self._pending.total() >= PENDING_MAX:
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
            if ack_sink is not None:
                ack_sink.rejected(token, refusal)
            return
        self._pending[record.partition] += 1

        def tell(outcome: Outcome) -> None:
            self._pending[record.partition] -= 1
            if not self._pending[record.partition]:
                del self._pending[record.partition]
            self._has_room.set()
            if ack_sink is None:
                return
            if isinstance(outcome, StrandlineError):
                ack_sink.rejected(token, outcome)
            else:
                offset = Offset(outcome.offset)
                ack_sink.acked(token, record.partition, offset, duplicate=outcome.duplicate)

        def send(errand: ForwardedPublish) -> None:
            done = partial(self._waking.answered, errand)
            if expects:
                self._single.submit(self._send_one, record, done, expected)
            else:
                self._thread.submit(self._send, record, done)

        self._waking.hand_on(ForwardedPublish(record.partition, send, tell, wakes=record.wakes))

    def _refusal(self, partition: PartitionName) -> StrandlineError | None:
        """Why a record is not handed on; what the leader would refuse is refused here, at once."""
        if self._pending.total() >= PENDING_MAX:
            return UnavailableError(f"{PENDING_MAX} publishes wait for other brokers; retry later")
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
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, outcome)

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

    async def stop(self) -> None:
        """Let go of the client; what is under way is told that its outcome is unknown."""
        self._is_stopping = True
        await self._waking.stop()
        for thread in (self._thread, self._single):
            thread.shutdown(wait=False, cancel_futures=True)
        deadline_s = self._loop.time() + STOP_WAIT_S
        while self._pending and self._loop.time() < deadline_s:  # noqa: ASYNC110  once, at the end
            await asyncio.sleep(STOP_POLL_S)
        await asyncio.to_thread(self._abandon)

    def _abandon(self) -> None:
        if not self._lock.acquire(timeout=STOP_WAIT_S):
            return  # they are just being made, and will find that the broker stops
        link, self._link = self._link, None
        self._lock.release()
        if link is not None:
            link.abandon()


def _connect(broker: Broker) -> LeaderLinks:
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


def _own_address(broker: Broker) -> str:
    """Where Flight listens: the client learns of the others there.

    Raises:
        UnavailableError: the cluster does not know this broker yet.
    """
    mine = broker.image.brokers.get(BrokerId(broker.config.cluster.broker_id))
    if mine is None or not mine.flight_address:
        raise UnavailableError("this broker has not joined the cluster yet; retry")
    return mine.flight_address

"""Forwarding of publishes to the brokers that lead their partitions.

Liftbridge clients publish to any broker, and so do NATS publishers at an ingest listener or at a
nats-server without cluster routes. A Strandline client inside the broker finds the leaders, waits
for elections and deduplicates its retries. Records with an expected offset are sent one by one and
not retried: as with the leader itself, retries are left to the publisher. With TLS the client
trusts ``tls.authority``, or else ``cluster.tls_authority``, or else gRPC's defaults.

Rules: the publishes to one partition keep their order, also when this broker becomes the leader
while some are in flight. Outcomes reach the ack sink on the loop. A stream's producer has threads
here and at the leader, and keeps the log's files open there. So the producer of a deleted stream is
closed, and at most ``PRODUCERS_MAX`` idle ones are kept.
"""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from strandline.broker.cluster.broker import ClusterBroker
from strandline.broker.write_path.pending import AckSink
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
from strandline.servers.own_token import own_token, wait_until_known
from strandline.servers.resume_forwarder import (
    ForwardedPublish,
    Outcome,
    PendingForward,
    ResumeForwarder,
)
from strandline.types import BrokerId, Offset, PartitionName

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
"""Publishes in flight to other brokers. At the limit, streaming publishers wait for room, and
other publishes are rejected."""
PENDING_BYTES_MAX: Final = 32 << 20
"""Bytes of values in flight. Less than a producer buffers: a full producer would block the thread
that all streams share."""
PRODUCERS_MAX: Final = 256
"""The number of producers kept while idle, the most recently used ones."""
ASK_TIMEOUT_S: Final = 10.0
ONE_TIMEOUT_S: Final = 30.0
"""How long a record sent alone is retried; the same as for the other records."""
STOP_WAIT_S: Final = 1.0
STOP_POLL_S: Final = 0.01
A_BUG: Final = "internal error; see the broker's log"


class LeaderLinks(NamedTuple):
    """The clients that reach the leaders."""

    client: Client
    expecting: ConditionalAppender
    producers: dict[str, Producer]
    """Stream → its producer, the most recently used one last."""

    def producer(self, stream: str) -> Producer:
        """Return the producer of a stream.

        Raises:
            UnknownStreamError: the stream does not exist.
        """
        found = self.producers.pop(stream, None)
        if found is not None and not found.is_usable:
            found.abandon()
            found = None
        made = self.producers[stream] = found or self.client.producer(stream, linger_ms=0)
        return made

    def close_producer(self, stream: str) -> None:
        """Close a stream's producer if there is one."""
        found = self.producers.pop(stream, None)
        if found is not None:
            found.abandon()

    def abandon(self) -> None:
        """Close at once; the outcomes of publishes in flight stay unknown."""
        self.expecting.close()
        self.client.abandon()

    def close(self) -> None:
        """Close after the publishes in flight are answered.

        Raises:
            StrandlineError: an append failed and no caller read its future.
        """
        self.expecting.close()
        self.client.close()


class Forwarder:
    """A forwarder of publishes, shared by all servers so that their order is kept; loop thread.

    Args:
        broker: a broker of the cluster.
    """

    def __init__(self, broker: ClusterBroker) -> None:
        self._broker = broker
        self._resumer = ResumeForwarder(self._resume)
        # One thread for each way of sending, so that publishes leave in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forward")
        self._single = ThreadPoolExecutor(1, thread_name_prefix="forward-one")
        self._lock = threading.Lock()
        self._sending_one = threading.Lock()
        self._link: LeaderLinks | None = None
        self._pending: Counter[PartitionName] = Counter()
        self._pending_bytes = 0
        self._created_ns: dict[str, int] = {}
        self._has_room = asyncio.Event()
        self._is_stopping = False
        broker.on_streams_changed(self._streams_changed)

    @property
    def is_busy(self) -> bool:
        """Whether any publish is in flight."""
        return bool(self._pending)

    @property
    def fullness(self) -> float:
        """The used fraction of the limits; at 1.0 publishes are rejected."""
        return max(self._pending.total() / PENDING_MAX, self._pending_bytes / PENDING_BYTES_MAX)

    def is_led_elsewhere(self, partition: PartitionName) -> bool:
        """Return whether another broker leads, or earlier publishes are in flight to one."""
        if partition in self._pending:
            return True
        image = self._image_of(partition)
        return image is not None and image.leader not in (None, self._broker.membership.me)

    def is_busy_with(self, partition: PartitionName) -> bool:
        """Return whether publishes are in flight that later ones must not overtake."""
        return partition in self._pending

    def _streams_changed(self, names: Collection[str]) -> None:
        """Close the producers of deleted streams, including streams that were recreated."""
        gone = [name for name in names if self._is_gone(name)]
        if gone and not self._is_stopping:
            self._thread.submit(self._close_producers, gone)

    def _is_gone(self, name: str) -> bool:
        """Return whether a stream seen earlier is gone; note when the present one was created."""
        before = self._created_ns.pop(name, None)
        now = self._broker.image.streams.get(name)
        if now is not None:
            self._created_ns[name] = now.created_ns
        return before is not None and before != self._created_ns.get(name)

    def _image_of(self, name: PartitionName) -> PartitionImage | None:
        """Return a partition of the newest metadata image; None if it has just been deleted."""
        try:
            return self._broker.image.partition(name.stream, name.partition)
        except (UnknownStreamError, UnknownPartitionError):
            return None

    async def _resume(self, name: PartitionName) -> None:
        """Resume a partition that its leader found paused, unless it is resumed already.

        Raises:
            StrandlineError: the metadata cannot be read or changed now.
        """
        broker = self._broker
        await broker.know_newest()
        stream = broker.image.streams.get(name.stream)
        state = stream.states.get(name.partition) if stream is not None else None
        if state is not None and state.is_paused:
            now_ns = broker.clock.now_ns()
            numbers = (name.partition,)
            await broker.change(PausePartitions(name.stream, numbers, is_on=False, now_ns=now_ns))

    async def room(self) -> None:
        """Wait until another publish can be accepted."""
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
        """Forward a record; its outcome reaches the ack sink.

        Args:
            record: the record.
            ack_sink: receives the outcome; None if no caller wants it.
            token: passed to the ack sink with the outcome.
            expects: whether the stream checks expected offsets.
            expected: the expected offset; None means the next one.
        """
        rejection = self._rejection(record.partition)
        if rejection is not None:
            self._reject(record.partition, rejection, sink=ack_sink, token=token)
            return
        size = len(record.value or b"")
        self._pending[record.partition] += 1
        self._pending_bytes += size

        def report(outcome: Outcome) -> None:
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
            self._broker.send_answers_soon()  # lets paused connections read again, too

        def send(publish: ForwardedPublish) -> None:
            done = partial(self._resumer.answered, publish)
            if expects:
                self._single.submit(self._send_one, record, done, expected)
            else:
                self._thread.submit(self._send, record, done)

        self._resumer.submit(ForwardedPublish(record.partition, send, report, wakes=record.wakes))

    def _reject(
        self, name: PartitionName, error: StrandlineError, *, sink: AckSink | None, token: object
    ) -> None:
        self._broker.admission.reject(error, sink, token, stream=name.stream)

    def _rejection(self, partition: PartitionName) -> StrandlineError | None:
        """Return why to reject a record without asking its leader; None to forward it."""
        if self.fullness >= 1:
            return UnavailableError(
                f"{self._pending.total()} publishes wait for other brokers; retry later"
            )
        try:
            self._broker.check_metadata()
        except UnavailableError as error:
            return error
        stream = self._broker.image.streams.get(partition.stream)
        if stream is None or partition.partition >= len(stream.partitions):
            return None  # the leader may have newer metadata
        found, few = stream.partitions[partition.partition], stream.config.min_isr
        if found.leader is not None and len(found.isr) < few:
            return NotEnoughReplicasError(
                f"fewer than {few} replicas of {partition} are in sync; retry later"
            )
        return None

    def _send(self, record: PendingForward, done: Callable[[Outcome], None]) -> None:
        """Pass the record to the client; forward thread."""

        def finished(future: "Future[Ack]") -> None:
            failure = future.exception()
            self._tell(done, future.result() if failure is None else self._explained(failure, link))

        link = None
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
        except Exception as error:  # noqa: BLE001 - the publisher gets the error
            self._tell(done, self._explained(error, link))
        else:
            future.add_done_callback(finished)
            if len(link.producers) > PRODUCERS_MAX:
                self._close_idle_producers(link)

    def _close_idle_producers(self, link: LeaderLinks) -> None:
        """Close the least recently used producers; forward thread, to keep the order."""
        busy = {partition.stream for partition in list(self._pending)}
        for stream in list(link.producers)[:-PRODUCERS_MAX]:
            if stream not in busy:
                link.close_producer(stream)

    def _close_producers(self, streams: list[str]) -> None:
        """Close the producers of deleted streams; forward thread."""
        if self._link is not None:
            for stream in streams:
                self._link.close_producer(stream)

    def _send_one(
        self, record: PendingForward, done: Callable[[Outcome], None], expected: int | None
    ) -> None:
        """Store a record alone: the next one is sent when its outcome is known; own thread."""
        outcome: Outcome
        handed = ProducerRecord(
            record.value, record.key, record.subject, record.headers, record.message_id
        )
        stream, number = record.partition
        link = None
        try:
            with self._sending_one:
                link = self._linked()
                outcome = link.expecting.append(stream, number, handed, expected_offset=expected)
        except Exception as error:  # noqa: BLE001 - the publisher gets the error
            outcome = self._explained(error, link)
        self._tell(done, outcome)

    def _linked(self) -> LeaderLinks:
        """Return the clients, connected on first use; blocks.

        Raises:
            StrandlineError: see ``_connect``.
        """
        with self._lock:
            if self._link is None:
                self._link = _connect(self._broker)
            return self._link

    def _explained(self, error: BaseException, link: LeaderLinks | None) -> StrandlineError:
        """Return the error for the publisher, who is not to blame for our token or for a bug.

        Args:
            error: the failure.
            link: the clients whose request failed; None if they could not be connected.
        """
        if not isinstance(error, StrandlineError):
            logger.error("a publish could not be forwarded", exc_info=error)
            return UnavailableError(A_BUG)
        if not isinstance(error, UnauthenticatedError):
            return error
        if link is not None and not self._is_stopping:
            self._thread.submit(self._close_clients, link)
        return UnavailableError("the leader rejected this broker's own token; retry")

    def _tell(self, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._broker.call_soon(done, outcome)

    def renew_client(self) -> None:
        """Replace the client, to read certificates again. Publishes in flight finish first."""
        self._thread.submit(self._close_clients, None)

    def _close_clients(self, refused: LeaderLinks | None) -> None:
        """Close the clients after the publishes in flight, to keep the order; forward thread.

        Args:
            refused: the clients to close, unless they have been replaced already: each of their
                publishes in flight reports the same rejection. None: the clients in use.
        """
        with self._sending_one:
            with self._lock:
                link = self._link
                if link is None or (refused is not None and refused is not link):
                    return
                self._link = None
            try:
                link.close()
            except StrandlineError as error:
                logger.warning("a forwarded publish failed: %s", error)

    async def quiesce(self) -> None:
        """Wait for publishes in flight, for a limited time."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + STOP_WAIT_S
        while self._pending and loop.time() < deadline_s:  # noqa: ASYNC110  once, at the end
            await asyncio.sleep(STOP_POLL_S)

    async def stop(self) -> None:
        """Stop; the outcome of publishes in flight is reported as unknown."""
        self._is_stopping = True
        await self._resumer.stop()
        for thread in (self._thread, self._single):
            thread.shutdown(wait=False, cancel_futures=True)
        await self.quiesce()
        await asyncio.to_thread(self._abandon)

    def _abandon(self) -> None:
        if not self._lock.acquire(timeout=STOP_WAIT_S):
            return  # a connection in progress will notice that the broker is stopping
        link, self._link = self._link, None
        self._lock.release()
        if link is not None:
            link.abandon()


def _connect(broker: ClusterBroker) -> LeaderLinks:
    """Connect to the cluster, with this broker's certificate where TLS is on.

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
    brokers.server_info()  # the client learns the other brokers' addresses
    return LeaderLinks(
        Client(f"{scheme}://{address}", credentials=credentials),
        ConditionalAppender(brokers, timeout_s=ONE_TIMEOUT_S),
        {},
    )


def _own_address(broker: ClusterBroker) -> str:
    """Return this broker's Flight address, from which the client learns the others.

    Raises:
        UnavailableError: the cluster does not know this broker yet.
    """
    mine = broker.image.brokers.get(BrokerId(broker.config.cluster.broker_id))
    if mine is None or not mine.flight_address:
        raise UnavailableError("this broker has not joined the cluster yet; retry")
    return mine.flight_address

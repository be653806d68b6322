"""Publishes for partitions that another broker leads: handed on by a client of our own.

Liftbridge's clients publish to any broker. The client here finds leaders, waits through elections
and stores a retry once. With TLS it trusts the authority of the clients' certificates, or else that
of the peer link's, or else whom gRPC trusts. Rules: the order of one partition's publishes is kept;
an outcome reaches its responder on the loop. It cannot carry an expected offset: the leader takes
that.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from strandline.broker.broker import Broker
from strandline.broker.responder import Responder
from strandline.client.client import Client
from strandline.client.results import Ack
from strandline.client.tls import Credentials
from strandline.errors import StrandlineError, UnauthenticatedError, UnavailableError
from strandline.frontends.grpc.liftbridge.own_token import own_token, wait_until_known
from strandline.record.codec import Headers
from strandline.types import BrokerId, Offset, PartitionName

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
"""Publishes under way to other brokers; more are refused."""


class Handed(NamedTuple):
    """A record to hand on."""

    partition: PartitionName
    value: bytes
    subject: str
    key: bytes | None
    headers: Headers | None
    message_id: str | None


class Forwarder:
    """Hands publishes on; loop thread.

    Args:
        broker: whose cluster it is.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        # One thread: what it is given leaves in that order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpc-forward")
        self._client: Client | None = None
        self._pending = 0
        self._is_stopping = False

    def append(self, record: Handed, *, responder: Responder | None, token: object) -> None:
        """Hand a record on; the outcome reaches the responder."""
        refusal = self._refusal()
        if refusal is not None:
            if responder is not None:
                responder.rejected(token, refusal)
            return
        self._pending += 1

        def done(outcome: Ack | StrandlineError) -> None:
            self._pending -= 1
            if responder is None:
                return
            if isinstance(outcome, StrandlineError):
                responder.rejected(token, outcome)
            else:
                offset = Offset(outcome.offset)
                responder.acked(token, record.partition, offset, duplicate=outcome.duplicate)

        self._thread.submit(self._send, record, done)

    def _refusal(self) -> StrandlineError | None:
        if self._pending >= PENDING_MAX:
            return UnavailableError(f"{PENDING_MAX} publishes wait for other brokers; retry later")
        return None

    def _send(self, record: Handed, done: Callable[[Ack | StrandlineError], None]) -> None:
        """On the thread: give the record to the client."""

        def finished(future: "Future[Ack]") -> None:
            failure = future.exception()
            if failure is None:
                self._tell(done, future.result())
            elif isinstance(failure, StrandlineError):
                self._tell(done, self._explained(failure))
            else:
                logger.error("a publish could not be handed on", exc_info=failure)
                self._tell(done, UnavailableError("internal error; see the broker's log"))

        try:
            if self._client is None:
                self._client = _connect(self._broker)
            future = self._client.appender(record.partition.stream).append(
                record.value,
                key=record.key,
                subject=record.subject,
                headers=record.headers,
                partition=record.partition.partition,
                message_id=record.message_id,
            )
        except StrandlineError as error:
            self._tell(done, self._explained(error))
            return
        future.add_done_callback(finished)

    def _explained(self, error: StrandlineError) -> StrandlineError:
        """What the caller is told: that our token was refused is no fault of its own."""
        if not isinstance(error, UnauthenticatedError):
            return error
        if not self._is_stopping:
            self.renew_client()
        return UnavailableError("the leader did not take this broker's own token; retry")

    def _tell(
        self, done: Callable[[Ack | StrandlineError], None], outcome: Ack | StrandlineError
    ) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, outcome)

    def renew_client(self) -> None:
        """Begin again with a client that reads the certificates anew; the old one finishes."""
        self._thread.submit(self._let_go)

    def _let_go(self) -> None:
        """On the thread: what is under way is waited for, so that the order is kept."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except StrandlineError as error:
                logger.warning("a publish that was handed on failed: %s", error)

    async def stop(self) -> None:
        """Let go of the client; what is under way is told that its outcome is unknown."""
        self._is_stopping = True
        client, self._client = self._client, None
        self._thread.shutdown(wait=False, cancel_futures=True)
        if client is not None:
            await asyncio.to_thread(client.close)


def _connect(broker: Broker) -> Client:
    """A client of the cluster, which shows this broker's certificate where there is TLS.

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
    return Client(f"{scheme}://{address}", credentials=credentials)


def _own_address(broker: Broker) -> str:
    """Where Flight listens: the client learns of the others there.

    Raises:
        UnavailableError: the cluster does not know this broker yet.
    """
    mine = broker.image.brokers.get(BrokerId(broker.config.cluster.broker_id))
    if mine is None or not mine.flight_address:
        raise UnavailableError("this broker has not joined the cluster yet; retry")
    return mine.flight_address

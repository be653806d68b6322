"""The broker as a client of nats-server: one connection at a time, re-established when it breaks.

Rules: NATS delivers at most once, so messages published while there is no connection are lost; a
publisher that waits for its ack notices and retries. After a reconnect all bindings are subscribed
again before anything else. A connection that does not answer pings is closed.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from strandline.broker.routing import Binding
from strandline.errors import (
    DisconnectedError,
    StrandlineError,
    UnavailableError,
)
from strandline.servers.nats.foreign_jetstream import ForeignJetStreamWatch
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.ingest_state import IngestState
from strandline.servers.nats.jetstream.api import JetStreamApi
from strandline.servers.nats.nats_connection import NatsConnection
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.replies import PubAckLines
from strandline.servers.nats.server_link import (
    HANDSHAKE_TIMEOUT_S,
    Login,
    NatsServerInfo,
    NatsServerUrl,
    connect_link,
    is_connected,
    parse_server_url,
)
from strandline.servers.tasks import end_task, start_task

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 2.0
PING_INTERVAL_S: Final = 20.0
PING_TIMEOUT_S: Final = 20.0
DRAIN_TIMEOUT_S: Final = 3.0
PEER_TIMEOUT_S: Final = 1.0
"""How long another broker may take to answer over the servers' routes. Creations of streams wait
for it."""


class NatsClient:
    """A client that keeps the bindings of all streams subscribed at a nats-server.

    Args:
        broker: the broker that stores records.
        ingest: appends the messages; shared by all listeners.
        tls: the trusted authorities, for a server with TLS.
        jetstream: watches over each connection for streams of an external JetStream.
        api: answers requests of the JetStream API; None if another connection carries them.
        is_alone: whether no other broker receives messages that are published at the servers.
        login: returns the credentials; by default those in the servers' URLs.
        peer_subject: the subject at which other brokers' requests are answered; empty for none.
    """

    def __init__(
        self,
        broker: BrokerPort,
        *,
        ingest: MessageIngest,
        jetstream: ForeignJetStreamWatch | None = None,
        api: JetStreamApi | None = None,
        is_alone: bool = False,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
        peer_subject: bytes = b"",
    ) -> None:
        self._broker = broker
        self.shared = IngestState(broker, "nats", ingest=ingest, ack_lines=PubAckLines(b"PUB "))
        self._is_alone = is_alone
        self._jetstream = jetstream
        self.api = api
        self._tls = tls
        self._login = login
        self._peer_subject = peer_subject
        self._servers: list[NatsServerUrl] = []
        self._bindings: dict[str, Sequence[Binding]] = {}
        """The bindings of each stream, including streams deleted since the connection began."""
        self._link: NatsConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = "no attempt was made"
        self._connected: asyncio.Future[None] | None = None

    async def start(
        self,
        servers: Sequence[str],
        bindings: Mapping[str, Sequence[Binding]],
        *,
        is_awaited: bool = True,
    ) -> None:
        """Connect and subscribe; return when both have succeeded once.

        Args:
            servers: URLs, tried in rotation.
            bindings: the initial subscriptions, by stream.
            is_awaited: whether to wait; False for a server that may be unreachable for long.

        Raises:
            InvalidConfigError: a URL is malformed.
            UnavailableError: no server could be reached in time.
        """
        self._servers = [parse_server_url(url) for url in servers]
        self._bindings = dict(bindings)
        self._connected = asyncio.get_running_loop().create_future()
        self._task = start_task(self._run(), "nats-subscriber")
        if not is_awaited:
            return
        if not await is_connected(self._connected, self._task):
            urls = ", ".join(map(str, self._servers))
            raise UnavailableError(f"cannot connect to NATS at {urls}: {self._last_error}")

    async def stop(self) -> None:
        """Stop receiving, answer the messages received so far, and disconnect."""
        link = self._link
        if link is not None and link.is_open:
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    link.unsubscribe_all()
                    await link.round_trip()
                    await self._broker.quiesce()
                    self.shared.ingest.send_answers()
                    await link.round_trip()
            except (TimeoutError, DisconnectedError):
                logger.warning("nats-server disconnected before the last acks were sent")
        await end_task(self._task)

    def streams_changed(self, bindings: Mapping[str, Sequence[Binding]]) -> None:
        """Replace the bindings of the named streams; a deleted stream has none."""
        self._bindings.update(bindings)
        self.shared.ack_lines.clear()
        if self._link is not None:
            self._link.subscribe(bindings)
            self._forget_deleted(bindings)

    def _forget_deleted(self, names: Iterable[str]) -> None:
        """Forget streams without bindings, once a connection has ended their subscriptions."""
        for name in names:
            if not self._bindings[name]:
                del self._bindings[name]

    async def synced(self, peers: Iterable[bytes] = ()) -> None:
        """Wait until the nats-servers know all subscriptions; return at once without a connection.

        Other brokers' servers learn of the subscriptions over routes. A request over the same route
        arrives after them, so its answer shows that the subscriptions have arrived. If a request
        has no responders, that broker is offline, and nobody publishes there.

        Args:
            peers: the subjects at which other brokers answer such requests.
        """
        link = self._link
        if link is None:
            return
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await link.round_trip()
            async with asyncio.timeout(PEER_TIMEOUT_S):
                await asyncio.gather(*(link.request(peer, b"") for peer in peers))
        except (TimeoutError, DisconnectedError) as error:
            why = str(error) or "no answer in time"
            logger.warning("subscriptions are not known at every nats-server yet: %s", why)

    @property
    def server_info(self) -> NatsServerInfo | None:
        """The greeting of the server; None without a connection."""
        return self._link.info.result() if self._link is not None else None

    async def request(self, subject: bytes, payload: bytes) -> bytes | None:
        """Send a request; return the reply, or None if there are no responders.

        Raises:
            DisconnectedError: there is no connection, or it was lost.
        """
        if self._link is None:
            raise DisconnectedError(f"not connected to nats-server: {self._last_error}")
        return await self._link.request(subject, payload)

    # Connecting

    async def _run(self) -> None:
        """Connect, serve until the connection is lost, and repeat."""
        backoff_s, attempt = BACKOFF_FIRST_S, 0
        while True:
            server = self._servers[attempt % len(self._servers)]
            attempt += 1
            try:
                link = await self._connect(server)
            except (OSError, TimeoutError, StrandlineError) as error:
                reason = str(error) or "no answer in time"
                if reason != self._last_error:
                    logger.warning("cannot connect to %s: %s", server, reason)
                self._last_error = reason
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            await self._serve(link, server)

    async def _connect(self, server: NatsServerUrl) -> NatsConnection:
        """Return a connection whose handshake and subscriptions are done.

        Raises:
            OSError, TimeoutError, StrandlineError: the connection failed.
        """
        return await connect_link(
            lambda: NatsConnection(
                self.shared,
                is_alone=self._is_alone,
                api=self.api,
                peer_subject=self._peer_subject,
            ),
            server,
            tls=self._tls,
            login=self._login,
            prepare=lambda link: link.begin(self._bindings),
        )

    async def _serve(self, link: NatsConnection, server: NatsServerUrl) -> None:
        """Use a connection until it is lost."""
        telemetry = self._broker.telemetry
        self._link = link
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)
        telemetry.nats_connections += 1
        logger.info("connected to %s", server)
        # The streams may have changed while the connection was being established.
        link.subscribe(self._bindings)
        self._forget_deleted(list(self._bindings))
        jetstream = self._jetstream
        watching = start_task(jetstream.run(link), "nats-jetstream") if jetstream else None
        try:
            await _watch(link)
        finally:
            self._link = None
            if jetstream is not None:
                jetstream.disconnected()
            await end_task(watching)
            telemetry.nats_connections -= 1
            link.abort()
        logger.warning("lost the connection to %s: %s", server, link.failure or "closed")


async def _watch(link: NatsConnection) -> None:
    """Return when the connection is closed, or does not answer pings."""
    while not link.closed.done():
        await asyncio.wait((link.closed,), timeout=PING_INTERVAL_S)
        if link.closed.done():
            return
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await link.round_trip()
        except (TimeoutError, DisconnectedError):
            link.failure = link.failure or "it does not answer"
            return

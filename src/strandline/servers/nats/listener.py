"""The ingest listener: NATS' client protocol for publishers, without the hop through a server.

It receives publishes and sends acks. It is not a NATS server: subscriptions only receive replies,
and publishers do not receive each other's messages. Rules: connections share only the routes and
limits here, and one connection costs the others only its share of the loop.
"""

import asyncio
import contextlib
import logging
import secrets
import ssl
from typing import Final

import msgspec

from strandline.broker.access import Access
from strandline.broker.routing import RouteTable
from strandline.config import BrokerConfig
from strandline.errors import UnavailableError
from strandline.servers.metering import Metering
from strandline.servers.nats.backpressure import OVERLOAD, QUOTA, ROUND_S, SLICE_S, Backpressure
from strandline.servers.nats.connection import PublisherConnection
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.replies import AckLines
from strandline.servers.round_budget import RoundBudget
from strandline.servers.tasks import end_task, start_task
from strandline.servers.tls import listening_context
from strandline.version import __version__

logger = logging.getLogger(__name__)

NATS_VERSION: Final = "2.10.0"
"""The protocol level spoken, where clients look for a server's version."""
MESSAGE_SLACK_BYTES: Final = 64 << 10
"""What headers and an envelope may add to the largest record."""
PING_INTERVAL_S: Final = 60.0
HANDSHAKE_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
UNANSWERED_PINGS_MAX: Final = 2


class IngestListener:
    """The listener for publishers.

    Args:
        broker: the broker that stores records.
        config: the broker's settings.
        routes: the routes of all streams; shared with the other listeners.
        ingest: handles messages that are more than a plain payload.
        backpressure: pauses reading while the broker is full.
        metering: the meters of principals, if shared with other servers.
    """

    def __init__(
        self,
        broker: BrokerPort,
        config: BrokerConfig,
        *,
        routes: RouteTable,
        ingest: MessageIngest,
        backpressure: Backpressure,
        metering: Metering | None = None,
    ) -> None:
        self._broker = broker
        self._config = config
        self.access = Access(config, broker)
        self.metering = metering or Metering(broker)
        self.routes = routes
        self.ingest = ingest
        self.backpressure = backpressure
        self.admission = broker.admission
        self.payload_max = config.limits.record_bytes + MESSAGE_SLACK_BYTES
        self.ack_lines = AckLines(b"MSG %b %b")
        self.budget = RoundBudget(SLICE_S, ROUND_S)
        self.unflushed: list[PublisherConnection] = []
        self.messages = 0
        """Received since the last count was handed to telemetry."""
        self.buffered_bytes = 0
        """Of half-received messages on all connections."""
        self.buffered_bytes_max = config.limits.pending_bytes
        self._connections: set[PublisherConnection] = set()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._server: asyncio.Server | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None
        self._securing: set[asyncio.Task[None]] = set()
        self.port = 0
        self.info_line = b""

    async def start(self) -> None:
        """Start listening.

        Raises:
            UnavailableError: the port is not available.
            InvalidConfigError: a certificate cannot be used.
        """
        if self._config.tls.is_on:
            self._tls = listening_context(self._config.tls, ask_clients=True)
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.nats.ingest_port
        try:
            self._server = await loop.create_server(
                lambda: PublisherConnection(self), host, port, backlog=1024
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot listen for publishers on {host}:{port} (nats.ingest_port): {error}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self.info_line = self._make_info_line()
        self._broker.on_answered(self.send_answers)
        self._pinger = start_task(self._ping_all(), "ingest-pings")

    def pause(self) -> None:
        """Stop receiving."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.hold_reading("stopping")

    async def stop(self) -> None:
        """Stop receiving, answer received messages, close."""
        if self._server is None:
            return
        self.pause()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._broker.quiesce()
        except TimeoutError:
            logger.warning("closing publishers' connections before their last acks")
        self.send_answers()
        await end_task(self._pinger)
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._all_gone.wait()
        for connection in list(self._connections):
            connection.abort()

    def _make_info_line(self) -> bytes:
        info = {
            "server_id": secrets.token_hex(16),
            "server_name": f"strandline-{__version__}",
            "version": NATS_VERSION,
            "proto": 1,
            "host": self._config.host,
            "port": self.port,
            "headers": True,
            "max_payload": self.payload_max,
            "jetstream": False,
            "tls_required": self.has_tls,
            "tls_verify": bool(self._config.tls.authority),
            "auth_required": self.access.is_on,
        }
        return b"INFO %b\r\n" % msgspec.json.encode(info)

    # TLS

    @property
    def has_tls(self) -> bool:
        """Return whether connections use TLS after the greeting."""
        return self._tls is not None

    def secure(self, connection: PublisherConnection) -> None:
        """Start TLS on a connection after the greeting; drop it if the handshake fails."""
        task = asyncio.create_task(self._secure(connection), name="ingest-tls")
        self._securing.add(task)
        task.add_done_callback(self._securing.discard)

    async def _secure(self, connection: PublisherConnection) -> None:
        assert self._tls is not None, "asked for with TLS only"
        # Not sooner: a fast client's handshake would arrive before it is expected.
        connection.write(self.info_line)
        try:
            await connection.start_tls(self._tls, timeout_s=HANDSHAKE_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            logger.info("a publisher's TLS handshake failed: %s", error)
            connection.abort()
            connection.connection_lost(None)  # not every loop reports this
        else:
            connection.secured()

    # Shared by connections

    def admit(self, connection: PublisherConnection) -> bool:
        """Register a new connection; return False if there are too many."""
        self._connections.add(connection)
        self._all_gone.clear()
        self._broker.reads(connection)
        self._broker.telemetry.count_listener("ingest", connections=1)
        return self.metering.connections.admit(connection, connection.abort)

    def expect(self, connection: PublisherConnection) -> None:
        """Limit the time in which a new connection must identify itself."""
        loop = asyncio.get_running_loop()
        loop.call_later(HANDSHAKE_TIMEOUT_S, connection.end_silent)

    def forget(self, connection: PublisherConnection) -> None:
        """Forget a closed connection; some loops report a failed handshake twice."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self.metering.connections.forget(connection)
        if not self._connections:
            self._all_gone.set()
        self._broker.telemetry.count_listener("ingest", connections=-1)

    def streams_changed(self) -> None:
        """Drop caches that may belong to deleted streams."""
        self.ack_lines.clear()

    def send_answers(self) -> None:
        """Write queued acks, one write per connection; resume reading if there is room."""
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            connection.flush()
        if self.messages:
            self._broker.telemetry.count_listener("ingest", messages=self.messages)
            self.messages = 0
        self.backpressure.release(self.admission.pending_bytes)

    async def _ping_all(self) -> None:
        """Close connections whose client does not answer pings."""
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            for connection in list(self._connections):
                if connection.is_handshaking:
                    continue  # it has a limit of its own
                connection.check_identity()
                if not connection.is_open:
                    connection.abort()
                elif connection.is_held(OVERLOAD) or connection.is_held(QUOTA):
                    continue  # its pong could not be read
                elif connection.unanswered_pings >= UNANSWERED_PINGS_MAX:
                    connection.fail("Stale Connection")
                else:
                    connection.ping()

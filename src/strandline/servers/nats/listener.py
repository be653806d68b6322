"""The ingest listener: NATS' client protocol without the hop through a server.

It receives publishes and sends acks, and what consumers deliver. It is not a NATS server: clients
do not receive each other's messages. Rules: connections share only the routes, the consumers and
the limits. A connection costs the others only its share of the loop.
"""

import asyncio
import contextlib
import logging
import secrets
from typing import Final

import msgspec

from strandline.broker.routing import RouteTable
from strandline.config import BrokerConfig
from strandline.errors import UnavailableError
from strandline.servers.metering import Metering
from strandline.servers.nats.backpressure import OVERLOAD, QUOTA
from strandline.servers.nats.connection import PublisherConnection, PublisherState
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.jetstream.api import JetStreamApi
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.receivers import Receivers
from strandline.servers.tasks import end_task, start_task
from strandline.servers.tls import listening_context
from strandline.version import __version__

logger = logging.getLogger(__name__)

NATS_VERSION: Final = "2.10.0"
"""The protocol level of this listener; clients read it as the server's version."""
PING_INTERVAL_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
UNANSWERED_PINGS_MAX: Final = 2


class IngestListener:
    """The listener for clients of the NATS protocol.

    Args:
        broker: the broker that stores records.
        config: the broker's settings.
        routes: the routes of all streams; shared with the other listeners.
        ingest: appends messages that are more than a plain payload.
        metering: the meters of principals, if shared with other servers.
        api: answers requests of the JetStream API.
        receivers: the receivers of consumers' deliveries.

    Raises:
        InvalidConfigError: a certificate cannot be used.
    """

    def __init__(
        self,
        broker: BrokerPort,
        config: BrokerConfig,
        *,
        routes: RouteTable,
        ingest: MessageIngest,
        metering: Metering | None = None,
        api: JetStreamApi | None = None,
        receivers: Receivers | None = None,
    ) -> None:
        self._broker = broker
        self._config = config
        tls = listening_context(config.tls, ask_clients=True) if config.tls.is_on else None
        self.shared = PublisherState(
            broker,
            config,
            routes=routes,
            ingest=ingest,
            metering=metering,
            tls=tls,
            api=api,
            receivers=receivers,
        )
        self._server: asyncio.Server | None = None
        self._pinger: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Start listening.

        Raises:
            UnavailableError: the port is not available.
        """
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.nats.ingest_port
        try:
            self._server = await loop.create_server(
                lambda: PublisherConnection(self.shared), host, port, backlog=1024
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot listen for publishers on {host}:{port} (nats.ingest_port): {error}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self.shared.info_line = self._make_info_line()
        self._pinger = start_task(self._ping_all(), "ingest-pings")

    def pause(self) -> None:
        """Stop receiving messages."""
        if self._server is not None:
            self._server.close()
        for connection in self.shared.connections:
            connection.hold_reading("stopping")

    async def stop(self) -> None:
        """Stop receiving, answer the messages received so far, and close."""
        if self._server is None:
            return
        self.pause()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._broker.quiesce()
        except TimeoutError:
            logger.warning("closing publishers' connections before their last acks")
        self.shared.ingest.send_answers()
        await end_task(self._pinger)
        for connection in list(self.shared.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.shared.all_gone.wait()
        for connection in list(self.shared.connections):
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
            "max_payload": self.shared.payload_max,
            "jetstream": False,
            "tls_required": self.shared.tls is not None,
            "tls_verify": bool(self._config.tls.authority),
            "auth_required": self.shared.access.is_on,
        }
        return b"INFO %b\r\n" % msgspec.json.encode(info)

    def streams_changed(self) -> None:
        """Drop cached lines, which may belong to deleted streams."""
        self.shared.ack_lines.clear()

    async def _ping_all(self) -> None:
        """Ping all clients repeatedly; close the connections of those that do not answer."""
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            for connection in list(self.shared.connections):
                if connection.is_handshaking:
                    continue  # the handshake has its own timeout
                connection.check_identity()
                if not connection.is_open:
                    connection.abort()
                elif connection.is_held(OVERLOAD) or connection.is_held(QUOTA):
                    continue  # the client's pong could not be read
                elif connection.unanswered_pings >= UNANSWERED_PINGS_MAX:
                    connection.fail("Stale Connection")
                else:
                    connection.ping()

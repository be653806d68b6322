"""A port for gRPC, and the state that its connections share.

Rules: a port in use is a typed error. Stopping ends every call with UNAVAILABLE, after which
clients retry elsewhere or later, and waits for no slow client.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from typing import Final

from strandline.broker.access import Access, Caller
from strandline.broker.log_throttle import LogThrottle
from strandline.config import BrokerConfig, LimitsConfig
from strandline.errors import InvalidConfigError, StrandlineError
from strandline.security.policy import ClientCredentials, Identity
from strandline.security.principal import ANONYMOUS
from strandline.security.tokens import bearer_token
from strandline.servers.connections import ConnectionLimit
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.connection import GrpcConnection
from strandline.servers.grpc.methods import Direct, Method
from strandline.servers.grpc.status import GrpcStatus, OversizeError, RpcError
from strandline.servers.metering import Metering, Presence
from strandline.servers.round_budget import RoundBudget
from strandline.servers.tls import certificate_name, listening_context
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

LISTENER: Final = "grpc"
STOPPING: Final = RpcError(GrpcStatus.UNAVAILABLE, "the broker is stopping; retry later")
OPEN_PATHS: Final = b"/grpc.health.v1.Health/"
"""For probes, which have no credentials; they say whether a service is well, and nothing else."""
PUBLISHING: Final = frozenset({b"Publish", b"PublishAsync", b"PublishToSubject", b"Append"})
"""Of Liftbridge's and Beam's rpcs those that bring records."""
STOP_TIMEOUT_S: Final = 2.0
HANDSHAKE_TIMEOUT_S = 10.0
"""Of TLS: until it is over, a connection counts for no limit."""
BACKLOG: Final = 1024
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""So that clients whose machine has gone are noticed."""


class GrpcListener:
    """A listener for gRPC clients.

    Args:
        methods: the methods by path.
        telemetry: counters.
        access: identifies callers.
        metering: the meters of principals; None: no metering.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method | Direct],
        telemetry: Telemetry,
        access: Access,
        *,
        metering: Metering | None = None,
    ) -> None:
        self.methods = methods
        self._metering = metering
        self._access = access
        self._anybody = Caller(access, Identity(ANONYMOUS))
        self.budget = RoundBudget()
        self._warnings = LogThrottle()
        self.messages = 0
        """Frames with data since the last count was handed to telemetry."""
        self.buffered_bytes = 0
        """Of messages that are half received, or not taken yet, on all connections."""
        self.buffered_bytes_max = LimitsConfig().pending_bytes
        self._telemetry = telemetry
        self._connections: set[GrpcConnection] = set()
        self._unflushed: list[GrpcConnection] = []
        self._limit = metering.connections if metering is not None else ConnectionLimit()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, config: BrokerConfig, port: int, *, key: str) -> None:
        """Start listening.

        Args:
            config: the broker's settings, for address and certificate.
            port: the port; 0 for a free one.
            key: the setting of the port, for the error.

        Raises:
            InvalidConfigError: the address is not available, or a certificate cannot be used.
        """
        loop, host = asyncio.get_running_loop(), config.grpc.host or config.host
        self.buffered_bytes_max = config.limits.pending_bytes
        tls = None
        if config.tls.is_on:
            tls = listening_context(config.tls, ask_clients=True)
            tls.set_alpn_protocols(["h2"])
        try:
            self._server = await loop.create_server(
                lambda: GrpcConnection(self),
                host,
                port,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls is not None else None,
            )
        except OSError as error:
            raise InvalidConfigError(
                f"cannot listen for gRPC on {host}:{port} ({key}): {error.strerror}; choose "
                "another port, 0 for a free one, -1 for none"
            ) from error
        for listening in self._server.sockets:
            for option in KEEPALIVE:
                with contextlib.suppress(OSError):  # not every system has all of them
                    listening.setsockopt(*option)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop accepting, end every call, close."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.end_calls(STOPPING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._close_all()
        for connection in list(self._connections):
            connection.drop()
        self._server = None

    async def _close_all(self) -> None:
        """Let the calls send their status, then close."""
        while any(connection.busy for connection in self._connections):  # noqa: ASYNC110  a moment
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.go_away()
        await self._all_gone.wait()

    def send_answers(self) -> None:
        """Send queued answers, and report the number of messages to telemetry.

        At once, not in the next round of the loop: the sync of the next group commit may come
        first, and all clients would wait for it.
        """
        self._flush()
        if self.messages:
            self._telemetry.count_listener(LISTENER, messages=self.messages)
            self.messages = 0

    def caller(
        self, path: bytes, headers: Mapping[bytes, bytes], transport: asyncio.BaseTransport | None
    ) -> Caller:
        """Return the caller of a call; health checks need no credentials.

        Raises:
            UnauthenticatedError: the caller has no valid credentials.
            NotAllowedError: no rule names the caller.
        """
        access = self._access
        if not access.is_on or self.is_open(path):
            return self._anybody
        header = headers.get(b"authorization")
        token = None if header is None else bearer_token(bytes(header).decode(errors="replace"))
        certificate = certificate_name(transport) if transport is not None else None
        caller = access.identify(ClientCredentials(token, certificate))
        caller.check_known()
        return caller

    def warn_oversize(self, error: OversizeError) -> None:
        """Log the refusal of an oversized message, with throttling."""
        if self._warnings.is_due("oversize", asyncio.get_running_loop().time()):
            text = "refused on gRPC port %d: %s (the client may repeat it for ever)"
            logger.warning(text, self.port, error.text)

    def is_known(self, transport: asyncio.BaseTransport | None) -> bool:
        """Return whether a client is identified by its certificate."""
        try:
            self.caller(b"", {}, transport)
        except StrandlineError:
            return False
        return True

    @staticmethod
    def is_open(path: bytes) -> bool:
        """Return whether a call needs no credentials."""
        return path.startswith(OPEN_PATHS)

    def meter(self, call: Call, path: bytes, presence: Presence) -> None:
        """Count a call of an identified caller, its connection, and its traffic.

        Raises:
            QuotaExceededError: there are too many connections or calls, or earlier publishes have
                used up the quota.
        """
        allowance = self._metering.of(call.caller) if self._metering is not None else None
        if allowance is None:
            return
        presence.note(allowance)
        allowance.check_request()
        if path.rpartition(b"/")[2] in PUBLISHING:
            allowance.check_publish(0)
            call.publishes = allowance
        else:
            call.reads = allowance

    # Shared by connections

    def admit(self, connection: GrpcConnection) -> bool:
        """Register a new connection; return False if there are too many."""
        self._connections.add(connection)
        self._all_gone.clear()
        self._telemetry.count_listener(LISTENER, connections=1)
        return self._limit.admit(connection, connection.drop)

    def note_identified(self, connection: GrpcConnection) -> None:
        """Record that a client is identified."""
        self._limit.note_identified(connection)

    def flush_soon(self, connection: GrpcConnection) -> None:
        """Flush a connection after the group commit or in the next round."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def forget(self, connection: GrpcConnection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        self._limit.forget(connection)
        if not self._connections:
            self._all_gone.set()
        self._telemetry.count_listener(LISTENER, connections=-1)

"""A listener for gRPC clients.

Rules: a port in use is a typed error. Stopping ends every call with UNAVAILABLE, after which
clients retry elsewhere or later; it does not wait for slow clients.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from typing import Final

from strandline.broker.access import Access
from strandline.config import BrokerConfig
from strandline.errors import InvalidConfigError
from strandline.servers.connections import ConnectionLimit
from strandline.servers.grpc.connection import GrpcConnection, GrpcState
from strandline.servers.grpc.methods import Direct, Method
from strandline.servers.grpc.serving import CallServer
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.servers.metering import Metering
from strandline.servers.tls import listening_context
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

STOPPING: Final = RpcError(GrpcStatus.UNAVAILABLE, "the broker is stopping; retry later")
STOP_TIMEOUT_S: Final = 2.0
HANDSHAKE_TIMEOUT_S = 10.0
"""The limit of the TLS handshake; a connection is counted only after it."""
BACKLOG: Final = 1024
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Socket options that detect clients whose machine is gone."""


class GrpcListener:
    """A listener for gRPC clients.

    Args:
        methods: the methods, by path.
        telemetry: counts connections and messages.
        access: identifies callers.
        metering: the meters of principals; None for no metering.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method | Direct],
        telemetry: Telemetry,
        access: Access,
        *,
        metering: Metering | None = None,
    ) -> None:
        limit = metering.connections if metering is not None else ConnectionLimit()
        self.shared = GrpcState(CallServer(methods, access, metering), telemetry, limit)
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, config: BrokerConfig, port: int, *, key: str) -> None:
        """Start listening.

        Args:
            config: the broker's settings, with the address and the certificate.
            port: the port; 0 for a free one.
            key: the configuration key of the port, for the error message.

        Raises:
            InvalidConfigError: the address is not available, or a certificate cannot be used.
        """
        loop, host = asyncio.get_running_loop(), config.grpc.host or config.host
        self.shared.flushes.buffered_bytes_max = config.limits.pending_bytes
        tls = None
        if config.tls.is_on:
            tls = listening_context(config.tls, ask_clients=True)
            tls.set_alpn_protocols(["h2"])
        try:
            self._server = await loop.create_server(
                lambda: GrpcConnection(self.shared),
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
                with contextlib.suppress(OSError):  # some systems lack some of these options
                    listening.setsockopt(*option)
        self.port = self.shared.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop accepting, end every call, close."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.shared.connections):
            connection.multiplexer.end_calls(STOPPING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._close_all()
        for connection in list(self.shared.connections):
            connection.drop()
        self._server = None

    async def _close_all(self) -> None:
        """Let calls send their status, then close the connections."""
        open_connections = self.shared.connections
        while any(each.multiplexer.busy for each in open_connections):  # noqa: ASYNC110  a moment
            await asyncio.sleep(0.01)
        for connection in list(open_connections):
            connection.go_away()
        await self.shared.all_gone.wait()

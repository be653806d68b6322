"""The HTTP listener, whose server is imported for its first connection.

Importing Uvicorn and Starlette takes 5 MiB and a tenth of the time of a broker's start, and many
brokers never receive an HTTP request.

Rules: the socket is bound here, so that a port in use raises an error instead of ending the
process. With TLS the server is made at the start, so that wrong settings are reported then.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.config import BrokerConfig
from strandline.errors import InvalidConfigError
from strandline.servers.http.view import BrokerView
from strandline.servers.tasks import start_task
from strandline.servers.tls import load_tls
from strandline.storage.descriptors import STORAGE_DESCRIPTORS

if TYPE_CHECKING:
    from strandline.servers.http.server import HttpServer

BACKLOG = 128


class HttpFrontEnd:
    """The HTTP listener of one broker; loop thread.

    Args:
        broker: the broker to show.
        config: ``host``, ``http_port``, certificate, and whether access is checked.
        flight_port: returns the port of Arrow Flight, which the console uses.
    """

    def __init__(
        self, broker: BrokerView, config: BrokerConfig, flight_port: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._config = config
        self._flight_port = flight_port
        self._listener: socket.socket | None = None
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port: int | None = None
        """The port listened on; ``None`` when stopped."""

    async def start(self) -> None:
        """Start listening.

        Raises:
            InvalidConfigError: the address is in use or not ours, or a certificate cannot be used.
        """
        load_tls(self._config.tls)
        if self._config.tls.is_on:
            self._server = await asyncio.to_thread(self._make_server)
        self._listener = listener = _listen(self._config.host, self._config.http_port)
        self.port = listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(listener, self._begin)

    async def stop(self) -> None:
        """Stop listening and drop open connections."""
        listener, self._listener, self.port = self._listener, None, None
        if listener is None:
            return
        asyncio.get_running_loop().remove_reader(listener)
        if self._server is not None:
            await self._server.stop()
        if self._serving is not None:
            await self._serving
        listener.close()
        self._server = self._serving = None

    def _begin(self) -> None:
        """Serve the first connection, which waits to be accepted."""
        assert self._listener is not None, "it is listening"
        asyncio.get_running_loop().remove_reader(self._listener)
        self._serving = start_task(self._serve(self._listener), "http")

    async def _serve(self, listener: socket.socket) -> None:
        if self._server is None:
            self._server = await asyncio.to_thread(self._make_server)
        if self._listener is not None:  # not stopped meanwhile
            await self._server.serve(listener)

    def _make_server(self) -> "HttpServer":
        """Import and return the server, even if clients have all descriptors but the storage's."""
        with STORAGE_DESCRIPTORS.reserve():
            from strandline.servers.http.server import HttpServer

            return HttpServer(self._broker, self._config, self._flight_port)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidConfigError(f"host {host!r}: {error.strerror}; name an address") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise InvalidConfigError(
            f"cannot listen for HTTP on {host}:{port}: {error.strerror}; "
            "choose another --http-port, 0 for a free one, -1 for none"
        ) from error
    return listener

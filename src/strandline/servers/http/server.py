"""The HTTP listener: uvicorn on a socket of ours, in the broker's loop.

Rules: the socket is bound here, so that a port in use is a typed error and not an exit. ``process``
handles signals. Stopping waits for no slow client. There is always room for one more connection:
idle clients must not keep out the probes that decide whether the broker is alive.

A request has no body, must arrive within ``REQUEST_S``, and its client must receive the answer
within ``ANSWER_S``. Requests get a share of each round of the loop (``round_budget``).
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from strandline.config import BrokerConfig
from strandline.errors import InvalidConfigError
from strandline.servers.connections import HTTP_SHARE
from strandline.servers.http.app import build_app
from strandline.servers.http.rates import RateMeter
from strandline.servers.http.view import BrokerView
from strandline.servers.round_budget import SPENT, RoundBudget
from strandline.servers.tls import keep_current, load_tls
from strandline.storage.descriptors import current_shares

BACKLOG = 128
CONNECTIONS_MAX = 256
"""Above it the oldest connection is closed; lower where descriptors are few."""
HEADER_BYTES_MAX = 16 << 10
REQUEST_S = 8.0
"""The limit for a whole request, from the start of the connection or from its last answer."""
REQUEST_WORK_S = 0.0003
"""The approximate time on the loop of an answer, one round later."""
ANSWER_S = 30.0
"""The limit for the answer to be made and received."""
SAMPLE_INTERVAL_S = 1.0
GRACE_S = 1


class HttpFrontEnd:
    """The HTTP listener of one broker; loop thread.

    Args:
        broker: the broker to show.
        config: ``host`` and ``http_port``; with port -1 there is no listener.
    """

    def __init__(self, broker: BrokerView, config: BrokerConfig) -> None:
        self._broker = broker
        self._config = config
        self._meter = RateMeter()
        self._server: _QuietServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port: int | None = None
        """The port listened on; ``None`` when off or stopped."""

    async def start(self) -> None:
        """Start listening.

        Raises:
            InvalidConfigError: the address is in use or not ours, or a certificate cannot be used.
        """
        if self._config.http_port < 0:
            return
        load_tls(self._config.tls)
        listener = _listen(self._config.host, self._config.http_port)
        self._server = _QuietServer(self._settings())
        self.port = listener.getsockname()[1]
        self._tasks = [
            asyncio.create_task(self._server.serve([listener]), name="http"),
            asyncio.create_task(self._sample(), name="http-rates"),
        ]

    async def stop(self) -> None:
        """Stop listening and drop open connections."""
        if self._server is None:
            return
        self._server.should_exit = True
        serving, sampling = self._tasks
        sampling.cancel()
        await serving
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
        self._server, self._tasks, self.port = None, [], None

    def _settings(self) -> uvicorn.Config:
        """Return uvicorn's settings."""
        settings = uvicorn.Config(
            build_app(self._broker, self._meter),
            access_log=False,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            http=partial(_Connection, RoundBudget()),  # type: ignore[arg-type]  # only called
            lifespan="off",
            limit_concurrency=_connections_max(),
            log_config=None,
            log_level="error",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            ws="none",
            **self._tls_options(),
        )
        settings.load()
        if settings.ssl is not None:
            keep_current(settings.ssl, self._config.tls)
        return settings

    def _tls_options(self) -> dict[str, Any]:
        """Return the certificate options; clients need none, because probes have none."""
        tls = self._config.tls
        return {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key} if tls.is_on else {}

    async def _sample(self) -> None:
        while True:
            self._meter.sample(self._broker.telemetry, self._broker.clock.monotonic_ms())
            await asyncio.sleep(SAMPLE_INTERVAL_S)


class _BodilessConnection(h11.Connection):
    """An HTTP parser that rejects requests with a body: no page needs one, and chunks cost time."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and any(map(_announces_body, event.headers)):
            raise h11.RemoteProtocolError("requests with a body are not supported")
        return event


def _announces_body(header: tuple[bytes, bytes]) -> bool:
    """Return whether a request header announces a body."""
    name, value = header
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0") != b"")


class _Connection(H11Protocol):
    """A connection; above the limit, the one that was answered or opened longest ago is closed."""

    def __init__(self, budget: RoundBudget, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.conn = _BodilessConnection(h11.SERVER, HEADER_BYTES_MAX)
        self.budget = budget
        self.is_deferred = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        self.timer = self.loop.call_later(REQUEST_S, transport.abort)
        super().connection_made(transport)
        self.since_s = self.loop.time()
        while len(self.connections) >= _connections_max():
            oldest = min(self.connections, key=_since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        if self.is_deferred or self.transport.is_closing():
            return
        if self.budget.slice_end() == SPENT:
            self.is_deferred = True
            self.flow.pause_reading()
            self.budget.defer(self._handle_deferred)
            return
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # the request is complete
            self.budget.charge(REQUEST_WORK_S)
            self._expect(ANSWER_S)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(f"{msg} Send GET or HEAD requests, without a body.\n")

    def _handle_deferred(self) -> None:
        self.is_deferred = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()
        self._expect(REQUEST_S)
        super().on_response_complete()

    def _expect(self, seconds: float) -> None:
        """Close the connection unless its next step happens in time."""
        self.timer.cancel()
        if not self.transport.is_closing():
            self.timer = self.loop.call_later(seconds, self.transport.abort)


def _connections_max() -> int:
    return min(CONNECTIONS_MAX, current_shares().connections // HTTP_SHARE)


def _since(connection: Any) -> float:
    since_s: float = connection.since_s
    return since_s


class _QuietServer(uvicorn.Server):
    """Uvicorn without its signal handlers: ``process`` handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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

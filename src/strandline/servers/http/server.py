"""The HTTP server: uvicorn on a socket that ``frontend`` binds, in the broker's loop.

Rules: ``process`` handles signals. Stopping does not wait for slow clients. There is always room
for one more connection: idle clients must not keep out the probes that decide whether the broker
is alive.

Only requests that post a form of the console have a body. A request must arrive within
``REQUEST_S``, and its client must have received the answer within ``ANSWER_S``. Requests get a
share of each round of the loop (``round_budget``).
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from strandline.broker.access import Access
from strandline.config import BrokerConfig
from strandline.servers.connections import HTTP_SHARE
from strandline.servers.http.app import build_app
from strandline.servers.http.view import BrokerView
from strandline.servers.round_budget import SPENT, RoundBudget
from strandline.servers.tls import keep_current
from strandline.storage.descriptors import current_shares

if TYPE_CHECKING:
    from strandline.servers.http.console.app import ConsoleApp

CONNECTIONS_MAX = 256
"""Above this number the oldest connection is closed. Fewer if file descriptors are scarce."""
HEADER_BYTES_MAX = 16 << 10
REQUEST_S = 8.0
"""The time for a request to arrive, from the start of the connection or the previous answer."""
REQUEST_WORK_S = 0.0003
"""The approximate time that an answer takes on the loop, in the next round."""
ANSWER_S = 30.0
"""The time for the answer to be computed and received."""
FORM_BYTES_MAX = 256 << 10
"""The longest body of a request; only forms have a body."""
GRACE_S = 1


class HttpServer:
    """The server of one broker; loop thread.

    Args:
        broker: the broker to show.
        config: certificate, and whether access is checked.
        flight_port: returns the port of Arrow Flight, which the console uses.
    """

    def __init__(
        self, broker: BrokerView, config: BrokerConfig, flight_port: Callable[[], int]
    ) -> None:
        self._tls = config.tls
        self._console = LazyConsole(broker, config, flight_port)
        self._server = _QuietServer(self._settings(build_app(broker, self._console)))

    async def serve(self, listener: socket.socket) -> None:
        """Serve, until ``stop``, the connections of a listening socket, which is closed then."""
        await self._server.serve([listener])

    async def stop(self) -> None:
        """Let ``serve`` end, and drop open connections."""
        self._server.should_exit = True
        await asyncio.to_thread(self._console.close)

    def _settings(self, app: Starlette) -> uvicorn.Config:
        """Return uvicorn's settings."""
        settings = uvicorn.Config(
            app,
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
            keep_current(settings.ssl, self._tls)
        return settings

    def _tls_options(self) -> dict[str, Any]:
        """Return the options for TLS; clients need no certificate, because probes have none."""
        tls = self._tls
        return {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key} if tls.is_on else {}


class LazyConsole:
    """The console, imported at the first request for a page: until then it costs no memory.

    Args:
        broker: the broker to show.
        config: whether access is checked.
        flight_port: as for ``HttpServer``.
    """

    def __init__(
        self, broker: BrokerView, config: BrokerConfig, flight_port: Callable[[], int]
    ) -> None:
        self._access = Access(config, broker)
        self._broker = broker
        self._flight_port = flight_port
        self._lock = threading.Lock()
        self._app: ConsoleApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as a web application."""
        app = self._app if self._app is not None else await asyncio.to_thread(self._load)
        await app.asgi(scope, receive, send)

    def close(self) -> None:
        """Close the console, if it was loaded; blocks."""
        if self._app is not None:
            self._app.close()

    def _load(self) -> "ConsoleApp":
        from strandline.servers.http.console.app import ConsoleApp

        with self._lock:
            app = self._app or ConsoleApp(self._broker, self._access, self._flight_port)
            self._app = app
            return app


class _LimitedConnection(h11.Connection):
    """An HTTP parser that rejects bodies, except for the small forms that are posted."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check_body(event.method, event.headers)
        return event


def _check_body(method: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Check the length that a request announces; chunked bodies cost time and are rejected.

    Raises:
        h11.RemoteProtocolError: the request may have no body, or its body is too large.
    """
    for name, value in headers:
        size = value.strip(b"0")
        if name == b"transfer-encoding" or (name == b"content-length" and size):
            is_form = method == b"POST" and name == b"content-length" and value.isdigit()
            if not is_form:
                raise h11.RemoteProtocolError(
                    "only forms are sent with a body. Send GET or HEAD requests without a body."
                )
            if len(value) > len(str(FORM_BYTES_MAX)) or int(value) > FORM_BYTES_MAX:
                raise h11.RemoteProtocolError(f"a form has {FORM_BYTES_MAX} bytes at most.")


class _Connection(H11Protocol):
    """A connection. Above the limit, the one idle for longest is closed."""

    def __init__(self, budget: RoundBudget, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.conn = _LimitedConnection(h11.SERVER, HEADER_BYTES_MAX)
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
        if self.cycle is not before:  # a request has arrived completely
            self.budget.charge(REQUEST_WORK_S)
            self._expect(ANSWER_S)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(
            f"{msg} Send GET or HEAD requests without a body, or a form of at most "
            f"{FORM_BYTES_MAX} bytes.\n"
        )

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
        """Close the connection unless the next step happens within a time."""
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

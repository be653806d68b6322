"""A client connection to a nats-server: its address, handshake and liveness.

Rules: nothing is sent before the server's greeting has arrived and, for ``tls://``, before TLS is
active; a server that does not offer TLS then is rejected. A link neither connects nor reconnects by
itself. Subclasses handle its messages.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from strandline.errors import (
    UNDECODABLE,
    DisconnectedError,
    InvalidConfigError,
    UnavailableError,
)
from strandline.servers.nats.backpressure import ROUND_S, SLICE_S, MessageReader
from strandline.servers.nats.protocol import (
    PING,
    PONG,
    Control,
    Failure,
    Info,
    Parser,
    Ping,
    Pong,
    Violation,
)
from strandline.servers.round_budget import RoundBudget
from strandline.servers.tasks import end_task
from strandline.version import __version__

logger = logging.getLogger(__name__)

PAYLOAD_BYTES_MAX: Final = 64 << 20
"""The largest payload that any nats-server allows."""
DEFAULT_PORT: Final = 4222
LEAF_PORT: Final = 7422
NOT_PERMITTED: Final = "Permissions Violation for Publish"
HANDSHAKE_TIMEOUT_S: Final = 5.0
FIRST_CONNECTION_TIMEOUT_S: Final = 10.0


async def is_connected(connected: asyncio.Future[None], task: asyncio.Task[None]) -> bool:
    """Wait until a reconnecting client has connected once; return whether it has in time.

    Args:
        connected: completed by the first connection.
        task: the task that connects; it is cancelled if no connection succeeds in time.
    """
    await asyncio.wait(
        (connected, task),
        timeout=FIRST_CONNECTION_TIMEOUT_S,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if not connected.done():
        await end_task(task)
    return connected.done()


class NatsServerUrl(NamedTuple):
    """The address and credentials of a nats-server."""

    host: str
    port: int
    credentials: dict[str, str]
    """Fields for CONNECT: user and pass, or auth_token."""
    is_tls: bool = False

    def __str__(self) -> str:
        return f"{'tls' if self.is_tls else 'nats'}://{self.host}:{self.port}"


def parse_server_url(url: str) -> NatsServerUrl:
    """Parse ``nats://[user:password@|token@]host[:port]``, ``tls://…`` or ``host[:port]``.

    Raises:
        InvalidConfigError: the URL has none of these forms.
    """
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise InvalidConfigError(f"nats.servers: '{url}' is not a URL: {error}") from error
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise InvalidConfigError(
            f"nats.servers: '{url}' is not nats://host:port or tls://host:port"
        )
    credentials = {}
    if parts.password is not None:
        credentials = {"user": unquote(parts.username or ""), "pass": unquote(parts.password)}
    elif parts.username:
        credentials = {"auth_token": unquote(parts.username)}
    return NatsServerUrl(parts.hostname, port, credentials, parts.scheme == "tls")


def parse_leaf_url(url: str) -> NatsServerUrl:
    """Parse ``[nats-leaf://][user:password@]host[:port]``, a listener for leaf nodes.

    Raises:
        InvalidConfigError: the URL has another form.
    """
    try:
        parts = urlsplit(url if "://" in url else f"nats-leaf://{url}")
        port = parts.port or LEAF_PORT
    except ValueError as error:
        raise InvalidConfigError(f"nats.leafnodes: '{url}' is not a URL: {error}") from error
    if parts.scheme != "nats-leaf" or not parts.hostname:
        raise InvalidConfigError(
            f"nats.leafnodes: '{url}' is not nats-leaf://host:port; TLS is not built there"
        )
    credentials = {}
    if parts.username:
        credentials = {"user": unquote(parts.username), "pass": unquote(parts.password or "")}
    return NatsServerUrl(parts.hostname, port, credentials)


class NatsServerInfo(msgspec.Struct, frozen=True):
    """The fields of a server's INFO that are used here."""

    server_id: str = ""
    max_payload: int = 1 << 20
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    auth_required: bool = False
    server_name: str = ""
    client_id: int = 0
    """The server's number for this connection."""
    domain: str = ""
    """The domain of the server's JetStream, if it has one."""
    nonce: str = ""
    """Text to be signed by a client that logs in with a key."""


Login = Callable[[NatsServerInfo], dict[str, str]]
"""A function from the server's greeting to the fields of CONNECT that identify the client."""
LinkT = TypeVar("LinkT", bound="ServerLink")


class ServerLink(MessageReader):
    """The base class of all connections to a nats-server."""

    def __init__(self) -> None:
        super().__init__(
            Parser(PAYLOAD_BYTES_MAX, from_client=False), RoundBudget(SLICE_S, ROUND_S)
        )
        self._pongs: deque[asyncio.Future[None]] = deque()
        self.failure = ""
        """The text of the server's last -ERR."""
        loop = asyncio.get_running_loop()
        self.info: asyncio.Future[NatsServerInfo] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all operations that wait for the server."""
        super().connection_lost(exc)
        reason = self.failure or (str(exc) if exc else "the server closed the connection")
        error = DisconnectedError(reason)
        if not self.info.done():
            self.info.set_exception(error)
            self.info.exception()  # marks it as retrieved if no caller waits
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(error)
                pong.exception()
        if not self.closed.done():
            self.closed.set_result(None)

    def _control(self, event: Control) -> None:
        match event:
            case Ping():
                self.output.append(PONG)
            case Pong():
                if self._pongs:
                    waiting = self._pongs.popleft()
                    if not waiting.done():
                        waiting.set_result(None)
            case Info(options):
                self._take_info(options)
            case Failure(reason) if reason.startswith(NOT_PERMITTED):
                # A publisher's reply subject was not permitted: not an error of the broker.
                logger.debug("nats-server reports: %s", reason)
            case Failure(reason):
                self.failure = reason
                logger.warning("nats-server reports: %s", reason)
            case Violation(reason):
                self.failure = reason
                logger.error("nats-server violated the NATS protocol: %s", reason)
                self.abort()

    def _take_info(self, options: bytes) -> None:
        """Handle INFO: the first one is the greeting; later ones are ignored."""
        if self.info.done():
            return
        try:
            self.info.set_result(msgspec.json.decode(options, type=NatsServerInfo))
        except UNDECODABLE as error:
            self.failure = f"unreadable INFO: {error}"
            self.abort()

    async def round_trip(self) -> None:
        """Wait until the server has processed everything written so far.

        Raises:
            DisconnectedError: the connection was lost.
        """
        if not self.is_open:
            raise DisconnectedError(self.failure or "not connected to nats-server")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(waiting)
        self.flush()
        self.write(PING)
        await waiting


async def connect_link(
    make: Callable[[], LinkT],
    server: NatsServerUrl,
    *,
    tls: ssl.SSLContext | None,
    login: Login | None = None,
    prepare: Callable[[LinkT], None],
) -> LinkT:
    """Return a link after its handshake, once the server has processed what ``prepare`` sent.

    Args:
        make: creates the link.
        server: the server's address.
        tls: the trusted authorities, for a server with TLS.
        login: returns the credentials; None for those in the URL.
        prepare: sends the first operations, such as subscriptions.

    Raises:
        OSError, TimeoutError, StrandlineError: the connection failed and was closed.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
        _, link = await loop.create_connection(make, server.host, server.port)
        try:
            info = await link.info
            _check_info(server, info)
            if server.is_tls:
                assert tls is not None, "made for servers with TLS"
                await link.start_tls(tls, server_name=server.host, timeout_s=HANDSHAKE_TIMEOUT_S)
            link.parser.payload_max = min(info.max_payload, PAYLOAD_BYTES_MAX)
            link.write(_connect_line(login(info) if login is not None else server.credentials))
            prepare(link)
            await link.round_trip()
        except BaseException:
            link.abort()
            raise
    return link


def _check_info(server: NatsServerUrl, info: NatsServerInfo) -> None:
    """Reject a server that lacks a required feature."""
    if info.tls_required and not server.is_tls:
        raise UnavailableError(f"{server} requires TLS; write tls:// in nats.servers")
    if server.is_tls and not (info.tls_required or info.tls_available):
        raise UnavailableError(f"{server} does not offer TLS, which tls:// requires")
    if not info.headers:
        raise UnavailableError(f"{server} does not support headers: too old")


def _connect_line(login: dict[str, str]) -> bytes:
    """Encode CONNECT; without echo, so that the broker's own acks do not come back."""
    options = {
        "verbose": False,
        "pedantic": False,
        "echo": False,
        "headers": True,
        "no_responders": True,
        "protocol": 1,
        "name": "strandline",
        "lang": "python",
        "version": __version__,
        **login,
    }
    return b"CONNECT %b\r\n" % msgspec.json.encode(options)

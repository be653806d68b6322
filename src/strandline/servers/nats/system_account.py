"""The connection to the system account of the child nats-server, kept while the server runs.

It answers authorization requests, receives reports of connects and disconnects, and disconnects
clients.

Rules: it subscribes to authorization requests before anything else. After a reconnect it notifies
    the
authorizer first, because disconnects may have been missed. It decides nothing itself.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from strandline.errors import UNDECODABLE, StrandlineError, UnavailableError
from strandline.servers.nats import callout
from strandline.servers.nats.accounts import STREAMS_ACCOUNT
from strandline.servers.nats.protocol import Event, encode_publish, encode_subscribe
from strandline.servers.nats.server_link import (
    Login,
    NatsServerUrl,
    ServerLink,
    connect_link,
    is_connected,
)
from strandline.servers.tasks import end_task, start_task

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
REVIEW_S: Final = 0.5
"""How long a client may stay connected after the rules or its token have changed."""
AUTH_REQUESTS: Final = b"1"
DISCONNECTS: Final = b"2"
KICKED: Final = b"3"
CONNECTS: Final = b"4"


class ClientAuthorizer(Protocol):
    """The handler that authorizes the server's clients."""

    def server_connected(self, server_id: str) -> list[int]:
        """Return the clients to disconnect after the link was (re)established."""
        ...

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to an authorization request; None to leave it unanswered."""
        ...

    def client_connected(self, connection: int) -> None:
        """Record that a client has connected."""
        ...

    def client_disconnected(self, connection: int) -> None:
        """Record that a client has disconnected."""
        ...

    def connections_to_close(self) -> list[int]:
        """Return the connections of clients that must reconnect or are no longer allowed."""
        ...


class _ClientRef(msgspec.Struct, frozen=True):
    id: int


class _ServerRef(msgspec.Struct, frozen=True):
    id: str


class _ClientEvent(msgspec.Struct, frozen=True):
    """A client's connect or disconnect."""

    server: _ServerRef
    client: _ClientRef


class ControlLink(ServerLink):
    """The connection to the system account.

    Args:
        authorizer: authorizes clients.
    """

    def __init__(self, authorizer: ClientAuthorizer) -> None:
        super().__init__()
        self._authorizer = authorizer
        self._server_id = ""
        self._ended = b""
        """The subject prefix on which the server confirms that it has disconnected a client."""

    def begin(self) -> None:
        """Send the first operations after the handshake."""
        self._server_id = self.info.result().server_id
        # The system account spans the servers of a cluster, whose connection numbers overlap.
        self._ended = b"_INBOX.%b" % self._server_id.encode()
        self.write(
            encode_subscribe(callout.SUBJECT.encode(), AUTH_REQUESTS)
            + encode_subscribe(b"$SYS.ACCOUNT.%b.CONNECT" % STREAMS_ACCOUNT.encode(), CONNECTS)
            + encode_subscribe(
                b"$SYS.ACCOUNT.%b.DISCONNECT" % STREAMS_ACCOUNT.encode(), DISCONNECTS
            )
            + encode_subscribe(self._ended + b".*", KICKED)
        )
        self.end_connections(self._authorizer.server_connected(self._server_id))

    def end_connections(self, connections: list[int]) -> None:
        """Let the server disconnect clients; standard clients reconnect by themselves."""
        subject = b"$SYS.REQ.SERVER.%b.KICK" % self._server_id.encode()
        for connection in connections:
            # The server ignores a request that has no reply subject.
            reply = b"%b.%d" % (self._ended, connection)
            body = b'{"cid":%d}' % connection
            self.output.append(encode_publish(subject, body, reply=reply))
        self.flush()

    def _take(self, events: Sequence[Event]) -> None:
        """Handle authorization requests, connects, disconnects and pings."""
        for event in events:
            if not isinstance(event, tuple):
                self._control(event)
                continue
            subject, sid, reply, _, payload = event
            if sid == AUTH_REQUESTS:
                self._answer(reply, payload)
            elif sid == CONNECTS:
                self._handle_presence(payload, self._authorizer.client_connected)
            elif sid == DISCONNECTS:
                self._handle_presence(payload, self._authorizer.client_disconnected)
            elif sid == KICKED:
                # Closed now, or closed earlier without a report: in both cases it is gone.
                self._authorizer.client_disconnected(int(subject.rpartition(b".")[2]))

    def _taken(self, size: int) -> None:  # noqa: ARG002  nothing is counted
        self.flush()

    def _answer(self, reply: bytes | None, payload: bytes) -> None:
        answer = self._authorizer.answer(payload)
        if reply is not None and answer is not None:
            self.output.append(encode_publish(reply, answer))

    def _handle_presence(self, payload: bytes, report: Callable[[int], None]) -> None:
        """Pass on a report of a connect or disconnect, if it concerns this server's client."""
        try:
            found = msgspec.json.decode(payload, type=_ClientEvent)
        except UNDECODABLE as error:
            logger.warning("cannot decode a client event of nats-server: %s", error)
            return
        if found.server.id == self._server_id:
            report(found.client.id)


class SystemAccountClient:
    """A client of the system account, which reconnects.

    Args:
        authorizer: authorizes clients.
        server: returns the server's address; called once the server runs.
        login: returns the credentials.
        tls: the trusted authorities, if the server uses TLS.
    """

    def __init__(
        self,
        authorizer: ClientAuthorizer,
        server: Callable[[], NatsServerUrl],
        *,
        login: Login,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._authorizer = authorizer
        self._server = server
        self._login = login
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._last_error = "no attempt was made"

    async def start(self, *, is_awaited: bool = True) -> None:
        """Connect; return once authorization requests are answered.

        Args:
            is_awaited: whether to wait; False for a server that may be unreachable for long.

        Raises:
            UnavailableError: the server could not be reached in time.
        """
        self._first = asyncio.get_running_loop().create_future()
        self._task = start_task(self._run(), "nats-control")
        if not is_awaited:
            return
        if not await is_connected(self._first, self._task):
            raise UnavailableError(
                f"cannot connect to the system account of our nats-server: {self._last_error}"
            )

    async def stop(self) -> None:
        """Disconnect; from then on new clients are rejected."""
        await end_task(self._task)

    async def _review(self, link: ControlLink) -> None:
        """Disconnect clients, again and again, that the rules no longer allow."""
        while True:
            await asyncio.sleep(REVIEW_S)
            if connections := self._authorizer.connections_to_close():
                logger.info(
                    "disconnecting %d NATS clients whose permissions have changed", len(connections)
                )
                link.end_connections(connections)

    async def _run(self) -> None:
        """Connect, serve until the connection is lost, and repeat."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                link = await connect_link(
                    lambda: ControlLink(self._authorizer),
                    self._server(),
                    tls=self._tls,
                    login=self._login,
                    prepare=ControlLink.begin,
                )
            except (OSError, TimeoutError, StrandlineError) as error:
                self._last_error = str(error) or "no answer in time"
                logger.debug("cannot connect to the embedded nats-server: %s", self._last_error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            await self._serve(link)

    async def _serve(self, link: ControlLink) -> None:
        """Use a connection until it is lost."""
        reviewing = start_task(self._review(link), "nats-review")
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        try:
            await link.closed
        finally:
            await end_task(reviewing)
            link.abort()
        logger.warning(
            "lost the connection over which the embedded nats-server asks about clients (%s); new "
            "clients are rejected until it is back",
            link.failure or "closed",
        )

"""Our connection to our nats-server's account of the system, kept as long as the server lives.

It answers the server's questions about clients, hears who has left, and disconnects clients.

Rules: before anything else it is subscribed to what it must answer. When it was lost and is back,
whoever holds the door is told first, as nobody knows who left meanwhile. It does not know who may
do what.
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
from strandline.servers.nats.server_link import Login, NatsServerUrl, ServerLink, connect_link
from strandline.servers.tasks import end_task, start_task

logger = logging.getLogger(__name__)

FIRST_CONNECTION_TIMEOUT_S: Final = 10.0
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
REVIEW_S: Final = 0.5
"""How long a client may go on, at most, after the rules or its token have changed."""
QUESTIONS: Final = b"1"
DEPARTURES: Final = b"2"
ENDED: Final = b"3"
ARRIVALS: Final = b"4"


class ClientAuthorizer(Protocol):
    """Who decides about the server's clients."""

    def opened(self, server_id: str) -> list[int]:
        """The link is there; which connections of this server are to be ended."""
        ...

    def answer(self, question: bytes) -> bytes | None:
        """The answer to a question; None if it was none."""
        ...

    def arrived(self, connection: int) -> None:
        """A client has come in."""
        ...

    def left(self, connection: int) -> None:
        """A client has left."""
        ...

    def unwelcome(self) -> list[int]:
        """Clients that would not be let in any more as they were."""
        ...


class _Client(msgspec.Struct, frozen=True):
    id: int


class _Server(msgspec.Struct, frozen=True):
    id: str


class _Passage(msgspec.Struct, frozen=True):
    """A client has come in, or has left."""

    server: _Server
    client: _Client


class ControlLink(ServerLink):
    """The connection.

    Args:
        doorkeeper: who decides.
    """

    def __init__(self, doorkeeper: ClientAuthorizer) -> None:
        super().__init__()
        self._doorkeeper = doorkeeper
        self._server_id = ""
        self._ended = b""
        """Where the server says that it has ended a connection."""

    def begin(self) -> None:
        """Say the first words after the handshake."""
        self._server_id = self.info.result().server_id
        # The system's account spans the servers of a cluster, whose connections have numbers alike.
        self._ended = b"_INBOX.%b" % self._server_id.encode()
        self.write(
            encode_subscribe(callout.SUBJECT.encode(), QUESTIONS)
            + encode_subscribe(b"$SYS.ACCOUNT.%b.CONNECT" % STREAMS_ACCOUNT.encode(), ARRIVALS)
            + encode_subscribe(b"$SYS.ACCOUNT.%b.DISCONNECT" % STREAMS_ACCOUNT.encode(), DEPARTURES)
            + encode_subscribe(self._ended + b".*", ENDED)
        )
        self.end_connections(self._doorkeeper.opened(self._server_id))

    def end_connections(self, connections: list[int]) -> None:
        """Have the server disconnect clients; stock clients come again by themselves."""
        subject = b"$SYS.REQ.SERVER.%b.KICK" % self._server_id.encode()
        for connection in connections:
            # Without a reply subject the server does nothing.
            reply = b"%b.%d" % (self._ended, connection)
            body = b'{"cid":%d}' % connection
            self.output.append(encode_publish(subject, body, reply=reply))
        self.flush()

    def _take(self, events: Sequence[Event]) -> None:
        """Questions, who came and left, and signs of life."""
        for event in events:
            if not isinstance(event, tuple):
                self._control(event)
                continue
            subject, sid, reply, _, payload = event
            if sid == QUESTIONS:
                self._answer(reply, payload)
            elif sid == ARRIVALS:
                self._passed(payload, self._doorkeeper.arrived)
            elif sid == DEPARTURES:
                self._passed(payload, self._doorkeeper.left)
            elif sid == ENDED:
                # Ended now, or gone before without a word: either way it is not there.
                self._doorkeeper.left(int(subject.rpartition(b".")[2]))

    def _taken(self, size: int) -> None:  # noqa: ARG002  nothing is counted
        self.flush()

    def _answer(self, reply: bytes | None, payload: bytes) -> None:
        answer = self._doorkeeper.answer(payload)
        if reply is not None and answer is not None:
            self.output.append(encode_publish(reply, answer))

    def _passed(self, payload: bytes, tell: Callable[[int], None]) -> None:
        """A client of this server or another one has come in, or has left."""
        try:
            found = msgspec.json.decode(payload, type=_Passage)
        except UNDECODABLE as error:
            logger.warning("nats-server tells of a client in words we do not know: %s", error)
            return
        if found.server.id == self._server_id:
            tell(found.client.id)


class SystemAccountClient:
    """Keeps the connection.

    Args:
        doorkeeper: who decides.
        server: gives the server's address, which is known once it runs.
        login: says who we are.
        tls: whom to trust, if the server speaks TLS.
    """

    def __init__(
        self,
        doorkeeper: ClientAuthorizer,
        server: Callable[[], NatsServerUrl],
        *,
        login: Login,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._doorkeeper = doorkeeper
        self._server = server
        self._login = login
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._last_error = "no attempt was made"

    async def start(self, *, is_awaited: bool = True) -> None:
        """Connect; returns when questions are answered.

        Args:
            is_awaited: False if there may be no server for a long time: returns at once.

        Raises:
            UnavailableError: the server could not be reached in time.
        """
        self._first = asyncio.get_running_loop().create_future()
        self._task = start_task(self._run(), "nats-control")
        if not is_awaited:
            return
        await asyncio.wait(
            (self._first, self._task),
            timeout=FIRST_CONNECTION_TIMEOUT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not self._first.done():
            await end_task(self._task)
            raise UnavailableError(f"cannot watch over our nats-server: {self._last_error}")

    async def stop(self) -> None:
        """Disconnect; from now on nobody new comes in."""
        await end_task(self._task)

    async def _review(self, link: ControlLink) -> None:
        """Disconnect, again and again, whom the rules no longer let in."""
        while True:
            await asyncio.sleep(REVIEW_S)
            if connections := self._doorkeeper.unwelcome():
                logger.info("the rules about %d NATS clients have changed", len(connections))
                link.end_connections(connections)

    async def _run(self) -> None:
        """Connect, stay connected as long as it lasts, and again."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                link = await connect_link(
                    lambda: ControlLink(self._doorkeeper),
                    self._server(),
                    tls=self._tls,
                    login=self._login,
                    prepare=ControlLink.begin,
                )
            except (OSError, TimeoutError, StrandlineError) as error:
                self._last_error = str(error) or "no answer in time"
                logger.debug("cannot connect to our nats-server: %s", self._last_error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            await self._serve(link)

    async def _serve(self, link: ControlLink) -> None:
        """Use a link until it is lost."""
        reviewing = start_task(self._review(link), "nats-review")
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        try:
            await link.closed
        finally:
            await end_task(reviewing)
            link.abort()
        logger.warning(
            "lost the connection over which our nats-server asks about clients (%s); until it is "
            "back nobody new comes in",
            link.failure or "closed",
        )

"""A leaf connection to a nats-server, over which records reach a consumer's inbox.

A client connection cannot deliver them: a record is sent to an inbox, but the receiver must see the
record's own subject. nats-server allows this to a leaf: in a message to the inbox with the reply
subject ``$JS.ACK.…@orders.paris`` the part after the ``@`` becomes the subject that the receiver
sees.

Rules: the link subscribes to nothing. The server reports which inboxes have receivers; such a
    report
and the receiver's request come over different connections, in any order. So an inbox without a
receiver is considered dead only if it has had one. Nothing is queued for a link that is down.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final, cast

import msgspec

from strandline.errors import UNDECODABLE, UnavailableError
from strandline.servers.nats.backpressure import NO_TRANSPORT
from strandline.servers.nats.inboxes import is_private
from strandline.servers.nats.jetstream.frames import DeliveredRun, leaf_frames
from strandline.servers.nats.server_link import (
    HANDSHAKE_TIMEOUT_S,
    Login,
    NatsServerInfo,
    is_connected,
)
from strandline.servers.tasks import end_task, start_task

logger = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = "2.10.0"
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 2.0
OUTPUT_BYTES_MAX: Final = 4 << 20
"""The size of unsent output above which deliveries wait."""
GONE_MAX: Final = 4096
"""The limit of inboxes that are remembered because they have lost their receivers."""
SETTLE_TIMEOUT_S: Final = 1.0
LEAF_LINE_BYTES_MAX: Final = 64 << 10


class LeafLink(asyncio.Protocol):
    """One leaf connection.

    Args:
        owner: the client, which is notified of changes.
        login: returns the credentials; None if the server asks for none.
    """

    def __init__(self, owner: "LeafClient", login: Login | None) -> None:
        self._owner = owner
        self._login = login
        self._transport: asyncio.Transport = NO_TRANSPORT
        self._rest = b""
        self._skip = 0
        """The remaining bytes of an unwanted payload."""
        self._is_greeted = False
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.failure = ""
        self._pongs: deque[asyncio.Future[None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, now that the connection is made."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss, so that the owner connects again."""
        self.failure = self.failure or (str(exc) if exc else "the server closed the connection")
        if not self.ready.done():
            self.ready.set_exception(UnavailableError(self.failure))
            self.ready.exception()
        if not self.closed.done():
            self.closed.set_result(None)
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(None)

    def pause_writing(self) -> None:
        """Stop deliveries, because the server does not read."""
        self._owner.writable.clear()

    def resume_writing(self) -> None:
        """Resume deliveries, because the server reads again."""
        self._owner.writing_resumed()

    def write(self, data: bytes) -> None:
        """Write at once."""
        self._transport.write(data)

    def ping(self) -> asyncio.Future[None]:
        """Return a future that completes when the server has handled everything written before."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.write(b"PING\r\n")
        return pong

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle all complete lines."""
        data = self._rest + data if self._rest else data
        self._rest = b""
        while data:
            if self._skip:
                taken = min(self._skip, len(data))
                self._skip -= taken
                data = data[taken:]
                continue
            line, end, data = data.partition(b"\r\n")
            if not end:
                self._rest = line
                if len(line) > LEAF_LINE_BYTES_MAX:
                    self._fail("a line without an end")
                break
            self._take(line)
        self._owner.report_interest()

    def _take(self, line: bytes) -> None:
        operation, _, rest = line.partition(b" ")
        match operation.upper():
            case b"LS+":
                self._owner.interest_came(*rest.split()[:2])
            case b"LS-":
                self._owner.interest_went(*rest.split()[:2])
            case b"PING":
                self.write(b"PONG\r\n")
            case b"PONG":
                if not self.ready.done():
                    self.ready.set_result(None)
                elif self._pongs and not (pong := self._pongs.popleft()).done():
                    pong.set_result(None)
            case b"INFO":
                self._greet(rest)
            case b"-ERR":
                self._fail(rest.decode(errors="replace"))
            case b"LMSG" | b"HMSG":
                size = rest.rpartition(b" ")[2]
                self._skip = int(size) + 2 if size.isdigit() and len(size) < 10 else 0

    def _greet(self, options: bytes) -> None:
        """Answer the server's first INFO; later ones need no answer."""
        if self._is_greeted:
            return
        self._is_greeted = True
        try:
            info = msgspec.json.decode(options, type=NatsServerInfo)
        except UNDECODABLE as error:
            self._fail(f"unreadable INFO: {error}")
            return
        if info.tls_required:
            self._fail("it requires TLS of leaf nodes, which is not built")
            return
        connect = {
            "name": self._owner.name,
            "server_id": self._owner.name,
            "headers": True,
            "protocol": 1,
            "version": PROTOCOL_VERSION,
            **(self._login(info) if self._login is not None else {}),
        }
        self.write(b"CONNECT %b\r\nPING\r\n" % msgspec.json.encode(connect))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.abort()


def _ignore(*_: object) -> None:
    """Do nothing, before a callback is set."""


class LeafClient:
    """A leaf connection that is re-established when it breaks, and the interest in inboxes.

    Args:
        name: a name that distinguishes it from other brokers' links.
        address: returns the server's host and leaf port; called once the server runs.
        login: returns the credentials; None if the server asks for none.
        is_restricted: whether the server lets it send to private inboxes only.
        server: the name of the server in messages.
    """

    def __init__(
        self,
        name: str,
        address: Callable[[], tuple[str, int]],
        *,
        login: Login | None = None,
        is_restricted: bool = False,
        server: str = "our nats-server",
    ) -> None:
        self.name = name
        self._address = address
        self._login = login
        self._is_restricted = is_restricted
        self._server = server
        self._link: LeafLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._last_error = "no attempt was made"
        self._output: list[bytes] = []
        self._interest: dict[bytes, set[bytes]] = {}
        """Subject or pattern → the queue groups that receive it; empty: a plain subscription."""
        self._grouped: set[bytes] = set()
        """Subjects and patterns that some queue group receives."""
        self._changed: set[bytes] = set()
        """Subjects and patterns with gained or lost receivers that are still to be reported."""
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        self.writable = asyncio.Event()
        self._notify_interest: Callable[[Collection[bytes]], None] = _ignore
        self._notify_connected: Callable[[], None] = _ignore
        self._notify_writable: Callable[[], None] = _ignore

    def notify(
        self,
        *,
        interest_changed: Callable[[Collection[bytes]], None] = _ignore,
        connected: Callable[[], None] = _ignore,
        writable: Callable[[], None] = _ignore,
    ) -> None:
        """Set the callbacks.

        Args:
            interest_changed: called with subjects that have gained or lost receivers.
            connected: called when the link is established, the first time and again.
            writable: called when deliveries can continue.
        """
        self._notify_interest = interest_changed
        self._notify_connected = connected
        self._notify_writable = writable

    def writing_resumed(self) -> None:
        """Report that the server reads again."""
        self.writable.set()
        self._notify_writable()

    def may_send(self, subject: bytes) -> bool:
        """Return whether the server accepts messages to a subject."""
        return not self._is_restricted or is_private(subject)

    @property
    def knows_interest(self) -> bool:
        """Whether the server has reported which subjects have receivers."""
        return self._link is not None

    @property
    def is_open(self) -> bool:
        """Whether records can be delivered now."""
        return self._link is not None and self.writable.is_set()

    async def start(self, *, is_awaited: bool = True) -> None:
        """Connect; return when that has succeeded once.

        Args:
            is_awaited: whether to wait; False for a server that may be unreachable for long.

        Raises:
            UnavailableError: the server could not be reached in time.
        """
        self._first = asyncio.get_running_loop().create_future()
        self._task = start_task(self._run(), "nats-leaf")
        if not is_awaited:
            return
        if not await is_connected(self._first, self._task):
            raise UnavailableError(f"no leaf connection to {self._server}: {self._last_error}")

    async def stop(self) -> None:
        """Disconnect."""
        await end_task(self._task)

    async def _run(self) -> None:
        """Connect, serve until the connection is lost, and repeat."""
        backoff_s = BACKOFF_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            link = None
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    _, link = await loop.create_connection(
                        lambda: LeafLink(self, self._login), *self._address()
                    )
                    await link.ready
            except (OSError, TimeoutError, UnavailableError) as error:
                self._last_error = str(error) or "no answer in time"
                if link is not None:
                    link.abort()
                logger.debug("no leaf connection to %s: %s", self._server, self._last_error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            await self._serve(link)

    async def _serve(self, link: LeafLink) -> None:
        self._link = link
        self.writable.set()
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        self._changed.clear()  # after ``connected`` the owner checks all subjects anyway
        self._notify_connected()
        try:
            await link.closed
        finally:
            self._link = None
            self.writable.clear()
            self._interest.clear()
            self._grouped.clear()
            link.abort()
        logger.warning("lost the leaf connection to %s: %s", self._server, link.failure)

    # Interest

    def interest_came(self, subject: bytes = b"", queue: bytes = b"") -> None:
        """Handle a report that clients subscribe to a subject or pattern, or a queue group does."""
        self._interest.setdefault(subject, set()).add(queue)
        if queue:
            self._grouped.add(subject)
        self._gone.pop(subject, None)
        self._changed.add(subject)

    def interest_went(self, subject: bytes = b"", queue: bytes = b"") -> None:
        """Handle a report that no client subscribes to a subject or pattern any longer."""
        queues = self._interest.get(subject, set())
        queues.discard(queue)
        self._changed.add(subject)
        if not any(queues):
            self._grouped.discard(subject)
        if queues:
            return
        self._interest.pop(subject, None)
        self._gone[subject] = None
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)

    def report_interest(self) -> None:
        """Report all collected changes with one call; not those that arrive with the handshake."""
        if self._changed and self.knows_interest:
            changed, self._changed = self._changed, set()
            self._notify_interest(changed)

    def has_interest(self, inbox: bytes) -> bool:
        """Return whether the server has reported a receiver of an inbox."""
        return not self._interest.keys().isdisjoint(_patterns(inbox))

    def is_subscribed(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return whether a client subscribes to exactly a subject, in the queue group if named.

        False also for a subject to which this link may not send, as that of a consumer created
        before access control was turned on.
        """
        return self.may_send(subject) and queue in self._interest.get(subject, ())

    def _groups(self, subjects: Collection[bytes]) -> bytes:
        """Return the queue groups that subscribe to any of the subjects, as a frame lists them."""
        if not self._grouped:
            return b""
        patterns = set().union(*map(_patterns, subjects)) & self._grouped
        return b" ".join(
            sorted({queue for each in patterns for queue in self._interest[each]} - {b""})
        )

    def has_lost(self, inbox: bytes) -> bool:
        """Return whether an inbox has lost its receiver a moment ago and has none now."""
        patterns = _patterns(inbox)
        return not self._gone.keys().isdisjoint(patterns) and not self.has_interest(inbox)

    # Sending

    def deliver(
        self, inbox: bytes, payload: bytes, *, block: bytes, reply: bytes = b"", queue: bytes = b""
    ) -> None:
        """Queue a status message for an inbox; it is lost if the link is down.

        Args:
            inbox: the inbox.
            payload: the payload.
            block: the header block; empty for none.
            reply: the reply subject; empty for none.
            queue: the queue group to deliver to; empty: one member of each group receives it.
        """
        if self._link is None:
            return
        queue = queue or self._groups((inbox,))
        if queue:
            # A leaf must name the groups: otherwise no member of a group receives the message.
            to = b"%b + %b %b" % (inbox, reply, queue) if reply else b"%b | %b" % (inbox, queue)
        else:
            to = b"%b %b" % (inbox, reply) if reply else inbox
        if block:
            line = b"HMSG %b %d %d\r\n%b" % (to, len(block), len(block) + len(payload), block)
        else:
            line = b"LMSG %b %d\r\n" % (to, len(payload))
        self._output += (line, payload, b"\r\n")

    def deliver_run(self, run: DeliveredRun, *, queue: bytes = b"") -> None:
        """Queue records for inboxes; they are lost if the link is down.

        Args:
            run: the deliveries.
            queue: the queue group to deliver to; empty: one member of each group receives each.
        """
        if self._link is not None:
            queue = queue or self._groups(frozenset(run.inboxes))
            self._output.append(leaf_frames(run, queue))

    async def settle(self) -> None:
        """Wait until the server has handled everything sent, so that later answers come after it.

        Answers to requests take another connection, where they could overtake deliveries.
        """
        self.flush()
        if self._link is not None:
            with contextlib.suppress(TimeoutError):  # answer even if the order is uncertain
                async with asyncio.timeout(SETTLE_TIMEOUT_S):
                    await self._link.ping()

    def flush(self) -> None:
        """Send the queued output in one write."""
        output, self._output = self._output, []
        if self._link is not None and output:
            self._link.write(b"".join(output))


def _patterns(subject: bytes) -> set[bytes]:
    """Return the patterns by which a client may subscribe to an inbox.

    ``>`` is left out: it is subscribed to for other reasons, and would keep every pull alive.
    """
    tokens = subject.split(b".")
    found = {subject}
    if len(tokens) > 1:
        found.add(b".".join((*tokens[:-1], b"*")))
    found.update(b".".join((*tokens[:count], b">")) for count in range(1, len(tokens)))
    return found

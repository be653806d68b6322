"""The broker's connection to a nats-server: takes what is published, sends acks back.

Rules: one binding, one subscription, one sid; a message belongs to the binding of its sid and to no
other, so two streams on one subject each get it and queue groups are nats-server's business. Acks
are queued and written once per turn. The link neither connects nor reconnects.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import msgspec

from strandline.broker.routing import Binding, Route, RouteTable
from strandline.errors import (
    UNDECODABLE,
    DisconnectedError,
    InvalidSubjectError,
    NotLeaderError,
    StrandlineError,
)
from strandline.frontends.nats.connection import PING, PONG
from strandline.frontends.nats.flow import Peer
from strandline.frontends.nats.protocol import (
    Control,
    Failure,
    Info,
    Parser,
    Ping,
    Pong,
    Violation,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from strandline.frontends.nats.replies import error_reply, pub_ack
from strandline.record.envelope import MAGIC
from strandline.types import Offset, PartitionName

if TYPE_CHECKING:
    from strandline.frontends.nats.subscriber import Subscriber

logger = logging.getLogger(__name__)

PAYLOAD_BYTES_MAX = 64 << 20
"""The largest payload any nats-server allows."""


class ServerInfo(msgspec.Struct, frozen=True):
    """What of INFO matters here."""

    max_payload: int = 1 << 20
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    auth_required: bool = False
    server_name: str = ""


class Link(Peer):
    """A connection, and the responder of everything that came over it; a token is a reply subject.

    Args:
        subscriber: what outlives the connection.
    """

    def __init__(self, subscriber: "Subscriber") -> None:
        super().__init__()
        self._subscriber = subscriber
        self.parser = Parser(PAYLOAD_BYTES_MAX, from_client=False)
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._sids: dict[Binding, bytes] = {}
        self._tables: dict[bytes, RouteTable] = {}
        self._last_sid = 0
        self.failure = ""
        """The last -ERR of the server."""
        loop = asyncio.get_running_loop()
        self.info: asyncio.Future[ServerInfo] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everyone who waits."""
        super().connection_lost(exc)
        reason = self.failure or (str(exc) if exc else "the server closed the connection")
        error = DisconnectedError(reason)
        if not self.info.done():
            self.info.set_exception(error)
            self.info.exception()  # nobody may be waiting any more
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(error)
                pong.exception()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """The hot path: plain payloads go straight to their partition."""
        tables = self._tables
        subscriber = self._subscriber
        messages = 0
        for event in self.parser.feed(data):
            if not isinstance(event, tuple):
                self._control(event)
                continue
            messages += 1
            subject, sid, reply, block, payload = event
            table = tables.get(sid)
            if table is None:
                continue  # unsubscribed meanwhile
            route = table.remembered.get(subject) or self._find_route(table, subject, reply)
            if route is None:
                continue
            is_plain = block is None and payload[:4] != MAGIC
            if route.partition is None or not is_plain or (reply and not route.answers):
                if route.groups:
                    subscriber.intake.take(route, reply, block=block, payload=payload, sink=self)
            elif reply is None:
                route.partition.append(payload, subject=route.subject)
            else:
                route.partition.append(payload, subject=route.subject, responder=self, token=reply)
        subscriber.messages += messages
        if self.output:
            self.flush()
        if subscriber.admission.pending_bytes > subscriber.gate.pending_high:
            subscriber.gate.hold(self)

    def _find_route(self, table: RouteTable, subject: bytes, reply: bytes | None) -> Route | None:
        """The route of a subject seen for the first time; None if it cannot be one."""
        try:
            return table.find(subject)
        except InvalidSubjectError as error:
            if reply is not None:
                self.deliver(reply, error_reply(error))
            return None

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
            case Failure(reason):
                self.failure = reason
                logger.warning("nats-server says: %s", reason)
            case Violation(reason):
                self.failure = reason
                logger.error("nats-server sent what is not its protocol: %s", reason)
                self.abort()

    def _take_info(self, options: bytes) -> None:
        """The first INFO greets; later ones tell of cluster changes, which do not matter here."""
        if self.info.done():
            return
        try:
            self.info.set_result(msgspec.json.decode(options, type=ServerInfo))
        except UNDECODABLE as error:
            self.failure = f"unreadable INFO: {error}"
            self.abort()

    # Subscriptions

    def subscribe(self, bindings: list[Binding]) -> None:
        """Hold a subscription for each of ``bindings`` and for nothing else."""
        lines = []
        wanted = dict.fromkeys(bindings)
        for binding in [each for each in self._sids if each not in wanted]:
            sid = self._sids.pop(binding)
            del self._tables[sid]
            lines.append(encode_unsubscribe(sid))
        for binding in wanted:
            if binding in self._sids:
                continue
            self._last_sid += 1
            sid = b"%d" % self._last_sid
            self._sids[binding] = sid
            self._tables[sid] = RouteTable((binding,))
            queue = binding.stream.config.queue_group.encode()
            lines.append(encode_subscribe(binding.pattern.encode(), sid, queue=queue))
        self.write(b"".join(lines))

    def unsubscribe_all(self) -> None:
        """Ask for no more messages; what is under way still counts."""
        self.write(b"".join(map(encode_unsubscribe, self._tables)))

    async def round_trip(self) -> None:
        """Wait until the server has processed everything written so far.

        Raises:
            DisconnectedError: the connection was lost meanwhile.
        """
        if not self.is_open:
            raise DisconnectedError(self.failure or "not connected to nats-server")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(waiting)
        self.flush()
        self.write(PING)
        await waiting

    # Replies

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Queue a PubAck."""
        reply = cast("bytes", token)
        if duplicate:
            self.deliver(reply, pub_ack(partition, offset, duplicate=True))
            return
        if not self.output:
            self._subscriber.unflushed.append(self)
        sequence = offset + 1
        template = self._subscriber.ack_lines.template(partition, sequence)
        self.output.append(template % (reply, sequence))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Queue an error reply, unless the leader, which hears every message too, answers."""
        if isinstance(error, NotLeaderError):
            return
        self.deliver(cast("bytes", token), error_reply(error))

    def deliver(self, to: bytes, payload: bytes) -> None:
        """Queue a message; a subject that cannot be one is dropped, as it would break the link."""
        if not to or any(blank in to for blank in b" \t\r\n"):
            return
        if not self.output:
            self._subscriber.unflushed.append(self)
        self.output.append(encode_publish(to, payload))

"""A client's connection to the ingest listener.

Rules: invalid input costs its sender an error and, at worst, the connection. PubAcks are queued and
written once per group commit; nothing here blocks. A client over its quota is not read for a short
time. If the wait would be long, publishes with a reply subject are rejected instead; a publish
without a reply subject waits until the quota allows it, and all later input waits behind it.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from strandline.broker.access import Access, Caller
from strandline.broker.routing import Route, RouteTable
from strandline.config import BrokerConfig
from strandline.errors import (
    UNDECODABLE,
    InvalidSubjectError,
    NotAllowedError,
    QuotaExceededError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.envelope import MAGIC
from strandline.record.subjects import has_wildcard
from strandline.servers.metering import WAIT_S_MAX, Allowance, Metering
from strandline.servers.nats.backpressure import (
    QUOTA,
    ROUND_S,
    SLICE_S,
    AckedRun,
    MessageReader,
)
from strandline.servers.nats.guard import EARLY_PAYLOAD_MAX, Claims, ClientOptions, PublishGuard
from strandline.servers.nats.headers import NO_RESPONDERS
from strandline.servers.nats.inboxes import (
    Inboxes,
    inbox_pattern,
    private_inbox,
)
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.ingest_state import IngestState
from strandline.servers.nats.jetstream.api import JetStreamApi
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.protocol import (
    PING,
    PONG,
    Connect,
    Control,
    Event,
    Message,
    Parser,
    Ping,
    Pong,
    Subscribe,
    Unsubscribe,
    Violation,
    are_messages,
    encode_failure,
    encode_message,
    encode_message_with_headers,
)
from strandline.servers.nats.receivers import LocalClient, LocalInbox, Receivers
from strandline.servers.nats.replies import PubAckLines, error_reply, pub_ack
from strandline.servers.round_budget import RoundBudget
from strandline.servers.tls import certificate_name
from strandline.types import Offset, PartitionName

logger = logging.getLogger(__name__)

MESSAGE_SLACK_BYTES: Final = 64 << 10
"""How much headers and an envelope may add to the largest record."""
HANDSHAKE_TIMEOUT_S = 5.0
OKAY: Final = b"+OK\r\n"
JETSTREAM: Final = b"$JS."
API_SUBJECTS: Final = b"$JS.API."
CONSUMER_ACKS: Final = b"$JS.ACK."
REQUESTS: Final = (API_SUBJECTS, CONSUMER_ACKS, b"$JS.FC.")
"""Prefixes of the subjects that the JetStream API handles."""
QUOTA_HOLD_S: Final = 2.0
"""The longest wait of a publisher over its quota for its ack; standard clients wait 5 s."""
MESSAGE_OVERHEAD_BYTES: Final = 32
"""The approximate length of a message's line."""
CONTROLS_MAX: Final = 10_000
"""The limit of operations without a message in between, until the listener sends its next ping."""
NOBODY: Final = "Authorization Violation"
"""nats-server's error for a client that is not authorized."""
TRY_AGAIN: Final = "Stale Connection"
"""After this error standard clients reconnect, perhaps to another server. They give up after an
unknown error, and after several authorization violations."""


class PublisherState(IngestState):
    """The state that all connections of the listener share, with access rules and meters.

    Args:
        broker: the broker that stores records.
        config: the broker's settings.
        routes: the routes of all streams; shared with the other listeners.
        ingest: appends messages; shared by all listeners.
        metering: the meters of principals, if shared with other servers.
        tls: the listener's TLS context; None: connections are not encrypted.
        api: answers requests of the JetStream API.
        receivers: the receivers of consumers' deliveries.
    """

    def __init__(
        self,
        broker: BrokerPort,
        config: BrokerConfig,
        *,
        routes: RouteTable,
        ingest: MessageIngest,
        metering: Metering | None = None,
        tls: ssl.SSLContext | None = None,
        api: JetStreamApi | None = None,
        receivers: Receivers | None = None,
    ) -> None:
        super().__init__(broker, "ingest", ingest=ingest, ack_lines=PubAckLines(b"MSG "))
        self.access = Access(config, broker)
        self.metering = metering or Metering(broker)
        self.routes = routes
        self.tls = tls
        self.api = api
        self.receivers = receivers
        self.payload_max = config.limits.record_bytes + MESSAGE_SLACK_BYTES
        self.budget = RoundBudget(SLICE_S, ROUND_S)
        self.buffered_bytes = 0
        """Bytes of half-received messages on all connections."""
        self.buffered_bytes_max = config.limits.pending_bytes
        self.connections: set[PublisherConnection] = set()
        self.all_gone = asyncio.Event()
        """Set while there is no connection."""
        self.all_gone.set()
        self.info_line = b""
        """The greeting for clients; set before the first connection is accepted."""

    def admit(self, connection: "PublisherConnection") -> bool:
        """Register a new connection; return False if there are too many."""
        self.connections.add(connection)
        self.all_gone.clear()
        self.broker.reads(connection)
        self.broker.telemetry.count_listener(self.name, connections=1)
        return self.metering.connections.admit(connection, connection.abort)

    def forget(self, connection: "PublisherConnection") -> None:
        """Forget a closed connection; some loops report a failed handshake twice."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.metering.connections.forget(connection)
        if not self.connections:
            self.all_gone.set()
        self.broker.telemetry.count_listener(self.name, connections=-1)


class PublisherConnection(MessageReader):
    """A connection, and the ack sink of its publishes; an ack's token is the reply subject.

    Args:
        shared: the state shared with other connections.
    """

    def __init__(self, shared: PublisherState) -> None:
        early = EARLY_PAYLOAD_MAX if shared.access.is_on else shared.payload_max
        super().__init__(Parser(early, from_client=True), shared.budget)
        self._shared = shared
        self._guard = PublishGuard(shared.access, shared.metering) if shared.access.is_on else None
        self._options = ClientOptions()
        self._inboxes = Inboxes()
        self._consumer_acks: list[Message] = []
        """Acknowledgements of deliveries, collected to be passed on together."""
        receivers = shared.receivers
        self._local = LocalClient(self, self._inboxes, receivers) if receivers is not None else None
        """This client as a receiver of consumers' deliveries."""
        self._buffered_bytes = 0
        self._messages = 0
        """Messages received since the last update of the shared count."""
        self._controls = 0
        """Operations since the last message or the listener's last ping."""
        self._has_spoken = False
        self.unanswered_pings = 0
        self.is_handshaking = False
        """Whether the next bytes belong to a TLS handshake."""
        self._handshaking: asyncio.Task[None] | None = None
        self._allowance: Allowance | None = None
        """The quota of the connected principal; None if access is not checked."""
        self._quota_timer: asyncio.TimerHandle | None = None
        self._is_in_debt = False
        """Whether the quota allows no publish for so long that publishes are rejected."""
        self._delayed: list[Event] = []
        """Events held back by the quota: a publish that cannot be rejected, and later events."""
        self._unmetered_bytes = 0
        """Received bytes not charged yet: of a partial message, or of held-back publishes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send INFO, or close a connection above the limit; with TLS, read no clear text."""
        super().connection_made(transport)
        is_admitted = self._shared.admit(self)
        if is_admitted and self._shared.tls is not None:
            self.is_handshaking = self._is_deferred = True
            self._transport.pause_reading()
            handshake = self._handshake(self._shared.tls)
            self._handshaking = asyncio.create_task(handshake, name="ingest-tls")
            return
        self.write(self._shared.info_line)
        if not is_admitted:
            self.fail("maximum connections exceeded")
        self._expect_identity()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; acks that come later are dropped."""
        super().connection_lost(exc)
        self._count_buffered(0)
        self._count_for(None)
        if self._local is not None:
            self._local.closed()
        self._shared.forget(self)

    def _take(self, events: Sequence[Event]) -> None:
        """Handle events. The hot path: plain payloads for one stream go to their partition."""
        guard = self._guard
        if guard is not None and not self.is_allowed():
            return
        if self._is_in_debt:
            self._take_in_debt(events)
            return
        if len(events) > 1 and self._take_many(events):
            return
        remembered = self._shared.routes.remembered
        is_forwarding = self._shared.ingest.is_forwarding
        messages = 0
        for event in events:
            if guard is not None and not guard.is_open and not isinstance(event, Connect):
                self.fail(NOBODY)
                break
            if not isinstance(event, tuple):
                self._control(event)
                if not self.is_open:
                    break
                continue
            messages += 1
            self._controls = 0
            subject, _, reply, block, payload = event
            if subject.startswith(JETSTREAM) and self._take_request(event):
                continue
            route = remembered.get(subject) or self._find_route(subject, reply)
            if route is None or (guard is not None and not self._may_publish(subject, reply)):
                continue
            is_plain = block is None and payload[:4] != MAGIC
            if (
                route.partition is None
                or not is_plain
                or (reply and not route.answers)
                or is_forwarding
                or not route.partition.is_led
            ):
                self._publish(route, reply, block=block, payload=payload)
            elif reply is None:
                route.partition.append(payload, subject=route.subject)
            else:
                route.partition.append(payload, subject=route.subject, ack_sink=self, token=reply)
            if self._options.verbose:
                self.output.append(OKAY)
        self._pass_on_consumer_acks()
        if messages:
            self._messages += messages
            self._has_spoken = True

    def _take_request(self, message: Message) -> bool:
        """Handle a request to the JetStream API or an acknowledgement; else return False."""
        subject, _, reply, block, payload = message
        api, guard = self._shared.api, self._guard
        if api is None or not subject.startswith(REQUESTS):
            return False
        if guard is None or self._may_publish(subject, reply):
            if subject.startswith(API_SUBJECTS):
                self._pass_on_consumer_acks()
                api.take(subject, reply, block=block, payload=payload, link=self)
            else:
                self._consumer_acks.append(message)
        if self._options.verbose:
            self.output.append(OKAY)
        return True

    def _pass_on_consumer_acks(self) -> None:
        """Pass the collected acknowledgements of deliveries to the API."""
        acks, self._consumer_acks = self._consumer_acks, []
        if acks and self._shared.api is not None:
            self._shared.api.take_consumer_acks(acks, self)

    def _take_many(self, events: Sequence[Event]) -> bool:
        """Handle events if all are plain messages, or all acknowledgements; else return False."""
        if not are_messages(events):
            return False
        guard, shared = self._guard, self._shared
        if guard is not None and not (
            guard.is_open and all(map(guard.allows, {message[0] for message in events}))
        ):
            return False
        if events[0][0].startswith(JETSTREAM):
            if shared.api is None or not all(
                message[0].startswith(CONSUMER_ACKS) for message in events
            ):
                return False
            shared.api.take_consumer_acks(events, self)
        elif not shared.ingest.append_many(shared.routes, events, self):
            return False
        self._messages += len(events)
        self._controls = 0
        self._has_spoken = True
        if self._options.verbose:
            self.output += [OKAY] * len(events)
        return True

    def _taken(self, size: int) -> None:
        shared = self._shared
        messages, self._messages = self._messages, 0
        shared.received[shared.name] += messages
        self.message_count += messages
        if self.parser.buffered_bytes != self._buffered_bytes:
            self._count_buffered(self.parser.buffered_bytes)
        if self.output:
            self.flush()
        backpressure = shared.ingest.backpressure
        if shared.admission.pending_bytes > backpressure.pending_high:
            backpressure.hold(self)
        if self._allowance is not None:
            self._unmetered_bytes += size
            if not self._is_in_debt:
                # Charge for whole messages only: a charge for the first part of a message could get
                # the rest of it rejected.
                whole = max(0, self._unmetered_bytes - self.parser.buffered_bytes)
                self._unmetered_bytes = max(0, self._unmetered_bytes - whole)
                self._meter(self._allowance, whole, messages)

    # TLS

    def _keep(self, data: bytes) -> None:
        """Keep input for later, such as bytes right after a handshake.

        Clear text received instead of a handshake must not be kept: the connection is closed.
        """
        if self.is_handshaking and self._transport.get_protocol() is self:
            self.abort()
        else:
            super()._keep(data)

    async def _handshake(self, tls: ssl.SSLContext) -> None:
        """Send the greeting and start TLS; drop the connection if that fails."""
        # Only now: earlier, a fast client's handshake could arrive before TLS is expected.
        self.write(self._shared.info_line)
        try:
            await self.start_tls(tls, timeout_s=HANDSHAKE_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            logger.info("a publisher's TLS handshake failed: %s", error)
            self.abort()
            self.connection_lost(None)  # not every loop calls it after a failed handshake
            return
        self.is_handshaking = self._is_deferred = False
        self._expect_identity()
        if self._received:
            self._read_on()

    # Access control

    def is_allowed(self) -> bool:
        """Return whether the client still may do anything; close its connection if not."""
        try:
            if self._guard is not None:
                self._guard.refresh()
        except StrandlineError as error:
            self.fail(_disconnect_reason(error))
        return self.is_open

    def check_identity(self) -> None:
        """Close the connection of a client whose identity is no longer valid."""
        try:
            if self._guard is not None:
                self._guard.check_current()
        except StrandlineError as error:
            self.fail(_disconnect_reason(error))

    def _expect_identity(self) -> None:
        """Limit the time in which the client must identify itself."""
        asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._end_silent)

    def _end_silent(self) -> None:
        """Close the connection of a client that has not identified itself."""
        is_known = self._has_spoken if self._guard is None else self._guard.is_open
        if not is_known:
            self.fail("Authentication Timeout")

    def _may_publish(self, subject: bytes, reply: bytes | None) -> bool:
        """Return whether the client may publish to a subject; report it to the client if not."""
        assert self._guard is not None, "asked where access is checked"
        if self._guard.allows(subject):
            return True
        text = subject.decode(errors="replace")
        if reply is not None:
            self.deliver(reply, error_reply(NotAllowedError(f"you may not publish to {text!r}")))
        self.output.append(encode_failure(f'Permissions Violation for Publish to "{text}"'))
        return False

    def _identify(self, options: bytes) -> None:
        """Identify the client by its CONNECT; close the connection if it is rejected."""
        assert self._guard is not None, "asked where access is checked"
        try:
            claims = msgspec.json.decode(options, type=Claims)
            self._guard.connect(claims, certificate_name(self._transport))
        except UNDECODABLE:
            self.fail("Parser Error")
        except StrandlineError as error:
            self.fail(_disconnect_reason(error))
        else:
            self.parser.payload_max = self._shared.payload_max
            self._count_for(self._guard.caller)

    # Quotas

    def _count_for(self, caller: Caller | None) -> None:
        """Count the connection for a principal; close it if there are too many."""
        before, self._allowance = self._allowance, None
        self.principal = caller.principal.name if caller is not None else ""
        if before is not None:
            before.close()
        allowance = self._shared.metering.of(caller) if caller is not None else None
        if allowance is None:
            return
        try:
            allowance.open()
        except QuotaExceededError:
            self.fail("maximum account active connections exceeded")
        else:
            self._allowance = allowance
            self._meter(allowance, 0, 0)  # reconnecting must not evade a used-up quota

    def _meter(self, allowance: Allowance, size: int, messages: int) -> None:
        """Charge the quota; if it is used up, stop reading for a while or reject publishes."""
        wait_s = max(allowance.publish(size), allowance.requests(messages))
        if not wait_s or not self.is_open:
            return
        if self._quota_timer is not None:
            self._quota_timer.cancel()
        self._is_in_debt = self._is_in_debt or wait_s > QUOTA_HOLD_S
        if not self._is_in_debt or self._delayed:
            self.hold_reading(QUOTA)
        loop = asyncio.get_running_loop()
        self._quota_timer = loop.call_later(wait_s, self._waited, wait_s)

    def _waited(self, wait_s: float) -> None:
        """Resume reading after a wait, unless the quota requires a longer one."""
        self.release_reading(QUOTA)
        if wait_s >= WAIT_S_MAX and self._allowance is not None:
            before = self._quota_timer
            self._meter(self._allowance, 0, 0)
            if self._quota_timer is not before:
                return
        if self._is_in_debt:
            self._end_debt([])
            self._taken(0)

    def _end_debt(self, events: Sequence[Event]) -> None:
        """Handle the events that the quota held back, then ``events``."""
        self._is_in_debt = False
        delayed, self._delayed = self._delayed, []
        self._take([*delayed, *events])

    def _take_in_debt(self, events: Sequence[Event]) -> None:
        """Reject publishes with a reply subject; one without holds back all later events."""
        assert self._allowance is not None, "nobody else is in debt"
        for number, event in enumerate(events):
            if self._delayed or (isinstance(event, tuple) and event[2] is None):
                self._delayed += events[number:]
                self.hold_reading(QUOTA)
                return
            if not isinstance(event, tuple):
                self._control(event)
                if not self.is_open:
                    return
                continue
            error = self._allowance.refused_publish()
            if error is None:
                self._end_debt(events[number:])
                return
            self._refuse(event, error)

    def _refuse(self, message: Message, error: QuotaExceededError) -> None:
        """Reject a publish with a reply subject; it is not charged to the quota."""
        subject, _, reply, block, payload = message
        assert reply is not None, "else nobody could be told"
        size = MESSAGE_OVERHEAD_BYTES + len(subject) + len(reply) + len(block or b"") + len(payload)
        self._unmetered_bytes -= size
        if self._may_publish(subject, reply):
            stream = subject.decode(errors="replace")
            self._shared.admission.reject(error, self, reply, stream=stream)
        if self._options.verbose:
            self.output.append(OKAY)

    # Publishing

    def _find_route(self, subject: bytes, reply: bytes | None) -> Route | None:
        """Return the route of a subject seen for the first time; None if the subject is invalid."""
        try:
            return self._shared.routes.find(subject)
        except InvalidSubjectError as error:
            if reply is not None:
                self.deliver(reply, error_reply(error))
            else:
                self.output.append(encode_failure("Invalid Publish Subject"))
            return None

    def _publish(
        self, route: Route, reply: bytes | None, *, block: bytes | None, payload: bytes
    ) -> None:
        """Append a message that is not a plain payload for one partition."""
        if route.groups:
            self._shared.ingest.take(route, reply, block=block, payload=payload, sink=self)
            return
        options = self._options
        if reply is None or not (options.no_responders and options.headers):
            return
        sid = self._inboxes.sid_for(reply)
        if sid is not None:
            line = encode_message_with_headers(reply, sid, b"", block=NO_RESPONDERS)
            self.output.append(line)

    def acked(
        self, token: Any, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Queue a PubAck."""
        reply: bytes = token
        if duplicate:
            self.deliver(reply, pub_ack(partition, offset, duplicate=True))
            return
        if not self.acks:
            self._shared.ingest.unflushed.append(self)
        self.acks.append((partition, offset, (reply,)))

    def acked_many(
        self, tokens: Sequence[object], partition: PartitionName, offset: Offset
    ) -> None:
        """Queue the PubAcks of consecutive records."""
        if not self.acks:
            self._shared.ingest.unflushed.append(self)
        self.acks.append((partition, offset, cast("Sequence[bytes | None]", tokens)))

    def _ack_lines(self, acks: Sequence[AckedRun]) -> bytes:
        replies = [reply for _, _, run in acks for reply in run]
        return self._shared.ack_lines.encode(acks, self._inboxes.sids_for(replies))

    is_alone = answers_leaderless = True
    """Whether no other broker receives this connection's messages."""

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Queue an error reply."""
        self.deliver(cast("bytes", token), error_reply(error))

    def deliver(self, to: bytes, payload: bytes) -> None:
        """Queue a message for the subscription that receives ``to``, if there is one."""
        sid = self._inboxes.sid_for(to) if self.is_open else None
        if sid is None:
            return
        if not self.output:
            self._shared.ingest.unflushed.append(self)
        self.output.append(encode_message(to, sid, payload))

    # Answers of the JetStream API

    is_shared = False
    """False: answers go only to the client that asked."""

    def receiver(self, inbox: bytes) -> LocalInbox:
        """Return the receiver of what a consumer delivers for a pull."""
        assert self._local is not None, "there is an API"
        return LocalInbox(self._local, inbox)

    @property
    def takes_headers(self) -> bool:
        """Whether the client understands messages with headers."""
        return self._options.headers

    @property
    def unread_bytes(self) -> int:
        """The number of written bytes that the client has not read."""
        return self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Resume reading and deliveries, because the client has read its output."""
        super().resume_writing()
        if self._local is not None:
            self._local.writable()

    @property
    def payload_max(self) -> int:
        """The largest message that the client accepts."""
        return self._shared.payload_max

    def deliver_with_headers(self, to: bytes, payload: bytes, *, block: bytes) -> None:
        """Queue a message with headers for the subscription that receives ``to``, if any."""
        sid = self._inboxes.sid_for(to) if self.is_open and self._options.headers else None
        if sid is None:
            return
        if not self.output:
            self._shared.ingest.unflushed.append(self)
        self.output.append(encode_message_with_headers(to, sid, payload, block=block))

    def flush_answers(self) -> None:
        """Send queued answers in the next round of the loop, in one write for several."""
        self._shared.ingest.send_answers_soon()

    # Operations other than publishes

    def _control(self, event: Control) -> None:
        self._controls += 1
        if self._controls > CONTROLS_MAX:
            self.fail(f"more than {CONTROLS_MAX} operations in a minute and no message among them")
            return
        match event:
            case Ping():
                self.output.append(PONG)
                return
            case Pong():
                self.unanswered_pings = 0
                return
            case Violation(reason):
                self.fail(reason)
                return
            case Connect(options):
                self._connect(options)
            case Subscribe(subject, sid, queue):
                self._subscribe(subject, sid, queue)
            case Unsubscribe(sid, 0):
                self._inboxes.remove(sid)
                if self._local is not None:
                    self._local.unsubscribed(sid)
            case Unsubscribe(sid, deliveries_max):
                self._inboxes.limit(sid, deliveries_max)
        if self._options.verbose and self.is_open:
            self.output.append(OKAY)

    def _connect(self, options: bytes) -> None:
        self._has_spoken = True
        try:
            self._options = msgspec.json.decode(options, type=ClientOptions)
        except UNDECODABLE:
            self.fail("Parser Error")
        if self._guard is not None and self.is_open:
            self._identify(options)
        if self.is_open:
            self._shared.metering.connections.note_identified(self)

    def _subscribe(self, subject: bytes, sid: bytes, queue: bytes) -> None:
        try:
            pattern = inbox_pattern(subject)
        except InvalidSubjectError as error:
            self.output.append(encode_failure(error.message))
            return
        if not self._inboxes.add(pattern, sid):
            self.fail("maximum subscriptions exceeded")
        elif self._local is not None and not has_wildcard(pattern):
            own = ""
            if self._guard is not None:
                own = f"{private_inbox(self._guard.caller.principal.name)}."
            if pattern.startswith(own):  # a push consumer may deliver to the principal's own inbox
                self._local.subscribed(subject, sid, queue)

    def ping(self) -> None:
        """Send a ping, to check that the client is connected."""
        self._controls = 0
        self.unanswered_pings += 1
        self.write(PING)

    def fail(self, reason: str) -> None:
        """Send an error, and close after the queued output is written."""
        if self.is_open:
            self.output.append(encode_failure(reason))
            self.close()

    def _count_buffered(self, size: int) -> None:
        """Update the total of half-received messages, which is limited."""
        shared = self._shared
        shared.buffered_bytes += size - self._buffered_bytes
        self._buffered_bytes = size
        if size and shared.buffered_bytes > shared.buffered_bytes_max:
            self.fail("too many half-sent messages on this server")


def _disconnect_reason(error: StrandlineError) -> str:
    """Return nats-server's error text for a client that is disconnected."""
    return TRY_AGAIN if isinstance(error, UnavailableError) else NOBODY

"""The broker's connection to a nats-server: it receives messages and sends acks.

Rules: each binding has one subscription with one sid. A message belongs only to the binding of its
sid, so two streams on one subject each receive it, and nats-server handles queue groups. Every
broker of a cluster receives a message, and the partition's leader answers it. A message to a queue
group reaches only one broker, which therefore always answers, and still handles messages that
arrive after it has unsubscribed. If only this broker receives a message and another broker leads
the partition, the message is forwarded. Acks are queued and written once per group commit. The
connection neither connects nor reconnects.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from strandline.broker.routing import Binding, Route, RouteTable
from strandline.errors import (
    DisconnectedError,
    InvalidSubjectError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.envelope import MAGIC
from strandline.record.subjects import SUBJECT_BYTES_MAX
from strandline.servers.nats.backpressure import AckedRun
from strandline.servers.nats.headers import NO_RESPONDERS_STATUS
from strandline.servers.nats.inboxes import INBOX_PREFIX, private_inbox
from strandline.servers.nats.ingest_state import IngestState
from strandline.servers.nats.jetstream.api import JetStreamApi
from strandline.servers.nats.jetstream.subjects import PREFIX
from strandline.servers.nats.protocol import (
    PING,
    Event,
    Message,
    are_messages,
    encode_publish,
    encode_publish_with_headers,
    encode_subscribe,
    encode_unsubscribe,
)
from strandline.servers.nats.replies import ReplySink, error_reply, is_left_to_others, pub_ack
from strandline.servers.nats.server_link import ServerLink
from strandline.types import Offset, PartitionName

REPLIES: Final = b"replies"
EVENTS: Final = b"events"
API: Final = b"api"
PEERS: Final = b"peers"
"""The sids of subscriptions that belong to no stream; those of streams are numbers."""
API_PREFIX: Final = PREFIX.encode()
BUCKETS: Final = b"$KV."
CONSUMER_ACKS: Final = b"$JS.ACK."
CONSUMER_ACK_SUBJECTS: Final = (b"$JS.ACK.%b.>", b"$JS.FC.%b.>")
"""The subjects of acknowledgements by a stream's consumers; each is also its sid."""


class NatsConnection(ServerLink):
    """A connection, and the ack sink of its messages; the token is a reply subject.

    Args:
        shared: the state that outlives the connection.
        is_alone: whether no other broker receives the server's messages; otherwise the leader does.
        api: answers requests of the JetStream API; None: another connection carries them.
        peer_subject: the subject where other brokers' requests are answered; empty for none.
    """

    def __init__(
        self,
        shared: IngestState,
        *,
        is_alone: bool,
        api: JetStreamApi | None = None,
        peer_subject: bytes = b"",
    ) -> None:
        super().__init__()
        self._shared = shared
        self._api = api
        self._peer_subject = peer_subject
        self._sids: dict[str, dict[Binding, bytes]] = {}
        """The subscriptions of each stream: binding → sid."""
        self._tables: dict[bytes, RouteTable] = {}
        self._consumer_ack_sids: set[bytes] = set()
        """Sids of the subscriptions to consumers' acknowledgements."""
        self._consumer_acks: list[Message] = []
        """Acknowledgements of deliveries, collected to be passed on together."""
        self._last_sid = 0
        # Other brokers answer requests with records, which only this broker may receive.
        prefix = INBOX_PREFIX if api is None else f"{private_inbox('strandline api')}."
        self._inbox = f"{prefix}{secrets.token_hex(11)}".encode()
        self._requests: dict[bytes, asyncio.Future[bytes | None]] = {}
        self._last_request = 0
        self._on_message: Callable[[], None] | None = None
        self._sole = QueueGroupResponder(self)
        self.is_alone = is_alone

    def _take(self, events: Sequence[Event]) -> None:
        """Handle events. The hot path: plain payloads go straight to their partition."""
        if len(events) > 1 and self._take_many(events):
            return
        tables = self._tables
        shared = self._shared
        is_forwarding = shared.ingest.is_forwarding
        is_alone = self.is_alone
        messages = 0
        for event in events:
            if not isinstance(event, tuple):
                self._control(event)
                continue
            messages += 1
            subject, sid, reply, block, payload = event
            table = tables.get(sid)
            if table is None:  # unsubscribed in between, or the sid belongs to no stream
                self._take_other(event)
                continue
            route = table.remembered.get(subject) or self._find_route(table, subject, reply)
            if route is None:
                continue
            is_plain = block is None and payload[:4] != MAGIC
            if (
                route.partition is None
                or not is_plain
                or (reply and not route.answers)
                or ((is_alone or route.is_shared) and (is_forwarding or not route.partition.is_led))
            ):
                if route.groups:
                    sink: ReplySink = self._sole if route.is_shared else self
                    shared.ingest.take(route, reply, block=block, payload=payload, sink=sink)
            elif reply is None:
                route.partition.append(payload, subject=route.subject)
            else:
                taker: ReplySink = self._sole if route.is_shared else self
                route.partition.append(payload, subject=route.subject, ack_sink=taker, token=reply)
        self._pass_on_consumer_acks()
        shared.received[shared.name] += messages

    def _take_many(self, events: Sequence[Event]) -> bool:
        """Handle a read of only plain messages, or only acknowledgements; else return False."""
        if not are_messages(events) or len({message[1] for message in events}) > 1:
            return False
        subject, sid, *_ = events[0]
        table = self._tables.get(sid)
        route = table.remembered.get(subject) if table is not None else None
        if table is None and sid.startswith(CONSUMER_ACKS):
            self._consumer_acks += events
            self._pass_on_consumer_acks()
            return True
        if table is None or route is None:
            return False
        sink: ReplySink = self._sole if route.is_shared else self
        if not self._shared.ingest.append_many(table, events, sink):
            return False
        self._shared.received[self._shared.name] += len(events)
        return True

    def _taken(self, size: int) -> None:  # noqa: ARG002  the limits are the publishers'
        shared = self._shared
        if self.output:
            self.flush()
        backpressure = shared.ingest.backpressure
        if shared.admission.pending_bytes > backpressure.pending_high:
            backpressure.hold(self)

    def _find_route(self, table: RouteTable, subject: bytes, reply: bytes | None) -> Route | None:
        """Return the route of a subject seen for the first time; None if the subject is invalid."""
        try:
            return table.find(subject)
        except InvalidSubjectError as error:
            if reply is not None:
                self.deliver(reply, error_reply(error))
            return None

    # Requests

    async def request(self, subject: bytes, payload: bytes) -> bytes | None:
        """Send a request over the server; return the reply, or None if there are no responders.

        Raises:
            DisconnectedError: the connection was lost.
        """
        if not self.is_open:
            raise DisconnectedError(self.failure or "not connected to nats-server")
        if not self._last_request:
            self.write(encode_subscribe(self._inbox + b".*", REPLIES))
        self._last_request += 1
        reply = b"%b.%d" % (self._inbox, self._last_request)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._requests[reply] = answer
        try:
            self.write(encode_publish(subject, payload, reply=reply))
            await asyncio.wait((answer, self.closed), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise DisconnectedError(self.failure or "the connection was lost")
            return answer.result()
        finally:
            del self._requests[reply]

    def listen(self, pattern: bytes, on_message: Callable[[], None]) -> None:
        """Call back for each message on a pattern outside all streams; one pattern at a time."""
        self._on_message = on_message
        self.write(encode_subscribe(pattern, EVENTS))

    def _take_other(self, message: Message) -> None:
        subject, sid, reply, block, payload = message
        if sid == API and self._api is not None:
            self._pass_on_consumer_acks()
            self._take_request(self._api, message)
        if sid.startswith(b"$JS."):
            self._consumer_acks.append(message)
        if sid == PEERS and reply is not None:
            self.deliver(reply, b"")
        if sid == EVENTS and self._on_message is not None:
            self._on_message()
        answer = self._requests.get(subject) if sid == REPLIES else None
        if answer is not None and not answer.done():
            is_none = block is not None and block.startswith(NO_RESPONDERS_STATUS)
            answer.set_result(None if is_none else payload)

    def _take_request(self, api: JetStreamApi, message: Message) -> None:
        """Handle a request to the JetStream API, whose prefix its subject has."""
        subject, _, reply, block, payload = message
        rest = subject.removeprefix(api.prefix.encode())
        if not (api.domain and rest.startswith(BUCKETS)):
            api.take(API_PREFIX + rest, reply, block=block, payload=payload, link=self)
            return
        # Some clients put to a bucket of a domain in this way; treat it as a publish.
        ingest = self._shared.ingest
        route = self._find_route(self._shared.broker.routes, rest, reply)
        if route is not None and route.groups:
            ingest.take(route, reply, block=block, payload=payload, sink=self)

    def _pass_on_consumer_acks(self) -> None:
        """Pass the collected acknowledgements of deliveries to the API."""
        acks, self._consumer_acks = self._consumer_acks, []
        if acks and self._api is not None:
            self._api.take_consumer_acks(acks, self)

    # Subscriptions

    def begin(self, bindings: Mapping[str, Sequence[Binding]]) -> None:
        """Subscribe to bindings and requests, as the first operation of the connection.

        Raises:
            UnavailableError: another JetStream of the same domain answers the same requests.
        """
        self.subscribe(bindings)
        if self._peer_subject:
            self.write(encode_subscribe(self._peer_subject, PEERS))
        if self._api is not None:
            domain = self._api.domain
            if domain and domain == self.info.result().domain:
                raise UnavailableError(
                    f"its own JetStream has the domain {domain!r}, and both would answer: set "
                    "nats.domain to another"
                )
            self.write(encode_subscribe(f"{self._api.prefix}>".encode(), API))
            self._api.attach(self)

    def subscribe(self, bindings: Mapping[str, Sequence[Binding]]) -> None:
        """Subscribe to exactly the given bindings of each named stream."""
        lines: list[bytes] = []
        gone: list[tuple[Binding, bytes]] = []
        for name, wanted in bindings.items():
            before = self._sids.pop(name, {})
            sids = {each: before.get(each) or self._begin(each, lines) for each in wanted}
            gone += [(each, sid) for each, sid in before.items() if each not in sids]
            if sids:
                self._sids[name] = sids
        # Unsubscribe last: where one binding replaces another, no message in between may be lost.
        lines += self._forget(gone)
        self.write(b"".join(lines))

    def _begin(self, binding: Binding, lines: list[bytes]) -> bytes:
        """Return the sid of a new subscription, and append the line that begins it."""
        self._last_sid += 1
        sid = b"%d" % self._last_sid
        self._tables[sid] = RouteTable((binding,))
        queue = binding.stream.config.queue_group.encode()
        lines.append(encode_subscribe(binding.pattern.encode(), sid, queue=queue))
        return sid

    def _forget(self, gone: list[tuple[Binding, bytes]]) -> list[bytes]:
        """Return the lines that end subscriptions; queue groups' messages in flight are handled."""
        lines: list[bytes] = []
        shared: list[bytes] = []
        for binding, sid in gone:
            lines.append(encode_unsubscribe(sid))
            if binding.stream.config.queue_group:
                shared.append(sid)
            else:
                del self._tables[sid]
        if shared and self.is_open:
            passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._pongs.append(passed)
            passed.add_done_callback(lambda _: self._drop_tables(shared))
            lines.append(PING)
        return lines

    def _drop_tables(self, sids: list[bytes]) -> None:
        for sid in sids:
            self._tables.pop(sid, None)

    def unsubscribe_all(self) -> None:
        """End all subscriptions; messages in flight are still handled."""
        self.write(
            b"".join(map(encode_unsubscribe, (*self._tables, *self._consumer_ack_sids, API, PEERS)))
        )

    is_shared = True
    """True: every client at nats-server that subscribes to an inbox receives what is sent there."""

    def receiver(self, inbox: bytes) -> bytes:
        """Return the receiver of what a consumer delivers for a pull: all clients at an inbox."""
        return inbox

    def subscribe_consumer_acks(self, stream: str) -> None:
        """Subscribe to the acknowledgements of a stream's consumers."""
        subjects = [each % stream.encode() for each in CONSUMER_ACK_SUBJECTS]
        self._consumer_ack_sids.update(subjects)
        self.write(b"".join(encode_subscribe(each, each) for each in subjects))

    def unsubscribe_consumer_acks(self, stream: str) -> None:
        """Unsubscribe from the acknowledgements of a stream's consumers."""
        subjects = [each % stream.encode() for each in CONSUMER_ACK_SUBJECTS]
        self._consumer_ack_sids.difference_update(subjects)
        self.write(b"".join(map(encode_unsubscribe, subjects)))

    # Replies to publishers

    @property
    def answers_leaderless(self) -> bool:
        """Whether this broker answers for partitions without a leader."""
        return self.is_alone or self._shared.broker.is_controller

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Queue a PubAck."""
        reply = cast("bytes", token)
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
        return self._shared.ack_lines.encode(acks)

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Queue an error reply, unless another broker, which receives the message, too, answers."""
        if is_left_to_others(error, self):
            return
        self.deliver(cast("bytes", token), error_reply(error))

    def deliver(self, to: bytes, payload: bytes) -> None:
        """Queue a message; drop one for which nats-server would close the shared connection.

        That is a message with an invalid or too long subject, or a too large one. A publisher
        chooses the inbox of a Liftbridge ack and much of its content.
        """
        if self._may_send(to, len(payload)):
            self.output.append(encode_publish(to, payload))

    def deliver_with_headers(self, to: bytes, payload: bytes, *, block: bytes) -> None:
        """Queue a message with headers; drop it in the same cases as ``deliver``."""
        if self._may_send(to, len(payload) + len(block)):
            self.output.append(encode_publish_with_headers(to, payload, block=block))

    def flush_answers(self) -> None:
        """Send queued answers in the next round of the loop, in one write for several."""
        self._shared.ingest.send_answers_soon()

    @property
    def payload_max(self) -> int:
        """The largest message that nats-server accepts."""
        return self.parser.payload_max

    def _may_send(self, to: bytes, size: int) -> bool:
        """Return whether nats-server accepts a message; if so, have the output flushed."""
        if not 0 < len(to) <= SUBJECT_BYTES_MAX or any(blank in to for blank in b" \t\r\n"):
            return False
        if size > self.parser.payload_max:
            return False
        if not self.output:
            self._shared.ingest.unflushed.append(self)
        return True


class QueueGroupResponder:
    """An ack sink for messages to a queue group, which no other broker receives.

    Args:
        link: the connection that received the messages.
    """

    is_alone = answers_leaderless = True

    def __init__(self, link: NatsConnection) -> None:
        self.acked = link.acked
        self.acked_many = link.acked_many
        self.deliver = link.deliver
        self.hold_reading = link.hold_reading
        self.release_reading = link.release_reading

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Queue an error reply, even if another broker leads."""
        self.deliver(cast("bytes", token), error_reply(error))

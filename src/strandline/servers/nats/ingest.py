"""Conversion of published messages to records, with key, headers and requested checks.

    header                        meaning
    Nats-Msg-Id                   a message with the same id in the stream's window is not stored
    Nats-Expected-Last-Sequence   stored only if this is the partition's last sequence
    Nats-Expected-Last-Subject-Sequence   stored only if this is the subject's last sequence; in
                                  streams that limit the records of a subject
    Nats-Rollup                   replaces all earlier records of the subject (sub) or of the
                                  partition (all); in streams that limit the records of a subject
    Nats-Expected-Stream          only this stream checks and acknowledges the message; in a queue
                                  group only it stores the message
    Nats-Batch-Id                 the message belongs to an atomic batch (``atomic_batches``)
    Nats-Stream                   JetStream republished the message: it is neither checked nor
                                  answered
    Strandline-Key                the record's key (removed from the headers)
    Strandline-Tombstone          the value is null: the key is deleted (removed, too)

Rules: a Liftbridge envelope contains key, value, headers, ack inbox and policy; any other payload
is a plain value. Only a stream that answers the publisher checks control headers: it rejects
headers that request unsupported JetStream features, and never ignores them. Every other stream
stores the message unchanged, since the headers may be meant for another stream. Rejected messages
are counted, including those with malformed headers, and logged if no publisher is answered. A
message that no other broker receives is forwarded to its partition's leader. No sockets here.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from strandline.broker.routing import PartitionPort, Route, RouteTable, Target
from strandline.broker.write_path.atomic import AtomicRecord
from strandline.clock import Clock
from strandline.errors import (
    InvalidRecordError,
    InvalidRequestError,
    NotLeaderError,
    RollupError,
    StreamMismatchError,
)
from strandline.record import envelope
from strandline.record.codec import MESSAGE_ID_HEADER, Headers, as_id
from strandline.servers.nats.atomic_batches import ID_HEADER as BATCH_HEADER
from strandline.servers.nats.atomic_batches import AtomicBatches, BatchMessage
from strandline.servers.nats.backpressure import FORWARDING, Backpressure, NatsPeer
from strandline.servers.nats.headers import parse_headers
from strandline.servers.nats.ports import AdmissionPort
from strandline.servers.nats.protocol import Message
from strandline.servers.nats.replies import (
    COUNTERS_DISABLED,
    SCHEDULES_DISABLED,
    TTL_DISABLED,
    EnvelopeResponder,
    ReplySink,
    is_left_to_others,
)
from strandline.servers.resume_forwarder import PendingForward
from strandline.storage.subject_history import ROLLUP_HEADER, ROLLUPS

if TYPE_CHECKING:
    # The forwarder imports the client, which a broker alone does not need.
    from strandline.servers.forward import Forwarder

KEY_HEADER: Final = "Strandline-Key"
TOMBSTONE_HEADER: Final = "Strandline-Tombstone"
EXPECTED_STREAM_HEADER: Final = "Nats-Expected-Stream"
EXPECTED_LAST_HEADER: Final = "Nats-Expected-Last-Sequence"
EXPECTED_SUBJECT_LAST_HEADER: Final = "Nats-Expected-Last-Subject-Sequence"
REPUBLISHED_HEADER: Final = "Nats-Stream"
REPLY_HEADER: Final = "reply"
"""The header that keeps the reply subject in records of streams without PubAcks, as in
Liftbridge."""
UNSUPPORTED_HEADERS: Final = frozenset(
    {"Nats-Expected-Last-Msg-Id", "Nats-Expected-Last-Subject-Sequence-Subject"}
)
DISABLED_HEADERS: Final = {
    "Nats-TTL": TTL_DISABLED,
    "Nats-Incr": COUNTERS_DISABLED,
    "Nats-Schedule": SCHEDULES_DISABLED,
}
"""Header of a feature that a JetStream stream must enable → nats-server's error without it."""


_CONTROL_HEADERS: Final = (
    UNSUPPORTED_HEADERS
    | DISABLED_HEADERS.keys()
    | {
        MESSAGE_ID_HEADER,
        EXPECTED_STREAM_HEADER,
        EXPECTED_LAST_HEADER,
        EXPECTED_SUBJECT_LAST_HEADER,
        ROLLUP_HEADER,
        BATCH_HEADER,
        REPUBLISHED_HEADER,
        TOMBSTONE_HEADER,
    }
)
"""Headers that are stored and also change how the message is handled."""


class ParsedMessage(msgspec.Struct):
    """A message, with its headers and envelope interpreted."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    message_id: str | None = None
    expected_stream: str | None = None
    expected_last: int | None = None
    expected_subject_last: int | None = None
    has_rollup: bool = False
    is_of_batch: bool = False
    """Whether the message belongs to an atomic batch."""
    is_republished: bool = False
    """Whether another stream has already stored the message and applied its headers."""
    rejection: InvalidRequestError | None = None
    """Why a stream that answers the publisher rejects the message; None if it does not."""
    is_malformed: bool = False
    """Whether every stream rejects the message."""
    wrapped: envelope.EnvelopeMessage | None = None
    """The Liftbridge message if the payload is an envelope."""

    @property
    def has_ack_inbox(self) -> bool:
        """Whether the publisher waits for an ack of Liftbridge."""
        wrapped = self.wrapped
        return wrapped is not None and bool(wrapped.ack_inbox) and not self.is_republished


def interpret(block: bytes | None, payload: bytes) -> ParsedMessage:
    """Parse a message with its headers and envelope.

    Args:
        block: the message's header block, or None.
        payload: the message's payload.

    Raises:
        InvalidRecordError: the headers are malformed.
    """
    headers = parse_headers(block) if block is not None else []
    found = ParsedMessage(payload)
    if payload.startswith(envelope.MAGIC):
        found.wrapped = envelope.decode_message(payload)
        if found.wrapped is not None:
            found.value = found.wrapped.value
            found.key = found.wrapped.key or None
            headers += found.wrapped.headers
    if headers:
        _apply_headers(found, headers)
    return found


def _apply_headers(found: ParsedMessage, headers: Headers) -> None:
    """Apply control headers to ``found``, and store the headers to keep in it."""
    kept: Headers = []
    for name, value in headers:
        if name == KEY_HEADER:
            found.key = value
        elif name == TOMBSTONE_HEADER and not found.value:
            found.value = None
        else:
            kept.append((name, value))
            if name in _CONTROL_HEADERS:
                found.rejection = _apply_control_header(found, name, value) or found.rejection
    found.headers = kept or None


def _apply_control_header(
    found: ParsedMessage, name: str, value: bytes
) -> InvalidRequestError | None:
    """Apply a control header that is also stored; return an error if it is not supported."""
    if name == MESSAGE_ID_HEADER:
        found.message_id = found.message_id or as_id(value) or None
    elif name == EXPECTED_STREAM_HEADER:
        found.expected_stream = value.decode(errors="replace")
    elif name in (EXPECTED_LAST_HEADER, EXPECTED_SUBJECT_LAST_HEADER):
        if not value.isdigit() or len(value) > 19:
            return InvalidRequestError(f"{name} is not a sequence: {value[:40]!r}")
        if name == EXPECTED_LAST_HEADER:
            found.expected_last = int(value)
        else:
            found.expected_subject_last = int(value)
    elif name == ROLLUP_HEADER:
        found.has_rollup = True
        if value not in ROLLUPS:
            return RollupError(f"rollup value invalid: {value[:40]!r}")
    elif name == BATCH_HEADER:
        found.is_of_batch = True
    elif name == REPUBLISHED_HEADER:
        found.is_republished = True
    elif name == TOMBSTONE_HEADER:
        return InvalidRequestError(f"a message with {TOMBSTONE_HEADER} must have no payload")
    else:
        return InvalidRequestError(DISABLED_HEADERS.get(name) or f"header {name} is not supported")
    return None


class MessageIngest:
    """The path of messages to partitions and of answers back, shared by all NATS listeners.

    Args:
        clock: the time for Liftbridge acks.
        routes: the routes of all streams, to look up an expected stream.
        admission: counts rejected messages.
        backpressure: stops reading while the broker has too much to store.
        forwarder: forwards publishes to other leaders; None for a broker alone.
    """

    def __init__(
        self,
        clock: Clock,
        routes: RouteTable,
        admission: AdmissionPort,
        *,
        backpressure: Backpressure,
        forwarder: "Forwarder | None" = None,
    ) -> None:
        self._clock = clock
        self._routes = routes
        self._admission = admission
        self.backpressure = backpressure
        self.unflushed: list[NatsPeer] = []
        """Connections with queued acks or answers."""
        self._is_sending_soon = False
        self._forwarder = forwarder
        self._batches = AtomicBatches()
        self._forward_backpressure = Backpressure(1.0, FORWARDING)

    @property
    def is_forwarding(self) -> bool:
        """Whether publishes in flight to other brokers must not be overtaken."""
        return self._forwarder is not None and self._forwarder.is_busy

    def send_answers(self) -> None:
        """Write queued acks, in one write for each connection; resume reading if there is room."""
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            connection.flush()
        self.backpressure.release(self._admission.pending_bytes)
        if self._forwarder is not None:
            self._forward_backpressure.release(self._forwarder.fullness)

    def send_answers_soon(self) -> None:
        """Write queued answers in the next round of the loop, so that one write serves several.

        Each request that arrived in one read is answered by its own task.
        """
        if not self._is_sending_soon:
            self._is_sending_soon = True
            asyncio.get_running_loop().call_soon(self._send_gathered)

    def _send_gathered(self) -> None:
        self._is_sending_soon = False
        self.send_answers()

    def append_many(self, routes: RouteTable, messages: Sequence[Message], sink: ReplySink) -> bool:
        """Append plain messages; messages for one partition with one call.

        Args:
            routes: the routes of the messages' subjects.
            messages: the messages in the order of their arrival.
            sink: receives the answers.

        Returns:
            False, with nothing appended, if a message needs ``take`` or its route is not cached.
        """
        subjects, _, replies, blocks, payloads = zip(*messages, strict=True)
        if blocks.count(None) < len(blocks):
            return False
        if envelope.MAGIC in [payload[: len(envelope.MAGIC)] for payload in payloads]:
            return False
        try:
            ways = [routes.remembered[subject] for subject in subjects]
        except KeyError:
            return False
        found: dict[Route, PartitionPort] = {}
        has_reply, is_forwarding = any(replies), self.is_forwarding
        for route in set(ways):
            partition = route.partition
            if partition is None or (has_reply and not route.answers):
                return False
            is_ours = sink.is_alone or route.is_shared
            if is_ours and (is_forwarding or not partition.is_led):
                return False
            found[route] = partition
        if len(found) == 1:
            [(route, partition)] = found.items()
            subject = (route.subject,)
            partition.append_many(payloads, subjects=subject, ack_sink=sink, tokens=replies)
            return True
        if 2 * len(set(found.values())) > len(payloads):
            # Appending runs of one record is slower than appending single records.
            for route, reply, payload in zip(ways, replies, payloads, strict=True):
                to = None if reply is None else sink
                found[route].append(payload, subject=route.subject, ack_sink=to, token=reply)
            return True
        chunks: dict[PartitionPort, list[tuple[bytes, str, bytes | None]]] = {}
        for route, reply, payload in zip(ways, replies, payloads, strict=True):
            chunks.setdefault(found[route], []).append((payload, route.subject, reply))
        for partition, records in chunks.items():
            values, names, tokens = zip(*records, strict=True)
            partition.append_many(values, subjects=names, ack_sink=sink, tokens=tokens)
        return True

    def take(
        self,
        route: Route,
        reply: bytes | None,
        *,
        block: bytes | None,
        payload: bytes,
        sink: ReplySink,
    ) -> None:
        """Append a message to every stream bound to its subject.

        Args:
            route: the streams bound to the subject.
            reply: the message's reply subject, or None.
            block: the message's header block, or None.
            payload: the message's payload.
            sink: receives the answers.
        """
        try:
            publication = interpret(block, payload)
        except InvalidRecordError as error:
            # Drop the traceback: its frames would keep the headers until garbage collection.
            error.__traceback__ = None
            publication = ParsedMessage(payload, rejection=error, is_malformed=True)
        expected, named = publication.expected_stream, None
        if publication.is_republished:
            publication.expected_stream = None
        elif expected is not None:
            named = self._routes.target(route.subject, expected)
            if named is None:
                publication.expected_stream = None
                publication.rejection = StreamMismatchError(
                    f"expected stream does not match: no stream '{expected}' has this subject"
                )
        for target in route.targets(named):
            # A stream that does not answer publishers stores a batch's messages one by one.
            is_batched = publication.is_of_batch and target.answers
            is_batched = is_batched and not publication.is_republished
            take = self._take_batched if is_batched else self._append
            take(target, publication, reply, subject=route.subject, sink=sink)

    def _append(
        self,
        target: Target,
        publication: ParsedMessage,
        reply: bytes | None,
        *,
        subject: str,
        sink: ReplySink,
    ) -> None:
        """Append a message to one stream; without an answer if it expects another stream."""
        wrapped = publication.wrapped
        answers = target.answers and not publication.is_republished
        token = reply if answers else None
        is_judging = token is not None or publication.has_ack_inbox
        ack_sink: ReplySink | EnvelopeResponder | None = None
        if is_judging and publication.expected_stream in (None, target.name):
            ack_sink = sink
            if wrapped is not None and publication.has_ack_inbox:
                to, clock = target.stream_subject, self._clock
                ack_sink = EnvelopeResponder(
                    wrapped, sink, subject=subject, stream_subject=to, clock=clock
                )
        partition = target.partition_for(publication.key, publication.message_id)
        rejection = publication.rejection or _unmet_need(publication, target)
        if rejection is not None and (ack_sink is not None or publication.is_malformed):
            # In a cluster every broker receives the message: the leader rejects it for all.
            if sink.is_alone or partition.is_led:
                self._admission.reject(rejection, ack_sink, token, stream=target.name)
            return
        elsewhere = None if partition.is_led or sink.is_alone else partition.write_error
        if elsewhere is not None and is_left_to_others(elsewhere, sink):
            return  # the leader stores the message, or counts its rejection
        headers = publication.headers
        if reply is not None and not answers:  # the reply subject is the application's: keep it
            headers = [*(headers or ()), (REPLY_HEADER, reply)]
        expected_last = publication.expected_last if ack_sink is not None else None
        expected_subject = publication.expected_subject_last if ack_sink is not None else None
        if wrapped is not None and target.checks_offsets:
            expected_last = wrapped.offset if wrapped.offset >= 0 else expected_last
        token = token if ack_sink is not None else None
        message_id = publication.message_id if is_judging else None
        forwarder = self._forwarder if sink.is_alone else None
        if forwarder is not None and forwarder.is_led_elsewhere(partition.name):
            if expected_subject is not None:
                error = NotLeaderError(f"publish with {EXPECTED_SUBJECT_LAST_HEADER} to the leader")
                self._admission.reject(error, ack_sink, token, stream=target.name)
                return
            forwarder.append(
                PendingForward(
                    partition.name, publication.value, subject, publication.key, headers, message_id
                ),
                ack_sink=ack_sink,
                token=token,
                expects=target.checks_offsets or expected_last is not None,
                expected=expected_last,
            )
            if forwarder.fullness > self._forward_backpressure.pending_high:
                self._forward_backpressure.hold(sink)
            return
        partition.append(
            publication.value,
            subject=subject,
            key=publication.key,
            headers=headers,
            ack_sink=ack_sink,
            token=token,
            message_id=message_id,
            expected_last=expected_last,
            expected_subject_last=expected_subject,
        )

    def _take_batched(
        self,
        target: Target,
        publication: ParsedMessage,
        reply: bytes | None,
        *,
        subject: str,
        sink: ReplySink,
    ) -> None:
        """Handle a message of an atomic batch; reject it unless this broker leads its partition."""
        partition = target.partition_for(publication.key, publication.message_id)
        if not partition.is_led:
            error = partition.write_error or NotLeaderError("publish batches to the leader")
            if not is_left_to_others(error, sink):
                self._admission.reject(error, sink, reply, stream=target.name)
            return
        rejection, unsupported = publication.rejection, ""
        if rejection is not None:
            names = [name for name, _ in publication.headers or ()]
            unsupported = next((name for name in names if name in UNSUPPORTED_HEADERS), "")
            rejection = None if unsupported else rejection
        rejection = rejection or _unmet_need(publication, target)
        if publication.expected_stream not in (None, target.name):
            return  # the batch is for another stream
        if rejection is not None:
            self._admission.reject(rejection, sink, reply, stream=target.name)
            return
        record = AtomicRecord(
            publication.value,
            subject,
            publication.key,
            publication.headers,
            publication.message_id,
            publication.expected_last,
            publication.expected_subject_last,
        )
        message = BatchMessage.of(target.name, partition, record=record, unsupported=unsupported)
        self._batches.take(message, reply, sink)


def _unmet_need(publication: ParsedMessage, target: Target) -> InvalidRequestError | None:
    """Return why a stream cannot fulfil a message's headers; None if it can."""
    if target.limits_subjects:
        return None
    if publication.has_rollup:
        return RollupError("rollup not permitted")
    if publication.expected_subject_last is not None:
        return InvalidRequestError(
            f"header {EXPECTED_SUBJECT_LAST_HEADER} is supported in streams with "
            "max_records_per_subject (JetStream's max_msgs_per_subject) only"
        )
    return None

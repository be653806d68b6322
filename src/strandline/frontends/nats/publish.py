"""What a published message becomes: records, with the key, headers and checks it asked for.

    header                        meaning
    Nats-Msg-Id                   stored once within the stream's window
    Nats-Expected-Last-Sequence   stored only if the partition's last sequence is this
    Nats-Expected-Stream          the checks and the ack concern this stream only; it is the one of
                                  its queue group that gets the record
    Strandline-Key                the record's key (taken out of the headers)
    Strandline-Tombstone          the value is null: the key is deleted (taken out too)

Rules: a Liftbridge envelope gives key, value, headers, ack inbox and policy; what is not a valid
envelope is a plain value. Headers that ask JetStream for something we do not do are refused, never
ignored. Malformed headers cost their sender an error reply. No sockets here.
"""

from typing import Final

import msgspec

from strandline.broker.routing import Route, RouteTable, Target
from strandline.clock import Clock
from strandline.errors import InvalidRecordError, InvalidRequestError
from strandline.frontends.nats.headers import parse_headers
from strandline.frontends.nats.replies import (
    EnvelopeResponder,
    ReplySink,
    error_reply,
    stream_mismatch_reply,
)
from strandline.record import envelope
from strandline.record.codec import MESSAGE_ID_HEADER, Headers, as_id

KEY_HEADER: Final = "Strandline-Key"
TOMBSTONE_HEADER: Final = "Strandline-Tombstone"
EXPECTED_STREAM_HEADER: Final = "Nats-Expected-Stream"
EXPECTED_LAST_HEADER: Final = "Nats-Expected-Last-Sequence"
REPLY_HEADER: Final = "reply"
"""Of records whose stream does not answer publishes: the reply subject, as Liftbridge keeps it."""
UNSUPPORTED_HEADERS: Final = frozenset(
    {
        "Nats-Expected-Last-Msg-Id",
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Expected-Last-Subject-Sequence-Subject",
        "Nats-Rollup",
        "Nats-TTL",
        "Nats-Incr",
        "Nats-Batch-Id",
        "Nats-Batch-Commit",
        "Nats-Schedule",
    }
)


class Publication(msgspec.Struct):
    """A message as it was meant."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    message_id: str | None = None
    expected_stream: str | None = None
    expected_last: int | None = None
    wrapped: envelope.Message | None = None
    """The Liftbridge message it came in, if it did."""


def interpret(block: bytes | None, payload: bytes) -> Publication:
    """What a message asks for.

    Args:
        block: its header block, or None.
        payload: its payload.

    Raises:
        InvalidRecordError: malformed headers.
        InvalidRequestError: headers that ask for what we do not do.
    """
    headers = parse_headers(block) if block is not None else []
    found = Publication(payload)
    if payload.startswith(envelope.MAGIC):
        found.wrapped = envelope.decode_message(payload)
        if found.wrapped is not None:
            found.value = found.wrapped.value
            found.key = found.wrapped.key or None
            headers += found.wrapped.headers
    if headers:
        _apply_headers(found, headers)
    return found


def _apply_headers(found: Publication, headers: Headers) -> None:
    """Take the meaning of the headers; those that stay go into ``found``."""
    kept: Headers = []
    for name, value in headers:
        if name == KEY_HEADER:
            found.key = value
            continue
        if name == TOMBSTONE_HEADER:
            if found.value:
                raise InvalidRequestError(f"a message with {TOMBSTONE_HEADER} must have no payload")
            found.value = None
            continue
        kept.append((name, value))
        if name == MESSAGE_ID_HEADER:
            found.message_id = found.message_id or as_id(value) or None
        elif name == EXPECTED_STREAM_HEADER:
            found.expected_stream = value.decode(errors="replace")
        elif name == EXPECTED_LAST_HEADER:
            if not value.isdigit() or len(value) > 19:
                raise InvalidRequestError(f"{EXPECTED_LAST_HEADER} is not a sequence")
            found.expected_last = int(value)
        elif name in UNSUPPORTED_HEADERS:
            raise InvalidRequestError(f"header {name} is not supported")
    found.headers = kept or None


class Intake:
    """Takes the messages that are more than a plain payload for one stream.

    Args:
        clock: for the times in Liftbridge acks.
        routes: of all streams, to find an expected stream, if it records a subject at all.
    """

    def __init__(self, clock: Clock, routes: RouteTable) -> None:
        self._clock = clock
        self._routes = routes

    def take(
        self,
        route: Route,
        reply: bytes | None,
        *,
        block: bytes | None,
        payload: bytes,
        sink: ReplySink,
    ) -> None:
        """Append a message to every stream that records its subject.

        Args:
            route: where it goes.
            reply: its reply subject, or None.
            block: its header block, or None.
            payload: its payload.
            sink: where answers go.
        """
        try:
            publication = interpret(block, payload)
        except (InvalidRecordError, InvalidRequestError) as error:
            if reply is not None:
                sink.deliver(reply, error_reply(error))
            return
        expected = publication.expected_stream
        named = None
        if expected is not None:
            named = self._routes.target(route.subject, expected)
            if named is None:
                if reply is not None:
                    sink.deliver(reply, stream_mismatch_reply(expected))
                return
        for target in route.targets(named):
            self._append(target, publication, reply, subject=route.subject, sink=sink)

    def _append(
        self,
        target: Target,
        publication: Publication,
        reply: bytes | None,
        *,
        subject: str,
        sink: ReplySink,
    ) -> None:
        """Append to one stream; a stream that is not the expected one records in silence."""
        concerned = publication.expected_stream in (None, target.name)
        token = reply if concerned and target.answers else None
        responder: ReplySink | EnvelopeResponder | None = sink if token is not None else None
        if publication.wrapped is not None and concerned:
            responder = EnvelopeResponder(
                publication.wrapped,
                sink,
                subject=subject,
                stream_subject=target.stream_subject,
                clock=self._clock,
            )
        headers = publication.headers
        if reply is not None and not target.answers:  # it is the application's: keep it
            headers = [*(headers or ()), (REPLY_HEADER, reply)]
        expected_last = publication.expected_last if concerned else None
        if publication.wrapped is not None and target.checks_offsets:
            expected = publication.wrapped.offset
            expected_last = expected if expected >= 0 else expected_last
        target.partition_for(publication.key).append(
            publication.value,
            subject=subject,
            key=publication.key,
            headers=headers,
            responder=responder,
            token=token,
            message_id=publication.message_id,
            expected_last=expected_last,
        )

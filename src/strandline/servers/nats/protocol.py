"""The NATS client protocol without sockets: bytes in, events out, for both ends of a connection.

A published or delivered message is a plain tuple, because the hot path creates a hundred thousand
per second; other operations are small structs. Rules:

- The same bytes give the same events, however they are cut into chunks, and however many events are
  taken at once.
- Any bytes give events, at worst a ``Violation``; after that the parser ignores all input.
- At most one control line or one payload is kept between chunks, and the size of each is limited.
- No byte is copied more than a fixed number of times, whatever the chunks.

This module must not know connections, the meaning of subjects, the content of headers, or JSON.
"""

from collections.abc import Sequence
from typing import Final, TypeGuard

import msgspec

from strandline.speedups import split_messages
from strandline.speedups.pure import DIGITS_MAX

LINE_BYTES_MAX: Final = 4096
"""The longest control line of a client, as in nats-server."""
SERVER_LINE_BYTES_MAX: Final = 64 << 10
"""The longest line of a server, whose INFO lists a whole cluster."""
HUGE: Final = 1 << 62
NO_LIMIT: Final = 1 << 62

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"

UNKNOWN_OPERATION: Final = "Unknown Protocol Operation"
PAYLOAD_TOO_LARGE: Final = "Maximum Payload Violation"
LINE_TOO_LONG: Final = "Maximum Control Line Exceeded"
PARSER_ERROR: Final = "Parser Error"

Message = tuple[bytes, bytes, bytes | None, bytes | None, bytes]
"""Subject, sid, reply, header block, payload. The sid is empty at the server's end. Reply and
header block are None if absent or empty."""


class Subscribe(msgspec.Struct, frozen=True):
    """A SUB operation: deliver messages on ``subject`` with this ``sid``."""

    subject: bytes
    sid: bytes
    queue: bytes = b""


class Unsubscribe(msgspec.Struct, frozen=True):
    """An UNSUB operation, effective at once or after ``deliveries_max`` messages unless 0."""

    sid: bytes
    deliveries_max: int = 0


class Ping(msgspec.Struct, frozen=True):
    """A PING operation."""


class Pong(msgspec.Struct, frozen=True):
    """A PONG operation."""


class Okay(msgspec.Struct, frozen=True):
    """A +OK operation, sent in verbose mode."""


class Failure(msgspec.Struct, frozen=True):
    """A -ERR operation with the peer's reason."""

    reason: str


class Connect(msgspec.Struct, frozen=True):
    """A CONNECT operation with its JSON as bytes."""

    options: bytes


class Info(msgspec.Struct, frozen=True):
    """An INFO operation with its JSON as bytes."""

    options: bytes


class Violation(msgspec.Struct, frozen=True):
    """A protocol error of the peer: answer with -ERR and this reason, and close."""

    reason: str


Control = Subscribe | Unsubscribe | Ping | Pong | Okay | Failure | Connect | Info | Violation
Event = Message | Control


def are_messages(events: Sequence[Event]) -> TypeGuard[Sequence[Message]]:
    """Return whether all events are messages."""
    return list(map(type, events)).count(tuple) == len(events)


class _ArrivingMessage:
    """A message whose payload has not arrived completely."""

    __slots__ = ("data", "head", "header_size", "missing")

    def __init__(
        self, head: tuple[bytes, bytes, bytes | None], *, header_size: int, missing: int
    ) -> None:
        self.head = head
        """Subject, sid and reply."""
        self.header_size = header_size
        self.missing = missing
        self.data = bytearray()


class Parser:
    """A parser for one direction of a connection.

    Args:
        payload_max: the largest payload, headers included, in bytes.
        from_client: True to parse a client's operations (PUB, SUB, …), False a server's (MSG, …).
    """

    def __init__(self, payload_max: int, *, from_client: bool) -> None:
        self.payload_max = payload_max
        self._from_client = from_client
        self._line_max = LINE_BYTES_MAX if from_client else SERVER_LINE_BYTES_MAX
        self._words_min = 2 if from_client else 3
        self._rest = b""
        self._body: _ArrivingMessage | None = None
        self._deaf = False
        self.unparsed: tuple[bytes, int] | None = None
        """Bytes, and the position in them, that the last ``feed`` left because it had returned
        ``events_max`` events. If set, call ``resume`` before the next ``feed``."""

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that wait for the rest of a line or payload."""
        return len(self._rest) + (len(self._body.data) if self._body is not None else 0)

    def feed(self, data: bytes, events_max: int = NO_LIMIT) -> list[Event]:
        """Return the events that ``data`` completes, in order, at most ``events_max``."""
        assert self.unparsed is None, "resume first"
        events: list[Event] = []
        if self._deaf:
            return events
        position = 0
        if self._body is not None:
            position = self._continue_body(self._body, data, events)
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        if position < len(data) and not self._deaf:
            reason = self._parse(data, position, events, events_max=events_max)
            if reason:
                self._violate(reason, events)
        return events

    def resume(self, events_max: int) -> list[Event]:
        """Return the next events of the bytes that ``feed`` left unparsed."""
        assert self.unparsed is not None, "there is more"
        (data, position), self.unparsed = self.unparsed, None
        events: list[Event] = []
        reason = self._parse(data, position, events, events_max=events_max)
        if reason:
            self._violate(reason, events)
        return events

    def _parse(self, data: bytes, position: int, events: list[Event], *, events_max: int) -> str:
        """Parse complete operations; return the reason if the protocol is violated, else ""."""
        end, reason = len(data), ""
        while position < end and not reason and not self._deaf:
            position = split_messages(
                data,
                position,
                events,
                is_published=self._from_client,
                line_max=self._line_max,
                payload_max=self.payload_max,
                count_max=events_max,
            )
            if position < end:
                if len(events) >= events_max:
                    self.unparsed = (data, position)
                    break
                position, reason = self._parse_one(data, position, events)
        return reason

    def _parse_one(self, data: bytes, position: int, events: list[Event]) -> tuple[int, str]:
        """Parse one operation of any form; return its end, and the reason if it is invalid."""
        line_end, end = data.find(b"\r\n", position), len(data)
        if line_end < 0 or line_end - position > self._line_max:
            self._rest = data[position:]
            is_long = max(line_end, end) - position > self._line_max
            return end, LINE_TOO_LONG if is_long else ""
        header_size = 0
        operation, words = _split_line(data[position:line_end])
        if operation in (b"HPUB", b"HMSG"):
            if len(words) <= self._words_min:
                return end, PARSER_ERROR
            header_size = _size(words.pop(-2))
        elif operation not in (b"PUB", b"MSG"):
            event = self._control(operation, words, data[position:line_end])
            if type(event) is Violation:
                return end, event.reason
            events.append(event)
            return line_end + 2, ""
        if (operation in (b"PUB", b"HPUB")) is not self._from_client:
            return end, UNKNOWN_OPERATION
        # The words of all four kinds have one form now: subject [sid] [reply] size.
        extra = len(words) - self._words_min
        if not 0 <= extra <= 1 or not words[-1].isdigit():
            return end, PARSER_ERROR
        size = _size(words[-1])
        if size > self.payload_max:
            return end, PAYLOAD_TOO_LARGE
        if header_size > size:
            return end, PARSER_ERROR
        reply = words[-2] if extra else None
        sid = b"" if self._from_client else words[1]
        # The payload may arrive in pieces. It is complete only if the line had an unusual form.
        self._body = _ArrivingMessage(
            (words[0], sid, reply), header_size=header_size, missing=size + 2
        )
        start = line_end + 2
        body = data[start : start + size + 2]
        return start + self._continue_body(self._body, body, events), ""

    def _continue_body(self, body: _ArrivingMessage, data: bytes, events: list[Event]) -> int:
        """Append to an incomplete payload; return how many bytes of ``data`` belong to it."""
        taken = min(body.missing, len(data))
        body.data += data[:taken]
        body.missing -= taken
        if body.missing:
            return taken
        self._body = None
        if body.data[-2:] != b"\r\n":
            self._violate(PARSER_ERROR, events)
            return taken
        content = memoryview(body.data)
        split = body.header_size
        block = bytes(content[:split]) or None
        events.append((*body.head, block, bytes(content[split:-2])))
        return taken

    def _violate(self, reason: str, events: list[Event]) -> None:
        self._deaf = True
        self._rest = b""
        self._body = None
        events.append(Violation(reason))

    def _control(self, operation: bytes, words: list[bytes], line: bytes) -> Control:
        """Return the event for a line that is not a message."""
        if operation == b"PING":
            return _PING
        if operation == b"PONG":
            return _PONG
        if self._from_client:
            return _client_control(operation, words, line)
        return _server_control(operation, line)


_PING, _PONG, _OKAY = Ping(), Pong(), Okay()


def _split_line(line: bytes) -> tuple[bytes, list[bytes]]:
    """Return the operation, in capitals, and the words after it."""
    words = line.split()
    if not words:
        return b"", words
    return words.pop(0).upper(), words


def _size(word: bytes) -> int:
    """Return a number; if the word is not one, a value above all limits."""
    return int(word) if len(word) < DIGITS_MAX and word.isdigit() else HUGE


def _argument(line: bytes) -> bytes:
    """Return the text after the operation, unchanged."""
    return line.lstrip().partition(b" ")[2].strip()


def _client_control(operation: bytes, words: list[bytes], line: bytes) -> Control:
    """Parse SUB, UNSUB or CONNECT."""
    if operation == b"CONNECT":
        return Connect(_argument(line))
    if operation == b"SUB":
        if len(words) == 2:
            return Subscribe(words[0], words[1])
        if len(words) == 3:
            return Subscribe(words[0], words[2], words[1])
        return Violation(PARSER_ERROR)
    if operation == b"UNSUB":
        if len(words) == 1:
            return Unsubscribe(words[0])
        if len(words) == 2 and words[1].isdigit():
            return Unsubscribe(words[0], _size(words[1]))
        return Violation(PARSER_ERROR)
    return Violation(UNKNOWN_OPERATION)


def _server_control(operation: bytes, line: bytes) -> Control:
    """Parse INFO, +OK or -ERR."""
    if operation == b"INFO":
        return Info(_argument(line))
    if operation == b"+OK":
        return _OKAY
    if operation == b"-ERR":
        return Failure(_argument(line).decode(errors="replace").strip("'"))
    return Violation(UNKNOWN_OPERATION)


# Encoding


def encode_publish(subject: bytes, payload: bytes, *, reply: bytes = b"") -> bytes:
    """Encode PUB."""
    to = b"%b %b" % (subject, reply) if reply else subject
    return b"PUB %b %d\r\n%b\r\n" % (to, len(payload), payload)


def encode_publish_with_headers(
    subject: bytes, payload: bytes, *, block: bytes, reply: bytes = b""
) -> bytes:
    """Encode HPUB; ``block`` is the header block."""
    to = b"%b %b" % (subject, reply) if reply else subject
    total = len(block) + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(block), total, block, payload)


def encode_message(subject: bytes, sid: bytes, payload: bytes, *, reply: bytes = b"") -> bytes:
    """Encode MSG."""
    to = b"%b %b %b" % (subject, sid, reply) if reply else b"%b %b" % (subject, sid)
    return b"MSG %b %d\r\n%b\r\n" % (to, len(payload), payload)


def encode_message_with_headers(
    subject: bytes, sid: bytes, payload: bytes, *, block: bytes, reply: bytes = b""
) -> bytes:
    """Encode HMSG; ``block`` is the header block."""
    to = b"%b %b %b" % (subject, sid, reply) if reply else b"%b %b" % (subject, sid)
    total = len(block) + len(payload)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(block), total, block, payload)


def encode_subscribe(subject: bytes, sid: bytes, *, queue: bytes = b"") -> bytes:
    """Encode SUB."""
    to = b"%b %b" % (subject, queue) if queue else subject
    return b"SUB %b %b\r\n" % (to, sid)


def encode_unsubscribe(sid: bytes) -> bytes:
    """Encode UNSUB without a limit."""
    return b"UNSUB %b\r\n" % sid


def encode_failure(reason: str) -> bytes:
    """Encode -ERR."""
    return b"-ERR '%b'\r\n" % reason.encode()

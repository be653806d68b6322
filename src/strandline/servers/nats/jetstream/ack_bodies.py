"""The payloads of acknowledgements, which say whether a message was processed. Pure."""

import re
from typing import Final, NamedTuple

import msgspec

from strandline.core.consumers.consumer import AckKind
from strandline.errors import UNDECODABLE
from strandline.servers.nats.jetstream.integers import Int64
from strandline.servers.nats.jetstream.times import ms_of

_SHORT_DELAY: Final = re.compile(rb"(\d{1,9})(ms|s|m|h)")
_UNITS_MS: Final = {b"ms": 1, b"s": 1_000, b"m": 60_000, b"h": 3_600_000}
PLAIN_ACKS: Final = frozenset((b"+ACK", b"", b"+OK"))
_KINDS: Final[dict[bytes, AckKind]] = {
    b"": "ack",
    b"+ACK": "ack",
    b"+OK": "ack",
    b"-NAK": "nak",
    b"+WPI": "progress",
    b"+TERM": "term",
    b"+NXT": "ack",
}


class AckBody(NamedTuple):
    """The decoded body of an acknowledgement."""

    kind: AckKind | None
    """The kind of acknowledgement; None if it is unknown."""
    delay_ms: int = 0
    """The time after which the message is to be delivered again."""
    pull: bytes | None = None
    """The body of a pull for more messages, if the acknowledgement has one."""


class _NakBody(msgspec.Struct, frozen=True):
    delay: Int64 | None = None


def parse_ack_body(payload: bytes) -> AckBody:
    """Parse a payload; any bytes are accepted."""
    word, _, rest = payload.partition(b" ")
    delay_ms = _delay_ms(rest.strip()) if word == b"-NAK" else 0
    return AckBody(_KINDS.get(word), delay_ms, rest if word == b"+NXT" else None)


def _delay_ms(text: bytes) -> int:
    """Return the delay in a negative acknowledgement (``{"delay": ns}`` or ``5s``), or 0."""
    if text.startswith(b"{"):
        try:
            return ms_of(max(0, msgspec.json.decode(text, type=_NakBody).delay or 0))
        except UNDECODABLE:
            return 0
    found = _SHORT_DELAY.fullmatch(text)
    return int(found[1]) * _UNITS_MS[found[2]] if found is not None else 0

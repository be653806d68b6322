"""Liftbridge's envelope: a NATS payload that carries key, headers and an ack inbox with the value.

    0  magic B9 0E 43 B4     5  header length u8 (8, or 12 with a CRC)
    4  version u8 (0)        6  flags u8 (bit 0: CRC-32C of the payload at 8..11) · 7  type u8
    then the payload: a protobuf ``EnvelopeMessage`` (type 0) or ``EnvelopeAck`` (type 1)

Rules: big endian. Bytes that are not a valid envelope are a plain message, never an error: decoding
returns None. Every length is checked against the bytes that are there before it is used. The two
protobuf messages are read and written by hand (``protobuf_wire``); a test compares with protobuf.
"""

import struct
from enum import IntEnum

import msgspec

from strandline.checksum import crc32c
from strandline.record.protobuf_wire import Fields, Scalar, WireError, put_field, read_fields

MAGIC = b"\xb9\x0e\x43\xb4"
VERSION = 0
PLAIN_HEADER_BYTES = 8
CRC_HEADER_BYTES = 12
FLAG_CRC = 1
TYPE_PUBLISH = 0
TYPE_ACK = 1
HEADERS_MAX = 4096
"""The most headers that one message may carry."""

_CRC = struct.Struct(">I")
_PLAIN_PREFIX = MAGIC + bytes((VERSION, PLAIN_HEADER_BYTES, 0))


class AckPolicy(IntEnum):
    """The point at which the publisher wants its ack."""

    LEADER = 0
    ALL = 1
    NONE = 2


class AckError(IntEnum):
    """Why a message was not stored."""

    OK = 0
    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    ENCRYPTION = 4


class EnvelopeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A published message; fields in the order of their protobuf numbers."""

    offset: int = 0
    """The expected offset, where a stream checks it."""
    key: bytes = b""
    value: bytes = b""
    timestamp_ns: int = 0
    stream: str = ""
    partition: int = 0
    subject: str = ""
    reply_subject: str = ""
    headers: list[tuple[str, bytes]] = []
    ack_inbox: str = ""
    correlation_id: str = ""
    ack_policy: int = AckPolicy.LEADER


class EnvelopeAck(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledgement; fields in the order of their protobuf numbers."""

    stream: str = ""
    partition_subject: str = ""
    """The stream's subject, without any partition suffix."""
    message_subject: str = ""
    offset: int = 0
    ack_inbox: str = ""
    correlation_id: str = ""
    ack_policy: int = AckPolicy.LEADER
    reception_timestamp_ns: int = 0
    commit_timestamp_ns: int = 0
    error: int = AckError.OK


_MESSAGE: Fields = {
    1: ("offset", Scalar.INT),
    2: ("key", Scalar.BYTES),
    3: ("value", Scalar.BYTES),
    4: ("timestamp_ns", Scalar.INT),
    5: ("stream", Scalar.STRING),
    6: ("partition", Scalar.INT),
    7: ("subject", Scalar.STRING),
    8: ("reply_subject", Scalar.STRING),
    9: ("headers", Scalar.ENTRIES),
    10: ("ack_inbox", Scalar.STRING),
    11: ("correlation_id", Scalar.STRING),
    12: ("ack_policy", Scalar.INT),
}
_ACK: Fields = {
    1: ("stream", Scalar.STRING),
    2: ("partition_subject", Scalar.STRING),
    3: ("message_subject", Scalar.STRING),
    4: ("offset", Scalar.INT),
    5: ("ack_inbox", Scalar.STRING),
    6: ("correlation_id", Scalar.STRING),
    7: ("ack_policy", Scalar.INT),
    8: ("reception_timestamp_ns", Scalar.INT),
    9: ("commit_timestamp_ns", Scalar.INT),
    10: ("error", Scalar.INT),
}


def decode_message(payload: bytes) -> EnvelopeMessage | None:
    """Return the message in a publish envelope; None if ``payload`` is not a valid one."""
    body = _open_envelope(payload, TYPE_PUBLISH)
    if body is None:
        return None
    try:
        return EnvelopeMessage(**read_fields(body, _MESSAGE, entries_max=HEADERS_MAX))
    except WireError:
        return None


def decode_ack(payload: bytes) -> EnvelopeAck | None:
    """Return the ack in an ack envelope; None if ``payload`` is not a valid one."""
    body = _open_envelope(payload, TYPE_ACK)
    if body is None:
        return None
    try:
        return EnvelopeAck(**read_fields(body, _ACK, entries_max=0))
    except WireError:
        return None


def encode_message(message: EnvelopeMessage, *, with_crc: bool = False) -> bytes:
    """Encode a publish envelope, as a Liftbridge client does."""
    body = _encode(message, _MESSAGE)
    if not with_crc:
        return _PLAIN_PREFIX + bytes((TYPE_PUBLISH,)) + body
    prefix = MAGIC + bytes((VERSION, CRC_HEADER_BYTES, FLAG_CRC, TYPE_PUBLISH))
    return prefix + _CRC.pack(crc32c(body)) + body


def encode_ack(ack: EnvelopeAck) -> bytes:
    """Encode an ack envelope, as a Liftbridge server does."""
    return _PLAIN_PREFIX + bytes((TYPE_ACK,)) + _encode(ack, _ACK)


def _open_envelope(payload: bytes, kind: int) -> bytes | None:
    """Return the payload of an envelope of the given type; None if it is not one."""
    if len(payload) < PLAIN_HEADER_BYTES or not payload.startswith(MAGIC):
        return None
    version, header_bytes, flags, found_kind = payload[4:PLAIN_HEADER_BYTES]
    if version != VERSION or found_kind != kind:
        return None
    if not flags & FLAG_CRC:
        # A header length other than the specified one makes this a plain message, not an error.
        return payload[PLAIN_HEADER_BYTES:] if header_bytes == PLAIN_HEADER_BYTES else None
    if header_bytes != CRC_HEADER_BYTES or len(payload) < CRC_HEADER_BYTES:
        return None
    body = payload[CRC_HEADER_BYTES:]
    (expected,) = _CRC.unpack_from(payload, PLAIN_HEADER_BYTES)
    return body if crc32c(body) == expected else None


def _encode(message: EnvelopeMessage | EnvelopeAck, fields: Fields) -> bytes:
    """Return the protobuf bytes of a message: fields in ascending order, defaults left out."""
    out = bytearray()
    for number, (name, scalar) in fields.items():
        put_field(out, number, scalar=scalar, value=getattr(message, name))
    return bytes(out)

"""JSON on the wire: how requests and answers are decoded, with every length capped.

Rules: bytes are capped before they are parsed, and whatever the bytes, the caller gets a value of
the asked-for type or an ``InvalidRequestError``. Pure: no Flight, no sockets, no broker.
"""

import threading
from typing import Annotated, Any, TypeVar

import msgspec

from strandline.config import NAME_BYTES_MAX, PARTITIONS_MAX
from strandline.errors import UNDECODABLE, InvalidRequestError
from strandline.record.subjects import SUBJECT_BYTES_MAX

MESSAGE_BYTES_MAX = 4 << 20
"""Longest JSON message accepted."""
INT64_MAX = (1 << 63) - 1
UNENCODABLE = (UnicodeEncodeError, TypeError, OverflowError, RecursionError)
"""What msgspec raises at values for which there is no JSON."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=SUBJECT_BYTES_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]

T = TypeVar("T")
_decoders: dict[Any, Any] = {}
_making = threading.Lock()


class WireMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a client sends: an unknown field is an error, never silently ignored."""


class WireAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what a broker sends: a client ignores fields of a newer broker."""


def encode(message: Any) -> bytes:
    """The JSON bytes of a message or answer.

    Raises:
        InvalidRequestError: something in it cannot be sent, such as text that is no Unicode.
    """
    try:
        return msgspec.json.encode(message)
    except UNENCODABLE as error:
        raise InvalidRequestError(f"{type(message).__name__} cannot be sent: {error}") from error


def decode(data: bytes, kind: type[T], *, what: str) -> T:
    """Decode untrusted JSON bytes.

    Args:
        data: the bytes.
        kind: type to decode to.
        what: name of the message for the error, such as ``ticket``.

    Raises:
        InvalidRequestError: too long, not JSON, or not of that type.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidRequestError(f"{what} of {len(data)} bytes; at most {MESSAGE_BYTES_MAX}")
    try:
        return _decoder_of(kind).decode(data)
    except UNDECODABLE as error:
        raise InvalidRequestError(f"{what} is not valid: {error}") from error


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made by one thread at a time.

    msgspec looks at a type when it is first used, and a thread that uses it meanwhile finds it half
    done and crashes the process (seen with msgspec 0.22).
    """
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


def refuse_body(body: bytes, action: str) -> None:
    """Refuse a body where there is nothing to say.

    Raises:
        InvalidRequestError: there is one.
    """
    if body and body != b"{}":
        raise InvalidRequestError(f"action {action} takes no body")

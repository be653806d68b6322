"""JSON encoding of requests and answers; every length is limited.

Rules: the length is checked before parsing. Any bytes either decode to a value of the requested
type or raise ``InvalidRequestError``. Pure: no Flight, no sockets, no broker.
"""

import threading
from typing import Annotated, Any, TypeVar

import msgspec

from strandline.config import NAME_BYTES_MAX, PARTITIONS_MAX, misfit_text
from strandline.errors import UNDECODABLE, InvalidRequestError
from strandline.record.subjects import SUBJECT_BYTES_MAX

MESSAGE_BYTES_MAX = 4 << 20
"""The longest JSON message that is accepted."""
INT64_MAX = (1 << 63) - 1
UNENCODABLE = (UnicodeEncodeError, TypeError, OverflowError, RecursionError)
"""The errors that msgspec raises for values without a JSON form."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=SUBJECT_BYTES_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]

T = TypeVar("T")
_decoders: dict[Any, Any] = {}
_making = threading.Lock()


class WireMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of messages from a client; an unknown field is an error."""


class WireAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of messages from a broker; a client ignores fields of a newer broker."""


def encode(message: Any) -> bytes:
    """Encode a message or answer as JSON bytes.

    Raises:
        InvalidRequestError: a value cannot be encoded, such as text that is not valid Unicode.
    """
    try:
        return msgspec.json.encode(message)
    except UNENCODABLE as error:
        raise InvalidRequestError(f"{type(message).__name__} cannot be sent: {error}") from error


def decode(data: bytes, kind: type[T], *, what: str, bytes_max: int = MESSAGE_BYTES_MAX) -> T:
    """Decode untrusted JSON bytes.

    Args:
        data: the bytes.
        kind: the type to decode to.
        what: the message's name in the error, such as ``ticket``.
        bytes_max: the longest accepted message.

    Raises:
        InvalidRequestError: the bytes are too long, not JSON, or not of that type.
    """
    if len(data) > bytes_max:
        raise InvalidRequestError(f"{what} of {len(data)} bytes; send at most {bytes_max}")
    try:
        return _decoder_of(kind).decode(data)
    except UNDECODABLE as error:
        raise InvalidRequestError(f"{what} is not valid: {_why(error, data, kind)}") from error


def _why(error: Exception, data: bytes, kind: Any) -> str:
    try:
        values = msgspec.json.decode(data)
    except UNDECODABLE:
        return str(error)
    return misfit_text(error, values, kind)


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, created by one thread at a time.

    msgspec inspects a type at its first use. If another thread uses the type at the same time, it
    finds the type half initialised and crashes the process (seen with msgspec 0.22).
    """
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


def check_no_body(body: bytes, action: str) -> None:
    """Reject the body of an action that takes none.

    Raises:
        InvalidRequestError: the body is not empty.
    """
    if body and body != b"{}":
        raise InvalidRequestError(f"action {action} takes no body")

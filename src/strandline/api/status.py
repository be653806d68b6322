"""Conversion of errors to Flight errors and back, without loss.

A Flight error carries a short message for foreign clients and, in ``extra_info``, the JSON of an
``ErrorBody``: the stable code, the whole message and the fields of the error's class. Acks of DoPut
carry the same body for each batch.

Rules: gRPC carries both in metadata of limited size (8 KiB), so texts are shortened to fit. An
unknown code becomes the nearest known parent class, which tells whether to retry.
"""

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.wire import WireAnswer, decode, encode
from strandline.errors import (
    CorruptBatchError,
    DisconnectedError,
    InvalidRecordError,
    InvalidRequestError,
    NotAllowedError,
    RequestTimeoutError,
    StrandlineError,
    UnauthenticatedError,
    UnavailableError,
    all_error_classes,
)

MESSAGE_CHARACTERS_MAX = 900
SHORT_CHARACTERS_MAX = 160
DETAIL_CHARACTERS_MAX = 400
DETAIL_FIELDS: tuple[str, ...] = (
    "file",
    "position",
    "first_offset",
    "next_offset",
    "wait_ms",
    "row",
)
"""The attributes of errors that a client can act on."""

_CLASSES = {cls.code: cls for cls in all_error_classes()}


class ErrorBody(WireAnswer, frozen=True, kw_only=True, omit_defaults=True):
    """An error as JSON."""

    code: str
    message: str
    retriable: bool = False
    details: dict[str, str | int] = msgspec.field(default_factory=dict)


def to_body(error: StrandlineError) -> ErrorBody:
    """Return the wire form of an error."""
    details: dict[str, str | int] = {}
    for name in DETAIL_FIELDS:
        value = getattr(error, name, None)
        if isinstance(value, str):
            details[name] = _shorten(value, DETAIL_CHARACTERS_MAX)
        elif isinstance(value, int):
            details[name] = value
    return ErrorBody(
        code=error.code,
        message=_shorten(error.message, MESSAGE_CHARACTERS_MAX),
        retriable=error.retriable,
        details=details,
    )


def from_body(body: ErrorBody) -> StrandlineError:
    """Return the error of a wire form; an unknown code becomes its nearest known parent."""
    fallback = UnavailableError if body.retriable else StrandlineError
    cls = _CLASSES.get(body.code, fallback)
    # The message is complete, so bypass the constructor, which would build it again.
    error = cls.__new__(cls)
    Exception.__init__(error, body.message)
    if isinstance(error, CorruptBatchError):
        error.file, error.position = "", 0
    for name in DETAIL_FIELDS:
        if name in body.details:
            setattr(error, name, body.details[name])
    return error


def to_flight(error: StrandlineError) -> fl.FlightError:
    """Return the Flight error that carries ``error`` to a client."""
    extra = encode(to_body(error))
    text = _shorten(error.message, SHORT_CHARACTERS_MAX)
    if isinstance(error, RequestTimeoutError):
        return fl.FlightTimedOutError(text, extra)
    if isinstance(error, UnavailableError):
        return fl.FlightUnavailableError(text, extra)
    if isinstance(error, UnauthenticatedError):
        return fl.FlightUnauthenticatedError(text, extra)
    if isinstance(error, NotAllowedError):
        return fl.FlightUnauthorizedError(text, extra)
    return fl.FlightServerError(text, extra)


def from_flight(error: BaseException, *, address: str) -> StrandlineError:
    """Return the error of a failed Flight call.

    Args:
        error: the exception that pyarrow raised.
        address: the broker that was called, for the message.
    """
    if isinstance(error, StrandlineError):
        return error
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            return from_body(decode(bytes(extra), ErrorBody, what="error"))
        except InvalidRequestError:
            pass  # no Strandline error: classified below
    return _foreign(error, address)


def _foreign(error: BaseException, address: str) -> StrandlineError:
    """Classify an error that no Strandline broker wrote (network, gRPC or pyarrow)."""
    text = _first_sentence(error)
    if isinstance(error, fl.FlightTimedOutError):
        return RequestTimeoutError(
            f"no answer from {address} in time; whether the request took effect is unknown"
        )
    if isinstance(error, fl.FlightUnavailableError | fl.FlightCancelledError):
        return DisconnectedError(
            f"no Strandline broker answers at {address} ({text}); is it running? "
            "Start one with 'strandline serve'"
        )
    if isinstance(error, fl.FlightUnauthenticatedError | fl.FlightUnauthorizedError):
        return InvalidRequestError(f"{address} refused: {text}")
    if isinstance(error, fl.FlightError):
        return StrandlineError(f"{address} failed: {text}")
    if isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError | TypeError | ValueError):
        return InvalidRecordError(f"not valid Arrow data: {text}")
    return StrandlineError(f"unexpected answer from {address}: {text}")


def _first_sentence(error: BaseException) -> str:
    """Return the informative part of pyarrow's message, without gRPC's debug context."""
    text = str(error).split(". gRPC client debug context", 1)[0].split(". Detail:", 1)[0]
    text = text.removeprefix("Flight returned unavailable error, with message: ")
    return _shorten(text.splitlines()[0] if text else type(error).__name__, DETAIL_CHARACTERS_MAX)


def _shorten(text: str, limit: int) -> str:
    """Return ``text`` shortened to ``limit`` characters and twice as many UTF-8 bytes."""
    text = text.encode("utf-8", "replace").decode()
    while len(text) > limit or len(text.encode()) > 2 * limit:
        text = text[: min(limit, len(text) * 3 // 4) - 1] + "…"
    return text

"""gRPC's status codes, and the mapping of errors to them.

Rules: the client gets an error's text unchanged, so the text says what to do and has no secrets.
"""

from enum import IntEnum

from strandline.errors import (
    InvalidRequestError,
    NotAllowedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    QuotaExceededError,
    RecordTooLargeError,
    RequestTimeoutError,
    StrandlineError,
    StreamExistsError,
    UnauthenticatedError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)

TEXT_BYTES_MAX = 2048
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}


class GrpcStatus(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """An error that ends a call with a status and a text."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


class OversizeError(RpcError):
    """A message or record above a limit; its sender may repeat it endlessly."""


_STATUSES: tuple[tuple[type[StrandlineError], GrpcStatus], ...] = (
    (UnknownStreamError, GrpcStatus.NOT_FOUND),
    (UnknownPartitionError, GrpcStatus.NOT_FOUND),
    (StreamExistsError, GrpcStatus.ALREADY_EXISTS),
    (RecordTooLargeError, GrpcStatus.INVALID_ARGUMENT),
    (OffsetOutOfRangeError, GrpcStatus.OUT_OF_RANGE),
    (UnauthenticatedError, GrpcStatus.UNAUTHENTICATED),
    (NotAllowedError, GrpcStatus.PERMISSION_DENIED),
    (InvalidRequestError, GrpcStatus.INVALID_ARGUMENT),
    (NotLeaderError, GrpcStatus.FAILED_PRECONDITION),
    (RequestTimeoutError, GrpcStatus.DEADLINE_EXCEEDED),
    (QuotaExceededError, GrpcStatus.RESOURCE_EXHAUSTED),
    (UnavailableError, GrpcStatus.UNAVAILABLE),
    (StrandlineError, GrpcStatus.INTERNAL),
)


def rpc_error(error: StrandlineError) -> RpcError:
    """Return the status and text for an error; the first matching class of the table decides."""
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    return RpcError(status, error.message)


def percent_encoded(text: str) -> bytes:
    """Encode a text for the header ``grpc-message``."""
    raw = text.encode(errors="replace")[:TEXT_BYTES_MAX]
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in raw)

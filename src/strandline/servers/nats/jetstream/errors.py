"""Errors of the JetStream API, with the numbers and texts of nats-server that clients expect."""

from typing import Final, NoReturn

import msgspec

from strandline.errors import (
    DiskFullError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StrandlineError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.servers.nats.inboxes import PRIVATE_PREFIX

DESCRIPTION_MAX: Final = 1000
"""The longest description in characters; it may quote a long request."""


class ApiError(msgspec.Struct, frozen=True):
    """The ``error`` field of an answer."""

    code: int
    err_code: int
    description: str


class ApiRejection(Exception):  # noqa: N818  the error is what it carries
    """An error that rejects a request; it never leaves this package.

    Args:
        error: the error to answer with.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.description)
        self.error = error


BAD_REQUEST: Final = ApiError(400, 10003, "bad request")
STREAM_NOT_FOUND: Final = ApiError(404, 10059, "stream not found")
STREAM_MISMATCH: Final = ApiError(400, 10056, "stream name in subject does not match request")
STREAM_EXISTS: Final = ApiError(
    400, 10058, "stream name already in use with a different configuration"
)
SUBJECTS_OVERLAP: Final = ApiError(400, 10065, "subjects overlap with an existing stream")
NO_MESSAGE: Final = ApiError(404, 10037, "no message found")
NO_REPLICAS: Final = ApiError(500, 10074, "replicas > 1 not supported in non-clustered mode")
NEGATIVE_REPLICAS: Final = ApiError(400, 10133, "replicas count cannot be negative")
EXCESSIVE_REPLICAS: Final = ApiError(
    400, 10126, "consumer config replica count exceeds parent stream"
)
NO_PEERS: Final = ApiError(400, 10005, "no suitable peers for placement")
CONSUMER_NOT_FOUND: Final = ApiError(404, 10014, "consumer not found")
CONSUMER_NAME_IN_USE: Final = ApiError(400, 10013, "consumer name already in use")
CONSUMER_EXISTS: Final = ApiError(400, 10148, "consumer already exists")
NO_CONSUMER: Final = ApiError(400, 10149, "consumer does not exist")
INVALID_TARGET: Final = ApiError(400, 10112, "invalid push consumer deliver subject")
PUBLIC_INBOX: Final = ApiError(
    403,
    10003,
    "records are delivered to private inboxes only: set your client's inbox prefix to "
    f"{PRIVATE_PREFIX}<principal>",
)
TARGET_CYCLE: Final = ApiError(400, 10081, "consumer deliver subject forms a cycle")
TOO_MANY_CONSUMERS: Final = ApiError(400, 10026, "maximum consumers limit reached")
FILTER_MISMATCH: Final = ApiError(
    400,
    10131,
    "Consumer create request did not match filtered subject from create subject",
)
NOT_SUPPORTED: Final = ApiError(503, 10039, "JetStream not enabled for account")
INSUFFICIENT: Final = ApiError(503, 10023, "insufficient resources")
API_LEVEL: Final = ApiError(412, 10185, "JetStream minimum api level required")
UNAVAILABLE: Final = ApiError(503, 10008, "JetStream system temporarily unavailable")


def reject(error: ApiError, detail: str = "") -> NoReturn:
    """Reject a request; ``detail`` follows the error's own text.

    Raises:
        ApiRejection: always.
    """
    raise ApiRejection(detailed(error, detail))


def detailed(error: ApiError, detail: str) -> ApiError:
    """Return an error with a detail after its text."""
    if not detail:
        return error
    text = f"{error.description}: {detail}"[:DESCRIPTION_MAX]
    return ApiError(error.code, error.err_code, text)


def reject_json(reason: object) -> NoReturn:
    """Reject a body that is not valid JSON for the request.

    Raises:
        ApiRejection: always.
    """
    raise ApiRejection(ApiError(400, 10025, f"invalid JSON: {reason}"[:DESCRIPTION_MAX]))


def reject_config(text: str) -> NoReturn:
    """Reject the configuration of a stream.

    Raises:
        ApiRejection: always.
    """
    raise ApiRejection(ApiError(500, 10052, text[:DESCRIPTION_MAX]))


def reject_purge(text: str) -> NoReturn:
    """Reject a purge.

    Raises:
        ApiRejection: always.
    """
    raise ApiRejection(ApiError(500, 10110, text[:DESCRIPTION_MAX]))


def api_error(error: StrandlineError) -> ApiError:
    """Return the API error that corresponds to an error of the broker."""
    text = error.message[:DESCRIPTION_MAX]
    match error:
        case UnknownStreamError() | UnknownPartitionError():
            return STREAM_NOT_FOUND
        case DiskFullError():
            return detailed(INSUFFICIENT, text)
        case UnavailableError():
            return detailed(UNAVAILABLE, text)
        case OffsetOutOfRangeError():
            return NO_MESSAGE
        case InvalidRequestError():
            return ApiError(500, 10052, text)
    return ApiError(500, 10051, text)

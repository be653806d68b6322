"""The ticket of a read: its records, its columns, and how long to wait for them.

A ticket is the JSON of ``ReadRequest``, written by GetFlightInfo or by a client. Decoding checks
everything that can be checked without knowing the stream.

Rules: every list and string has a cap; offsets are half-open; any bytes decode to a ``ReadRequest``
or raise ``InvalidRequestError``. This module must not import Flight or the broker.
"""

from typing import Annotated, Literal

import msgspec

from strandline.api.wire import Count, Int64, Name, PartitionNumber, Text, WireMessage, decode
from strandline.errors import InvalidRequestError, OffsetOutOfRangeError
from strandline.record.schema import COLUMNS
from strandline.record.subjects import validate_subject

KEYS_MAX = 10_000
WAIT_MS_MAX = 60_000
BYTES_MIN_MAX = 64 << 20
BATCH_BYTES_DEFAULT = 2 << 20
BATCH_BYTES_LEAST = 4 << 10
BATCH_BYTES_MOST = 16 << 20

_Column = Annotated[str, msgspec.Meta(max_length=32)]
_Columns = Annotated[list[_Column], msgspec.Meta(max_length=len(COLUMNS) + 1)]
_Keys = Annotated[list[bytes], msgspec.Meta(max_length=KEYS_MAX)]


class AtTimestamp(WireMessage, frozen=True, kw_only=True):
    """The first record stored at or after a time."""

    timestamp_ns: Int64


Bound = Literal["earliest", "latest"] | Int64 | AtTimestamp
"""A position in a partition: its first record, its end, an offset, or a time. A negative offset
(only as a start) counts records back from the end."""


class ReadRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to read."""

    stream: Name
    partition: PartitionNumber | None = None
    """None: every partition, or those of ``starts``."""
    start: Bound = "earliest"
    starts: dict[PartitionNumber, Int64] | None = None
    """Read exactly these partitions, each from its offset; used instead of ``start``."""
    stop: Bound | None = None
    """Exclusive. None: the high watermark at the time of the request, or no end with ``follow``."""
    order: Literal["ascending", "descending"] = "ascending"
    """Descending: the same records of each partition, the newest first."""
    follow: bool = False
    """Continue with new records, until ``stop`` or until the reader disconnects."""
    columns: _Columns | None = None
    subject: Text | None = None
    """Only records whose subject matches; may contain wildcards."""
    keys: _Keys | None = None
    """Only records with one of these keys."""
    timestamp_from_ns: Int64 | None = None
    """Only records stored at or after this time."""
    timestamp_to_ns: Int64 | None = None
    """Only records stored before this time."""
    records_max: Count | None = None
    """End after this many records."""
    bytes_min: Annotated[int, msgspec.Meta(ge=0, le=BYTES_MIN_MAX)] = 0
    """Wait until about this many bytes can be sent, but no longer than ``wait_ms_max``."""
    wait_ms_max: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 0
    """The longest wait for ``bytes_min``; without ``follow``, only one wait, at the start."""
    batch_bytes: Annotated[int, msgspec.Meta(ge=BATCH_BYTES_LEAST, le=BATCH_BYTES_MOST)] = (
        BATCH_BYTES_DEFAULT
    )
    """The approximate size of record batches."""
    skip_corrupt: bool = False
    """Continue after a corrupt batch instead of failing there."""
    of_copy: bool = False
    """Read what the broker has on its disk and knows to be committed, even while it is cut off from
    other brokers, which may have more records."""
    of_leaders: bool = False
    """For GetFlightInfo: resolve only partitions that the broker leads, and leave the others out.
    For those the client asks their leaders, since this broker may lack acknowledged records."""


def decode_ticket(data: bytes) -> ReadRequest:
    """Decode the request in a ticket.

    Raises:
        InvalidRequestError: the bytes are not a ticket, or the request is invalid.
    """
    request = decode(data, ReadRequest, what="ticket")
    check_request(request)
    return request


def check_request(request: ReadRequest) -> None:
    """Check the constraints that types cannot express.

    Raises:
        InvalidRequestError: parts of the request contradict each other.
        InvalidSubjectError: the subject is malformed.
        OffsetOutOfRangeError: an offset is negative.
    """
    if request.subject is not None:
        validate_subject(request.subject, wildcards=True)
    if request.starts is not None and request.partition is not None:
        raise InvalidRequestError("give 'partition' with 'start', or 'starts', not both")
    if request.starts is not None and not request.starts:
        raise InvalidRequestError("'starts' is empty; name at least one partition")
    if request.follow and isinstance(request.stop, AtTimestamp):
        raise InvalidRequestError(
            "a following read can stop at an offset, not at a time; give an offset as 'stop', or "
            "leave 'follow' out"
        )
    if request.order == "descending" and (request.follow or request.wait_ms_max):
        raise InvalidRequestError(
            "a descending read begins at the end of what is stored: leave 'follow' and "
            "'wait_ms_max' out"
        )
    if counts_from_end(request.start) and request.stop not in (None, "latest"):
        raise InvalidRequestError(
            f"start {request.start} counts from the end of the partition: leave 'stop' out"
        )
    for bound in (request.stop, *(request.starts or {}).values()):
        if isinstance(bound, int) and bound < 0:
            raise OffsetOutOfRangeError(f"offset {bound} is negative; offsets begin at 0")


def counts_from_end(bound: Bound | None) -> bool:
    """Return whether a bound counts records back from the end."""
    return isinstance(bound, int) and bound < 0

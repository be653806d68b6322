"""Checks of a read in a cluster, as pure functions."""

from strandline.api.admin import PartitionInfo
from strandline.api.tickets import Bound, ReadRequest
from strandline.errors import InvalidRequestError, UnknownPartitionError


def may_exist_later(at: Bound | None, partition: PartitionInfo, address: str) -> bool:
    """Return whether an offset above a replica's high watermark may exist on other brokers.

    Only a leader can deny that: its log has all offsets.
    """
    if not isinstance(at, int) or at <= partition.high_watermark:
        return False
    return partition.leader != address or at <= partition.log_end_offset


def has_offset(at: int, partition: PartitionInfo) -> bool:
    """Return whether a replica has an offset, or ends there."""
    return partition.log_start_offset <= at <= partition.high_watermark


def numbers_of(request: ReadRequest, known: list[int]) -> list[int]:
    """Return the partitions to read.

    Raises:
        UnknownPartitionError: the stream does not have one of them.
    """
    if request.starts is not None:
        wanted = sorted(request.starts)
    else:
        wanted = known if request.partition is None else [request.partition]
    for number in wanted:
        if number not in known:
            raise UnknownPartitionError(
                f"stream {request.stream!r} has no partition {number}; it has 0 to {len(known) - 1}"
            )
    return wanted


def check_offsets(request: ReadRequest, numbers: list[int]) -> None:
    """Reject one absolute offset for several partitions, with the same message as the broker's.

    Raises:
        InvalidRequestError: there is such an offset.
    """
    for bound in (request.start, request.stop):
        if isinstance(bound, int) and bound >= 0 and len(numbers) > 1:
            raise InvalidRequestError(
                f"offset {bound} is a place in one partition, and the read is of {len(numbers)} "
                f"of {request.stream!r}: name the partition, or give 'starts'"
            )

"""What a read in a cluster asks before it begins, or goes on, somewhere: pure questions."""

from strandline.errors import InvalidRequestError, UnknownPartitionError
from strandline.protocol.admin import PartitionInfo
from strandline.protocol.tickets import Bound, ReadRequest


def may_come(at: Bound | None, partition: PartitionInfo, address: str) -> bool:
    """Whether an offset is beyond what a replica knows to be committed, and may exist all the same.

    Only a leader can say that it does not: its log would hold it.
    """
    if not isinstance(at, int) or at <= partition.high_watermark:
        return False
    return partition.leader != address or at <= partition.log_end_offset


def knows(at: int, partition: PartitionInfo) -> bool:
    """Whether a replica knows an offset, or the end at it."""
    return partition.log_start_offset <= at <= partition.high_watermark


def numbers_of(request: ReadRequest, known: list[int]) -> list[int]:
    """The partitions to read.

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
                f"stream {request.stream!r} has partitions 0 to {len(known) - 1}, not {number}"
            )
    return wanted


def check_places(request: ReadRequest, numbers: list[int]) -> None:
    """Refuse an offset for several partitions at once, in the words of a broker.

    Raises:
        InvalidRequestError: there is one.
    """
    for bound in (request.start, request.stop):
        if isinstance(bound, int) and bound >= 0 and len(numbers) > 1:
            raise InvalidRequestError(
                f"offset {bound} is a place in one partition, and the read is of {len(numbers)} "
                f"of {request.stream!r}: name the partition, or give 'starts'"
            )

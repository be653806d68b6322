"""Resolution of a read request against a stream: its partitions, ranges and columns.

Rules: offsets are resolved here, once, so that later appends do not change the range of a read. The
error for an offset that does not exist names the valid range.
"""

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from strandline.api.tickets import AtTimestamp, Bound, ReadRequest, counts_from_end
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.errors import InvalidRequestError, NotLeaderError, OffsetOutOfRangeError
from strandline.reading.cursor import PartitionRange
from strandline.reading.descending import offset_before_end
from strandline.record.schema import project
from strandline.types import Offset, TimestampNs


class ReadPlan(NamedTuple):
    """A resolved read."""

    request: ReadRequest
    ranges: list[PartitionRange[Partition]]
    schema: pa.Schema


def plan_read(request: ReadRequest, stream: Stream) -> ReadPlan:
    """Resolve a read request against the current state of a stream.

    Raises:
        UnknownPartitionError: the stream has no such partition.
        OffsetOutOfRangeError: the partition has no such offset.
        InvalidRequestError: one offset is given for several partitions, or a column is unknown.
    """
    if request.columns is not None and not request.columns:
        raise InvalidRequestError("'columns' is empty; leave it out to read all columns")
    is_whole = request.partition is None and len(stream.partitions) > 1
    schema = project(request.columns, with_partition=is_whole and request.columns is None)
    partitions = _partitions(request, stream)
    if len(partitions) > 1:
        for bound in (request.start, request.stop):
            if isinstance(bound, int) and not counts_from_end(bound):
                raise InvalidRequestError(
                    f"offset {bound} belongs to one partition, and stream {stream.name!r} has "
                    f"{len(stream.partitions)}: name the partition, or give 'starts'"
                )
    if request.of_leaders:  # leave out a partition whose leadership began after the wait for ends
        partitions = [p for p in partitions if p.knows_end or not _needs_its_end(request, p)]
    return ReadPlan(request, [_range(request, partition) for partition in partitions], schema)


def ends_needed(request: ReadRequest, stream: Stream) -> list[Partition]:
    """Return the partitions whose end must be known before ``plan_read``.

    Raises:
        UnknownPartitionError: the stream has no such partition.
    """
    return [each for each in _partitions(request, stream) if _needs_its_end(request, each)]


def _needs_its_end(request: ReadRequest, partition: Partition) -> bool:
    """Return whether the end of a partition is needed to resolve a request."""
    bounds = [_start(request, partition)]
    if not request.follow:
        bounds.append("latest" if request.stop is None else request.stop)
    elif request.stop is not None and not isinstance(request.stop, int):
        bounds.append(request.stop)  # following reads may stop at an offset that does not exist yet
    return any(needs_end(bound, partition) for bound in bounds)


def check_led(partitions: Iterable[Partition]) -> None:
    """Raise unless this broker leads the partitions.

    Raises:
        NotLeaderError: another broker leads one of them.
    """
    for partition in partitions:
        if not partition.is_led:
            raise NotLeaderError(f"{partition.name} is not led by this broker now; retry")


def needs_end(bound: Bound, partition: Partition) -> bool:
    """Return whether the end of a partition is needed to resolve a bound."""
    if isinstance(bound, int) and bound >= 0:
        return bound > partition.last_stable_offset
    return bound != "earliest"


def _partitions(request: ReadRequest, stream: Stream) -> list[Partition]:
    """Return the partitions to read, in order of their numbers."""
    if request.partition is not None:
        found = [stream.partition(request.partition)]
    elif request.starts is not None:
        found = [stream.partition(number) for number in sorted(request.starts)]
    else:
        found = list(stream.partitions)
    return [each for each in found if each.is_led] if request.of_leaders else found


def _range(request: ReadRequest, partition: Partition) -> PartitionRange[Partition]:
    """Return the range to read of one partition."""
    if partition.remote_error is not None:
        raise partition.remote_error
    bound = _start(request, partition)
    end = partition.last_stable_offset
    start = resolve(bound, partition)
    may_move = not isinstance(bound, int) or counts_from_end(bound)
    if bound == "earliest" and request.timestamp_from_ns is not None:
        start = max(start, partition.offset_for_timestamp(TimestampNs(request.timestamp_from_ns)))
    if request.stop is None:
        return PartitionRange(partition, start, None if request.follow else end, may_move)
    if isinstance(request.stop, int) and request.follow:
        stop = Offset(request.stop)
    else:
        stop = resolve(request.stop, partition)
    if not may_move and isinstance(request.stop, int) and stop < start:
        raise InvalidRequestError(f"stop {stop} is before start {start}; give a later one")
    return PartitionRange(partition, start, stop, may_move)


def _start(request: ReadRequest, partition: Partition) -> Bound:
    """Return the requested start for one partition."""
    if request.starts is None:
        return request.start
    return request.starts[partition.name.partition]


def resolve(bound: Bound, partition: Partition) -> Offset:
    """Return the offset that a bound means in a partition.

    Raises:
        OffsetOutOfRangeError: the offset is below the log start or beyond the high watermark.
    """
    if isinstance(bound, AtTimestamp):
        return partition.offset_for_timestamp(TimestampNs(bound.timestamp_ns))
    first, end = partition.log_start_offset, partition.last_stable_offset
    if bound == "earliest":
        return first
    if bound == "latest":
        return end
    assert isinstance(bound, int), "the last kind of bound"
    if bound < 0:
        return offset_before_end(partition, -bound)
    if not first <= bound <= end:
        raise OffsetOutOfRangeError(
            f"offset {bound} of {partition.name} does not exist: the log starts at {first} and its "
            f"high watermark is {end}; 'earliest' and 'latest' are always valid"
        )
    return Offset(bound)

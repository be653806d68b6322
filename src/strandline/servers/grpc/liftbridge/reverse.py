"""Reverse subscriptions: from a message back to an older one, newest first.

Rules: the range is fixed at the start and ends at the newest record that is committed then. Without
a stop position it begins at the oldest message. The subscription ends with RESOURCE_EXHAUSTED, as
every subscription with a stop does.
"""

import asyncio
from typing import Final, NoReturn

from strandline.api.tickets import ReadRequest
from strandline.broker.write_path.partition import Partition
from strandline.errors import PausedError, ShuttingDownError, UnknownStreamError
from strandline.reading.cursor import PartitionRange
from strandline.reading.descending import DescendingCursor
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.liftbridge.messages import COLUMNS, MessageEncoder
from strandline.servers.grpc.liftbridge.permissions import allow
from strandline.servers.grpc.reading import PORTION_BYTES
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import Offset, TimestampNs

STOPPED: Final = "Stop offset reached"


async def deliver_reverse(
    host: Host, partition: Partition, call: Call, *, request: pb.SubscribeRequest
) -> NoReturn:
    """Deliver the records of a reverse subscription, then end it.

    Raises:
        RpcError: always; it is the status with which the subscription ends.
    """
    extent = reverse_extent(request, partition)
    call.send(pb.Message())
    columns = list(COLUMNS)
    asked = ReadRequest(stream=request.stream, columns=columns, batch_bytes=PORTION_BYTES)
    cursor = DescendingCursor(asked, extent, names=columns)
    encoder = MessageEncoder(partition.name)

    def next_messages() -> tuple[bytes, int]:
        batches = [batch for batch, _ in cursor.read()]
        return encoder.encode(batches), sum(batch.num_rows for batch in batches)

    loop, telemetry = asyncio.get_running_loop(), host.broker.telemetry
    while not cursor.is_done:
        check_open(partition)
        data, records = await loop.run_in_executor(host.pool, next_messages)
        allow(call.caller, "Subscribe", request)  # the permission may have been revoked
        if records:
            call.send_framed(data)
            telemetry.count_read(records=records, size_bytes=len(data))
            await call.drain()
    raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, STOPPED)


def reverse_extent(request: pb.SubscribeRequest, partition: Partition) -> PartitionRange[Partition]:
    """Return the range of offsets that a request asks for, half-open.

    Raises:
        RpcError: the partition is empty, or the request contradicts itself.
    """
    first, end = partition.log_start_offset, partition.last_stable_offset
    if end <= first:
        raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, "Stream is empty")
    newest, oldest = _newest(request, partition), _oldest(request, partition)
    if newest < oldest:
        text = f"Stop offset is after start offset: {oldest} > {newest}"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
    return PartitionRange(partition, oldest, Offset(newest + 1), may_move=True)


def _newest(request: pb.SubscribeRequest, partition: Partition) -> Offset:
    """Return the newest offset of the range.

    Raises:
        RpcError: the start position is unknown.
    """
    first, last = partition.log_start_offset, Offset(partition.last_stable_offset - 1)
    match request.startPosition:
        case pb.NEW_ONLY | pb.LATEST:
            return last
        case pb.EARLIEST:
            return first
        case pb.OFFSET:
            return Offset(min(request.startOffset, last))
        case pb.TIMESTAMP:
            after = TimestampNs(max(0, request.startTimestamp) + 1)
            return Offset(partition.offset_for_timestamp(after) - 1)
        case other:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"Unknown StartPosition {other}")


def _oldest(request: pb.SubscribeRequest, partition: Partition) -> Offset:
    """Return the oldest offset of the range.

    Raises:
        RpcError: the stop position is unknown, or not possible in reverse.
    """
    first = partition.log_start_offset
    match request.stopPosition:
        case pb.STOP_ON_CANCEL:
            return first
        case pb.STOP_OFFSET:
            return Offset(max(first, request.stopOffset))
        case pb.STOP_TIMESTAMP:
            return partition.offset_for_timestamp(TimestampNs(max(0, request.stopTimestamp)))
        case pb.STOP_LATEST:
            text = "a reverse subscription cannot stop at the latest message; it may begin there"
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
        case other:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"Unknown StopPosition {other}")


def check_open(partition: Partition) -> None:
    """Check that a partition can still be read: it is not deleted, moved or paused.

    Raises:
        RpcError: the status with which the subscription ends.
    """
    if partition.closed:
        if isinstance(partition.closed_by, ShuttingDownError):
            raise RpcError(GrpcStatus.UNAVAILABLE, "the broker is stopping; retry later")
        if not isinstance(partition.closed_by, UnknownStreamError):
            # The replicas are on other brokers now; clients look for them only after this status.
            raise RpcError(
                GrpcStatus.UNAVAILABLE, "the partition has moved to other brokers; retry there"
            )
        raise RpcError(GrpcStatus.NOT_FOUND, "commit log was deleted")
    if isinstance(partition.blocked_by, PausedError):
        raise RpcError(GrpcStatus.FAILED_PRECONDITION, "commit log was closed")

"""The subscribe rpc: resolution of start and stop, and delivery.

Rules: only committed records are delivered. The first message is empty and confirms the
subscription. Positions are resolved once, at the start, by pure functions. A subscription that
reaches its stop ends with RESOURCE_EXHAUSTED, as in Liftbridge.
"""

from collections import defaultdict
from typing import Final, NamedTuple

from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.write_path.partition import Partition
from strandline.errors import ReadonlyError, StrandlineError, UnknownStreamError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.groups import check_member
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.liftbridge.messages import COLUMNS, MessageEncoder
from strandline.servers.grpc.liftbridge.permissions import allow
from strandline.servers.grpc.liftbridge.reverse import STOPPED, check_open, deliver_reverse
from strandline.servers.grpc.reading import GrpcReader
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import Offset, PartitionName, TimestampNs

NO_PARTITION: Final = "No such partition"
END_OF_READONLY: Final = "End of readonly partition"


class SubscribeRange(NamedTuple):
    """The offsets to deliver; the stop is exclusive, None means no stop."""

    start: Offset
    stop: Offset | None
    why_stop: str = STOPPED


def start_of(request: pb.SubscribeRequest, partition: Partition) -> Offset:
    """Return the first offset to deliver.

    Raises:
        RpcError: the start position is unknown.
    """
    end, first = partition.last_stable_offset, partition.log_start_offset
    match request.startPosition:
        case pb.NEW_ONLY:
            start = end
        case pb.OFFSET:
            # An offset beyond the end means: new records only.
            start = Offset(request.startOffset) if request.startOffset < end else end
        case pb.EARLIEST:
            start = first
        case pb.LATEST:
            start = Offset(end - 1)
        case pb.TIMESTAMP:
            start = partition.offset_for_timestamp(TimestampNs(max(0, request.startTimestamp)))
        case other:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"Unknown StartPosition {other}")
    return max(start, first)


def acknowledged_end(partition: Partition) -> Offset:
    """Return the offset after the newest record that this broker may have acknowledged.

    On the leader it is the end of the log, because an ack of policy LEADER needs only the leader's
    disk; such a record is delivered once it is committed. On a follower, and while a transaction
    is open, it is the last stable offset: later records may never be committed.
    """
    end = partition.last_stable_offset
    is_open = end < partition.high_watermark
    return partition.log_end_offset if partition.is_led and not is_open else end


def stop_of(request: pb.SubscribeRequest, partition: Partition) -> tuple[Offset | None, str]:
    """Return the exclusive stop and the reason to report at it; None for no stop.

    Raises:
        RpcError: the stop position is unknown, or there is no record before it.
    """
    end = partition.last_stable_offset
    match request.stopPosition:
        case pb.STOP_ON_CANCEL:
            if isinstance(partition.blocked_by, ReadonlyError):
                return acknowledged_end(partition), END_OF_READONLY
            return None, STOPPED
        case pb.STOP_OFFSET:
            return (Offset(request.stopOffset + 1) if request.stopOffset >= 0 else None), STOPPED
        case pb.STOP_LATEST:
            end = acknowledged_end(partition)
            if end <= partition.log_start_offset:
                raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, "Stream is empty")
            return end, STOPPED
        case pb.STOP_TIMESTAMP:
            after = TimestampNs(max(0, request.stopTimestamp) + 1)
            stop = min(partition.log.offset_for_timestamp(after), acknowledged_end(partition))
            if stop <= partition.log_start_offset:
                raise RpcError(GrpcStatus.INTERNAL, "no message is as old as the stop timestamp")
            return stop, STOPPED
        case other:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"Unknown StopPosition {other}")


def asks_for_end(request: pb.SubscribeRequest) -> bool:
    """Return whether the range depends on the current end of the partition."""
    begins_anywhere = request.startPosition == pb.EARLIEST
    return not begins_anywhere or request.stopPosition in (pb.STOP_LATEST, pb.STOP_TIMESTAMP)


def extent_of(request: pb.SubscribeRequest, partition: Partition) -> SubscribeRange:
    """Return the range of offsets that a request asks for.

    Raises:
        RpcError: the request contradicts itself.
    """
    start = start_of(request, partition)
    stop, why = stop_of(request, partition)
    if stop is not None and why != END_OF_READONLY and stop <= start:
        text = f"Stop offset is before start offset: {stop - 1} < {start}"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
    return SubscribeRange(start, stop, why)


class _Member(NamedTuple):
    """A group's member that reads a partition: the group's epoch that it named, and its call."""

    epoch: int
    call: Call


class SubscribeCalls:
    """The rpc that delivers records.

    Args:
        host: the broker and the settings of the API.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._members: dict[tuple[str, PartitionName], _Member] = {}
        self.subscribers: defaultdict[PartitionName, int] = defaultdict(int)
        """The number of subscriptions of each partition."""

    async def subscribe(self, request: pb.SubscribeRequest, call: Call) -> None:
        """Deliver records until the client disconnects or the stop is reached."""
        await self._host.know(request.stream, (request.partition,))
        partition = self._partition(request)
        if request.resume:
            try:
                await self._host.wake(partition)
            except UnknownStreamError:
                raise RpcError(GrpcStatus.NOT_FOUND, NO_PARTITION) from None
            except StrandlineError as error:
                raise RpcError(GrpcStatus.INTERNAL, error.message) from error
        group = (request.consumer.groupId, partition.name)
        if request.consumer.groupId:
            await self._check_consumer(request.consumer, call)
            self._take_over(request.consumer, group, call)
        name = partition.name
        self.subscribers[name] += 1
        try:
            if (request.reverse or asks_for_end(request)) and self._host.leader(
                partition
            ) == self._host.me:
                await wait_until_caught_up(partition)
                self._partition(request)  # raises if another broker leads now, with newer records
            if request.reverse:
                await deliver_reverse(self._host, partition, call, request=request)
            extent = extent_of(request, partition)
            call.send(pb.Message())
            await self._deliver(partition, extent, call, request=request)
        finally:
            self.subscribers[name] -= 1
            if not self.subscribers[name]:
                del self.subscribers[name]
            member = self._members.get(group)
            if member is not None and member.call is call:
                del self._members[group]

    def _partition(self, request: pb.SubscribeRequest) -> Partition:
        """Return the requested partition, and check that it may be read here."""
        consumer = request.consumer
        if consumer.groupId and not consumer.consumerId:
            text = "Consumer id cannot be empty when group id is provided"
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
        partition = self._host.partition(request.stream, request.partition)
        if partition is None:
            raise RpcError(GrpcStatus.NOT_FOUND, NO_PARTITION)
        host = self._host
        if host.leader(partition) == host.me:
            return partition
        if request.readISRReplica and consumer.groupId:
            text = "Consumer groups not compatible with ReadISRReplica"
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
        if not request.readISRReplica or host.me not in host.replicas(partition)[1]:
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, "Server not partition leader")
        return partition

    async def _check_consumer(self, consumer: pb.Consumer, call: Call) -> None:
        """Check that a consumer is a member of its group, and names no epoch of the future.

        This is checked only with access control: otherwise any principal that may use the group
        could displace its members by naming a later epoch.

        Raises:
            RpcError: the consumer is not a member, another principal has joined it, or the epoch is
                later than the group's.
            UnavailableError: the newest metadata cannot be read.
        """
        if not call.caller.is_checked:
            return
        group = self._host.broker.image.groups.get(consumer.groupId)
        if group is None or group.epoch < consumer.groupEpoch:
            await self._host.know_newest()
            group = self._host.broker.image.groups.get(consumer.groupId)
        if group is None:
            raise RpcError(GrpcStatus.NOT_FOUND, "consumer group does not exist")
        check_member(group, consumer.consumerId, call)
        if consumer.groupEpoch > group.epoch:
            text = f"groupEpoch {consumer.groupEpoch} is later than the group's, {group.epoch}"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)

    def _take_over(
        self, consumer: pb.Consumer, group: tuple[str, PartitionName], call: Call
    ) -> None:
        """Make a call the group's reader of a partition; the previous one ends without an error."""
        holder = self._members.get(group)
        if holder is not None:
            if consumer.groupEpoch < holder.epoch:
                text = "Consumer is not currently assigned this partition"
                raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
            holder.call.abort(RpcError(GrpcStatus.OK, ""))
        self._members[group] = _Member(consumer.groupEpoch, call)

    async def _deliver(
        self,
        partition: Partition,
        extent: SubscribeRange,
        call: Call,
        *,
        request: pb.SubscribeRequest,
    ) -> None:
        encoder = MessageEncoder(partition.name)
        reader = GrpcReader(
            partition,
            extent.start,
            columns=COLUMNS,
            convert=encoder.encode,
            pool=self._host.pool,
        )
        telemetry = self._host.broker.telemetry
        while True:
            check_open(partition)
            if extent.stop is not None and reader.offset >= extent.stop:
                raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, extent.why_stop)
            is_readonly = isinstance(partition.blocked_by, ReadonlyError)
            portion = await reader.next(extent.stop, bytes_max=call.share_bytes)
            allow(call.caller, "Subscribe", request)  # the permission may have been revoked
            if portion.records:
                call.send_framed(portion.data)
                telemetry.count_read(records=portion.records, size_bytes=len(portion.data))
                await call.drain()
            elif extent.stop is not None and reader.offset >= extent.stop:
                continue  # there is no visible record between the last one and the stop
            elif reader.offset >= partition.last_stable_offset:
                if is_readonly and reader.offset >= acknowledged_end(partition):
                    raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, END_OF_READONLY)
                await reader.more()

"""The rpcs that describe streams, partitions, brokers and groups.

Rules: an unknown object becomes an entry with that error, and not an error of the call. Brokers
without a client address are not listed. Objects that the caller may not see count as unknown.
Offsets are inclusive; -1 means an empty partition.
"""

import contextlib
from collections import Counter
from typing import Final

from strandline.api.required_permissions import group, known_stream
from strandline.broker.read_path.transaction_visibility import is_visible
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.errors import (
    CorruptBatchError,
    DecryptionError,
    EncryptionKeyError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from strandline.record.batch import Attributes, BatchHeader, read_header
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import BrokerId, Offset

LOOK_BACK_MAX: Final = 64
"""Batches searched backwards for the newest visible one; beyond it, a marker is reported."""


class DescribeCalls:
    """The rpcs that describe objects and change nothing.

    Args:
        host: the broker and the settings of the API.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    async def metadata(
        self, request: pb.FetchMetadataRequest, call: Call
    ) -> pb.FetchMetadataResponse:
        """Describe the brokers, the named streams (all if none is named) and the named groups."""
        host, caller = self._host, call.caller
        with contextlib.suppress(UnavailableError):  # then answer from the local metadata
            groups = host.broker.image.groups
            if None in map(host.stream, request.streams) or set(request.groups) - groups.keys():
                await host.know_newest()
        known = {
            each.name: host.stream(each.name)
            for each in host.broker.streams()
            if caller.has(known_stream(each.name))
        }
        shown = [name for name, stream in known.items() if stream is not None]
        # Each name once: a short request could name a stream of many partitions a million times.
        streams = [(name, known.get(name)) for name in dict.fromkeys(request.streams) or shown]
        names = dict.fromkeys(request.groups)
        may_see = {name for name in names if caller.has(group(name))}
        return pb.FetchMetadataResponse(
            brokers=self._brokers(),
            streamMetadata=[self._stream(name, stream) for name, stream in streams],
            groupMetadata=[self._group(name, is_shown=name in may_see) for name in names],
        )

    async def partition(
        self, request: pb.FetchPartitionMetadataRequest, _: Call
    ) -> pb.FetchPartitionMetadataResponse:
        """Describe one partition, from its leader."""
        await self._host.know(request.stream, (request.partition,))
        partition = self._host.partition(request.stream, request.partition)
        if partition is None:
            raise RpcError(GrpcStatus.NOT_FOUND, "partition not found")
        if self._host.leader(partition) != self._host.me:
            text = "The request should be sent to partition leader"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
        metadata = self._partition(partition)
        first, latest = received_ns(partition)
        metadata.messagesReceivedTimestamps.firstTimestamp = first
        metadata.messagesReceivedTimestamps.latestTimestamp = latest
        return pb.FetchPartitionMetadataResponse(metadata=metadata)

    def _brokers(self) -> list[pb.Broker]:
        """Return the live brokers that serve this API."""
        every = self._host.broker.partitions()
        partitions = [p for p in every if not self._host.state(p).is_paused]
        kept = Counter(b for p in partitions for b in self._host.replicas(p)[0])
        led = Counter(self._host.leader(p) for p in partitions)
        return [
            pb.Broker(
                id=str(broker),
                host=host,
                port=port,
                partitionCount=kept[broker],
                leaderCount=led[broker],
            )
            for broker, (host, port) in sorted(self._addresses().items())
        ]

    def _addresses(self) -> dict[BrokerId, tuple[str, int]]:
        """Return the addresses of brokers for clients; this broker is always included."""
        found = {self._host.me: self._host.address}
        for broker in self._host.broker.image.brokers.values():
            host, _, port = broker.grpc_address.rpartition(":")
            if host and not broker.is_fenced and broker.id != self._host.me:
                found[broker.id] = (host.strip("[]"), int(port))
        return found

    def _stream(self, name: str, stream: Stream | None) -> pb.StreamMetadata:
        if stream is None:
            return pb.StreamMetadata(name=name, error=pb.StreamMetadata.UNKNOWN_STREAM)
        return pb.StreamMetadata(
            name=name,
            subject=stream.config.subject,
            creationTimestamp=stream.created_ns,
            partitions={p.name.partition: self._partition(p) for p in stream.partitions},
        )

    def _partition(self, partition: Partition) -> pb.PartitionMetadata:
        state = self._host.state(partition)
        replicas, isr = self._host.replicas(partition)
        leader = self._host.leader(partition)
        return pb.PartitionMetadata(
            id=partition.name.partition,
            leader="" if leader is None else str(leader),
            replicas=_names(replicas),
            isr=_names(isr),
            highWatermark=partition.high_watermark - 1,
            newestOffset=partition.log_end_offset - 1,
            paused=state.is_paused,
            readonly=state.is_readonly,
            pauseTimestamps=_times(state.paused_ns),
            readonlyTimestamps=_times(state.readonly_ns),
        )

    def _group(self, name: str, *, is_shown: bool) -> pb.ConsumerGroupMetadata:
        found = self._host.broker.image.groups.get(name)
        if found is None or not is_shown:
            unknown = pb.ConsumerGroupMetadata.UNKNOWN_GROUP
            return pb.ConsumerGroupMetadata(groupId=name, error=unknown)
        return pb.ConsumerGroupMetadata(
            groupId=name, coordinator=str(found.coordinator), epoch=found.epoch
        )


def received_ns(partition: Partition) -> tuple[int, int]:
    """Return when the oldest and the newest kept record arrived, in ns; 0 without records."""
    start, end = partition.log_start_offset, partition.high_watermark
    if start >= end:
        return 0, 0
    try:
        first = partition.read(start, 1)
        if not first.size:
            return 0, 0  # only transaction markers are left
        oldest, latest = read_header(memoryview(first)), _latest(partition, end)
    except (CorruptBatchError, DecryptionError, EncryptionKeyError, OffsetOutOfRangeError):
        return 0, 0  # a batch is corrupt, lacks its key or was just deleted: the time is unknown
    return oldest.first_timestamp, latest.last_timestamp


def _latest(partition: Partition, end: Offset) -> BatchHeader:
    """Return the newest visible batch; transaction markers may follow it."""
    log, offset = partition.log, Offset(end - 1)
    for _ in range(LOOK_BACK_MAX):
        found = read_header(memoryview(log.read(offset, 1, below=end).buffer))
        is_hidden = found.attributes & (Attributes.MARKER | Attributes.REMOVED | Attributes.PURGE)
        if found.base_offset <= log.log_start_offset:
            break
        if not is_hidden and is_visible(partition.transaction_index, found):
            break
        offset = Offset(found.base_offset - 1)
    return found


def _names(brokers: tuple[BrokerId, ...]) -> list[str]:
    return [str(broker) for broker in brokers]


def _times(times: tuple[int, int]) -> pb.PartitionEventTimestamps:
    return pb.PartitionEventTimestamps(firstTimestamp=times[0], latestTimestamp=times[1])

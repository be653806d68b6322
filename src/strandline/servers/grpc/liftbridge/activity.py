"""The activity stream: events of streams and consumer groups, as records of ``__activity``.

Rules: the metadata keeps an event until it is stored (``core/metadata/activity.py``). The leader of
the stream stores events in the order of their ids, and retries each until it is acknowledged. A new
leader first waits until all earlier records are committed, and continues after the last id. So
every event is stored once, whichever broker fails.
"""

import asyncio
import logging
from typing import Final

import pyarrow as pa

from strandline.broker.write_path.partition import Partition
from strandline.core.metadata.commands import (
    CreateStream,
    DeleteStream,
    ForgetEvents,
    JoinGroup,
    LeaveGroup,
    PausePartitions,
    SetReadonly,
)
from strandline.core.metadata.image import Event, ReportedCommand
from strandline.errors import StrandlineError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.host import ACTIVITY, Host
from strandline.servers.grpc.liftbridge.internal import InternalStore
from strandline.servers.grpc.reading import GrpcReader
from strandline.types import LeaderEpoch, Offset

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 10.0
POLL_S: Final = 0.05


def event_of(command: ReportedCommand) -> pb.ActivityStreamEvent:
    """Return the activity event of a command."""
    match command:
        case CreateStream(config=config):
            op = pb.CreateStreamOp(stream=config.name, partitions=range(config.partitions))
            return pb.ActivityStreamEvent(op=pb.CREATE_STREAM, createStreamOp=op)
        case DeleteStream(name=name):
            gone = pb.DeleteStreamOp(stream=name)
            return pb.ActivityStreamEvent(op=pb.DELETE_STREAM, deleteStreamOp=gone)
        case PausePartitions(stream=stream, partitions=numbers, is_on=True):
            pause = pb.PauseStreamOp(
                stream=stream, partitions=numbers, resumeAll=command.resumes_all
            )
            return pb.ActivityStreamEvent(op=pb.PAUSE_STREAM, pauseStreamOp=pause)
        case PausePartitions(stream=stream, partitions=numbers):
            resume = pb.ResumeStreamOp(stream=stream, partitions=numbers)
            return pb.ActivityStreamEvent(op=pb.RESUME_STREAM, resumeStreamOp=resume)
        case SetReadonly(stream=stream, partitions=numbers, is_on=is_on):
            readonly = pb.SetStreamReadonlyOp(stream=stream, partitions=numbers, readonly=is_on)
            return pb.ActivityStreamEvent(op=pb.SET_STREAM_READONLY, setStreamReadonlyOp=readonly)
        case JoinGroup(group=group, member=member, streams=streams):
            join = pb.JoinConsumerGroupOp(groupId=group, consumerId=member, streams=streams)
            return pb.ActivityStreamEvent(op=pb.JOIN_CONSUMER_GROUP, joinConsumerGroupOp=join)
        case LeaveGroup(group=group, member=member, has_expired=has_expired):
            leave = pb.LeaveConsumerGroupOp(groupId=group, consumerId=member, expired=has_expired)
            return pb.ActivityStreamEvent(op=pb.LEAVE_CONSUMER_GROUP, leaveConsumerGroupOp=leave)


class Activity:
    """A writer of the activity stream; it writes while this broker leads the stream.

    Args:
        host: the broker and the settings of the API.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._arrived = asyncio.Event()
        self._arrived.set()
        host.broker.on_image(self._arrived.set)

    async def run(self) -> None:
        """Store events as they happen, until cancelled."""
        backoff_s = RETRY_FIRST_S
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                await self._store_waiting()
            except StrandlineError as error:
                logger.warning("storing activity events is delayed: %s", error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, RETRY_MAX_S)
                self._arrived.set()
            else:
                backoff_s = RETRY_FIRST_S

    async def _store_waiting(self) -> None:
        """Store pending activity events, if this broker leads the activity stream.

        Raises:
            StrandlineError: an event may not have been stored.
        """
        if not self._events():
            return
        partition = self._host.partition(ACTIVITY, 0)
        epoch = self._epoch_led()
        if partition is None or epoch is None:
            return
        last = await self._last_id(partition, epoch)
        while last is not None and (events := self._events()):
            for event in events:
                if event.id <= last:
                    continue
                if not self._leads(partition, epoch):
                    return  # a new leader may have stored the event
                await InternalStore().append(partition, _encoded(event), key=None)
                last = event.id
            await self._host.broker.change(ForgetEvents(last))

    def _events(self) -> tuple[Event, ...]:
        return self._host.broker.image.events

    def _epoch_led(self) -> LeaderEpoch | None:
        """Return the epoch in which this broker leads the stream; None if another one leads."""
        stream = self._host.broker.image.streams.get(ACTIVITY)
        if stream is None:
            return None
        image = stream.partitions[0]
        is_here = not image.replicas or image.leader == self._host.me
        return image.leader_epoch if is_here else None

    def _leads(self, partition: Partition, epoch: LeaderEpoch) -> bool:
        """Return whether this broker still leads in the epoch in which the last id was read."""
        return self._epoch_led() == epoch == partition.leader_epoch and not partition.closed

    async def _last_id(self, partition: Partition, epoch: LeaderEpoch) -> int | None:
        """Return the id of the last stored event; None if another broker now leads.

        Raises:
            StrandlineError: the partition cannot be read.
        """
        while not (
            partition.leader_epoch == epoch and partition.high_watermark == partition.log_end_offset
        ):
            if self._epoch_led() != epoch or partition.closed:
                return None
            await asyncio.sleep(POLL_S)
        found = [0]

        def absorb(batches: list[pa.RecordBatch]) -> bytes:
            values = [value for batch in batches for value in batch.column(1).to_pylist()]
            found.extend(pb.ActivityStreamEvent.FromString(value or b"").id for value in values)
            return b""

        last = Offset(max(partition.log_start_offset, partition.high_watermark - 1))
        reader = GrpcReader(
            partition, last, columns=("offset", "value"), convert=absorb, pool=self._host.pool
        )
        await reader.next()
        return max(found)


def _encoded(event: Event) -> bytes:
    told = event_of(event.command)
    told.id = event.id
    data: bytes = told.SerializeToString()
    return data

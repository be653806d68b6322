"""The activity stream: what happened to streams and consumer groups, as records of ``__activity``.

Rules: events are stored in the order in which the metadata changed, each tried until it is stored;
their ids grow by one. One broker alone: what a crash cuts off between a change and its event is
not told (docs/liftbridge.md).
"""

import asyncio
import logging
from collections import deque
from typing import Final

import pyarrow as pa
from google.protobuf.message import DecodeError

from strandline.broker.partition import Partition
from strandline.errors import StrandlineError
from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.frontends.grpc.liftbridge.host import ACTIVITY, Host
from strandline.frontends.grpc.liftbridge.internal import Store
from strandline.frontends.grpc.reading import Reader
from strandline.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    JoinGroup,
    LeaveGroup,
    PausePartitions,
    SetReadonly,
)
from strandline.types import Offset

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 10.0


def event_of(command: Command) -> pb.ActivityStreamEvent | None:
    """What a command is called in the stream; None: it is not told."""
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
    return None


class Activity:
    """Writes the stream.

    Args:
        host: shared.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[pb.ActivityStreamEvent] = deque()
        self._arrived = asyncio.Event()
        host.broker.on_changed(self._changed)

    def _changed(self, command: Command) -> None:
        event = event_of(command)
        if event is not None:
            self._waiting.append(event)
            self._arrived.set()

    async def run(self) -> None:
        """Store events as they come, for ever; the stream exists."""
        partition = self._host.partition(ACTIVITY, 0)
        assert partition is not None, "made before"
        next_id = await self._last_id(partition) + 1
        backoff_s = RETRY_FIRST_S
        while True:
            while self._waiting:
                event = self._waiting[0]
                event.id = next_id
                try:
                    await Store().append(partition, event.SerializeToString(), key=None)
                except StrandlineError as error:
                    logger.warning("an event of the activity stream has to wait: %s", error)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, RETRY_MAX_S)
                    continue
                self._waiting.popleft()
                next_id, backoff_s = next_id + 1, RETRY_FIRST_S
            self._arrived.clear()
            await self._arrived.wait()

    async def _last_id(self, partition: Partition) -> int:
        """The id of the last event stored."""
        found = [0]

        def absorb(batches: list[pa.RecordBatch]) -> bytes:
            for value in (v for batch in batches for v in batch.column(1).to_pylist()):
                event = pb.ActivityStreamEvent()
                try:
                    event.ParseFromString(value or b"")
                except DecodeError:
                    continue  # somebody published something else to the subject
                found.append(event.id)
            return b""

        last = Offset(max(partition.log_start_offset, partition.high_watermark - 1))
        reader = Reader(
            partition, last, columns=("offset", "value"), convert=absorb, pool=self._host.pool
        )
        await reader.next()
        return max(found)

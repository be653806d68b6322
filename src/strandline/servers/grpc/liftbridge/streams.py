"""The rpcs that create, delete and pause streams, and make them readonly.

Rules: settings that only tune how Liftbridge cleans its logs (how often, with how many goroutines)
have no effect. Status codes and the texts that clients compare are Liftbridge's.
"""

from typing import Any, Final

import msgspec
import msgspec.structs

from strandline.broker.internal import is_internal
from strandline.config import GrpcStreamsConfig, StreamConfig
from strandline.core.metadata.commands import SetReadonly
from strandline.errors import (
    EncryptionKeyError,
    InvalidRequestError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.status import GrpcStatus, RpcError

SEGMENT_BYTES_MIN: Final = 64 << 10
NO_KEY: Final = "Failed on preconditions for stream's encryption handler: invalid AES key size 0"
_NUMBERS: Final = (
    # Liftbridge's name, Strandline's name
    ("retentionMaxBytes", "retention_bytes"),
    ("retentionMaxMessages", "retention_records"),
    ("retentionMaxAge", "retention_age_ms"),
    ("compactEnabled", "compact"),
    ("autoPauseTime", "auto_pause_ms"),
    ("minIsr", "min_isr"),
    ("optimisticConcurrencyControl", "optimistic_concurrency"),
    ("encryption", "encryption"),
)


def stream_config(
    request: pb.CreateStreamRequest, defaults: GrpcStreamsConfig, *, brokers: int
) -> StreamConfig:
    """Return the stream settings that a request asks for.

    Args:
        request: the request.
        defaults: the values of settings that the request leaves out.
        brokers: the number of brokers in the cluster.

    Raises:
        RpcError: a setting cannot be fulfilled.
    """
    _check_request(request)
    wanted: dict[str, Any] = msgspec.structs.asdict(defaults)
    wanted |= {
        ours: getattr(request, theirs).value
        for theirs, ours in _NUMBERS
        if request.HasField(theirs)
    }
    if request.HasField("segmentMaxBytes") and request.segmentMaxBytes.value:
        wanted["segment_bytes"] = max(SEGMENT_BYTES_MIN, request.segmentMaxBytes.value)
    if request.HasField("segmentMaxAge") and request.segmentMaxAge.value:
        wanted["segment_age_ms"] = request.segmentMaxAge.value
    if request.HasField("autoPauseDisableIfSubscribers"):
        wanted["auto_pause_if_read"] = not request.autoPauseDisableIfSubscribers.value
    return StreamConfig(
        name=request.name,
        subject=request.subject,
        queue_group=request.group,
        replicas=_replicas(request.replicationFactor, brokers),
        partitions=request.partitions or 1,
        partition_by="suffix",
        pub_ack=False,  # an application that sets a reply subject expects no PubAck there
        **wanted,
    )


def _check_request(request: pb.CreateStreamRequest) -> None:
    if not request.name:
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, "Name cannot be empty")
    subject = request.subject
    if not subject or any(c in subject for c in " \t\r\n") or "" in subject.split("."):
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, "Subject is invalid")
    if is_internal(request.name):
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, "Stream is reserved")
    if request.partitions < 0:
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, "no partitions provided")


def _replicas(factor: int, brokers: int) -> int:
    if factor == -1:
        return brokers
    if factor < 0:
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"Invalid replicationFactor {factor}")
    if factor > brokers:
        text = f"Invalid replicationFactor {factor}, cluster size {brokers}"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
    return factor or 1


class LiftbridgeStreamCalls:
    """The rpcs that concern whole streams.

    Args:
        host: the broker and the settings of the API.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    async def create(self, request: pb.CreateStreamRequest, _: Call) -> pb.CreateStreamResponse:
        """Create a stream; messages that are published after the answer are stored."""
        brokers = len(self._host.broker.image.brokers) or 1
        config = stream_config(request, self._host.config.streams, brokers=brokers)
        try:
            await self._host.broker.create_stream(config)
        except StreamExistsError:
            raise RpcError(GrpcStatus.ALREADY_EXISTS, "stream already exists") from None
        except EncryptionKeyError as error:
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, f"{NO_KEY}: {error.message}") from None
        return pb.CreateStreamResponse()

    async def delete(self, request: pb.DeleteStreamRequest, _: Call) -> pb.DeleteStreamResponse:
        """Delete a stream and its records."""
        if is_internal(request.name):
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "Stream is reserved")
        await self._host.know(request.name)
        try:
            await self._host.broker.delete_stream(request.name)
        except UnknownStreamError:
            raise RpcError(GrpcStatus.NOT_FOUND, "stream does not exist") from None
        return pb.DeleteStreamResponse()

    async def pause(self, request: pb.PauseStreamRequest, _: Call) -> pb.PauseStreamResponse:
        """Pause partitions until they are used again."""
        numbers = sorted(set(request.partitions))
        await self._check(request.name, numbers)
        try:
            await self._host.pause(request.name, numbers, is_on=True, resumes_all=request.resumeAll)
        except InvalidRequestError as error:
            raise _not_found(error) from error
        return pb.PauseStreamResponse()

    async def set_readonly(
        self, request: pb.SetStreamReadonlyRequest, _: Call
    ) -> pb.SetStreamReadonlyResponse:
        """Make partitions readonly, or writable again."""
        numbers = tuple(sorted(set(request.partitions)))
        await self._check(request.name, numbers)
        broker = self._host.broker
        now_ns = broker.clock.now_ns()
        try:
            await broker.change(SetReadonly(request.name, numbers, request.readonly, now_ns))
        except InvalidRequestError as error:
            raise _not_found(error) from error
        return pb.SetStreamReadonlyResponse()

    async def _check(self, name: str, partitions: Any) -> None:
        """Reject a stream or partition that is unknown or internal."""
        await self._host.know(name, partitions)
        stream = self._host.stream(name)
        if stream is None:
            text = "stream does not exist" if partitions else "stream not found"
            raise RpcError(GrpcStatus.NOT_FOUND, text)
        if is_internal(name):
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "Stream is reserved")
        if any(not 0 <= number < len(stream.partitions) for number in partitions):
            raise RpcError(GrpcStatus.NOT_FOUND, "partition does not exist")


def _not_found(error: InvalidRequestError) -> RpcError:
    """Return the status for a stream or partition that has just been deleted."""
    if isinstance(error, UnknownStreamError):
        return RpcError(GrpcStatus.NOT_FOUND, "stream does not exist")
    if isinstance(error, UnknownPartitionError):
        return RpcError(GrpcStatus.NOT_FOUND, "partition does not exist")
    return RpcError(GrpcStatus.INTERNAL, error.message)

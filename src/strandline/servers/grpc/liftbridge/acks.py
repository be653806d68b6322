"""The outcome of a publish, an ack or an error, sent as the answer of a call or on a stream.

Rule: the broker reports outcomes on the loop and waits for nothing; only the caller waits.
"""

import asyncio
from typing import Any, Final

from strandline.errors import (
    EncryptionKeyError,
    ReadonlyError,
    RecordTooLargeError,
    SchemaMismatchError,
    StrandlineError,
    UnknownStreamError,
    WrongLastSequenceError,
)
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import Offset, PartitionName

INCORRECT_OFFSET: Final = "incorrect expected offset"

_STATUSES: Final[dict[Any, GrpcStatus]] = {
    pb.PublishAsyncError.NOT_FOUND: GrpcStatus.NOT_FOUND,
    pb.PublishAsyncError.BAD_REQUEST: GrpcStatus.INVALID_ARGUMENT,
    pb.PublishAsyncError.READONLY: GrpcStatus.FAILED_PRECONDITION,
    pb.PublishAsyncError.ENCRYPTION_FAILED: GrpcStatus.INTERNAL,
}


class PublishRejectedError(Exception):
    """A publish that was rejected; on a stream of publishes it is reported in band."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def status(self) -> RpcError:
        """The status with which a unary publish ends."""
        return RpcError(_STATUSES.get(self.code, GrpcStatus.UNKNOWN), self.text)


def refused(error: StrandlineError, partition: int) -> PublishRejectedError:
    """Return the rejection that corresponds to an error of the broker."""
    if isinstance(error, WrongLastSequenceError):
        return PublishRejectedError(pb.PublishAsyncError.INCORRECT_OFFSET, INCORRECT_OFFSET)
    if isinstance(error, UnknownStreamError):
        return PublishRejectedError(
            pb.PublishAsyncError.NOT_FOUND, "no such stream; it was deleted"
        )
    if isinstance(error, RecordTooLargeError):
        text = f"message exceeds max replication size: {error.message}"
        return PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, text)
    if isinstance(error, SchemaMismatchError):
        return PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, error.message)
    if isinstance(error, ReadonlyError):
        return PublishRejectedError(
            pb.PublishAsyncError.READONLY, f"readonly partition: {partition}"
        )
    if isinstance(error, EncryptionKeyError):
        text = f"failed to encrypt the message: {error.message}"
        return PublishRejectedError(pb.PublishAsyncError.ENCRYPTION_FAILED, text)
    return PublishRejectedError(pb.PublishAsyncError.INTERNAL, error.message)


class Receipt:
    """The ack token of one publish, which creates its ack.

    Args:
        request: the publish.
        host: the broker and the settings of the API.
        subject: the record's subject.
        stream_subject: the subject that the stream is bound to.
    """

    __slots__ = ("_host", "_received_ns", "_stream_subject", "_subject", "request")

    def __init__(
        self,
        request: pb.PublishRequest | pb.PublishToSubjectRequest,
        host: Host,
        *,
        subject: str,
        stream_subject: str,
    ) -> None:
        self.request = request
        self._host = host
        self._subject = subject
        self._stream_subject = stream_subject
        self._received_ns = host.broker.clock.now_ns()

    def ack(self, partition: PartitionName, offset: Offset) -> pb.Ack:
        """Return the ack of a record that was stored at ``offset``.

        A broker that forwarded the publish may not have the record yet. Then the ack's reception
        time is the time at which this broker received the publish.
        """
        request = self.request
        stored = self._host.partition(partition.stream, partition.partition)
        stamp_ns = None
        if stored is not None:
            stamp_ns = stored.times.find(offset) or stored.stored_ns(offset)
        return pb.Ack(
            stream=partition.stream,
            partitionSubject=self._stream_subject,
            msgSubject=self._subject,
            offset=offset,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
            receptionTimestamp=stamp_ns or self._received_ns,
            commitTimestamp=self._host.broker.clock.now_ns(),
        )


class SingleAck:
    """An ack sink that waits for the first of several acks; its tokens are receipts.

    Args:
        partition: the partition's number, for the error if it is readonly.
        due: the number of outcomes; the answer is an error only if all are rejections.
    """

    def __init__(self, partition: int, *, due: int = 1) -> None:
        self._partition = partition
        self._due = due
        self.answer: asyncio.Future[pb.Ack] = asyncio.get_running_loop().create_future()

    def acked(
        self,
        token: object,
        partition: PartitionName,
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  Liftbridge's ack has no such field
    ) -> None:
        """Answer with the ack, if it is the first one."""
        assert isinstance(token, Receipt), "given with the record"
        if not self.answer.done():
            self.answer.set_result(token.ack(partition, offset))

    def rejected(self, token: object, error: StrandlineError) -> None:  # noqa: ARG002  the responder's signature
        """Answer with the error, if all outcomes are rejections."""
        self._due -= 1
        if not self._due and not self.answer.done():
            self.answer.set_exception(refused(error, self._partition))


class AckStream:
    """An ack sink that sends the acks of a stream of publishes; its tokens are receipts.

    Args:
        call: the stream of publishes.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.unanswered = 0
        self._fewer: asyncio.Future[None] | None = None

    def acked(
        self,
        token: object,
        partition: PartitionName,
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  Liftbridge's ack has no such field
    ) -> None:
        """Send the ack."""
        assert isinstance(token, Receipt), "given with the record"
        self._answered()
        ack = token.ack(partition, offset)
        self._call.send(pb.PublishResponse(ack=ack, correlationId=ack.correlationId))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Report the error in band; the stream continues."""
        assert isinstance(token, Receipt), "given with the record"
        self._answered()
        request = token.request
        assert isinstance(request, pb.PublishRequest), "of a stream of them"
        self.refuse(request.correlationId, refused(error, request.partition))

    def refuse(self, correlation_id: str, error: PublishRejectedError) -> None:
        """Report the rejection of a publish in band; the stream continues."""
        response = pb.PublishResponse(
            ack=pb.Ack(),
            asyncError=pb.PublishAsyncError(code=error.code, message=error.text),
            correlationId=correlation_id,
        )
        self._call.send(response)

    def _answered(self) -> None:
        self.unanswered -= 1
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    async def below(self, limit: int) -> None:
        """Wait until fewer than ``limit`` publishes have no outcome yet."""
        while self.unanswered >= limit:
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer

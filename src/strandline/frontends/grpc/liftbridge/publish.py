"""Publishing: one message and its ack, many on one stream, and to a subject.

Rules: an ack is sent when the record is as safe as its policy says: LEADER, on the leader's disk;
ALL, on every replica in sync. Nobody waits where Liftbridge does not (policy NONE, or a call
without a deadline). A stream of publishes never ends by itself: its clients take an end for good.
"""

import asyncio
from typing import Any, Final, NamedTuple

from strandline.broker.partition import Partition
from strandline.broker.routing import PartitionPort, RouteTable, Target, stream_bindings
from strandline.config import Acks
from strandline.errors import (
    InvalidSubjectError,
    NotLeaderError,
    PausedError,
    ReadonlyError,
    RecordTooLargeError,
    StrandlineError,
    WrongLastSequenceError,
)
from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.frontends.grpc.calls import Call, parsed
from strandline.frontends.grpc.liftbridge.forward import Forwarder, Handed
from strandline.frontends.grpc.liftbridge.host import Host
from strandline.frontends.grpc.status import RpcError, Status
from strandline.protocol.routing import default_subject
from strandline.record.codec import MESSAGE_ID_HEADER, Headers
from strandline.types import Offset, PartitionName

HEADERS_MAX: Final = 4096
HEADER_NAME_BYTES_MAX: Final = 1024
FINISH_TIMEOUT_S: Final = 5.0
"""How long a stream of publishes waits for its last acks."""
UNANSWERED_MAX: Final = 100_000
"""Publishes of one stream whose ack is due; no more are taken until some are answered."""
UNCHECKED: Final = -1
"""The expected offset of who expects nothing."""

_Code = pb.PublishAsyncError.Code
_STATUSES: Final[dict[Any, Status]] = {
    pb.PublishAsyncError.NOT_FOUND: Status.NOT_FOUND,
    pb.PublishAsyncError.BAD_REQUEST: Status.INVALID_ARGUMENT,
    pb.PublishAsyncError.READONLY: Status.FAILED_PRECONDITION,
    pb.PublishAsyncError.ENCRYPTION_FAILED: Status.INTERNAL,
}


class RefusedError(Exception):
    """A publish that was not stored: what a stream of publishes says in band."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def status(self) -> RpcError:
        """What a single publish ends with."""
        return RpcError(_STATUSES.get(self.code, Status.UNKNOWN), self.text)


def refused(error: StrandlineError, partition: int) -> RefusedError:
    """What became of a publish that the broker rejected."""
    if isinstance(error, WrongLastSequenceError):
        return RefusedError(pb.PublishAsyncError.INCORRECT_OFFSET, "incorrect expected offset")
    if isinstance(error, RecordTooLargeError):
        text = f"message exceeds max replication size: {error.message}"
        return RefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
    if isinstance(error, ReadonlyError):
        return RefusedError(pb.PublishAsyncError.READONLY, f"readonly partition: {partition}")
    return RefusedError(pb.PublishAsyncError.INTERNAL, error.message)


class Aim(NamedTuple):
    """Where a publish goes."""

    partition: Partition
    stream_subject: str
    subject: str


class Receipt:
    """Makes the ack of one publish; a responder's ``acked`` calls ``ack``.

    Args:
        request: the publish.
        host: shared.
        subject: the record's.
        stream_subject: what the stream is bound to.
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
        """The record is safe at ``offset``."""
        request = self.request
        return pb.Ack(
            stream=partition.stream,
            partitionSubject=self._stream_subject,
            msgSubject=self._subject,
            offset=offset,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
            receptionTimestamp=self._received_ns,
            commitTimestamp=self._host.broker.clock.now_ns(),
        )


class SingleAck:
    """Waits for one ack: a responder."""

    def __init__(self, receipt: Receipt, partition: int) -> None:
        self._receipt = receipt
        self._partition = partition
        self.answer: asyncio.Future[pb.Ack] = asyncio.get_running_loop().create_future()

    def acked(
        self,
        token: object,  # noqa: ARG002  the responder's signature
        partition: PartitionName,
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  an ack does not say
    ) -> None:
        """Hand on the ack; of several streams' the first."""
        if not self.answer.done():
            self.answer.set_result(self._receipt.ack(partition, offset))

    def rejected(self, token: object, error: StrandlineError) -> None:  # noqa: ARG002  see acked
        """Hand on why not."""
        if not self.answer.done():
            self.answer.set_exception(refused(error, self._partition))


class AckStream:
    """Sends the acks of one stream of publishes as they come: a responder, its token a receipt.

    Args:
        call: the stream.
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
        duplicate: bool,  # noqa: ARG002  an ack does not say
    ) -> None:
        """Send the ack."""
        assert isinstance(token, Receipt), "given with the record"
        self._answered()
        ack = token.ack(partition, offset)
        self._call.send(pb.PublishResponse(ack=ack, correlationId=ack.correlationId))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Say in band why not."""
        assert isinstance(token, Receipt), "given with the record"
        self._answered()
        request = token.request
        assert isinstance(request, pb.PublishRequest), "of a stream of them"
        self.refuse(request.correlationId, refused(error, request.partition))

    def refuse(self, correlation_id: str, error: RefusedError) -> None:
        """Say in band why a publish was not taken; the stream goes on."""
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
        """Wait until fewer than ``limit`` publishes wait for their ack."""
        while self.unanswered >= limit:
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer


class PublishCalls:
    """The rpcs that publish.

    Args:
        host: shared.
        forwarder: in a cluster: for what others lead.
    """

    def __init__(self, host: Host, forwarder: Forwarder | None) -> None:
        self._host = host
        self._forwarder = forwarder
        self._routes = RouteTable()
        host.broker.on_streams_changed(self._bind)
        self._bind()

    def _bind(self) -> None:
        streams = self._host.broker.streams()
        self._routes.replace(b for stream in streams for b in stream_bindings(stream))

    # To a stream

    async def publish(self, request: pb.PublishRequest, call: Call) -> pb.PublishResponse:
        """Store one message; answer with its ack if somebody waits for it."""
        if not request.stream:
            raise RpcError(Status.INVALID_ARGUMENT, "no stream provided")
        try:
            aim = self._aim(request)
            await self._wake(aim.partition)
            if request.ackPolicy == pb.NONE or call.timeout_s is None:
                self._append(request, aim, None)
                return pb.PublishResponse()
            waiting = SingleAck(self._receipt(request, aim), request.partition)
            self._append(request, aim, waiting)
            return pb.PublishResponse(ack=await waiting.answer)
        except RefusedError as error:
            raise error.status from error

    async def publish_many(self, call: Call) -> None:
        """Store messages as they come and send their acks as they are due."""
        acks = AckStream(call)
        while messages := await call.receive():
            for data in messages:
                await self._publish_one(parsed(pb.PublishRequest, data), acks)
            await acks.below(UNANSWERED_MAX)
            await call.drain()
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await acks.below(1)
        except TimeoutError:
            return

    async def _publish_one(self, request: pb.PublishRequest, acks: AckStream) -> None:
        try:
            aim = self._aim(request)
            if aim.partition.barred_by is not None:
                await self._wake(aim.partition)
            if request.ackPolicy == pb.NONE:
                self._append(request, aim, None)
                return
            acks.unanswered += 1
            self._append(request, aim, acks, token=self._receipt(request, aim))
        except RefusedError as error:
            acks.refuse(request.correlationId, error)

    def _aim(self, request: pb.PublishRequest) -> Aim:
        """Where it goes, if it may.

        Raises:
            RefusedError: it may not.
        """
        stream = self._host.stream(request.stream)
        if stream is None:
            text = f"no such stream: {request.stream}"
            raise RefusedError(pb.PublishAsyncError.NOT_FOUND, text)
        number = request.partition
        if not 0 <= number < len(stream.partitions):
            raise RefusedError(pb.PublishAsyncError.NOT_FOUND, f"no such partition: {number}")
        partition = stream.partitions[number]
        if isinstance(partition.barred_by, ReadonlyError):
            raise RefusedError(pb.PublishAsyncError.READONLY, f"readonly partition: {number}")
        config = stream.config
        if config.optimistic_concurrency and request.ackPolicy == pb.NONE:
            text = "stream with concurrency control must have AckPolicy set"
            raise RefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
        subject = default_subject(config.subject)
        return Aim(partition, config.subject, f"{subject}.{number}" if number else subject)

    async def _wake(self, partition: Partition) -> None:
        if isinstance(partition.barred_by, PausedError):
            try:
                await self._host.wake(partition)
            except StrandlineError as error:
                text = f"failed to resume stream: {error.message}"
                raise RefusedError(pb.PublishAsyncError.INTERNAL, text) from error

    def _receipt(self, request: pb.PublishRequest, aim: Aim) -> Receipt:
        return Receipt(request, self._host, subject=aim.subject, stream_subject=aim.stream_subject)

    def _append(
        self,
        request: pb.PublishRequest,
        aim: Aim,
        responder: SingleAck | AckStream | None,
        *,
        token: Receipt | None = None,
    ) -> None:
        expects = aim.partition.config.optimistic_concurrency
        expected = request.expectedOffset if expects else UNCHECKED
        headers = checked_headers(request.headers)
        if self._is_elsewhere(aim.partition):
            self._hand_on(request, aim, responder, token=token)
            return
        aim.partition.append(
            request.value,
            subject=aim.subject,
            key=request.key or None,
            headers=headers,
            responder=responder,
            token=token,
            message_id=_message_id(request.headers) if headers else None,
            expected_last=None if expected == UNCHECKED else expected,
            acks=acks_of(request.ackPolicy),
        )

    def _is_elsewhere(self, partition: PartitionPort) -> bool:
        return self._forwarder is not None and self._host.leader(partition) != self._host.me

    def _hand_on(
        self,
        request: pb.PublishRequest,
        aim: Aim,
        responder: SingleAck | AckStream | None,
        *,
        token: Receipt | None,
    ) -> None:
        """Let the leader store it."""
        assert self._forwarder is not None, "somebody else leads"
        checks = aim.partition.config.optimistic_concurrency
        if checks and request.expectedOffset != UNCHECKED and responder is not None:
            text = "another broker leads: an expected offset has to be sent to the leader"
            responder.rejected(token, NotLeaderError(text))
            return
        record = Handed(
            aim.partition.name,
            request.value,
            subject=aim.subject,
            key=request.key or None,
            headers=checked_headers(request.headers),
            message_id=_message_id(request.headers),
        )
        self._forwarder.append(record, responder=responder, token=token)

    # To a subject

    async def publish_to_subject(
        self, request: pb.PublishToSubjectRequest, call: Call
    ) -> pb.PublishToSubjectResponse:
        """Store a message in every stream that records a subject; the first ack counts."""
        try:
            route = self._routes.route(request.subject.encode())
        except InvalidSubjectError:
            raise RpcError(Status.UNKNOWN, "nats: invalid subject") from None
        waits = request.ackPolicy != pb.NONE and call.timeout_s is not None
        waiting: SingleAck | None = None
        for target in route.targets():
            partition = target.partition_for(request.key or None)
            receipt = Receipt(
                request,
                self._host,
                subject=request.subject,
                stream_subject=target.stream_subject,
            )
            each = SingleAck(receipt, partition.name.partition) if waits else None
            waiting = waiting or each
            self._append_to(target, request, each)
        if not waits:
            return pb.PublishToSubjectResponse()
        if waiting is None:  # nobody records it: as with NATS, nobody answers
            await asyncio.Event().wait()
        assert waiting is not None, "waited for above"
        try:
            return pb.PublishToSubjectResponse(ack=await waiting.answer)
        except RefusedError as error:
            code = _ACK_ERRORS.get(error.code, pb.Ack.UNKNOWN)
            ack = pb.Ack(
                ackInbox=request.ackInbox,
                correlationId=request.correlationId,
                ackPolicy=request.ackPolicy,
                msgSubject=request.subject,
                ackError=code,
            )
            return pb.PublishToSubjectResponse(ack=ack)

    def _append_to(
        self,
        target: Target,
        request: pb.PublishToSubjectRequest,
        responder: SingleAck | None,
    ) -> None:
        headers = checked_headers(request.headers)
        message_id = _message_id(request.headers) if headers else None
        partition = target.partition_for(request.key or None)
        if self._is_elsewhere(partition):
            assert self._forwarder is not None, "somebody else leads"
            record = Handed(
                partition.name,
                request.value,
                subject=request.subject,
                key=request.key or None,
                headers=headers,
                message_id=message_id,
            )
            self._forwarder.append(record, responder=responder, token=None)
            return
        partition.append(
            request.value,
            subject=request.subject,
            key=request.key or None,
            headers=headers,
            responder=responder,
            message_id=message_id,
            expected_last=0 if target.checks_offsets else None,
            acks=acks_of(request.ackPolicy),
        )


_ACK_ERRORS: Final[dict[Any, Any]] = {
    pb.PublishAsyncError.INCORRECT_OFFSET: pb.Ack.INCORRECT_OFFSET,
    pb.PublishAsyncError.BAD_REQUEST: pb.Ack.TOO_LARGE,
}


def acks_of(policy: Any) -> Acks | None:
    """What an ack of this policy survives; None: the most the stream can give."""
    return "disk" if policy == pb.LEADER else None


def checked_headers(headers: Any) -> Headers | None:
    """A publish's headers as a record keeps them.

    Raises:
        RefusedError: too many, or a name that is too long.
    """
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        text = f"{len(headers)} headers; at most {HEADERS_MAX} are taken"
        raise RefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
    if any(not name or len(name) > HEADER_NAME_BYTES_MAX for name in headers):
        text = f"a header's name has 1 to {HEADER_NAME_BYTES_MAX} characters"
        raise RefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
    return list(headers.items())


def _message_id(headers: Any) -> str | None:
    """As for publishes through NATS: what makes a retry the same record."""
    value = headers.get(MESSAGE_ID_HEADER)
    return value.decode(errors="replace") or None if value else None

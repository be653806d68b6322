"""The rpcs that publish: one message, a stream of messages, or one message to a subject.

Rules: the ack policy sets when the ack is sent: with LEADER once the record is on the leader's
    disk,
with ALL once it is on every in-sync replica. A call does not wait where Liftbridge does not (policy
NONE, or no deadline). The broker never ends a stream of publishes, because clients do not reopen
it.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from strandline.api.routing import default_subject
from strandline.broker.internal import is_internal
from strandline.broker.routing import PartitionPort, Target
from strandline.broker.write_path.partition import Partition
from strandline.config import Acks
from strandline.errors import (
    InvalidSubjectError,
    PausedError,
    ReadonlyError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.record.codec import (
    HEADER_NAME_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    MESSAGE_ID_HEADER,
    Headers,
)
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.acks import (
    INCORRECT_OFFSET,
    AckStream,
    PublishRejectedError,
    Receipt,
    SingleAck,
    refused,
)
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.liftbridge.permissions import allow
from strandline.servers.grpc.methods import parsed
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.servers.resume_forwarder import PendingForward
from strandline.types import PartitionName

if TYPE_CHECKING:
    # The forwarder imports the client, which a broker alone does not need.
    from strandline.servers.forward import Forwarder

HEADERS_MAX: Final = 4096
FINISH_TIMEOUT_S: Final = 5.0
"""How long a stream of publishes waits for its last acks at the end of its input."""
UNANSWERED_MAX: Final = 100_000
"""The limit of unacknowledged publishes of one stream; at it no more messages are received."""
UNCHECKED: Final = -1
"""The ``expectedOffset`` of a publish that does not want the check."""


class PublishTarget(NamedTuple):
    """The partition to which a publish goes, and the record to store."""

    partition: Partition
    stream_subject: str
    record: PendingForward


class PublishCalls:
    """The rpcs that publish.

    Args:
        host: the broker and the settings of the API.
        forwarder: forwards publishes to other leaders; None for a broker alone.
    """

    def __init__(self, host: Host, forwarder: "Forwarder | None") -> None:
        self._host = host
        self._forwarder = forwarder
        self._routes = host.broker.routes

    # Publishes to a stream

    async def publish(self, request: pb.PublishRequest, call: Call) -> pb.PublishResponse:
        """Store one message; return its ack if the caller waits for it."""
        if not request.stream:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "no stream provided")
        await self._host.know(request.stream, (request.partition,))
        try:
            aimed = await self._resume_paused(self._resolve(request))
            if request.ackPolicy == pb.NONE or call.timeout_s is None:
                self._append(request, aimed, None)
                return pb.PublishResponse()
            waiting = SingleAck(request.partition)
            self._append(request, aimed, waiting)
            return pb.PublishResponse(ack=await waiting.answer)
        except PublishRejectedError as error:
            raise error.status from error

    async def publish_many(self, call: Call) -> None:
        """Store messages as they arrive, and send each ack when it is due."""
        acks = AckStream(call)
        while messages := await call.receive():
            for data in messages:
                request = parsed(pb.PublishRequest, data)
                try:
                    allow(call.caller, "Publish", request)
                except RpcError as denied:
                    code = pb.PublishAsyncError.PERMISSION_DENIED
                    acks.refuse(request.correlationId, PublishRejectedError(code, denied.text))
                else:
                    await self._publish_one(request, acks)
            await acks.below(UNANSWERED_MAX)
            await call.drain()
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await acks.below(1)
        except TimeoutError:
            return

    async def _publish_one(self, request: pb.PublishRequest, acks: AckStream) -> None:
        try:
            await self._know(request)
            aimed = self._resolve(request)
            if aimed.partition.blocked_by is not None:
                aimed = await self._resume_paused(aimed)
            if self._forwarder is not None and self._is_forwarded(aimed.partition):
                await self._forwarder.room()
            if request.ackPolicy == pb.NONE:
                self._append(request, aimed, None)
                return
            acks.unanswered += 1
            self._append(request, aimed, acks)
        except PublishRejectedError as error:
            acks.refuse(request.correlationId, error)

    async def _know(self, request: pb.PublishRequest) -> None:
        """Call ``Host.know``, and turn its error into a rejection.

        Raises:
            PublishRejectedError: the newest metadata cannot be read.
        """
        try:
            await self._host.know(request.stream, (request.partition,))
        except StrandlineError as error:
            raise PublishRejectedError(pb.PublishAsyncError.INTERNAL, error.message) from error

    def _resolve(self, request: pb.PublishRequest) -> PublishTarget:
        """Return the target of a publish.

        Raises:
            PublishRejectedError: the target does not exist, or does not accept the publish.
        """
        stream = self._host.stream(request.stream)
        if stream is None:
            text = f"no such stream: {request.stream}"
            raise PublishRejectedError(pb.PublishAsyncError.NOT_FOUND, text)
        if is_internal(request.stream):
            raise PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, "Stream is reserved")
        number = request.partition
        if not 0 <= number < len(stream.partitions):
            raise PublishRejectedError(
                pb.PublishAsyncError.NOT_FOUND, f"no such partition: {number}"
            )
        partition = stream.partitions[number]
        if isinstance(partition.blocked_by, ReadonlyError):
            raise PublishRejectedError(
                pb.PublishAsyncError.READONLY, f"readonly partition: {number}"
            )
        config = stream.config
        if config.optimistic_concurrency and request.ackPolicy == pb.NONE:
            text = "stream with concurrency control must have AckPolicy set"
            raise PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, text)
        if config.optimistic_concurrency and request.expectedOffset < UNCHECKED:
            raise PublishRejectedError(pb.PublishAsyncError.INCORRECT_OFFSET, INCORRECT_OFFSET)
        subject = default_subject(config.subject)
        subject = f"{subject}.{number}" if number else subject
        record = _record(request, partition.name, subject, wakes=True)
        return PublishTarget(partition, config.subject, record)

    async def _resume_paused(self, aimed: PublishTarget) -> PublishTarget:
        """Resume a paused partition; if the publish is forwarded, leave that to the leader."""
        is_paused = isinstance(aimed.partition.blocked_by, PausedError)
        if not is_paused or self._is_forwarded(aimed.partition):
            return aimed
        try:
            await self._host.wake(aimed.partition)
        except UnknownStreamError as error:
            raise refused(error, aimed.partition.name.partition) from error
        except StrandlineError as error:
            text = f"failed to resume stream: {error.message}"
            raise PublishRejectedError(pb.PublishAsyncError.INTERNAL, text) from error
        return aimed

    def _append(
        self,
        request: pb.PublishRequest,
        aimed: PublishTarget,
        ack_sink: SingleAck | AckStream | None,
    ) -> None:
        checks = aimed.partition.config.optimistic_concurrency
        expected = request.expectedOffset if checks else UNCHECKED
        self._store(
            aimed.partition,
            aimed.record,
            ack_sink,
            token=Receipt(
                request,
                self._host,
                subject=aimed.record.subject,
                stream_subject=aimed.stream_subject,
            ),
            expects=checks,
            expected=None if expected == UNCHECKED else expected,
            acks=acks_of(request.ackPolicy),
        )

    def _store(
        self,
        partition: PartitionPort,
        record: PendingForward,
        ack_sink: SingleAck | AckStream | None,
        *,
        token: Receipt,
        expects: bool,
        expected: int | None,
        acks: Acks | None,
    ) -> None:
        """Append the record here, or forward it if another broker leads or forwards precede it."""
        if self._forwarder is not None and self._is_forwarded(partition):
            self._forwarder.append(
                record, ack_sink=ack_sink, token=token, expects=expects, expected=expected
            )
            return
        partition.append(
            record.value,
            subject=record.subject,
            key=record.key,
            headers=record.headers,
            ack_sink=ack_sink,
            token=token,
            message_id=record.message_id,
            expected_last=expected,
            acks=acks,
        )

    def _is_forwarded(self, partition: PartitionPort) -> bool:
        """Return whether another broker leads, or earlier publishes are still being forwarded."""
        forwarder = self._forwarder
        return forwarder is not None and (
            self._host.leader(partition) != self._host.me or forwarder.is_busy_with(partition.name)
        )

    # Publishes to a subject

    async def publish_to_subject(
        self, request: pb.PublishToSubjectRequest, call: Call
    ) -> pb.PublishToSubjectResponse:
        """Store a message in every stream bound to a subject; return the first ack."""
        targets = await self._targets(request.subject)
        waits = request.ackPolicy != pb.NONE and call.timeout_s is not None
        waiting = SingleAck(0, due=len(targets)) if waits else None
        try:
            for target in targets:
                self._store_in(target, request, waiting)
        except PublishRejectedError as error:
            raise error.status from error
        if waiting is None:
            return pb.PublishToSubjectResponse()
        try:
            # As in NATS, there is no answer without a stream: the deadline ends the call.
            return pb.PublishToSubjectResponse(ack=await waiting.answer)
        except PublishRejectedError as error:
            ack = pb.Ack(
                ackInbox=request.ackInbox,
                correlationId=request.correlationId,
                ackPolicy=request.ackPolicy,
                msgSubject=request.subject,
                ackError=_ACK_ERRORS.get(error.code, pb.Ack.UNKNOWN),
            )
            return pb.PublishToSubjectResponse(ack=ack)

    async def _targets(self, subject: str) -> Sequence[Target]:
        """Return the streams bound to a subject; if none, look again in the newest metadata.

        Raises:
            RpcError: the subject is malformed.
            UnavailableError: the newest metadata cannot be read.
        """
        try:
            if targets := self._routes.route(subject.encode()).targets():
                return targets
            await self._host.know_newest()
            return self._routes.route(subject.encode()).targets()
        except InvalidSubjectError:
            raise RpcError(GrpcStatus.UNKNOWN, "nats: invalid subject") from None

    def _store_in(
        self, target: Target, request: pb.PublishToSubjectRequest, ack_sink: SingleAck | None
    ) -> None:
        partition = target.partition_for(request.key or None, _message_id(request.headers))
        receipt = Receipt(
            request, self._host, subject=request.subject, stream_subject=target.stream_subject
        )
        self._store(
            partition,
            _record(request, partition.name, request.subject, wakes=False),
            ack_sink,
            token=receipt,
            expects=target.checks_offsets,
            expected=0 if target.checks_offsets else None,
            acks=acks_of(request.ackPolicy),
        )


_ACK_ERRORS: Final[dict[Any, Any]] = {
    pb.PublishAsyncError.INCORRECT_OFFSET: pb.Ack.INCORRECT_OFFSET,
    pb.PublishAsyncError.BAD_REQUEST: pb.Ack.TOO_LARGE,
    pb.PublishAsyncError.ENCRYPTION_FAILED: pb.Ack.ENCRYPTION,
}


def _record(
    request: pb.PublishRequest | pb.PublishToSubjectRequest,
    partition: PartitionName,
    subject: str,
    *,
    wakes: bool,
) -> PendingForward:
    """Return a request's record, ready to be stored or forwarded.

    Raises:
        PublishRejectedError: the headers or the message id are invalid.
    """
    headers = checked_headers(request.headers)
    return PendingForward(
        partition,
        request.value,
        subject=subject,
        key=request.key or None,
        headers=headers,
        message_id=_message_id(request.headers) if headers else None,
        wakes=wakes,
    )


def acks_of(policy: Any) -> Acks | None:
    """Return the ack level of an ack policy; None for the stream's own level."""
    return "disk" if policy == pb.LEADER else None


def checked_headers(headers: Any) -> Headers | None:
    """Return a request's headers in the form that a record has.

    Raises:
        PublishRejectedError: there are too many headers, or a name is too long.
    """
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        text = f"{len(headers)} headers; at most {HEADERS_MAX} are taken"
        raise PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, text)
    if any(not name or len(name.encode()) > HEADER_NAME_BYTES_MAX for name in headers):
        text = f"a header's name has 1 to {HEADER_NAME_BYTES_MAX} bytes"
        raise PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, text)
    return list(headers.items())


def _message_id(headers: Any) -> str | None:
    """Return the message id in the headers, by which a retry is recognised.

    Raises:
        PublishRejectedError: the message id is not UTF-8 or too long.
    """
    raw = headers.get(MESSAGE_ID_HEADER, b"")
    if len(raw) > MESSAGE_ID_BYTES_MAX:
        text = f"the header {MESSAGE_ID_HEADER} has at most {MESSAGE_ID_BYTES_MAX} bytes"
        raise PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, text)
    try:
        return raw.decode() or None
    except UnicodeDecodeError as error:
        text = f"the header {MESSAGE_ID_HEADER} is not UTF-8"
        raise PublishRejectedError(pb.PublishAsyncError.BAD_REQUEST, text) from error

"""Publishing: one message and its ack, many on one stream, and to a subject.

Rules: an ack is sent when the record is as safe as its policy says: LEADER, on the leader's disk;
ALL, on every replica in sync. Nobody waits where Liftbridge does not (policy NONE, or a call
without a deadline). A stream of publishes never ends by itself: its clients take an end for good.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from strandline.api.routing import default_subject
from strandline.broker.internal import is_internal
from strandline.broker.routing import PartitionPort, RouteTable, Target, stream_bindings
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
from strandline.servers.forwarding import ForwarderPort, PendingForward
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.acks import (
    INCORRECT_OFFSET,
    AckStream,
    PublishRefusedError,
    Receipt,
    SingleAck,
    refused,
)
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.liftbridge.permissions import allow
from strandline.servers.grpc.methods import parsed
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import PartitionName

HEADERS_MAX: Final = 4096
FINISH_TIMEOUT_S: Final = 5.0
"""How long a stream of publishes waits for its last acks."""
UNANSWERED_MAX: Final = 100_000
"""Publishes of one stream whose ack is due; no more are taken until some are answered."""
UNCHECKED: Final = -1
"""The expected offset of who expects nothing."""


class PublishTarget(NamedTuple):
    """Where a publish goes, and what is stored there."""

    partition: Partition
    stream_subject: str
    record: PendingForward


class PublishCalls:
    """The rpcs that publish.

    Args:
        host: shared.
        forwarder: in a cluster: for what others lead.
    """

    def __init__(self, host: Host, forwarder: ForwarderPort | None) -> None:
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
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "no stream provided")
        await self._host.know(request.stream, (request.partition,))
        try:
            aim = await self._awake(self._aim(request))
            if request.ackPolicy == pb.NONE or call.timeout_s is None:
                self._append(request, aim, None)
                return pb.PublishResponse()
            waiting = SingleAck(request.partition)
            self._append(request, aim, waiting)
            return pb.PublishResponse(ack=await waiting.answer)
        except PublishRefusedError as error:
            raise error.status from error

    async def publish_many(self, call: Call) -> None:
        """Store messages as they come and send their acks as they are due."""
        acks = AckStream(call)
        while messages := await call.receive():
            for data in messages:
                request = parsed(pb.PublishRequest, data)
                try:
                    allow(call.caller, "Publish", request)
                except RpcError as denied:
                    code = pb.PublishAsyncError.PERMISSION_DENIED
                    acks.refuse(request.correlationId, PublishRefusedError(code, denied.text))
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
            aim = self._aim(request)
            if aim.partition.barred_by is not None:
                aim = await self._awake(aim)
            if self._forwarder is not None and self._is_handed_on(aim.partition):
                await self._forwarder.room()
            if request.ackPolicy == pb.NONE:
                self._append(request, aim, None)
                return
            acks.unanswered += 1
            self._append(request, aim, acks)
        except PublishRefusedError as error:
            acks.refuse(request.correlationId, error)

    async def _know(self, request: pb.PublishRequest) -> None:
        """As ``Host.know``.

        Raises:
            PublishRefusedError: nobody says what was decided.
        """
        try:
            await self._host.know(request.stream, (request.partition,))
        except StrandlineError as error:
            raise PublishRefusedError(pb.PublishAsyncError.INTERNAL, error.message) from error

    def _aim(self, request: pb.PublishRequest) -> PublishTarget:
        """Where it goes, if it may.

        Raises:
            PublishRefusedError: it may not.
        """
        stream = self._host.stream(request.stream)
        if stream is None:
            text = f"no such stream: {request.stream}"
            raise PublishRefusedError(pb.PublishAsyncError.NOT_FOUND, text)
        if is_internal(request.stream):
            raise PublishRefusedError(pb.PublishAsyncError.BAD_REQUEST, "Stream is reserved")
        number = request.partition
        if not 0 <= number < len(stream.partitions):
            raise PublishRefusedError(
                pb.PublishAsyncError.NOT_FOUND, f"no such partition: {number}"
            )
        partition = stream.partitions[number]
        if isinstance(partition.barred_by, ReadonlyError):
            raise PublishRefusedError(
                pb.PublishAsyncError.READONLY, f"readonly partition: {number}"
            )
        config = stream.config
        if config.optimistic_concurrency and request.ackPolicy == pb.NONE:
            text = "stream with concurrency control must have AckPolicy set"
            raise PublishRefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
        if config.optimistic_concurrency and request.expectedOffset < UNCHECKED:
            raise PublishRefusedError(pb.PublishAsyncError.INCORRECT_OFFSET, INCORRECT_OFFSET)
        subject = default_subject(config.subject)
        subject = f"{subject}.{number}" if number else subject
        record = _record(request, partition.name, subject, wakes=True)
        return PublishTarget(partition, config.subject, record)

    async def _awake(self, aim: PublishTarget) -> PublishTarget:
        """The aim, once its partition is not paused; what is handed on wakes it where it goes."""
        is_paused = isinstance(aim.partition.barred_by, PausedError)
        if not is_paused or self._is_handed_on(aim.partition):
            return aim
        try:
            await self._host.wake(aim.partition)
        except UnknownStreamError as error:
            raise refused(error, aim.partition.name.partition) from error
        except StrandlineError as error:
            text = f"failed to resume stream: {error.message}"
            raise PublishRefusedError(pb.PublishAsyncError.INTERNAL, text) from error
        return aim

    def _append(
        self,
        request: pb.PublishRequest,
        aim: PublishTarget,
        ack_sink: SingleAck | AckStream | None,
    ) -> None:
        checks = aim.partition.config.optimistic_concurrency
        expected = request.expectedOffset if checks else UNCHECKED
        self._store(
            aim.partition,
            aim.record,
            ack_sink,
            token=Receipt(
                request,
                self._host,
                subject=aim.record.subject,
                stream_subject=aim.stream_subject,
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
        """Append here, or let the leader do it, behind what it is handed already."""
        if self._forwarder is not None and self._is_handed_on(partition):
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

    def _is_handed_on(self, partition: PartitionPort) -> bool:
        """Whether the leader is another broker, or is still handed what came before."""
        forwarder = self._forwarder
        return forwarder is not None and (
            self._host.leader(partition) != self._host.me or forwarder.is_busy_with(partition.name)
        )

    # To a subject

    async def publish_to_subject(
        self, request: pb.PublishToSubjectRequest, call: Call
    ) -> pb.PublishToSubjectResponse:
        """Store a message in every stream that records a subject; the first ack counts."""
        targets = await self._targets(request.subject)
        waits = request.ackPolicy != pb.NONE and call.timeout_s is not None
        waiting = SingleAck(0, due=len(targets)) if waits else None
        try:
            for target in targets:
                self._store_in(target, request, waiting)
        except PublishRefusedError as error:
            raise error.status from error
        if waiting is None:
            return pb.PublishToSubjectResponse()
        try:
            # If nobody records it nobody answers, as with NATS, and the deadline ends this.
            return pb.PublishToSubjectResponse(ack=await waiting.answer)
        except PublishRefusedError as error:
            ack = pb.Ack(
                ackInbox=request.ackInbox,
                correlationId=request.correlationId,
                ackPolicy=request.ackPolicy,
                msgSubject=request.subject,
                ackError=_ACK_ERRORS.get(error.code, pb.Ack.UNKNOWN),
            )
            return pb.PublishToSubjectResponse(ack=ack)

    async def _targets(self, subject: str) -> Sequence[Target]:
        """Where a subject is recorded; before that is nowhere, what was decided is heard of.

        Raises:
            RpcError: it is no subject.
            UnavailableError: nobody says what was decided.
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
    """What is stored.

    Raises:
        PublishRefusedError: its headers are none that a record may have, or its message id is none.
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
    """What an ack of this policy survives; None: the most the stream can give."""
    return "disk" if policy == pb.LEADER else None


def checked_headers(headers: Any) -> Headers | None:
    """A publish's headers as a record keeps them.

    Raises:
        PublishRefusedError: too many, or a name that is too long.
    """
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        text = f"{len(headers)} headers; at most {HEADERS_MAX} are taken"
        raise PublishRefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
    if any(not name or len(name.encode()) > HEADER_NAME_BYTES_MAX for name in headers):
        text = f"a header's name has 1 to {HEADER_NAME_BYTES_MAX} bytes"
        raise PublishRefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
    return list(headers.items())


def _message_id(headers: Any) -> str | None:
    """As for publishes through NATS: what makes a retry the same record.

    Raises:
        PublishRefusedError: it is not UTF-8 or too long, and could not be handed on to the leader.
    """
    raw = headers.get(MESSAGE_ID_HEADER, b"")
    if len(raw) > MESSAGE_ID_BYTES_MAX:
        text = f"the header {MESSAGE_ID_HEADER} has at most {MESSAGE_ID_BYTES_MAX} bytes"
        raise PublishRefusedError(pb.PublishAsyncError.BAD_REQUEST, text)
    try:
        return raw.decode() or None
    except UnicodeDecodeError as error:
        text = f"the header {MESSAGE_ID_HEADER} is not UTF-8"
        raise PublishRefusedError(pb.PublishAsyncError.BAD_REQUEST, text) from error

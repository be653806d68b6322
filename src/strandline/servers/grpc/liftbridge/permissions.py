"""The permissions that each rpc of Liftbridge's API needs, in one table.

Rules: an rpc that is not in the table cannot be served. Every name in a request is checked, not
only the first. Objects that the caller may not see are described as unknown. A denial has the
status PERMISSION_DENIED and Liftbridge's text, which clients compare.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from strandline.api.required_permissions import (
    Need,
    group,
    known_stream,
    needs_of_stream,
    stream,
    subject,
)
from strandline.broker.access import Caller
from strandline.config import StreamConfig
from strandline.errors import NotAllowedError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.status import GrpcStatus, RpcError

Needs = Callable[[Any], Iterable[Need]]


def _create(request: pb.CreateStreamRequest) -> Iterator[Need]:
    return needs_of_stream(
        StreamConfig(
            name=request.name,
            subject=request.subject,
            partitions=max(1, request.partitions),
            partition_by="suffix",
            queue_group=request.group,
        )
    )


def _subscribe(request: pb.SubscribeRequest) -> Iterator[Need]:
    yield stream(request.stream, "read")
    if request.consumer.groupId:
        yield group(request.consumer.groupId)


def _cursor(request: pb.SetCursorRequest | pb.FetchCursorRequest) -> Iterator[Need]:
    yield stream(request.stream, "read")
    yield group(request.cursorId)


def _join(request: pb.JoinConsumerGroupRequest) -> Iterator[Need]:
    yield group(request.groupId)
    for name in request.streams:
        yield stream(name, "read")


def _group(request: Any) -> Iterator[Need]:
    yield group(request.groupId)


def _administer(request: Any) -> Iterator[Need]:
    yield stream(request.name, "admin")


def _in_band(_: Any) -> Iterable[Need]:
    """Return no permissions: each message is checked as for ``Publish``, and denied in band."""
    return ()


def _shown(_: Any) -> Iterable[Need]:
    """Return no permissions: any known principal may call; the answer omits hidden objects."""
    return ()


NEEDS: Final[Mapping[str, Needs]] = {
    "CreateStream": _create,
    "DeleteStream": _administer,
    "PauseStream": _administer,
    "SetStreamReadonly": _administer,
    "Subscribe": _subscribe,
    "FetchMetadata": _shown,
    "FetchPartitionMetadata": lambda request: (known_stream(request.stream),),
    "Publish": lambda request: (stream(request.stream, "publish"),),
    "PublishAsync": _in_band,
    "PublishToSubject": lambda request: (subject(request.subject, "publish"),),
    "SetCursor": _cursor,
    "FetchCursor": _cursor,
    "JoinConsumerGroup": _join,
    "LeaveConsumerGroup": _group,
    "FetchConsumerGroupAssignments": _group,
    "ReportConsumerGroupCoordinator": _group,
}
"""Rpc → the permissions that its request needs; a rule must also name the caller."""


def allow(caller: Caller, method: str, request: Any) -> None:
    """Check that the caller may make a request.

    Raises:
        RpcError: the caller lacks a permission.
        UnauthenticatedError: the caller's token is no longer valid.
    """
    for need in NEEDS[method](request):
        try:
            caller.check(need.resource, *need.operations)
        except NotAllowedError as error:
            raise RpcError(GrpcStatus.PERMISSION_DENIED, denial(method, need)) from error


def denial(method: str, need: Need) -> str:
    """Return Liftbridge's text for a denial."""
    return f"The client is not authorized to call {method} on resource {need.resource.name}"


def checked(
    method: str, handle: Callable[[Any, Call], Awaitable[Any]]
) -> Callable[[Any, Call], Awaitable[Any]]:
    """Return a handler that first checks the caller's permissions."""

    async def run(request: Any, call: Call) -> Any:
        allow(call.caller, method, request)
        return await handle(request, call)

    return run

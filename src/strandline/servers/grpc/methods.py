"""The ways to serve rpcs: a coroutine per call, or a sink for its messages."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from strandline.servers.grpc.calls import Call, MessageSink
from strandline.servers.grpc.status import GrpcStatus, RpcError

MessageT = TypeVar("MessageT", bound=Message)
Handler = Callable[[Call], Awaitable[None]]


class Method(NamedTuple):
    """A rpc served by a coroutine per call."""

    handle: Handler
    message_bytes_max: int = 4 << 20


class Direct(NamedTuple):
    """A rpc served by a sink that gets messages directly, without a task."""

    open: Callable[[Call], MessageSink]
    message_bytes_max: int = 4 << 20


def parsed(kind: type[MessageT], data: bytes) -> MessageT:
    """Parse a message.

    Raises:
        RpcError: the bytes are not such a message.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        text = f"not a {kind.DESCRIPTOR.full_name}: {error}"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text) from error
    return message


def unary(kind: type[Any], handle: Callable[[Any, Call], Awaitable[Message]]) -> Method:
    """Return a method that answers one message with one."""

    async def run(call: Call) -> None:
        call.send(await handle(parsed(kind, await call.receive_one()), call))

    return Method(run)


def server_stream(kind: type[Any], handle: Callable[[Any, Call], Awaitable[None]]) -> Method:
    """Return a method that answers one message with many."""

    async def run(call: Call) -> None:
        await handle(parsed(kind, await call.receive_one()), call)

    return Method(run)

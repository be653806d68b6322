"""The two ways to serve an rpc: by a coroutine per call, or by a sink for its messages."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from strandline.servers.grpc.calls import Call, MessageSink
from strandline.servers.grpc.status import GrpcStatus, RpcError

MessageT = TypeVar("MessageT", bound=Message)
Handler = Callable[[Call], Awaitable[None]]


class Method(NamedTuple):
    """An rpc that a coroutine per call serves."""

    handle: Handler
    message_bytes_max: int = 4 << 20


class Direct(NamedTuple):
    """An rpc that a sink serves, which gets the messages directly, without a task."""

    open: Callable[[Call], MessageSink]
    message_bytes_max: int = 4 << 20


def parsed(kind: type[MessageT], data: bytes) -> MessageT:
    """Parse a protobuf message.

    Raises:
        RpcError: the bytes are not a message of this kind.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        text = f"not a {kind.DESCRIPTOR.full_name}: {error}"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text) from error
    return message


def unary(kind: type[Any], handle: Callable[[Any, Call], Awaitable[Message]]) -> Method:
    """Return a method that answers one message with one message."""

    async def run(call: Call) -> None:
        call.send(await handle(parsed(kind, await call.receive_one()), call))

    return Method(run)


def server_stream(kind: type[Any], handle: Callable[[Any, Call], Awaitable[None]]) -> Method:
    """Return a method that answers one message with a stream of messages."""

    async def run(call: Call) -> None:
        await handle(parsed(kind, await call.receive_one()), call)

    return Method(run)

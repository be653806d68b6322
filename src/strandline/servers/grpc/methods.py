"""How rpcs are served: by a coroutine of each call, or by an object that takes its messages."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from strandline.servers.grpc.calls import Call, MessageSink
from strandline.servers.grpc.status import GrpcStatus, RpcError

MessageT = TypeVar("MessageT", bound=Message)
Handler = Callable[[Call], Awaitable[None]]


class Method(NamedTuple):
    """How a rpc is served."""

    handle: Handler
    message_bytes_max: int = 4 << 20


class Direct(NamedTuple):
    """How a rpc is served whose messages go straight to who takes them, without a task."""

    open: Callable[[Call], MessageSink]
    message_bytes_max: int = 4 << 20


def parsed(kind: type[MessageT], data: bytes) -> MessageT:
    """A message of a type.

    Raises:
        RpcError: it is not one.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        text = f"not a {kind.DESCRIPTOR.full_name}: {error}"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text) from error
    return message


def unary(kind: type[Any], handle: Callable[[Any, Call], Awaitable[Message]]) -> Method:
    """A method that answers one message with one."""

    async def run(call: Call) -> None:
        call.send(await handle(parsed(kind, await call.receive_one()), call))

    return Method(run)


def server_stream(kind: type[Any], handle: Callable[[Any, Call], Awaitable[None]]) -> Method:
    """A method that answers one message with many."""

    async def run(call: Call) -> None:
        await handle(parsed(kind, await call.receive_one()), call)

    return Method(run)

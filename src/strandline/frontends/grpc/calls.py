"""One call: messages in, messages out, a status at the end.

Rules: on the loop's thread only. What is sent is queued and leaves with the connection's next
flush, many messages in one HTTP/2 frame. Who sends much awaits ``drain``; who receives slowly is
sent no more than the stream's window.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from strandline.frontends.grpc.framing import Deframer, framed
from strandline.frontends.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from strandline.frontends.grpc.connection import Connection

OUTPUT_BYTES_HIGH = 512 << 10
INPUT_BYTES_HIGH = 1 << 20

MessageT = TypeVar("MessageT", bound=Message)
Handler = Callable[["Call"], Awaitable[None]]


class Method(NamedTuple):
    """How a rpc is served."""

    handle: Handler
    message_bytes_max: int = 4 << 20


class Call:
    """A rpc under way.

    Args:
        connection: which carries it.
        stream_id: of HTTP/2.
        method: what is called.
        timeout_s: until the caller gives up; None: never.
    """

    __slots__ = (
        "_arrived",
        "_connection",
        "_deframer",
        "_drained",
        "_held_bytes",
        "_queue",
        "_queued_bytes",
        "has_begun",
        "input_ended",
        "output",
        "output_at",
        "status",
        "stream_id",
        "task",
        "text",
        "timeout_s",
        "timer",
    )

    def __init__(
        self, connection: "Connection", stream_id: int, *, method: Method, timeout_s: float | None
    ) -> None:
        self.stream_id = stream_id
        self.timeout_s = timeout_s
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.has_begun = False
        """Whether the response's headers were sent."""
        self.input_ended = False
        self.status: Status | None = None
        """How it ended; None while it goes on."""
        self.text = ""
        self.output = bytearray()
        self.output_at = 0
        self._connection = connection
        self._deframer = Deframer(method.message_bytes_max)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = self._held_bytes = 0
        self._arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # In

    def feed(self, data: bytes, flow_bytes: int) -> int:
        """Take data of the stream; how much of it the sender may send anew.

        Raises:
            RpcError: it is no message that is taken here.
        """
        messages = self._deframer.feed(data)
        for message in messages:
            self._queue.append(message)
            self._queued_bytes += len(message)
        if messages:
            self._wake()
        if self._queued_bytes <= INPUT_BYTES_HIGH:
            return flow_bytes
        self._held_bytes += flow_bytes
        return 0

    def end_input(self) -> None:
        """The caller has sent everything."""
        self.input_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def receive(self) -> list[bytes]:
        """All messages that came since, at least one; none when there will be no more."""
        while not self._queue and not self.input_ended:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        messages = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        if self._held_bytes:
            self._connection.release(self, self._held_bytes)
            self._held_bytes = 0
        return messages

    async def receive_one(self) -> bytes:
        """The one message of a call that has one.

        Raises:
            RpcError: there was none.
        """
        messages = await self.receive()
        if len(messages) != 1:
            raise RpcError(Status.INVALID_ARGUMENT, "this call takes one message")
        return messages[0]

    # Out

    def send(self, message: Message) -> None:
        """Queue a message."""
        self.send_framed(framed(message.SerializeToString()))

    def send_framed(self, data: bytes | bytearray) -> None:
        """Queue messages that have their prefixes."""
        if self.status is None:
            self.output += data
            self._connection.mark(self)

    async def drain(self) -> None:
        """Wait while more is queued than should be."""
        while self.pending_bytes > OUTPUT_BYTES_HIGH:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    @property
    def pending_bytes(self) -> int:
        """Queued and not yet sent."""
        return len(self.output) - self.output_at

    def taken(self, count: int) -> bytes:
        """The next bytes to send."""
        end = self.output_at + count
        data = bytes(memoryview(self.output)[self.output_at : end])
        self.output_at = end
        if end == len(self.output):
            self.output = bytearray()
            self.output_at = 0
        if self.pending_bytes <= OUTPUT_BYTES_HIGH // 2:
            drained = self._drained
            if drained is not None and not drained.done():
                drained.set_result(None)
        return data

    def finish(self, status: Status, text: str = "") -> None:
        """End it once what is queued was sent."""
        if self.status is None:
            self.status, self.text = status, text
            self._connection.mark(self)

    def abort(self, error: RpcError) -> None:
        """End it from outside: its handler stops, if it has begun at all."""
        self.finish(error.status, error.text)
        if self.task is not None:
            self.task.cancel()


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
        raise RpcError(Status.INVALID_ARGUMENT, text) from error
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

"""A gRPC call: messages in, messages out, a status at the end.

A handler receives and sends messages. For speed it may instead be called for each message as it
arrives (``MessageSink``).

Rules: loop thread only. Output is queued and leaves with the connection's next flush, many messages
in one HTTP/2 frame. A handler that sends much awaits ``drain``; a slow client gets no more than the
stream's window.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import Message

from strandline.broker.access import Caller
from strandline.servers.grpc.grpc_messages import Deframer, framed
from strandline.servers.grpc.http2_frames import ReceiveWindow
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.servers.metering import WAIT_S_MAX, Allowance

if TYPE_CHECKING:
    from h2.stream import H2Stream

    from strandline.servers.grpc.connection import GrpcConnection

OUTPUT_BYTES_HIGH = 512 << 10
OUTPUT_BYTES_ALL = 32 << 20
"""What the calls of one connection may have queued together, about: a client that stands still has
as many as it likes."""
INPUT_BYTES_HIGH = 1 << 20
STREAM_WINDOW_BYTES = 1 << 20
ONE_MESSAGE: Final = "this call takes one message"
A_BUG: Final = "internal error; see the broker's log"


class MessageSink(Protocol):
    """A handler that is called for each message of a call, and ends it by ``Call.finish``."""

    @property
    def is_full(self) -> bool:
        """Whether the sender must wait; call ``Call.let_go`` when there is room again."""
        ...

    def take(self, messages: list[bytes]) -> None:
        """Handle messages.

        Raises:
            RpcError: the call ends.
        """
        ...

    def take_whole(self, buffer: bytes, start: int, end: int) -> bool:
        """Handle bytes that arrived after the last message, if they are exactly one message.

        Args:
            buffer: holds them.
            start: the index of the first byte (of a message's prefix).
            end: the index after the last byte.

        Returns:
            False if nothing was done; ``take`` gets the bytes again, with the rest of their
                message.

        Raises:
            RpcError: the call ends.
        """
        ...

    def end_input(self) -> None:
        """Handle the end of the input."""
        ...


class Call:
    """A rpc under way.

    Args:
        connection: the connection of the call.
        stream_id: the HTTP/2 stream id.
        message_bytes_max: the limit of one received message.
        timeout_s: the call's deadline in seconds; None: no deadline.
    """

    __slots__ = (
        "_arrived",
        "_connection",
        "_counted_bytes",
        "_deframer",
        "_drained",
        "_is_served",
        "_queue",
        "_queued_bytes",
        "_quota_timer",
        "_unmetered_bytes",
        "caller",
        "fast_path",
        "has_begun",
        "held_bytes",
        "input_ended",
        "is_measured",
        "output",
        "output_at",
        "publishes",
        "reads",
        "receive_window",
        "sink",
        "status",
        "stream",
        "stream_id",
        "task",
        "text",
        "timeout_s",
        "timer",
    )

    def __init__(
        self,
        connection: "GrpcConnection",
        stream_id: int,
        *,
        message_bytes_max: int,
        timeout_s: float | None,
    ) -> None:
        self.caller: Caller
        """Who calls; set before anything is served, so that nothing can be served without."""
        self.publishes: Allowance | None = None
        """What the caller may publish, if it is metered; the sender is held up accordingly."""
        self.reads: Allowance | None = None
        """What it may read, if that is."""
        self._quota_timer: asyncio.TimerHandle | None = None
        self._unmetered_bytes = 0
        """Queued since the last ``drain``."""
        self.stream_id = stream_id
        self.timeout_s = timeout_s
        self.task: asyncio.Task[None] | None = None
        self.sink: MessageSink | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.has_begun = False
        """Whether the response's headers were sent."""
        self.stream: H2Stream | None = None
        """h2's, from then on until it ends; what goes the short way needs no more."""
        self.fast_path = connection.fast_path
        self.input_ended = False
        self.status: GrpcStatus | None = None
        """How it ended; None while it goes on."""
        self.text = ""
        self.output = bytearray()
        self.output_at = 0
        self._connection = connection
        self._deframer = Deframer(message_bytes_max)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._counted_bytes = 0
        """Of what came and was not taken yet, as the listener counts it."""
        self._is_served = False
        """Whether the one message of the call was taken, so that no more may come."""
        self.receive_window = ReceiveWindow(STREAM_WINDOW_BYTES)
        self.held_bytes = 0
        """That the sender may not send anew yet."""
        self.is_measured = False
        """Whether its data go through h2, which compares them with their announced length."""
        self._arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # Input

    def feed(self, data: bytes, flow_bytes: int) -> bool:
        """Handle data of the stream; return whether the sender may send as much again at once.

        Raises:
            RpcError: the message is invalid or one too many, or too much input is waiting.
        """
        if self._is_served and data:  # some clients end with an empty frame
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, ONE_MESSAGE)
        messages = self._deframer.feed(data)
        sink = self.sink
        if sink is not None:
            if messages:
                sink.take(messages)
            is_full = sink.is_full or len(self.output) - self.output_at > OUTPUT_BYTES_HIGH
        else:
            self._queue.extend(messages)
            self._queued_bytes += sum(map(len, messages))
            if messages:
                self._wake()
            is_full = self._queued_bytes > INPUT_BYTES_HIGH
        self._count()
        if self.publishes is not None:
            self._hold(self.publishes.publish(len(data)))
        is_full = is_full or self._quota_timer is not None
        if is_full:
            self.held_bytes += flow_bytes
        return not is_full

    def _count(self) -> None:
        """Update the sum of waiting input on all connections, which is limited.

        Raises:
            RpcError: the limit is exceeded.
        """
        size = self._queued_bytes + self._deframer.buffered_bytes
        if size != self._counted_bytes:
            more, self._counted_bytes = size - self._counted_bytes, size
            self._connection.count_buffered(more)

    @property
    def is_between(self) -> bool:
        """Return whether the sink waits for its next message, which nothing else must see."""
        return (
            self.sink is not None
            and self._deframer.is_between
            and not (self.held_bytes or self.is_measured or self.input_ended)
            and self.status is None
            and self.publishes is None
        )

    def end_input(self) -> None:
        """Record that the caller has sent everything."""
        self.input_ended = True
        if self.sink is not None and self.status is None:
            self.sink.end_input()
        self._wake()

    def let_go(self) -> None:
        """Let the sender continue, unless a quota still holds it."""
        if self.held_bytes and self._quota_timer is None:
            held, self.held_bytes = self.held_bytes, 0
            self._connection.release(self, held)

    def _hold(self, wait_s: float) -> None:
        """Stop the sender for a while, except for what it may already send."""
        if not wait_s:
            return
        if self._quota_timer is not None:
            self._quota_timer.cancel()
        loop = asyncio.get_running_loop()
        self._quota_timer = loop.call_later(wait_s, self._held_long_enough, wait_s)

    def _held_long_enough(self, wait_s: float) -> None:
        self._quota_timer = None
        if wait_s >= WAIT_S_MAX and self.publishes is not None and self.status is None:
            self._hold(self.publishes.publish(0))
            if self._quota_timer is not None:
                return
        if self._queued_bytes <= INPUT_BYTES_HIGH and not (self.sink and self.sink.is_full):
            self.let_go()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def receive(self) -> list[bytes]:
        """Return the messages received since, at least one; none at the end of the input."""
        while not self._queue and not self.input_ended:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        messages = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._count()
        self.let_go()
        return messages

    async def receive_one(self) -> bytes:
        """Return the only message of a unary call.

        Raises:
            RpcError: there was no message.
        """
        messages = await self.receive()
        if len(messages) != 1:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, ONE_MESSAGE)
        self._is_served = True
        return messages[0]

    # Output

    def begun(self, stream: "H2Stream") -> None:
        """Record that the response's headers were sent."""
        self.has_begun = True
        if self.status is None and self.reads is None:
            self.stream = stream

    def send(self, message: Message) -> None:
        """Queue a message."""
        self.send_framed(framed(message.SerializeToString()))

    def send_framed(self, data: bytes | bytearray) -> None:
        """Queue messages that have their framing already."""
        if self.status is None:
            if self.reads is not None:
                self._unmetered_bytes += len(data)
            self.output += data
            self._connection.mark(self)

    @property
    def share_bytes(self) -> int:
        """Return about how many bytes of this call may be queued or sent at once."""
        return min(OUTPUT_BYTES_HIGH, OUTPUT_BYTES_ALL // max(1, self._connection.busy))

    async def drain(self) -> None:
        """Wait while more is queued than allowed, or while a quota requires it."""
        if self.reads is not None and self._unmetered_bytes:
            size, self._unmetered_bytes = self._unmetered_bytes, 0
            wait_s = self.reads.read(size)
            while wait_s:
                await asyncio.sleep(wait_s)
                wait_s = self.reads.read(0) if wait_s >= WAIT_S_MAX else 0.0
        while self.pending_bytes > self.share_bytes:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    @property
    def pending_bytes(self) -> int:
        """The bytes that are queued and not sent."""
        return len(self.output) - self.output_at

    def taken(self, count: int) -> bytes | bytearray:
        """Return the next bytes to send."""
        data: bytes | bytearray
        if count == len(self.output):
            data, self.output = self.output, bytearray()
            if self._drained is None and not self.held_bytes:
                return data
        else:
            end = self.output_at + count
            data = bytes(memoryview(self.output)[self.output_at : end])
            self.output_at = end
            if end == len(self.output):
                self.output = bytearray()
                self.output_at = 0
        if self.pending_bytes <= OUTPUT_BYTES_HIGH // 2:
            self._has_drained()
        return data

    def _has_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.held_bytes and self.sink is not None and not self.sink.is_full:
            self.let_go()

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the call after the queued output."""
        if self.status is None:
            self.status, self.text, self.stream = status, text, None
            if self.timer is not None:
                self.timer.cancel()
            self._drop_input()
            self._connection.mark(self)

    def _drop_input(self) -> None:
        """Drop input that was not handled."""
        self._queue.clear()
        self._queued_bytes = 0
        self._deframer.clear()
        self._count()

    def fail(self) -> None:
        """End the call because of a bug."""
        self.finish(GrpcStatus.INTERNAL, A_BUG)

    def give_up(self, text: str) -> None:
        """Stop the call and drop its output, which can no longer be sent."""
        self.abort(RpcError(GrpcStatus.CANCELLED, text))
        self.output, self.output_at = bytearray(), 0

    def abort(self, error: RpcError) -> None:
        """End the call from outside; its handler is cancelled if it has started."""
        self.finish(error.status, error.text)
        if self.task is not None:
            self.task.cancel()

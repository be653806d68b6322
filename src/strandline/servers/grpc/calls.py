"""One call: messages in, messages out, a status at the end.

Who serves it receives and sends or, where each message is to cost little, is handed messages as
they come (``MessageSink``).

Rules: on the loop's thread only. What is sent is queued and leaves with the connection's next
flush, many messages in one HTTP/2 frame. Who sends much awaits ``drain``; who receives slowly is
sent no more than the stream's window.
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
    """Takes the messages of one call as they come, and ends it by ``Call.finish``."""

    @property
    def is_full(self) -> bool:
        """Whether the sender is to wait; who has room again says so by ``Call.let_go``."""
        ...

    def take(self, messages: list[bytes]) -> None:
        """Messages have come.

        Raises:
            RpcError: the call ends.
        """
        ...

    def take_whole(self, buffer: bytes, start: int, end: int) -> bool:
        """Bytes have come behind the last message; take them if they are one whole message.

        Args:
            buffer: holds them.
            start: of them; of the prefix, if they are a message.
            end: of them.

        Returns:
            False: nothing was done, and they come again by ``take``, with what belongs to them.

        Raises:
            RpcError: the call ends.
        """
        ...

    def end_input(self) -> None:
        """There will be no more."""
        ...


class Call:
    """A rpc under way.

    Args:
        connection: which carries it.
        stream_id: of HTTP/2.
        message_bytes_max: of one message that comes.
        timeout_s: until the caller gives up; None: never.
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
        "inflow",
        "input_ended",
        "is_measured",
        "output",
        "output_at",
        "publishes",
        "reads",
        "status",
        "stream",
        "stream_id",
        "taker",
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
        self.taker: MessageSink | None = None
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
        self.inflow = ReceiveWindow(STREAM_WINDOW_BYTES)
        self.held_bytes = 0
        """That the sender may not send anew yet."""
        self.is_measured = False
        """Whether its data go through h2, which compares them with their announced length."""
        self._arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # In

    def feed(self, data: bytes, flow_bytes: int) -> bool:
        """Take data of the stream; whether the sender may send as much anew at once.

        Raises:
            RpcError: it is no message that is taken here, or one too many, or too much waits.
        """
        if self._is_served and data:  # some clients end with a frame that is empty
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, ONE_MESSAGE)
        messages = self._deframer.feed(data)
        taker = self.taker
        if taker is not None:
            if messages:
                taker.take(messages)
            is_full = taker.is_full or len(self.output) - self.output_at > OUTPUT_BYTES_HIGH
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
        """Keep the sum of what waits on all connections, which is limited.

        Raises:
            RpcError: it has become too much.
        """
        size = self._queued_bytes + self._deframer.buffered_bytes
        if size != self._counted_bytes:
            more, self._counted_bytes = size - self._counted_bytes, size
            self._connection.count_buffered(more)

    @property
    def is_between(self) -> bool:
        """Whether its taker waits for the next message, and nothing else has to see that."""
        return (
            self.taker is not None
            and self._deframer.is_between
            and not (self.held_bytes or self.is_measured or self.input_ended)
            and self.status is None
            and self.publishes is None
        )

    def end_input(self) -> None:
        """The caller has sent everything."""
        self.input_ended = True
        if self.taker is not None and self.status is None:
            self.taker.end_input()
        self._wake()

    def let_go(self) -> None:
        """Let the sender send what it was held back from, unless a quota holds it too."""
        if self.held_bytes and self._quota_timer is None:
            held, self.held_bytes = self.held_bytes, 0
            self._connection.release(self, held)

    def _hold(self, wait_s: float) -> None:
        """Let the sender send no more than it may already, for a while."""
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
        if self._queued_bytes <= INPUT_BYTES_HIGH and not (self.taker and self.taker.is_full):
            self.let_go()

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
        self._count()
        self.let_go()
        return messages

    async def receive_one(self) -> bytes:
        """The one message of a call that has one.

        Raises:
            RpcError: there was none.
        """
        messages = await self.receive()
        if len(messages) != 1:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, ONE_MESSAGE)
        self._is_served = True
        return messages[0]

    # Out

    def begun(self, stream: "H2Stream") -> None:
        """The response's headers were sent."""
        self.has_begun = True
        if self.status is None and self.reads is None:
            self.stream = stream

    def send(self, message: Message) -> None:
        """Queue a message."""
        self.send_framed(framed(message.SerializeToString()))

    def send_framed(self, data: bytes | bytearray) -> None:
        """Queue messages that have their prefixes."""
        if self.status is None:
            if self.reads is not None:
                self._unmetered_bytes += len(data)
            self.output += data
            self._connection.mark(self)

    @property
    def share_bytes(self) -> int:
        """About how much of this call may be queued, or should be at once."""
        return min(OUTPUT_BYTES_HIGH, OUTPUT_BYTES_ALL // max(1, self._connection.busy))

    async def drain(self) -> None:
        """Wait while more is queued than should be, or than a quota allows."""
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
        """Queued and not yet sent."""
        return len(self.output) - self.output_at

    def taken(self, count: int) -> bytes | bytearray:
        """The next bytes to send."""
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
        if self.held_bytes and self.taker is not None and not self.taker.is_full:
            self.let_go()

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End it once what is queued was sent."""
        if self.status is None:
            self.status, self.text, self.stream = status, text, None
            if self.timer is not None:
                self.timer.cancel()
            self._drop_input()
            self._connection.mark(self)

    def _drop_input(self) -> None:
        """Forget what came and was not taken."""
        self._queue.clear()
        self._queued_bytes = 0
        self._deframer.clear()
        self._count()

    def fail(self) -> None:
        """End it because of a bug."""
        self.finish(GrpcStatus.INTERNAL, A_BUG)

    def give_up(self, text: str) -> None:
        """Stop it, and forget what is queued: nothing of it can be sent any more."""
        self.abort(RpcError(GrpcStatus.CANCELLED, text))
        self.output, self.output_at = bytearray(), 0

    def abort(self, error: RpcError) -> None:
        """End it from outside: its handler stops, if it has begun at all."""
        self.finish(error.status, error.text)
        if self.task is not None:
            self.task.cancel()

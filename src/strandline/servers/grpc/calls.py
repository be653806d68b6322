"""gRPC calls (messages in, messages out, a status at the end), and all calls of a connection.

A handler is a coroutine that receives and sends messages. Where speed matters it is instead an
object that is called for each message as it arrives (``MessageSink``).

Rules: loop thread only. Output is queued and leaves with the connection's next flush, many messages
in one HTTP/2 frame. A handler that sends much awaits ``drain``. A slow client gets no more than the
stream's window.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from strandline.broker.access import Caller
from strandline.config import LimitsConfig
from strandline.servers.grpc.grpc_messages import Deframer, framed
from strandline.servers.grpc.http2_frames import (
    FrameReader,
    ReceiveWindow,
    data_header,
    window_update,
)
from strandline.servers.grpc.status import GrpcStatus, RpcError, percent_encoded
from strandline.servers.metering import WAIT_S_MAX, Allowance

if TYPE_CHECKING:
    from h2.stream import H2Stream

logger = logging.getLogger(__name__)

OUTPUT_BYTES_HIGH = 512 << 10
OUTPUT_BYTES_ALL = 32 << 20
"""The approximate limit of queued output of all calls of one connection: a client that reads
nothing may have many calls."""
INPUT_BYTES_HIGH = 1 << 20
STREAM_WINDOW_BYTES = 1 << 20
ONE_MESSAGE: Final = "this call takes one message"
A_BUG: Final = "internal error; see the broker's log"
FLUSH_BYTES_MAX: Final = 256 << 10
"""How much one call sends in one flush at most, so that a fast call does not starve the others."""
CONTROL_FRAMES_PER_FLUSH: Final = 16
CONTROL_OUTPUT_BYTES: Final = 64
"""Clients answer output with window updates, at worst one for each message, and with PINGs that
measure the connection. Each flush allows ``CONTROL_FRAMES_PER_FLUSH`` such frames, and one more for
every ``CONTROL_OUTPUT_BYTES``."""
CONTROL_CREDIT_MAX: Final = 100_000
"""How many allowed frames may add up: a client that reads late answers much output at once."""
_BEGIN = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class MessageSink(Protocol):
    """A handler that is called for the messages of a call, and ends it with ``Call.finish``."""

    @property
    def is_full(self) -> bool:
        """Whether the sender must wait; call ``Call.resume_sender`` once there is room again."""
        ...

    def take(self, messages: list[bytes]) -> None:
        """Handle messages.

        Raises:
            RpcError: the call ends with this error.
        """
        ...

    def take_whole(self, buffer: bytes, start: int, end: int) -> bool:
        """Handle the bytes after the last message, if they are exactly one message.

        Args:
            buffer: the received bytes.
            start: the index of the message's first byte, that of its prefix.
            end: the index after the message's last byte.

        Returns:
            False if nothing was done: then ``take`` gets the message once it is complete.

        Raises:
            RpcError: the call ends with this error.
        """
        ...

    def end_input(self) -> None:
        """Handle the end of the input."""
        ...


class Call:
    """An rpc in progress.

    Args:
        multiplexer: the calls of the connection.
        stream_id: the HTTP/2 stream id.
        message_bytes_max: the limit of one received message.
        timeout_s: the time after which the call is ended, in seconds; None: no limit.
    """

    __slots__ = (
        "_arrived",
        "_counted_bytes",
        "_deframer",
        "_drained",
        "_is_served",
        "_multiplexer",
        "_queue",
        "_queued_bytes",
        "_quota_timer",
        "_unmetered_bytes",
        "caller",
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
        multiplexer: "CallMultiplexer",
        stream_id: int,
        *,
        message_bytes_max: int,
        timeout_s: float | None,
    ) -> None:
        self.caller: Caller
        """The caller; set before the handler starts."""
        self.publishes: Allowance | None = None
        """The caller's publish quota, which slows the sender down; None if it is not metered."""
        self.reads: Allowance | None = None
        """The caller's read quota; None if it is not metered."""
        self._quota_timer: asyncio.TimerHandle | None = None
        self._unmetered_bytes = 0
        """The bytes of output queued since the last ``drain``."""
        self.stream_id = stream_id
        self.timeout_s = timeout_s
        self.task: asyncio.Task[None] | None = None
        self.sink: MessageSink | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.has_begun = False
        """Whether the response's headers have been sent."""
        self.stream: H2Stream | None = None
        """h2's state of the stream, used by ``answer`` once the response's headers are sent."""
        self.input_ended = False
        self.status: GrpcStatus | None = None
        """The status of an ended call; None while it is in progress."""
        self.text = ""
        self.output = bytearray()
        self.output_at = 0
        self._multiplexer = multiplexer
        self._deframer = Deframer(message_bytes_max)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._counted_bytes = 0
        """The part of ``FlushQueue.buffered_bytes`` that this call has added."""
        self._is_served = False
        """Whether a unary call has received its only message; another one is an error."""
        self.receive_window = ReceiveWindow(STREAM_WINDOW_BYTES)
        self.held_bytes = 0
        """Received bytes that have not been returned to the sender's window."""
        self.is_measured = False
        """Whether the data pass through h2, which compares their length with ``content-length``."""
        self._arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # Input

    def feed(self, data: bytes, flow_bytes: int) -> bool:
        """Handle data of the stream; return whether the sender may at once send as much again.

        Raises:
            RpcError: a message is invalid or surplus, or too much input is waiting.
        """
        if self._is_served and data:  # an empty frame at the end is allowed
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
        """Update the total of waiting input on all connections, which is limited.

        Raises:
            RpcError: the limit is exceeded.
        """
        size = self._queued_bytes + self._deframer.buffered_bytes
        if size != self._counted_bytes:
            more, self._counted_bytes = size - self._counted_bytes, size
            self._multiplexer.count_buffered(more)

    @property
    def is_between(self) -> bool:
        """Whether the next bytes begin a message that may go to the sink by the fast path."""
        return (
            self.sink is not None
            and self._deframer.is_between
            and not (self.held_bytes or self.is_measured or self.input_ended)
            and self.status is None
            and self.publishes is None
        )

    def end_input(self) -> None:
        """Record that the caller will send nothing more."""
        self.input_ended = True
        if self.sink is not None and self.status is None:
            self.sink.end_input()
        self._wake()

    def resume_sender(self) -> None:
        """Let the sender continue, unless a quota still delays it."""
        if self.held_bytes and self._quota_timer is None:
            held, self.held_bytes = self.held_bytes, 0
            self._multiplexer.release(self, held)

    def _hold(self, wait_s: float) -> None:
        """Delay the sender for a while; it may still send what its window allows."""
        if not wait_s:
            return
        if self._quota_timer is not None:
            self._quota_timer.cancel()
        loop = asyncio.get_running_loop()
        self._quota_timer = loop.call_later(wait_s, self._quota_wait_over, wait_s)

    def _quota_wait_over(self, wait_s: float) -> None:
        self._quota_timer = None
        if wait_s >= WAIT_S_MAX and self.publishes is not None and self.status is None:
            self._hold(self.publishes.publish(0))
            if self._quota_timer is not None:
                return
        if self._queued_bytes <= INPUT_BYTES_HIGH and not (self.sink and self.sink.is_full):
            self.resume_sender()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def receive(self) -> list[bytes]:
        """Return the messages received meanwhile, at least one; none at the end of the input."""
        while not self._queue and not self.input_ended:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        messages = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._count()
        self.resume_sender()
        return messages

    async def receive_one(self) -> bytes:
        """Return the only message of a unary call.

        Raises:
            RpcError: there was no message, or more than one.
        """
        messages = await self.receive()
        if len(messages) != 1:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, ONE_MESSAGE)
        self._is_served = True
        return messages[0]

    # Output

    def begun(self, stream: "H2Stream") -> None:
        """Record that the response's headers have been sent."""
        self.has_begun = True
        if self.status is None and self.reads is None:
            self.stream = stream

    def send(self, message: Message) -> None:
        """Queue a message."""
        self.send_framed(framed(message.SerializeToString()))

    def send_framed(self, data: bytes | bytearray) -> None:
        """Queue messages that have gRPC's prefixes already."""
        if self.status is None:
            if self.reads is not None:
                self._unmetered_bytes += len(data)
            self.output += data
            self._multiplexer.mark(self)

    def answer(self, data: bytes) -> None:
        """Send a small framed message, in a frame of its own if the windows allow it."""
        stream, multiplexer, count = self.stream, self._multiplexer, len(data)
        h2 = multiplexer.h2
        if (
            stream is None
            or self.output
            or count > stream.outbound_flow_control_window
            or count > h2.outbound_flow_control_window
        ):
            self.send_framed(data)
            return
        # As in h2's send_data; the stream's state does not change.
        h2.outbound_flow_control_window -= count
        stream.outbound_flow_control_window -= count
        output = multiplexer.output
        output.append(data_header(self.stream_id, count))
        output.append(data)
        if len(output) == 2:  # otherwise a flush is scheduled already
            multiplexer.flush_soon()

    @property
    def share_bytes(self) -> int:
        """About how many bytes of this call may be queued or sent at once."""
        return min(OUTPUT_BYTES_HIGH, OUTPUT_BYTES_ALL // max(1, self._multiplexer.busy))

    async def drain(self) -> None:
        """Wait while too much output is queued, and as long as a quota requires."""
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
        """The number of bytes that are queued and not sent."""
        return len(self.output) - self.output_at

    def take_output(self, count: int) -> bytes | bytearray:
        """Remove and return the next bytes to send."""
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
            self.resume_sender()

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the call with a status once the queued output is sent."""
        if self.status is None:
            self.status, self.text, self.stream = status, text, None
            if self.timer is not None:
                self.timer.cancel()
            self._drop_input()
            self._multiplexer.mark(self)

    def _drop_input(self) -> None:
        """Drop input that has not been handled."""
        self._queue.clear()
        self._queued_bytes = 0
        self._deframer.clear()
        self._count()

    def fail(self) -> None:
        """End the call because of an internal error."""
        self.finish(GrpcStatus.INTERNAL, A_BUG)

    def give_up(self, text: str) -> None:
        """End the call and drop its output, which can no longer be sent."""
        self.abort(RpcError(GrpcStatus.CANCELLED, text))
        self.output, self.output_at = bytearray(), 0

    def abort(self, error: RpcError) -> None:
        """End the call with an error; its handler is cancelled if it is running."""
        self.finish(error.status, error.text)
        if self.task is not None:
            self.task.cancel()


class FlushQueue:
    """The connections of a listener with output, which is sent once per round of the loop."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        """The bytes of incomplete or unhandled messages on all connections."""
        self.buffered_bytes_max = LimitsConfig().pending_bytes
        self._unflushed: list[CallMultiplexer] = []

    def add(self, multiplexer: "CallMultiplexer") -> None:
        """Add a connection to flush after the group commit or in the next round."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unflushed.append(multiplexer)

    def flush(self) -> None:
        """Flush all connections that were added."""
        unflushed, self._unflushed = self._unflushed, []
        for multiplexer in unflushed:
            multiplexer.flush()


class CallMultiplexer:
    """The calls of one connection, which share its output within HTTP/2's windows.

    Args:
        frames: counts frames without content; output allows the client some.
        flushes: flushes the listener's connections.
        window_bytes: the receive window of the connection.
    """

    def __init__(self, frames: FrameReader, flushes: FlushQueue, window_bytes: int) -> None:
        self._frames = frames
        self._flushes = flushes
        self.h2 = H2Connection(
            H2Configuration(
                client_side=False, header_encoding=None, validate_outbound_headers=False
            )
        )
        self.receive_window = ReceiveWindow(window_bytes)
        self.output: list[bytes | bytearray] = []
        """Bytes for the transport; the list object is never replaced."""
        self.calls: dict[int, Call] = {}
        self.fast: dict[int, Call] = {}
        """Calls that use the fast path (``fast_path``)."""
        self.marked: dict[int, Call] = {}
        """Calls with output to send."""
        self.resets = 0
        """Calls that the client reset before their answer, minus calls that it let finish."""
        self.is_paused = self._is_flush_due = False
        self.transport: asyncio.Transport | None = None

    def count_buffered(self, more: int) -> None:
        """Add to the total of bytes of incomplete or unhandled messages.

        Raises:
            RpcError: the limit for all connections is exceeded.
        """
        flushes = self._flushes
        flushes.buffered_bytes += more
        if more > 0 and flushes.buffered_bytes > flushes.buffered_bytes_max:
            text = "too many half-sent messages on this server; send them one after the other"
            raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)

    def mark(self, call: Call) -> None:
        """Note that a call has output."""
        stream_id = call.stream_id
        if stream_id not in self.marked and stream_id in self.calls:
            self.marked[stream_id] = call
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send waiting output with the listener's next flush, unless the client does not read."""
        if not self._is_flush_due and not self.is_paused and (self.marked or self.output):
            self._is_flush_due = True
            self._flushes.add(self)

    def flush(self) -> None:
        """Send each call's output as far as the windows allow."""
        self._is_flush_due = False
        if self.transport is None or self.is_paused:
            return
        is_cut = False
        for call in list(self.marked.values()):
            try:
                is_cut |= self._flush_call(call)
            except ProtocolError as error:  # the client has just ended the call
                logger.debug("a gRPC call ended early: %s", error)
                self.give_up(call)
        self._credit_control()
        self.write()
        if is_cut:
            self.flush_soon()

    def _credit_control(self) -> None:
        """Allow the client to answer this output with frames without content."""
        if self.output:
            size = sum(map(len, self.output))
            credit = CONTROL_FRAMES_PER_FLUSH + size // CONTROL_OUTPUT_BYTES
            self._frames.control = max(-CONTROL_CREDIT_MAX, self._frames.control - credit)

    def _flush_call(self, call: Call) -> bool:
        """Send output of one call; return whether it reached the limit of a flush."""
        stream_id, conn = call.stream_id, self.h2
        if call.pending_bytes and not call.has_begun:
            conn.send_headers(stream_id, _BEGIN)
            self.pull()
            call.begun(conn.streams[stream_id])
        room = FLUSH_BYTES_MAX
        while pending := call.pending_bytes:
            stream = conn.streams.get(stream_id)
            if stream is None:  # the client has just ended the call
                self.give_up(call)
                return False
            count = min(
                pending,
                room,
                conn.outbound_flow_control_window,
                stream.outbound_flow_control_window,
                conn.max_outbound_frame_size,
            )
            if count <= 0:
                return room <= 0
            # As in h2's send_data; the stream's state does not change.
            conn.outbound_flow_control_window -= count
            stream.outbound_flow_control_window -= count
            self.output.append(data_header(stream_id, count))
            self.output.append(call.take_output(count))
            room -= count
        del self.marked[stream_id]
        if call.status is not None:
            self._end(call, call.status)
        return False

    def _end(self, call: Call, status: GrpcStatus) -> None:
        """Send the trailers and forget the call."""
        trailers = [(b"grpc-status", b"%d" % status)]
        if call.text:
            trailers.append((b"grpc-message", percent_encoded(call.text)))
        headers = trailers if call.has_begun else [*_BEGIN, *trailers]
        self.h2.send_headers(call.stream_id, headers, end_stream=True)
        if not call.input_ended:
            self.h2.reset_stream(call.stream_id, ErrorCodes.NO_ERROR)
        elif self.resets:
            self.resets -= 1
        self.pull()
        self._forget(call.stream_id)

    def give_up(self, call: Call) -> None:
        """End a call whose output can no longer be sent."""
        self._forget(call.stream_id)
        call.give_up("the client cancelled")

    def _forget(self, stream_id: int) -> None:
        """Remove an ended call, and return its part of the connection's window."""
        self.marked.pop(stream_id, None)
        self.fast.pop(stream_id, None)
        call = self.calls.pop(stream_id, None)
        if call is not None and call.held_bytes:
            self.free(None, call.held_bytes)
            call.held_bytes = 0

    def pull(self) -> None:
        """Append h2's output to this connection's output."""
        data = self.h2.data_to_send()
        if data:
            self.output.append(data)

    def write(self) -> None:
        """Write the output to the transport."""
        data = b"".join(self.output)
        self.output.clear()
        if data and self.transport is not None:
            self.transport.write(data)

    def free(self, call: Call | None, count: int) -> None:
        """Return ``count`` bytes to the windows, so that the client may send as many again."""
        freed = self.receive_window.free(count)
        if freed:
            self.output.append(window_update(0, freed))
        if call is not None and not call.input_ended:
            freed = call.receive_window.free(count)
            if freed:
                self.output.append(window_update(call.stream_id, freed))

    def release(self, call: Call, count: int) -> None:
        """Return window for input that a call has handled, and send the update."""
        self.free(call if call.stream_id in self.calls else None, count)
        self.write()

    @property
    def busy(self) -> int:
        """The number of calls in progress."""
        return len(self.calls)

    def end_calls(self, error: RpcError) -> None:
        """End all calls with an error."""
        for call in list(self.calls.values()):
            call.abort(error)

    def lose(self) -> None:
        """End all calls, because the connection was lost."""
        self.transport = None
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            call.give_up("the connection was lost")
        self.marked.clear()  # a call that is still referenced must not keep the others alive

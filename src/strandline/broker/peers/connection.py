"""One TCP connection between two brokers: sockets to frames and back.

Rules: a connection carries frames one way, from the broker that opened it; the other way carries
only the answer to the handshake. Writing never waits: frames queue up to a limit; beyond it the
connection is closed. ``session`` decides what the end of a connection means. Every end, also by
this broker, is reported once, by the loop and never from inside a call of this broker.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from strandline.broker.peers.errors import HandshakeError, PeerFrameError
from strandline.broker.peers.frame import Data, Frame, FrameDecoder
from strandline.broker.peers.handshake import (
    Hello,
    PeerIdentity,
    accept_answer,
    encode_hello,
    encode_rejection,
)
from strandline.broker.peers.limits import LinkLimits
from strandline.broker.peers.tls import certified_brokers
from strandline.types import BrokerId

SLICE_BYTES: Final = 1 << 20
"""The queued bytes that the transport gets at a time, unless one buffer is larger."""
JOIN_BYTES: Final = 64 << 10
JOIN_MEAN_BYTES: Final = 4096
"""Buffers with a lower average size are joined, and so are all with up to ``JOIN_BYTES`` in total:
copying them costs less than passing a longer list of buffers to the kernel."""
MORE_THAN_HANDSHAKE: Final = "the other end sent more than its part of the handshake"


class PeerConnection(asyncio.BufferedProtocol):
    """The part of a peer connection that both of its ends share.

    Args:
        limits: sizes and timeouts.
        on_begin: called at the beginning; with TLS, after the TLS handshake.
        on_end: called once, after the end.
    """

    def __init__(
        self,
        limits: LinkLimits,
        *,
        on_begin: "Callable[[PeerConnection], None]",
        on_end: "Callable[[PeerConnection], None]",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._on_begin = on_begin
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._decoder = FrameDecoder(
            frame_bytes_max=limits.handshake_bytes_max,
            attachments_max=0,
            receive_bytes=limits.handshake_bytes_max,
        )
        self.is_open = False
        self.peer: BrokerId | None = None
        """The peer: the broker we connected to, or the one named in the handshake."""
        self.incarnation = ""
        """The peer's incarnation; set by the handshake."""
        self.failure = ""
        """Why this broker closed the connection, if it did."""
        self.closed: asyncio.Future[str] = self._loop.create_future()
        """Has the reason of the end as its result, once the connection has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake's time limit, which closes the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_high_bytes)
        tune(self._transport.get_extra_info("socket"), self._limits)
        self.is_open = True
        timeout_s = self._limits.handshake_timeout_s
        self._timer = self._loop.call_later(
            timeout_s, self.abort, f"no handshake within {timeout_s:g} s"
        )
        self._on_begin(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self.is_open = False
        self.handshake_done()
        reason = self.failure or (describe(exc) if exc else "closed by the other end")
        if not self.closed.done():
            self.closed.set_result(reason)
        self._on_end(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        """Return the buffer that the socket reads into."""
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that the new bytes complete."""
        if not self.is_open:
            return
        try:
            frames = self._decoder.received(nbytes)
        except PeerFrameError as error:
            self.abort(f"the other end sent {error}")
            return
        if not self.incarnation and frames and not self._came_alone(frames):
            self.abort(MORE_THAN_HANDSHAKE)
            return
        for frame in frames:
            if not self.is_open:
                return
            self.take(frame)

    def _came_alone(self, frames: list[Frame]) -> bool:
        return len(frames) == 1 and self._decoder.is_between_frames

    def take(self, frame: Frame) -> None:
        """Handle a frame; the first is the handshake."""
        raise NotImplementedError

    def handshake_done(self) -> None:
        """End the time limit of the handshake."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def certified(self) -> frozenset[BrokerId] | None:
        """Return the brokers that the peer's certificate names; None without TLS."""
        return certified_brokers(self._live().get_extra_info("ssl_object"))

    def close(self, reason: str) -> None:
        """Close the connection after everything queued was sent."""
        if self.is_open:
            self.is_open = False
            self.failure = self.failure or reason
            self._live().close()

    def abort(self, reason: str) -> None:
        """Close at once; queued frames may be lost. Also ends a ``close`` that takes too long."""
        self.is_open = False
        self.failure = self.failure or reason
        if self._transport is not None:
            self._transport.abort()

    def _put(self, buffers: Iterable[Data]) -> None:
        """Write buffers, unless the transport is closing, when uvloop would raise."""
        if not self._live().is_closing():
            self._live().writelines(buffers)

    def _live(self) -> asyncio.Transport:
        assert self._transport is not None, "used before it was made"
        return self._transport


class Incoming(PeerConnection):
    """A connection that a peer opened: this broker receives frames on it.

    Args:
        limits: sizes and timeouts.
        on_frame: receives the frames after the handshake, once the peer is up.
        on_hello: receives the first frame.
        on_begin: called at the beginning.
        on_end: called once, after the end.
    """

    def __init__(
        self,
        limits: LinkLimits,
        *,
        on_frame: Callable[[BrokerId, Frame], None],
        on_hello: "Callable[[Incoming, Frame], None]",
        on_begin: Callable[[PeerConnection], None],
        on_end: Callable[[PeerConnection], None],
    ) -> None:
        super().__init__(limits, on_begin=on_begin, on_end=on_end)
        self._on_frame = on_frame
        self._on_hello = on_hello
        self._held: list[Frame] = []
        self._is_held = True

    def take(self, frame: Frame) -> None:
        """Pass a frame on, or hold it until the peer is up."""
        if self.peer is None:
            self._on_hello(self, frame)
        elif self._is_held:
            # For the peer this broker is up, but the answer on our own connection is still in
            # flight. Reading continued until now, since only a read shows the end of a connection.
            self._held.append(frame)
            if not self._live().is_closing():  # uvloop would raise
                self._live().pause_reading()
        else:
            self._on_frame(self.peer, frame)

    def accept(self, hello: Hello, me: PeerIdentity) -> None:
        """Answer the handshake; frames are held until the peer is up."""
        self.handshake_done()
        self.peer = BrokerId(hello.broker_id)
        self.incarnation = hello.incarnation
        self._decoder = FrameDecoder(
            frame_bytes_max=self._limits.frame_bytes_max,
            attachments_max=self._limits.attachments_max,
        )
        self._put(encode_hello(me, self.peer))

    def reject(self, error: HandshakeError) -> None:
        """Send the rejection, then close the connection."""
        self._put(encode_rejection(error))
        self.close(f"rejected: {error}")

    def release(self) -> None:
        """Pass on the held frames and continue to read, since the peer is up."""
        assert self.peer is not None, "released before its handshake"
        self._is_held = False
        held, self._held = self._held, []
        for frame in held:
            if self.is_open:
                self._on_frame(self.peer, frame)
        if held and self.is_open and not self._live().is_closing():
            self._live().resume_reading()


class Outgoing(PeerConnection):
    """A connection that this broker opened: it sends frames on it.

    Args:
        limits: sizes and timeouts.
        me: this broker.
        to: the broker at the other end.
        on_answer: called after the handshake.
        on_begin: called at the beginning.
        on_end: called once, after the end.
    """

    def __init__(
        self,
        limits: LinkLimits,
        *,
        me: PeerIdentity,
        to: BrokerId,
        on_answer: "Callable[[Outgoing], None]",
        on_begin: Callable[[PeerConnection], None],
        on_end: Callable[[PeerConnection], None],
    ) -> None:
        super().__init__(limits, on_begin=on_begin, on_end=on_end)
        self._me = me
        self._to = to
        self.peer = to
        self._on_answer = on_answer
        self._queue: deque[Data] = deque()
        self._is_paused = False
        self._is_flush_due = False
        self.queued_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send this broker's handshake."""
        super().connection_made(transport)
        self._put(encode_hello(self._me, self._to))

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the queued frames, and report the end."""
        self._drop_queue()
        super().connection_lost(exc)

    def take(self, frame: Frame) -> None:
        """Handle the answer to the handshake; any further frame is an error."""
        if self.incarnation:
            self.abort(MORE_THAN_HANDSHAKE)
            return
        try:
            hello = accept_answer(frame, self._me, self._to, certified=self.certified())
        except HandshakeError as error:
            self.abort(str(error))
            return
        self.handshake_done()
        self.incarnation = hello.incarnation
        self._on_answer(self)

    # Sending

    def send(self, buffers: list[Data]) -> bool:
        """Queue a frame, to be sent at the end of the loop's round; False if already closed."""
        if not self.is_open:
            return False
        size = sum(map(len, buffers))
        assert size <= self._limits.frame_bytes_max, "the caller keeps frames below the limit"
        if self.queued_bytes and self.queued_bytes + size > self._limits.queue_bytes_max:
            waiting = self.queued_bytes
            self._drop_queue()
            self.abort(f"it does not take what it is sent: {waiting} bytes wait")
            return False
        self._queue.extend(buffers)
        self.queued_bytes += size
        if not self._is_flush_due and not self._is_paused:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)
        return True

    def finish(self, reason: str) -> None:
        """Send all queued frames, then close the connection."""
        if self.is_open:
            rest = list(self._queue)
            self._drop_queue()
            self._write(rest)
            self.close(reason)

    def pause_writing(self) -> None:
        """Queue frames: the transport's buffer is full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Write queued frames: the transport has room."""
        self._is_paused = False
        self.flush()

    def flush(self) -> None:
        """Write the queue until the transport's buffer is full."""
        self._is_flush_due = False
        while self._queue and self.is_open and not self._is_paused:
            self._write(self._take_slice())

    def _take_slice(self) -> list[Data]:
        if self.queued_bytes <= SLICE_BYTES:
            buffers = list(self._queue)
            self._drop_queue()
            return buffers
        buffers = []
        size = 0
        while self._queue and size < SLICE_BYTES:
            buffers.append(self._queue.popleft())
            size += len(buffers[-1])
        self.queued_bytes -= size
        return buffers

    def _write(self, buffers: list[Data]) -> None:
        """Write buffers at once; join small ones, so that the kernel gets few pieces."""
        size = sum(map(len, buffers))
        if size <= JOIN_BYTES or size < len(buffers) * JOIN_MEAN_BYTES:
            buffers = [b"".join(buffers)]
        self._put(buffers)

    def _drop_queue(self) -> None:
        self._queue.clear()
        self.queued_bytes = 0


def describe(error: Exception) -> str:
    """Return an error as text for the log; some socket errors have no text of their own."""
    return str(error) or type(error).__name__


class Tunable(Protocol):
    """A socket, or uvloop's substitute for one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set a socket option, as ``socket.setsockopt`` does."""
        ...


def tune(sock: Tunable, limits: LinkLimits) -> None:
    """Set TCP options: small frames are sent at once, and a dead peer is detected in seconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.keepalive_idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.keepalive_interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, limits.keepalive_probes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.unacked_timeout_ms)

"""An HTTP/2 connection of a gRPC client, on the library h2.

Rules: invalid input costs its sender a call or, at worst, the connection. Output of all calls is
written once per round of the loop, in frames as large as the client accepts: a frame per small
message is what makes gRPC slow (docs/adr/0019). While the client does not read its output, nothing
more is read from it, which bounds memory. DATA frames bypass h2 (``http2_frames``) both ways:
this module keeps the receive windows, and h2 the send windows, because it sees the client's
updates. Output of h2 is fetched at once, so that frames leave in the order of their creation. The
simplest frames use the fast path (``fast_path``), all others this module.

Input gets a share of each round of the loop (``round_budget``); the rest waits, and nothing more is
read meanwhile. Too many frames without content (PING, PRIORITY, WINDOW_UPDATE, empty DATA),
compared with our output, end the connection, and so does a client that does not identify itself
within ``IDENTIFY_S``.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from strandline.servers.grpc.calls import STREAM_WINDOW_BYTES, Call
from strandline.servers.grpc.fast_path import FastPath
from strandline.servers.grpc.grpc_messages import timeout_s
from strandline.servers.grpc.http2_frames import (
    END_STREAM,
    PADDED,
    Data,
    FrameReader,
    Http2FrameError,
    ReceiveWindow,
    data_header,
    unpadded,
    window_update,
)
from strandline.servers.grpc.serving import serve
from strandline.servers.grpc.status import GrpcStatus, OversizeError, RpcError, percent_encoded
from strandline.servers.metering import Presence
from strandline.servers.round_budget import SPENT

if TYPE_CHECKING:
    from strandline.servers.grpc.listener import GrpcListener

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 4096
CONNECTION_WINDOW_BYTES: Final = 8 << 20
"""On top of the 65,535 bytes that every connection begins with."""
FIRST_WINDOW_BYTES: Final = 65_535
HEADERS_BYTES_MAX: Final = 64 << 10
SETTINGS: Final[dict[SettingCodes, int]] = {
    SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
    SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
    SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
}
FLUSH_BYTES_MAX: Final = 256 << 10
"""Of one call in one flush, so that a fast one does not starve the others."""
WRITE_BYTES_HIGH: Final = 1 << 20
RESETS_MAX: Final = 1000
"""Calls that a client may take back unanswered beyond those it lets finish (CVE-2023-44487)."""
CONTROL_S: Final = 1.0
"""How long frames without content count against the most that a client may send."""
CONTROL_FRAMES_PER_FLUSH: Final = 16
CONTROL_OUTPUT_BYTES: Final = 64
"""Clients answer our output with window updates, one for each message that they read at worst, and
with PINGs that measure the connection: so many frames may come for each flush, and one more for so
many bytes of it."""
CONTROL_CREDIT_MAX: Final = 100_000
"""Frames that a client may owe: one that reads late answers much output at once."""
IDENTIFY_S: Final = 5.0

_BEGIN = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class GrpcConnection(asyncio.Protocol):
    """A client's connection.

    Args:
        listener: the state shared with other connections.
    """

    def __init__(self, listener: "GrpcListener") -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._h2 = H2Connection(
            H2Configuration(
                client_side=False, header_encoding=None, validate_outbound_headers=False
            )
        )
        self._cutter = FrameReader()
        self._receive_window = ReceiveWindow(FIRST_WINDOW_BYTES + CONNECTION_WINDOW_BYTES)
        self._output: list[bytes | bytearray] = []
        self.fast_path = FastPath(
            self, self._h2, receive_window=self._receive_window, output=self._output
        )
        self._calls: dict[int, Call] = {}
        self._marked: dict[int, Call] = {}
        self._is_flush_due = self._is_paused = False
        self._resets = 0
        self._control_since_s = self._loop.time()
        self._is_identified = False
        """Whether a call has shown who the client is."""
        self._unread: Iterator[Data | bytes] | None = None
        """Input beyond this round's share."""
        self._identify_timer: asyncio.TimerHandle | None = None
        self._presence = Presence()
        self._transport: asyncio.Transport | None = None

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send SETTINGS, or close a connection above the limit."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        # Sent in the first SETTINGS and enforced from the first frame: an update would be enforced
        # only after the client acknowledged it, and would fail clients that open many calls first.
        self._h2.local_settings = Settings(client=False, initial_values=dict(SETTINGS))
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self._pull()
        self._write()
        if not self._listener.admit(self):
            self.go_away(ErrorCodes.ENHANCE_YOUR_CALM)
        self._identify_timer = self._loop.call_later(IDENTIFY_S, self._check_identified)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Stop its calls."""
        self._transport = self._unread = None
        if self._identify_timer is not None:
            self._identify_timer.cancel()
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.give_up("the connection was lost")
        self._marked.clear()  # calls may still be referenced, and with them the connection
        self._presence.end()
        self._listener.forget(self)

    def pause_writing(self) -> None:
        """Stop reading and writing, because the client does not read its output."""
        self._is_paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume, because the client has caught up."""
        self._is_paused = False
        if self._unread is not None:
            self._listener.budget.defer(self._take_unread)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        """Handle received frames."""
        pieces = self._cutter.feed(data)
        if self._unread is not None:
            self._unread = itertools.chain(self._unread, pieces)
        else:
            self._take_pieces(pieces)

    def _take_unread(self) -> None:
        """Continue with the input left over when the last round's share was used up."""
        unread, transport = self._unread, self._transport
        if unread is None or transport is None or self._is_paused:
            return
        self._unread = None
        if transport.is_closing():
            return
        self._take_pieces(unread)
        if self._unread is None and not self._is_paused and not transport.is_closing():
            transport.resume_reading()

    def _take_pieces(self, pieces: Iterator[Data | bytes]) -> None:
        """Handle input until this round's share is used up; the rest waits."""
        if self._cutter.control > 0 or self._cutter.settings:
            self._forget_control()
        end_s = self._listener.budget.slice_end()
        if end_s == SPENT:
            self._wait_for_round(pieces)
            return
        take, time_s = self.fast_path.take, self._loop.time
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    self._show(piece)
                elif not take(piece):
                    self._take_data(piece)
                if time_s() >= end_s:
                    self._wait_for_round(pieces)
                    break
            self._listener.messages += self.fast_path.count()
        except Http2FrameError as error:
            logger.debug("a gRPC client broke the protocol: %s", error)
            self.go_away(error.code)
        except ProtocolError as error:
            logger.debug("a gRPC client broke the protocol: %s", error)
            self._close()
        else:
            if self._output:
                self._write()

    # Input

    def _wait_for_round(self, pieces: Iterator[Data | bytes]) -> None:
        """Keep input for a later round, and stop reading until then."""
        self._unread = pieces
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._listener.budget.defer(self._take_unread)

    def _check_identified(self) -> None:
        """Close the connection of a client that has not identified itself in time.

        Without access control clients have no identity, and valid HTTP/2 is enough. A health probe
        has no credentials and may stay while it watches.
        """
        is_identified = self._is_identified or self._listener.is_known(self._transport)
        is_probe = any(call.has_begun for call in self._calls.values())
        if not (self._cutter.is_greeted and (is_identified or is_probe)):
            self.go_away()
        elif not is_identified:
            self._identify_timer = self._loop.call_later(IDENTIFY_S, self._check_identified)

    def _forget_control(self) -> None:
        """Reset the count of frames without content, if the client has sent few of them."""
        now_s = self._loop.time()
        if now_s - self._control_since_s >= CONTROL_S:
            self._control_since_s = now_s
            self._cutter.settings = 0
            self._cutter.control = min(self._cutter.control, 0)

    def _show(self, data: bytes) -> None:
        """Pass frames to h2 and handle its events.

        Raises:
            ProtocolError: the frames violate the protocol.
        """
        events = self._h2.receive_data(data)
        for event in events:
            self._take(event)
        self._pull()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case StreamEnded(stream_id=stream_id) if call := self._calls.get(stream_id):
                self.fast_path.take_off(stream_id)
                call.end_input()
            case StreamReset(stream_id=stream_id):
                self._reset(stream_id)
            case WindowUpdated() | RemoteSettingsChanged():
                self.flush_soon()
            case DataReceived(stream_id=stream_id, data=data):  # of a metered call
                size = event.flow_controlled_length or 0
                if measured := self._calls.get(stream_id):
                    self._feed(measured, data or b"", 0)
                with contextlib.suppress(ProtocolError):  # the call has ended meanwhile
                    self._h2.acknowledge_received_data(size, stream_id)

    def _take_data(self, frame: Data) -> None:
        """Handle a DATA frame.

        Raises:
            ProtocolError, Http2FrameError: the frame violates the protocol.
        """
        stream_id, flags, buffer, start, end = frame
        payload, size = buffer[start:end], end - start
        call = self._calls.get(stream_id)
        self.fast_path.take_off(stream_id)
        if call is not None and call.is_measured:
            self._show(data_header(stream_id, size, flags) + payload)
            return
        if call is None or call.input_ended:
            self._receive_window.spend(size)
            self._free(None, size)
            self._show(data_header(stream_id, 0, flags & END_STREAM))
            return
        if flags & PADDED:
            payload = unpadded(payload)
        if self._feed(call, payload, size):
            freed = self._receive_window.pass_on(size)
            if freed:
                self._output.append(window_update(0, freed))
            freed = call.receive_window.pass_on(size)
            if freed:
                self._output.append(window_update(stream_id, freed))
        else:
            self._receive_window.spend(size)
            call.receive_window.spend(size)
        if flags & END_STREAM:
            self._show(data_header(stream_id, 0, END_STREAM))
        else:
            self.fast_path.put_on(call)

    def _feed(self, call: Call, data: bytes, flow_bytes: int) -> bool:
        """Pass data to its call; return whether the client may send as much again."""
        if call.status is not None:
            return True
        self._listener.messages += 1
        try:
            return call.feed(data, flow_bytes)
        except RpcError as error:
            if isinstance(error, OversizeError):
                self._listener.warn_oversize(error)
            call.abort(error)
        except Exception:
            logger.exception("a gRPC call failed")
            call.fail()
        return True

    def count_buffered(self, more: int) -> None:
        """Add to the bytes of incomplete or unhandled messages.

        Raises:
            RpcError: the limit over all connections is exceeded.
        """
        listener = self._listener
        listener.buffered_bytes += more
        if more > 0 and listener.buffered_bytes > listener.buffered_bytes_max:
            text = "too many half-sent messages on this server; send them one after the other"
            raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)

    def _free(self, call: Call | None, count: int) -> None:
        """Let the client send as much again."""
        freed = self._receive_window.free(count)
        if freed:
            self._output.append(window_update(0, freed))
        if call is not None and not call.input_ended:
            freed = call.receive_window.free(count)
            if freed:
                self._output.append(window_update(call.stream_id, freed))

    def release(self, call: Call, count: int) -> None:
        """Return window for input that a call has handled."""
        self._free(call if call.stream_id in self._calls else None, count)
        self._write()

    def _begin(self, event: RequestReceived) -> None:
        """Start a call."""
        headers, stream_id = dict(event.headers or ()), event.stream_id or 0
        method = self._listener.methods.get(bytes(headers.get(b":path", b"")))
        timeout = headers.get(b"grpc-timeout")
        call = self._calls[stream_id] = Call(
            self,
            stream_id,
            message_bytes_max=method.message_bytes_max if method is not None else 0,
            timeout_s=timeout_s(bytes(timeout)) if timeout is not None else None,
        )
        serve(
            call,
            headers,
            listener=self._listener,
            transport=self._transport,
            presence=self._presence,
        )
        if call.status is None and not self._is_identified:
            self._is_identified = not self._listener.is_open(bytes(headers.get(b":path", b"")))
            if self._is_identified:
                self._listener.note_identified(self)

    def _reset(self, stream_id: int) -> None:
        """Cancel a call that the client reset."""
        call = self._calls.get(stream_id)
        if call is not None:
            self._cutter.control -= 1  # it was a real call
            self._give_up(call)
            # Clients that wait for an answer first, as subscribers do, are not flooding us.
            self._resets += not call.has_begun
            if self._resets > RESETS_MAX:
                self.go_away(ErrorCodes.ENHANCE_YOUR_CALM)

    # Output

    def mark(self, call: Call) -> None:
        """Record that a call has output."""
        stream_id = call.stream_id
        if stream_id not in self._marked and stream_id in self._calls:
            self._marked[stream_id] = call
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send waiting output with that of other connections, as soon as the client accepts it."""
        if not self._is_flush_due and not self._is_paused and (self._marked or self._output):
            self._is_flush_due = True
            self._listener.flush_soon(self)

    def flush(self) -> None:
        """Send output of each call as the windows allow."""
        self._is_flush_due = False
        if self._transport is None or self._is_paused:
            return
        is_cut = False
        for call in list(self._marked.values()):
            try:
                is_cut |= self._flush_call(call)
            except ProtocolError as error:  # the client has just ended it
                logger.debug("a gRPC call ended early: %s", error)
                self._give_up(call)
        self._credit_control()
        self._write()
        if is_cut:
            self.flush_soon()

    def _credit_control(self) -> None:
        """Allow the client frames without content in answer to our output."""
        if self._output:
            size = sum(map(len, self._output))
            credit = CONTROL_FRAMES_PER_FLUSH + size // CONTROL_OUTPUT_BYTES
            self._cutter.control = max(-CONTROL_CREDIT_MAX, self._cutter.control - credit)

    def _flush_call(self, call: Call) -> bool:
        """Send output of one call; return whether more could be sent at once."""
        stream_id, conn = call.stream_id, self._h2
        if call.pending_bytes and not call.has_begun:
            conn.send_headers(stream_id, _BEGIN)
            self._pull()
            call.begun(conn.streams[stream_id])
        room = FLUSH_BYTES_MAX
        while pending := call.pending_bytes:
            stream = conn.streams.get(stream_id)
            if stream is None:  # the client has just ended it
                self._give_up(call)
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
            # As h2's send_data does; the stream's state does not change.
            conn.outbound_flow_control_window -= count
            stream.outbound_flow_control_window -= count
            self._output.append(data_header(stream_id, count))
            self._output.append(call.taken(count))
            room -= count
        del self._marked[stream_id]
        if call.status is not None:
            self._end(call, call.status)
        return False

    def _end(self, call: Call, status: GrpcStatus) -> None:
        """Send the trailers and forget the call."""
        trailers = [(b"grpc-status", b"%d" % status)]
        if call.text:
            trailers.append((b"grpc-message", percent_encoded(call.text)))
        headers = trailers if call.has_begun else [*_BEGIN, *trailers]
        self._h2.send_headers(call.stream_id, headers, end_stream=True)
        if not call.input_ended:
            self._h2.reset_stream(call.stream_id, ErrorCodes.NO_ERROR)
        elif self._resets:
            self._resets -= 1
        self._pull()
        self._forget(call.stream_id)

    def _give_up(self, call: Call) -> None:
        """Stop a call whose output can no longer be sent."""
        self._forget(call.stream_id)
        call.give_up("the client cancelled")

    def _forget(self, stream_id: int) -> None:
        """Forget an ended call, and return its part of the connection's window."""
        self._marked.pop(stream_id, None)
        self.fast_path.take_off(stream_id)
        call = self._calls.pop(stream_id, None)
        if call is not None and call.held_bytes:
            self._free(None, call.held_bytes)
            call.held_bytes = 0

    def _pull(self) -> None:
        """Append h2's output to ours."""
        data = self._h2.data_to_send()
        if data:
            self._output.append(data)

    def _write(self) -> None:
        data = b"".join(self._output)
        self._output.clear()
        if data and self._transport is not None:
            self._transport.write(data)

    # Shutdown

    @property
    def busy(self) -> int:
        """The number of calls in progress."""
        return len(self._calls)

    def end_calls(self, error: RpcError) -> None:
        """Stop every call with this error."""
        for call in list(self._calls.values()):
            call.abort(error)

    def go_away(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Refuse new calls, and close after the output is sent."""
        try:
            self._h2.close_connection(code)
        except ProtocolError as error:
            logger.debug("closing a gRPC connection: %s", error)
        self._close()

    def _close(self) -> None:
        self._pull()
        self._write()
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

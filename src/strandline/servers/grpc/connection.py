"""An HTTP/2 connection of a gRPC client, on the library h2.

Rules: invalid input costs its sender a call or, at worst, the connection. Output of all calls is
written once per round of the loop, in frames as large as the client accepts: what makes gRPC slow
is a frame for each small message (docs/adr/0019). While the client does not read its output,
nothing more is read from it, which bounds memory. DATA frames bypass h2 (``http2_frames``) both
ways: this module keeps the receive windows, and h2 the send windows, because it sees the client's
window updates. Output of h2 is fetched at once, so that frames leave in the order of their
creation. The simplest frames use the fast path (``fast_path``), all others this module.

Each connection handles input for a share of each round of the loop (``round_budget``); the rest
waits, and nothing more is read meanwhile. The connection ends if it receives too many frames
without content (PING, PRIORITY, WINDOW_UPDATE, empty DATA) compared with its output, or if the
client does not identify itself within ``IDENTIFY_S``.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import Final, cast

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

from strandline.api.monitoring import ConnectionInfo
from strandline.broker.log_throttle import LogThrottle
from strandline.servers.connections import ConnectionLimit, address_text
from strandline.servers.grpc.calls import STREAM_WINDOW_BYTES, Call, CallMultiplexer, FlushQueue
from strandline.servers.grpc.fast_path import FastPath
from strandline.servers.grpc.grpc_messages import timeout_s
from strandline.servers.grpc.http2_frames import (
    END_STREAM,
    PADDED,
    Data,
    FrameReader,
    Http2FrameError,
    data_header,
    unpadded,
    window_update,
)
from strandline.servers.grpc.serving import CallServer
from strandline.servers.grpc.status import OversizeError, RpcError
from strandline.servers.metering import Presence
from strandline.servers.round_budget import SPENT, RoundBudget
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

LISTENER: Final = "grpc"
STREAMS_MAX: Final = 4096
CONNECTION_WINDOW_BYTES: Final = 8 << 20
"""Added to HTTP/2's initial window of 65,535 bytes."""
FIRST_WINDOW_BYTES: Final = 65_535
HEADERS_BYTES_MAX: Final = 64 << 10
SETTINGS: Final[dict[SettingCodes, int]] = {
    SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
    SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
    SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
}
WRITE_BYTES_HIGH: Final = 1 << 20
RESETS_MAX: Final = 1000
"""Unanswered calls that a client may reset beyond those that it lets finish (CVE-2023-44487)."""
CONTROL_S: Final = 1.0
"""After this time a small number of frames without content is forgotten."""
IDENTIFY_S: Final = 5.0


class GrpcState:
    """The state that all connections of one listener share.

    Args:
        server: serves calls.
        telemetry: counts connections and messages.
        limit: limits the number of connections.
    """

    def __init__(self, server: CallServer, telemetry: Telemetry, limit: ConnectionLimit) -> None:
        self.server = server
        self.limit = limit
        self.port = 0
        """The listener's port; 0 before it listens."""
        self.budget = RoundBudget()
        self.flushes = FlushQueue()
        self.messages = 0
        """DATA frames received since the last report to telemetry."""
        self.connections: set[GrpcConnection] = set()
        self.all_gone = asyncio.Event()
        """Set while there is no connection."""
        self.all_gone.set()
        self._telemetry = telemetry
        self._warnings = LogThrottle()

    def send_answers(self) -> None:
        """Send queued answers, and report the number of messages to telemetry.

        The answers leave at once, not in the next round of the loop: the sync of the next group
        commit could come first, and all clients would wait for it.
        """
        self.flushes.flush()
        if self.messages:
            self._telemetry.count_listener(LISTENER, messages=self.messages)
            self.messages = 0

    def warn_oversize(self, error: OversizeError) -> None:
        """Log the rejection of an oversized message, with throttling."""
        if self._warnings.is_due("oversize", asyncio.get_running_loop().time()):
            text = "rejected on gRPC port %d: %s (the client may repeat it for ever)"
            logger.warning(text, self.port, error.text)

    def admit(self, connection: "GrpcConnection") -> bool:
        """Register a new connection; return False if there are too many."""
        self.connections.add(connection)
        self.all_gone.clear()
        self._telemetry.count_listener(LISTENER, connections=1)
        return self.limit.admit(connection, connection.drop)

    def forget(self, connection: "GrpcConnection") -> None:
        """Forget a closed connection."""
        self.connections.discard(connection)
        self.limit.forget(connection)
        if not self.connections:
            self.all_gone.set()
        self._telemetry.count_listener(LISTENER, connections=-1)


class GrpcConnection(asyncio.Protocol):
    """A client's connection.

    Args:
        shared: the state shared with other connections.
    """

    def __init__(self, shared: GrpcState) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self.multiplexer = CallMultiplexer(
            self._frames, shared.flushes, FIRST_WINDOW_BYTES + CONNECTION_WINDOW_BYTES
        )
        self._h2 = self.multiplexer.h2
        self._output = self.multiplexer.output
        self.fast_path = FastPath(self.multiplexer)
        self._control_since_s = self._loop.time()
        self._is_identified = False
        """Whether a call has identified the client."""
        self._unread: Iterator[Data | bytes] | None = None
        """Input that waits for a later round."""
        self._identify_timer: asyncio.TimerHandle | None = None
        self._presence = Presence()
        self._calls = 0

    def client_info(self) -> ConnectionInfo:
        """Return the client's address and all principals that have called on it; any thread."""
        return ConnectionInfo(
            listener="grpc",
            address=address_text(self.multiplexer.transport),
            principal=", ".join(self._presence.principals),
            messages=self._calls,
        )

    # Methods of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send SETTINGS, or close a connection above the limit."""
        self.multiplexer.transport = cast("asyncio.Transport", transport)
        self.multiplexer.transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        # The settings are enforced from the first frame. An update would be enforced only after
        # the client acknowledged it, and would break clients that open many calls before that.
        self._h2.local_settings = Settings(client=False, initial_values=dict(SETTINGS))
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self.multiplexer.pull()
        self.multiplexer.write()
        if not self._shared.admit(self):
            self.go_away(ErrorCodes.ENHANCE_YOUR_CALM)
        self._identify_timer = self._loop.call_later(IDENTIFY_S, self._check_identified)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Stop the connection's calls."""
        self.multiplexer.transport = self._unread = None
        if self._identify_timer is not None:
            self._identify_timer.cancel()
        self.multiplexer.lose()
        self._presence.end()
        self._shared.forget(self)

    def pause_writing(self) -> None:
        """Stop reading and writing, because the client does not read its output."""
        self.multiplexer.is_paused = True
        if self.multiplexer.transport is not None and not self.multiplexer.transport.is_closing():
            self.multiplexer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume, because the client has caught up."""
        self.multiplexer.is_paused = False
        if self._unread is not None:
            self._shared.budget.defer(self._take_unread)
        elif self.multiplexer.transport is not None and not self.multiplexer.transport.is_closing():
            self.multiplexer.transport.resume_reading()
        self.multiplexer.flush_soon()

    def data_received(self, data: bytes) -> None:
        """Handle received frames."""
        pieces = self._frames.feed(data)
        if self._unread is not None:
            self._unread = itertools.chain(self._unread, pieces)
        else:
            self._take_pieces(pieces)

    def _take_unread(self) -> None:
        """Continue with input that was left over from an earlier round."""
        unread, transport = self._unread, self.multiplexer.transport
        if unread is None or transport is None or self.multiplexer.is_paused:
            return
        self._unread = None
        if transport.is_closing():
            return
        self._take_pieces(unread)
        if self._unread is None and not self.multiplexer.is_paused and not transport.is_closing():
            transport.resume_reading()

    def _take_pieces(self, pieces: Iterator[Data | bytes]) -> None:
        """Handle input until this round's share is used up; keep the rest."""
        if self._frames.control > 0 or self._frames.settings:
            self._forget_control()
        end_s = self._shared.budget.slice_end()
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
            self._shared.messages += self.fast_path.count()
        except Http2FrameError as error:
            logger.debug("a gRPC client violated the protocol: %s", error)
            self.go_away(error.code)
        except ProtocolError as error:
            logger.debug("a gRPC client violated the protocol: %s", error)
            self._close()
        else:
            if self._output:
                self.multiplexer.write()

    # Input

    def _wait_for_round(self, pieces: Iterator[Data | bytes]) -> None:
        """Keep input for a later round, and stop reading until then."""
        self._unread = pieces
        if self.multiplexer.transport is not None and not self.multiplexer.transport.is_closing():
            self.multiplexer.transport.pause_reading()
        self._shared.budget.defer(self._take_unread)

    def _check_identified(self) -> None:
        """Close the connection of a client that has not identified itself in time.

        Without access control clients have no identity, and valid HTTP/2 is enough. A health probe
        has no credentials and may stay while it watches the health.
        """
        is_identified = self._is_identified or self._shared.server.is_known(
            self.multiplexer.transport
        )
        is_probe = any(call.has_begun for call in self.multiplexer.calls.values())
        if not (self._frames.is_greeted and (is_identified or is_probe)):
            self.go_away()
        elif not is_identified:
            self._identify_timer = self._loop.call_later(IDENTIFY_S, self._check_identified)

    def _forget_control(self) -> None:
        """Reset the counts of control frames and SETTINGS once ``CONTROL_S`` has passed."""
        now_s = self._loop.time()
        if now_s - self._control_since_s >= CONTROL_S:
            self._control_since_s = now_s
            self._frames.settings = 0
            self._frames.control = min(self._frames.control, 0)

    def _show(self, data: bytes) -> None:
        """Pass frames to h2 and handle its events.

        Raises:
            ProtocolError: the frames violate the protocol.
        """
        events = self._h2.receive_data(data)
        for event in events:
            self._take(event)
        self.multiplexer.pull()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case StreamEnded(stream_id=stream_id) if call := self.multiplexer.calls.get(stream_id):
                self.fast_path.take_off(stream_id)
                call.end_input()
            case StreamReset(stream_id=stream_id):
                self._reset(stream_id)
            case WindowUpdated() | RemoteSettingsChanged():
                self.multiplexer.flush_soon()
            case DataReceived(stream_id=stream_id, data=data):  # for a call with a content-length
                size = event.flow_controlled_length or 0
                if measured := self.multiplexer.calls.get(stream_id):
                    self._feed(measured, data or b"", 0)
                with contextlib.suppress(ProtocolError):  # the call may have ended
                    self._h2.acknowledge_received_data(size, stream_id)

    def _take_data(self, frame: Data) -> None:
        """Handle a DATA frame.

        Raises:
            ProtocolError, Http2FrameError: the frame violates the protocol.
        """
        stream_id, flags, buffer, start, end = frame
        payload, size = buffer[start:end], end - start
        call = self.multiplexer.calls.get(stream_id)
        self.fast_path.take_off(stream_id)
        if call is not None and call.is_measured:
            self._show(data_header(stream_id, size, flags) + payload)
            return
        if call is None or call.input_ended:
            self.multiplexer.receive_window.spend(size)
            self.multiplexer.free(None, size)
            self._show(data_header(stream_id, 0, flags & END_STREAM))
            return
        if flags & PADDED:
            payload = unpadded(payload)
        if self._feed(call, payload, size):
            freed = self.multiplexer.receive_window.pass_on(size)
            if freed:
                self._output.append(window_update(0, freed))
            freed = call.receive_window.pass_on(size)
            if freed:
                self._output.append(window_update(stream_id, freed))
        else:
            self.multiplexer.receive_window.spend(size)
            call.receive_window.spend(size)
        if flags & END_STREAM:
            self._show(data_header(stream_id, 0, END_STREAM))
        else:
            self.fast_path.put_on(call)

    def _feed(self, call: Call, data: bytes, flow_bytes: int) -> bool:
        """Pass data to its call; return whether the client may send as much again."""
        if call.status is not None:
            return True
        self._shared.messages += 1
        try:
            return call.feed(data, flow_bytes)
        except RpcError as error:
            if isinstance(error, OversizeError):
                self._shared.warn_oversize(error)
            call.abort(error)
        except Exception:
            logger.exception("a gRPC call failed")
            call.fail()
        return True

    def _begin(self, event: RequestReceived) -> None:
        """Start a call."""
        headers, stream_id = dict(event.headers or ()), event.stream_id or 0
        server, path = self._shared.server, bytes(headers.get(b":path", b""))
        timeout = headers.get(b"grpc-timeout")
        call = self.multiplexer.calls[stream_id] = Call(
            self.multiplexer,
            stream_id,
            message_bytes_max=server.message_bytes_max(path),
            timeout_s=timeout_s(bytes(timeout)) if timeout is not None else None,
        )
        server.serve(call, headers, transport=self.multiplexer.transport, presence=self._presence)
        self._calls += 1
        if call.status is None and not self._is_identified:
            self._is_identified = not server.is_open(path)
            if self._is_identified:
                self._shared.limit.note_identified(self)

    def _reset(self, stream_id: int) -> None:
        """Cancel a call, because the client reset it."""
        call = self.multiplexer.calls.get(stream_id)
        if call is not None:
            self._frames.control -= 1  # resetting a call in progress does not count
            self.multiplexer.give_up(call)
            # A client that resets after an answer has begun, as subscribers do, is no flood.
            self.multiplexer.resets += not call.has_begun
            if self.multiplexer.resets > RESETS_MAX:
                self.go_away(ErrorCodes.ENHANCE_YOUR_CALM)

    # Shutdown

    def go_away(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Reject new calls, and close after the output is sent."""
        try:
            self._h2.close_connection(code)
        except ProtocolError as error:
            logger.debug("closing a gRPC connection: %s", error)
        self._close()

    def _close(self) -> None:
        self.multiplexer.pull()
        self.multiplexer.write()
        if self.multiplexer.transport is not None:
            self.multiplexer.transport.close()

    def drop(self) -> None:
        """Close at once."""
        if self.multiplexer.transport is not None:
            self.multiplexer.transport.abort()

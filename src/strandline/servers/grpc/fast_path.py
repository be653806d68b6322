"""The fast path of a connection: a request in one DATA frame, and a reply in one.

Publishers that wait for each ack use only such frames. The general path handles frames with parts
of messages or many messages, and gathers output, which costs as much again as storing the record
(docs/adr/0019).

Rules: a call uses it only while nothing of the call is on the general path: no partial message, no
output that waits for a window, no held input and no quota. The general path adds and removes calls.
A frame that does not qualify is left unchanged to the general path, and both give the same answers
(``tests/property/test_grpc_append.py``).
"""

import logging
from typing import TYPE_CHECKING

from strandline.servers.grpc.http2_frames import Data, ReceiveWindow, data_header, window_update
from strandline.servers.grpc.status import RpcError

if TYPE_CHECKING:
    from h2.connection import H2Connection

    from strandline.servers.grpc.calls import Call
    from strandline.servers.grpc.connection import GrpcConnection

logger = logging.getLogger(__name__)


class FastPath:
    """The fast path of one connection.

    Args:
        connection: the connection.
        h2: has the send windows.
        receive_window: the receive window of the connection.
        output: the connection's output list, which is never replaced.
    """

    def __init__(
        self,
        connection: "GrpcConnection",
        h2: "H2Connection",
        *,
        receive_window: ReceiveWindow,
        output: list[bytes | bytearray],
    ) -> None:
        self._connection = connection
        self._h2 = h2
        self._receive_window = receive_window
        self._output = output
        self._calls: dict[int, Call] = {}
        self._frames = self._bytes = 0
        """Taken since they were last counted."""

    def put_on(self, call: "Call") -> None:
        """Let a call use the fast path, if nothing of it is on the general path."""
        if call.is_between:
            self._calls[call.stream_id] = call

    def take_off(self, stream_id: int) -> None:
        """Let a call use the general path only."""
        self._calls.pop(stream_id, None)

    def take(self, frame: Data) -> bool:
        """Pass a frame to the sink of its call; return False if nothing was done.

        Raises:
            Http2FrameError: the client exceeded its window.
        """
        stream_id, flags, buffer, start, end = frame
        call = self._calls.get(stream_id)
        if call is None or flags or call.output or call.sink is None or call.status is not None:
            return False
        try:
            if not call.sink.take_whole(buffer, start, end):
                return False
        except RpcError as error:
            call.abort(error)
        except Exception:
            logger.exception("a gRPC call failed")
            call.fail()
        self._frames += 1
        self._bytes += end - start
        if freed := call.receive_window.pass_on(end - start):
            self._output.append(window_update(stream_id, freed))
        return True

    def count(self) -> int:
        """Return how many frames were handled since; charge their bytes to the window.

        Raises:
            Http2FrameError: the client exceeded its window.
        """
        frames, self._frames = self._frames, 0
        if frames and (freed := self._receive_window.pass_on(self._bytes)):
            self._output.append(window_update(0, freed))
        self._bytes = 0
        return frames

    def answer(self, call: "Call", data: bytes) -> None:
        """Send a small framed message, in a frame of its own if the windows allow it."""
        stream, h2, count = call.stream, self._h2, len(data)
        if (
            stream is None
            or call.output
            or count > stream.outbound_flow_control_window
            or count > h2.outbound_flow_control_window
        ):
            call.send_framed(data)
            return
        # As h2's send_data does; the stream's state does not change.
        h2.outbound_flow_control_window -= count
        stream.outbound_flow_control_window -= count
        output = self._output
        output.append(data_header(call.stream_id, count))
        output.append(data)
        if len(output) == 2:  # else a flush is scheduled already
            self._connection.flush_soon()

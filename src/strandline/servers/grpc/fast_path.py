"""The short way through a connection: a request that is one DATA frame, and an answer that is one.

What publishers send who wait for each record consists of these. The general way lets a frame hold
half a message or many, and gathers what goes, which costs as much again as storing the record
(docs/adr/0019).

Rules: a call goes it only while nothing of it is on the general way: no half message, nothing that
waits for a window, nothing held back, no quota to count; the general way puts it on and takes it
off. Whatever is not as simple as it should be is left to the general way as it came, and both give
the same answers (``tests/property/test_grpc_append.py``).
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
    """The short way of one connection.

    Args:
        connection: whose.
        h2: knows how much the client takes.
        inflow: how much the client may send, in all.
        output: what the connection writes next, which stays the same list.
    """

    def __init__(
        self,
        connection: "GrpcConnection",
        h2: "H2Connection",
        *,
        inflow: ReceiveWindow,
        output: list[bytes | bytearray],
    ) -> None:
        self._connection = connection
        self._h2 = h2
        self._inflow = inflow
        self._output = output
        self._calls: dict[int, Call] = {}
        self._frames = self._bytes = 0
        """Taken since they were last counted."""

    def put_on(self, call: "Call") -> None:
        """Let a call go it, if nothing of it is on the general way."""
        if call.is_between:
            self._calls[call.stream_id] = call

    def take_off(self, stream_id: int) -> None:
        """Let a call go the general way, whether it went this one or not."""
        self._calls.pop(stream_id, None)

    def take(self, frame: Data) -> bool:
        """Hand a frame to who takes the messages of its call; False: nothing was done.

        Raises:
            Http2FrameError: more than the client may send.
        """
        stream_id, flags, buffer, start, end = frame
        call = self._calls.get(stream_id)
        if call is None or flags or call.output or call.taker is None or call.status is not None:
            return False
        try:
            if not call.taker.take_whole(buffer, start, end):
                return False
        except RpcError as error:
            call.abort(error)
        except Exception:
            logger.exception("a gRPC call failed")
            call.fail()
        self._frames += 1
        self._bytes += end - start
        if told := call.inflow.pass_on(end - start):
            self._output.append(window_update(stream_id, told))
        return True

    def count(self) -> int:
        """How many frames were taken since the last time; their bytes count for the window.

        Raises:
            Http2FrameError: more than the client may send.
        """
        frames, self._frames = self._frames, 0
        if frames and (told := self._inflow.pass_on(self._bytes)):
            self._output.append(window_update(0, told))
        self._bytes = 0
        return frames

    def answer(self, call: "Call", data: bytes) -> None:
        """Send a small message with its prefix, in a frame of its own if there is room for it."""
        stream, h2, count = call.stream, self._h2, len(data)
        if (
            stream is None
            or call.output
            or count > stream.outbound_flow_control_window
            or count > h2.outbound_flow_control_window
        ):
            call.send_framed(data)
            return
        # As its send_data does; the stream's state stays as it is.
        h2.outbound_flow_control_window -= count
        stream.outbound_flow_control_window -= count
        output = self._output
        output.append(data_header(call.stream_id, count))
        output.append(data)
        if len(output) == 2:  # else somebody has seen to it
            self._connection.flush_soon()

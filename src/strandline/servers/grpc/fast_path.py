"""The fast path of a connection: a request that is one DATA frame. ``Call.answer`` sends replies.

Publishers that wait for each ack send only such frames. The general path handles frames with parts
of messages or with many messages, and gathers output, which costs as much again as storing the
record (docs/adr/0019).

Rules: a call uses the fast path only while nothing of it is on the general path: no partial
    message,
no output that waits for a window, no delayed input and no quota. The general path adds and removes
calls. A frame that does not qualify is left unchanged to the general path, and both paths give the
same answers (``tests/property/test_grpc_append.py``).
"""

import logging

from strandline.servers.grpc.calls import Call, CallMultiplexer
from strandline.servers.grpc.http2_frames import Data, window_update
from strandline.servers.grpc.status import RpcError

logger = logging.getLogger(__name__)


class FastPath:
    """The fast path of one connection.

    Args:
        multiplexer: the calls of the connection.
    """

    def __init__(self, multiplexer: CallMultiplexer) -> None:
        self._receive_window = multiplexer.receive_window
        self._output = multiplexer.output
        self._calls = multiplexer.fast
        self._frames = self._bytes = 0
        """DATA frames handled since the last ``count``, and their bytes."""

    def put_on(self, call: Call) -> None:
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
        """Return the number of frames handled since the last call, and charge their bytes.

        Raises:
            Http2FrameError: the client exceeded its window.
        """
        frames, self._frames = self._frames, 0
        if frames and (freed := self._receive_window.pass_on(self._bytes)):
            self._output.append(window_update(0, freed))
        self._bytes = 0
        return frames

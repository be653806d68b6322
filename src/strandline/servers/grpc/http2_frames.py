"""HTTP/2 DATA frames, parsed and encoded without h2. Pure.

h2 takes ten microseconds for a frame, more than all other work for one appended record. So frames
with messages bypass h2, and h2 handles all others (docs/adr/0019).

Rules: h2 checks the protocol. It gets frames that are too long, frames between header frames, and
the end of each stream; frames that bypass it belong to calls that it accepted. The caller keeps the
windows for frames that h2 does not see. A client's GOAWAY is dropped: it concerns only streams that
the server begins, and with it h2 would not let any call end.
"""

import struct
from collections.abc import Iterator
from typing import Final

from h2.errors import ErrorCodes

HEADER: Final = struct.Struct(">HBBBI")
"""A frame header: length in 16 and 8 bits, type, flags, stream."""
HEADER_BYTES: Final = HEADER.size
WINDOW: Final = struct.Struct(">HBBBII")
GREETING_BYTES: Final = 24
FRAME_BYTES_MAX: Final = 16384
"""The limit of a received frame: HTTP/2's default."""
DATA: Final = 0
HEADERS: Final = 1
SETTINGS: Final = 4
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
END_STREAM: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
STREAM_MASK: Final = (1 << 31) - 1
TOO_MUCH: Final = "more data than the window takes"
SETTINGS_MAX: Final = 100
"""The limit of SETTINGS frames until the count is reset. A new initial window changes the window of
every call of the connection, so each frame may take time for all of them."""
CONTROL_MAX: Final = 1000
"""The limit of frames without content, such as PING and WINDOW_UPDATE, until the count is reset."""
MESSAGE_BYTES_MIN: Final = 5
"""The smallest message in gRPC's framing. DATA frames below it count as frames without content."""
CONTROL_PIECE: Final = 32
"""Frames without content that go to h2 in one piece; the connection may pause between pieces."""


class Http2FrameError(Exception):
    """A protocol violation by the client, which ends its connection."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


Data = tuple[int, int, bytes, int, int]
"""A DATA frame: stream, flags, buffer, and the start and end of its payload in the buffer."""


class FrameReader:
    """A reader that splits input into DATA frames and pieces for h2, in order."""

    __slots__ = ("_greeting", "_is_in_headers", "_missing", "_rest", "control", "settings")

    def __init__(self) -> None:
        self._rest = b""
        """The first bytes of an incomplete frame."""
        self._greeting = GREETING_BYTES
        """The number of bytes of the client's preface that have not arrived."""
        self._is_in_headers = False
        self.settings = 0
        """SETTINGS frames since the count was reset."""
        self.control = 0
        """Frames without content, minus those that output has allowed."""

    @property
    def is_greeted(self) -> bool:
        """Whether the client's preface has arrived."""
        return not self._greeting

    def feed(self, data: bytes) -> Iterator[Data | bytes]:
        """Yield complete frames and pieces; exhaust the iterator before the next call.

        Raises:
            Http2FrameError: there were too many frames without content.
        """
        position = 0
        while self._rest and position < len(data):  # copy the incomplete frame only
            stop = position + self._missing
            joined, self._rest = self._rest + data[position:stop], b""
            yield from self._split(joined, 0)
            position = stop
        if position < len(data):
            yield from self._split(data, position)

    def _split(self, data: bytes, position: int) -> Iterator[Data | bytes]:
        """Yield complete frames and pieces from a position on; keep the rest."""
        begin, size = position, len(data)
        if self._greeting:
            position = min(self._greeting, size)
            self._greeting -= position
        while True:
            start = position + HEADER_BYTES
            if start > size:
                self._missing = start - size
                break
            high, low, kind, flags, stream_id = HEADER.unpack_from(data, position)
            end = start + (high << 8 | low)
            if end - start > FRAME_BYTES_MAX:
                position = size  # h2 gets everything and reports the error
                break
            if end > size:
                self._missing = end - size
                break
            if kind == DATA and not self._is_in_headers:
                if begin < position:
                    yield data[begin:position]
                if end - start < MESSAGE_BYTES_MIN and not flags:
                    self._count_control(kind)
                yield stream_id & STREAM_MASK, flags, data, start, end
                begin = end
            elif kind == GOAWAY and not self._is_in_headers:
                self._count_control(kind)
                if begin < position:
                    yield data[begin:position]
                begin = end
            elif kind == HEADERS and flags & END_HEADERS:
                self._is_in_headers = False
                yield data[begin:end]  # it may start a call, which is enough work for one piece
                begin = end
            else:
                if kind in (HEADERS, CONTINUATION):
                    self._is_in_headers = not flags & END_HEADERS
                self._count_control(kind)
                if not self.control % CONTROL_PIECE:
                    yield data[begin:end]
                    begin = end
            position = end
        self._rest = data[position:]
        if begin < position:
            yield data[begin:position]

    def _count_control(self, kind: int) -> None:
        """Count a frame without content.

        Raises:
            Http2FrameError: there were too many such frames.
        """
        self.control += 1
        if kind == SETTINGS:
            self.settings += 1
        if self.control > CONTROL_MAX or self.settings > SETTINGS_MAX:
            text = f"too many frames without content, the last of type {kind}"
            raise Http2FrameError(ErrorCodes.ENHANCE_YOUR_CALM, text)


class ReceiveWindow:
    """The receive window of one stream or of the connection.

    Args:
        window_bytes: the size of the window.
    """

    __slots__ = ("_freed", "_half", "_left")

    def __init__(self, window_bytes: int) -> None:
        self._left = window_bytes
        self._half = window_bytes // 2
        self._freed = 0

    def pass_on(self, count: int) -> int:
        """Spend and free in one step, for data that is handled at once.

        Raises:
            Http2FrameError: the client exceeded its window.
        """
        if count > self._left:
            raise Http2FrameError(ErrorCodes.FLOW_CONTROL_ERROR, TOO_MUCH)
        self._freed += count
        if self._freed < self._half:
            self._left -= count
            return 0
        freed, self._freed = self._freed, 0
        self._left += freed - count
        return freed

    def spend(self, count: int) -> None:
        """Deduct received data from the window.

        Raises:
            Http2FrameError: the client exceeded its window.
        """
        self._left -= count
        if self._left < 0:
            raise Http2FrameError(ErrorCodes.FLOW_CONTROL_ERROR, TOO_MUCH)

    def free(self, count: int) -> int:
        """Give back handled data; return the window update to send, usually 0."""
        self._freed += count
        if self._freed < self._half:
            return 0
        freed, self._freed = self._freed, 0
        self._left += freed
        return freed


def data_header(stream_id: int, count: int, flags: int = 0) -> bytes:
    """Encode the header of a DATA frame."""
    return HEADER.pack(count >> 8, count & 0xFF, DATA, flags, stream_id)


def window_update(stream_id: int, count: int) -> bytes:
    """Encode a WINDOW_UPDATE frame."""
    return WINDOW.pack(0, 4, WINDOW_UPDATE, 0, stream_id, count)


def unpadded(payload: bytes) -> bytes:
    """Return the data of a padded frame.

    Raises:
        Http2FrameError: the padding is invalid.
    """
    if not payload or payload[0] >= len(payload):
        raise Http2FrameError(ErrorCodes.PROTOCOL_ERROR, "more padding than there is data")
    return payload[1 : len(payload) - payload[0]]

"""Frames of the peer link: messages in a byte stream. Pure; little-endian.

     0  length u32 (bytes from 8 on)    4  crc32c u32 (of the bytes from 8 on)
     8  channel u8    9  header bytes u32    13  number of attachments u32
    17  bytes of each attachment, u32 each
        header (msgpack, encoded by the caller)
        attachments, one after another

Rules: a length is used only after it was compared with its limit and with the other lengths of the
frame; nothing is allocated before. After a bad frame the stream cannot be decoded further, because
the start of the next frame is unknown. A ``Frame`` owns its bytes: no later read changes them.

The socket reads into the decoder's memory (``buffer``, ``received``), as asyncio's BufferedProtocol
requires. A frame that fits into the receive buffer is copied once, so that a small attachment does
not keep a large buffer alive. A larger frame gets memory of its own, which the socket reads into;
its attachments are views of that memory, without a copy.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from strandline.broker.peers.errors import PeerFrameError
from strandline.checksum import crc32c

Data = bytes | bytearray | memoryview
"""One-dimensional bytes; ``len`` must count bytes."""

PREFIX: Final = struct.Struct("<II")
BODY: Final = struct.Struct("<BII")
HEAD: Final = struct.Struct("<IIBII")
LENGTH_BYTES: Final = 4
RECEIVE_BYTES: Final = 256 << 10
"""The most bytes of one read while frames are small; a larger buffer was not faster."""


class Frame(NamedTuple):
    """A message of a peer."""

    channel: int
    header: bytes
    attachments: tuple[memoryview, ...] = ()
    """Read-only views."""


def encode_frame(channel: int, header: bytes, attachments: Sequence[Data] = ()) -> list[Data]:
    """Return a frame as buffers to be written in order; attachments are not copied."""
    if not attachments:
        body = BODY.pack(channel, len(header), 0) + header
        return [PREFIX.pack(len(body), crc32c(body)) + body]
    count = len(attachments)
    lengths = [len(each) for each in attachments]
    body = b"".join(
        (BODY.pack(channel, len(header), count), struct.pack(f"<{count}I", *lengths), header)
    )
    crc = crc32c(body)
    for each in attachments:
        crc = crc32c(each, crc)
    return [PREFIX.pack(len(body) + sum(lengths), crc) + body, *attachments]


class FrameDecoder:
    """Decodes frames from received bytes.

    Invariants: the receive buffer starts with the start of a frame; while ``_large`` is set the
        receive buffer is empty; a frame in ``_large`` is longer than the receive buffer.

    Args:
        frame_bytes_max: the largest frame, its prefix included.
        attachments_max: the most attachments of one frame.
        receive_bytes: the size of the receive buffer.
    """

    def __init__(
        self, *, frame_bytes_max: int, attachments_max: int, receive_bytes: int = RECEIVE_BYTES
    ) -> None:
        assert receive_bytes >= HEAD.size, "the head of a frame must fit"
        self._frame_bytes_max = frame_bytes_max
        self._attachments_max = attachments_max
        self._view = memoryview(bytearray(receive_bytes))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether no part of a frame is waiting for the rest."""
        return self._filled == 0 and self._large is None

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes, never empty; valid until ``received``."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def received(self, size: int) -> list[Frame]:
        """Decode the ``size`` bytes just written to ``buffer()``; return the completed frames.

        Raises:
            PeerFrameError: the bytes are not a frame; the decoder cannot be used any longer.
        """
        if self._large is not None:
            return self._received_large(self._large, size)
        self._filled += size
        frames: list[Frame] = []
        start, end = 0, self._filled
        while end - start >= HEAD.size:
            total = self._check_head(start)
            if end - start < total:
                if total > len(self._view):
                    self._begin_large(start, total)
                    return frames
                break
            frames.append(_decoded(self._view[start : start + total], is_own=False))
            start += total
        if start:
            # Move the rest to the front, so that a frame that fits is always contiguous.
            self._view[: end - start] = self._view[start:end]
            self._filled = end - start
        return frames

    def feed(self, data: Data) -> list[Frame]:
        """Decode a copy of ``data``, for callers without a socket; raises as ``received`` does."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            space = self.buffer()
            size = min(len(space), len(rest))
            space[:size] = rest[:size]
            frames += self.received(size)
            rest = rest[size:]
        return frames

    def _check_head(self, start: int) -> int:
        """Return the length of the frame that starts at ``start``, after checking its head."""
        length, _, _, header_bytes, count = HEAD.unpack_from(self._view, start)
        total: int = PREFIX.size + length
        if total > self._frame_bytes_max:
            raise PeerFrameError(
                f"a frame of {total} bytes; at most {self._frame_bytes_max} are accepted"
            )
        if count > self._attachments_max:
            raise PeerFrameError(
                f"a frame of {count} attachments; at most {self._attachments_max} are accepted"
            )
        if BODY.size + count * LENGTH_BYTES + header_bytes > length:
            raise PeerFrameError("a frame whose parts are longer than the frame")
        return total

    def _begin_large(self, start: int, total: int) -> None:
        """Allocate memory for a large frame, and receive the rest of the frame into it."""
        large = memoryview(bytearray(total))
        self._large_filled = self._filled - start
        large[: self._large_filled] = self._view[start : self._filled]
        self._large = large
        self._filled = 0

    def _received_large(self, large: memoryview, size: int) -> list[Frame]:
        self._large_filled += size
        if self._large_filled < len(large):
            return []
        self._large = None
        return [_decoded(large, is_own=True)]


def _decoded(view: memoryview, *, is_own: bool) -> Frame:
    """Return the frame in ``view``, whose head was checked before.

    Args:
        view: the whole frame.
        is_own: whether the memory belongs to this frame alone, and need not be copied.
    """
    _, crc, channel, header_bytes, count = HEAD.unpack_from(view)
    if crc32c(view[PREFIX.size :]) != crc:
        raise PeerFrameError("a frame with a wrong checksum")
    header_at = HEAD.size + count * LENGTH_BYTES
    end = header_at + header_bytes
    lengths: tuple[int, ...] = ()
    if count:
        lengths = struct.unpack_from(f"<{count}I", view, HEAD.size)
    if end + sum(lengths) != len(view):
        raise PeerFrameError("a frame whose attachments do not add up to its length")
    header = bytes(view[header_at:end])
    if not count:
        return Frame(channel, header)
    data = view.toreadonly()[end:] if is_own else memoryview(bytes(view[end:]))
    attachments = []
    position = 0
    for length in lengths:
        attachments.append(data[position : position + length])
        position += length
    return Frame(channel, header, tuple(attachments))

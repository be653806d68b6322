"""Frames: their layout, and rejections before any memory is allocated."""

import struct

import pytest
from crc32c import crc32c

from strandline.broker.peers.errors import PeerFrameError
from strandline.broker.peers.frame import BODY, HEAD, PREFIX, Frame, FrameDecoder, encode_frame


def make_decoder(receive_bytes=64, frame_bytes_max=10_000, attachments_max=10):
    return FrameDecoder(
        frame_bytes_max=frame_bytes_max,
        attachments_max=attachments_max,
        receive_bytes=receive_bytes,
    )


def joined(*arguments):
    return b"".join(encode_frame(*arguments))


def sealed(body):
    """A frame with this body, its length and checksum right."""
    return PREFIX.pack(len(body), crc32c(body)) + body


def test_the_layout_is_what_the_module_says():
    """Length, checksum, channel, sizes, header and attachments are where other versions look."""
    body = b"\x07" + struct.pack("<II", 2, 2) + struct.pack("<II", 1, 3) + b"hh" + b"a" + b"bcd"
    assert joined(7, b"hh", [b"a", b"bcd"]) == struct.pack("<II", len(body), crc32c(body)) + body


def test_frames_come_back_as_they_were():
    """A frame without attachments, one with, one with empty ones, and a long one."""
    frames = [
        Frame(1, b""),
        Frame(255, b"header", (memoryview(b"batch"),)),
        Frame(2, b"h", (memoryview(b""), memoryview(b"x"), memoryview(b""))),
        Frame(3, b"l" * 100, (memoryview(b"long" * 1000),)),
        Frame(4, b"end"),
    ]
    decoder = make_decoder()
    assert decoder.feed(b"".join(joined(*frame) for frame in frames)) == frames
    assert decoder.is_between_frames


def test_attachments_are_sent_without_a_copy():
    """The encoder hands on the very buffers it was given."""
    batch = memoryview(b"batch")
    assert encode_frame(1, b"h", [batch])[1] is batch


def test_a_large_frame_is_received_in_place():
    """A frame larger than the receive buffer is read into the memory that its attachments view."""
    data = joined(1, b"h", [b"x" * 5000])
    decoder = make_decoder()
    assert decoder.feed(data[:60]) == []
    space = decoder.buffer()
    assert len(space) > 64
    rest = data[60:]
    assert decoder.feed(rest[:-1]) == []
    [frame] = decoder.feed(rest[-1:])
    assert frame.attachments[0].obj is space.obj


@pytest.mark.parametrize("size", [10, 5000], ids=["copied", "in-place"])
def test_attachments_keep_what_they_are(size):
    """No later read changes a frame, and its holder cannot either."""
    decoder = make_decoder()
    [first] = decoder.feed(joined(1, b"h", [b"1" * size]))
    decoder.feed(joined(1, b"h", [b"2" * size]))
    assert first.attachments[0] == b"1" * size
    assert first.attachments[0].readonly


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (HEAD.pack(2**32 - 1, 0, 1, 0, 0), "at most 10000"),
        (HEAD.pack(10_000, 0, 1, 0, 0), "10008 bytes"),
        (HEAD.pack(BODY.size + 400, 0, 1, 0, 11), "11 attachments"),
        (HEAD.pack(BODY.size, 0, 1, 2**32 - 1, 0), "longer than the frame"),
        (HEAD.pack(BODY.size + 3, 0, 1, 0, 1), "longer than the frame"),
        (HEAD.pack(0, 0, 0, 0, 0), "longer than the frame"),
        (sealed(BODY.pack(1, 0, 1) + struct.pack("<I", 9) + b"short"), "add up"),
        (sealed(BODY.pack(1, 1, 0) + b"h" + b"unclaimed"), "add up"),
        (joined(1, b"header")[:-1] + b"?", "checksum"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "at most"),
    ],
)
def test_what_is_no_frame_is_rejected(data, what):
    """Lengths over a limit or against each other, and corruption, each with its reason."""
    with pytest.raises(PeerFrameError, match=what):
        make_decoder().feed(data)


def test_a_claim_costs_no_memory_before_it_is_checked():
    """A head with impossible lengths is rejected before memory is allocated."""
    decoder = make_decoder(frame_bytes_max=1 << 30)
    with pytest.raises(PeerFrameError, match="at most"):
        decoder.feed(HEAD.pack(2**31, 0, 1, 0, 0))
    assert len(decoder.buffer().obj) == 64

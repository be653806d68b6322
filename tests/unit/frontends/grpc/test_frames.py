"""DATA frames beside h2: cut the same however they come, and counted as HTTP/2 says."""

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from strandline.frontends.grpc.frames import (
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    FrameError,
    FrameReader,
    ReceiveWindow,
    data_header,
    unpadded,
    window_update,
)

HEADERS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"a"),
    (b":path", b"/s/Echo"),
]


def conversation(*pieces, pad=None):
    """What a client says that sends these pieces of data on a stream."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    for piece in pieces:
        client.send_data(1, piece, pad_length=pad)
        client.ping(b"12345678")
    client.end_stream(1)
    return client.data_to_send()


@given(st.lists(st.binary(max_size=60), max_size=6), st.data())
def test_frames_are_cut_however_they_come(pieces, data):
    """Whatever the bytes come in, the same DATA frames come out, and h2 gets all others."""
    stream = conversation(*pieces)
    server = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    cutter, found, pings = FrameReader(), [], 0
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        for piece in cutter.feed(stream[:count]):
            if isinstance(piece, tuple):
                _, flags, buffer, start, end = piece
                found.append((piece[0], flags, buffer[start:end]))
            else:
                events = server.receive_data(piece)
                pings += sum(type(event).__name__ == "PingReceived" for event in events)
        stream = stream[count:]
    assert found == [*((1, 0, piece) for piece in pieces), (1, END_STREAM, b"")]
    assert pings == len(pieces)


@given(st.binary(max_size=300))
def test_no_byte_is_lost(data):
    """What goes to h2, what is data and what waits for its rest are all that came."""
    cutter = FrameReader()
    greeting = b"x" * 24
    found = b""
    for piece in cutter.feed(greeting + data):
        if isinstance(piece, tuple):
            stream_id, flags, buffer, start, end = piece
            found += data_header(stream_id, end - start, flags) + buffer[start:end]
        else:
            found += piece
    whole = greeting + data
    assert len(found) <= len(whole)
    # All but the reserved bit of a stream's number, which nobody reads.
    assert all(a == b or a == b & 0x7F for a, b in zip(found, whole, strict=False))
    assert len(whole) - len(found) <= FRAME_BYTES_MAX + HEADER_BYTES


def test_data_in_the_middle_of_headers_are_for_h2():
    """Which says that they should not be there."""
    cutter = FrameReader()
    headers = b"\0\0\1\1\0\0\0\0\1x"  # HEADERS that are not ended
    data = data_header(1, 1) + b"y"
    assert list(cutter.feed(b"x" * 24 + headers + data)) == [b"x" * 24 + headers + data]


def test_frames_that_are_too_long_are_for_h2():
    """At once, before their bytes come."""
    header = data_header(1, FRAME_BYTES_MAX + 1)
    assert list(FrameReader().feed(b"x" * 24 + header)) == [b"x" * 24 + header]


@pytest.mark.parametrize("pad", [0, 3, 255])
def test_padding_is_taken_off(pad):
    """The data are what the client meant, and the padding counts for its window."""
    pieces = FrameReader().feed(conversation(b"abc", pad=pad))
    (_, _, buffer, start, end), _ = (piece for piece in pieces if isinstance(piece, tuple))
    assert unpadded(buffer[start:end]) == b"abc"
    assert end - start == 3 + 1 + pad


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abc"])
def test_more_padding_than_data_breaks_the_protocol(payload):
    """As HTTP/2 has it."""
    with pytest.raises(FrameError):
        unpadded(payload)


def test_a_window_is_given_back_by_halves():
    """Small frames cost an update only when half of the window is used."""
    inflow = ReceiveWindow(100)
    inflow.spend(60)
    assert inflow.free(49) == 0
    assert inflow.free(11) == 60
    inflow.spend(100)
    with pytest.raises(FrameError):
        inflow.spend(1)


def test_updates_are_understood():
    """h2 at the other end has as much more to send."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    client.receive_data(b"\0\0\0\4\0\0\0\0\0")  # a greeting without settings
    before = client.local_flow_control_window(1)
    client.receive_data(window_update(0, 1000) + window_update(1, 500))
    assert client.local_flow_control_window(1) == before + 500

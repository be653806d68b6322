"""DATA frames beside h2: split the same however the bytes arrive, and counted as required."""

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.grpc.http2_frames import (
    CONTROL_MAX,
    CONTROL_PIECE,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MIN,
    SETTINGS_MAX,
    FrameReader,
    Http2FrameError,
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
    """Return the bytes of a client that sends these pieces of data on a stream."""
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
    """Bytes for h2, data, and an incomplete frame add up to the input."""
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
    """The padding is removed, and counts against the window."""
    pieces = FrameReader().feed(conversation(b"abc", pad=pad))
    (_, _, buffer, start, end), _ = (piece for piece in pieces if isinstance(piece, tuple))
    assert unpadded(buffer[start:end]) == b"abc"
    assert end - start == 3 + 1 + pad


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abc"])
def test_more_padding_than_data_breaks_the_protocol(payload):
    """As HTTP/2 has it."""
    with pytest.raises(Http2FrameError):
        unpadded(payload)


def test_a_window_is_given_back_by_halves():
    """Small frames cost an update only when half of the window is used."""
    receive_window = ReceiveWindow(100)
    receive_window.spend(60)
    assert receive_window.free(49) == 0
    assert receive_window.free(11) == 60
    receive_window.spend(100)
    with pytest.raises(Http2FrameError):
        receive_window.spend(1)


@given(st.lists(st.integers(1, 110), max_size=20))
def test_data_taken_at_once_count_as_others(counts):
    """One step or two: the same is given back, and the same is too much."""
    one, two = ReceiveWindow(100), ReceiveWindow(100)
    for count in counts:
        freed = _told(one.pass_on, count)
        assert freed == _told(lambda count: two.spend(count) or two.free(count), count)
        if freed is None:
            break


def _told(take, count):
    """Return the bytes freed by a call; None if the client exceeded its window."""
    try:
        return take(count)
    except Http2FrameError:
        return None


def test_no_more_than_the_window_may_come_at_once():
    """All of it may, and nothing beyond."""
    assert ReceiveWindow(100).pass_on(100) == 100
    with pytest.raises(Http2FrameError):
        ReceiveWindow(100).pass_on(101)


SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"
PING = b"\0\0\x08\6\0\0\0\0\0" + b"12345678"
GOAWAY = b"\0\0\x08\7\0\0\0\0\0" + bytes(8)
OPENED = b"\0\0\1\1\4\0\0\0\1x"  # HEADERS that are ended


def greeted():
    """A reader behind the greeting."""
    reader = FrameReader()
    assert list(reader.feed(b"x" * 24)) == [b"x" * 24]
    return reader


@pytest.mark.parametrize(
    ("frame", "count"),
    [
        (SETTINGS_ACK, SETTINGS_MAX),
        (PING, CONTROL_MAX),
        (GOAWAY, CONTROL_MAX),
        (data_header(1, 0), CONTROL_MAX),
        (data_header(1, MESSAGE_BYTES_MIN - 1) + bytes(MESSAGE_BYTES_MIN - 1), CONTROL_MAX),
    ],
    ids=["settings", "ping", "goaway", "empty data", "less than a message"],
)
def test_frames_that_bring_nothing_are_limited(frame, count):
    """One frame more than the limit ends the connection as too busy."""
    for pieces in ([frame * count], [frame] * count):
        reader = greeted()
        for piece in pieces:
            list(reader.feed(piece))
        with pytest.raises(Http2FrameError) as refused:
            list(reader.feed(frame))
        assert refused.value.code == ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "frame",
    [OPENED, data_header(1, 0, END_STREAM), data_header(1, MESSAGE_BYTES_MIN) + b"12345"],
    ids=["a call", "its end", "the smallest message"],
)
def test_frames_of_calls_are_not_limited(frame):
    """Frames that begin, feed or end a call do not count as control frames."""
    reader = greeted()
    for _ in range(2):
        list(reader.feed(frame * CONTROL_MAX))
    assert reader.control == 0


def test_control_frames_are_shown_a_few_at_once():
    """The connection can pause between them, and none is lost."""
    reader = greeted()
    pieces = list(reader.feed(PING * 100))
    assert [len(piece) // len(PING) for piece in pieces] == [CONTROL_PIECE] * 3 + [4]
    assert b"".join(pieces) == PING * 100


def test_a_call_is_shown_by_itself():
    """A call is yielded alone or after earlier data, in order."""
    assert list(greeted().feed(PING + OPENED + OPENED + PING)) == [PING + OPENED, OPENED, PING]


def test_a_goodbye_is_left_out():
    """Data around it is kept; within headers h2 rejects it."""
    assert list(greeted().feed(PING + GOAWAY + PING)) == [PING, PING]
    halves = b"\0\0\1\1\0\0\0\0\1x"
    assert list(greeted().feed(halves + GOAWAY)) == [halves + GOAWAY]


def test_data_go_on_after_headers_in_two_parts():
    """CONTINUATION ends them as well."""
    halves = b"\0\0\1\1\0\0\0\0\1x" + b"\0\0\1\x09\4\0\0\0\1y"
    data = data_header(1, 5) + b"12345"
    other, (stream_id, flags, buffer, start, end) = greeted().feed(halves + data)
    assert other == halves
    assert (stream_id, flags, buffer[start:end]) == (1, 0, b"12345")


def test_a_frame_of_the_largest_size_is_data():
    """h2 rejects one byte more."""
    whole = data_header(1, FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX)
    [(_, _, _, start, end)] = greeted().feed(whole)
    assert end - start == FRAME_BYTES_MAX


def test_a_greeting_may_come_in_parts():
    """Until it is whole nothing in it is a frame."""
    reader = FrameReader()
    assert list(reader.feed(b"x" * 20)) == [b"x" * 20]
    assert not reader.is_greeted
    assert list(reader.feed(b"x" * 4 + PING)) == [b"x" * 4 + PING]
    assert reader.is_greeted


def test_updates_are_understood():
    """h2 at the other end has as much more to send."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    client.receive_data(b"\0\0\0\4\0\0\0\0\0")  # a greeting without settings
    before = client.local_flow_control_window(1)
    client.receive_data(window_update(0, 1000) + window_update(1, 500))
    assert client.local_flow_control_window(1) == before + 500

"""A connection against bytes: a protocol violation ends the connection only."""

import asyncio

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, TrailersReceived
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.access import Access
from strandline.clock import ManualClock
from strandline.config import AuthConfig, BrokerConfig
from strandline.core.metadata.image import MetadataImage
from strandline.servers.grpc import connection as connections
from strandline.servers.grpc.calls import OUTPUT_BYTES_ALL, OUTPUT_BYTES_HIGH, Call
from strandline.servers.grpc.connection import CONTROL_S, RESETS_MAX, GrpcConnection
from strandline.servers.grpc.grpc_messages import PREFIX_BYTES, framed
from strandline.servers.grpc.http2_frames import (
    CONTROL_MAX,
    GOAWAY,
    HEADER,
    SETTINGS_MAX,
    data_header,
)
from strandline.servers.grpc.listener import GrpcListener
from strandline.servers.grpc.methods import Direct as DirectMethod
from strandline.servers.grpc.methods import Method
from strandline.servers.grpc.status import GrpcStatus
from strandline.servers.round_budget import ROUND_S, SLICE_S, RoundBudget
from strandline.telemetry import Telemetry

HEADERS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"a"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


class Wire(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = False
        self.is_reading = True

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        self.written += bytes(data)

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def take(self):
        """Return the bytes written since the last call."""
        data, self.written = self.written, b""
        return data


async def echo(call: Call) -> None:
    while messages := await call.receive():
        for message in messages:
            call.send_framed(framed(message))
        await call.drain()


async def count(call: Call) -> None:
    number = 0
    while messages := await call.receive():
        number += len(messages)
    call.send_framed(framed(b"%d" % number))


async def fail(call: Call) -> None:
    raise ValueError("a bug")


async def flood(call: Call) -> None:
    while True:
        call.send_framed(framed(bytes(16_000)))
        await call.drain()


async def wait(call: Call) -> None:
    await asyncio.Event().wait()


async def watch(call: Call) -> None:
    call.send_framed(framed(b""))
    await asyncio.Event().wait()


async def one(call: Call) -> None:
    await call.receive_one()
    await asyncio.Event().wait()


class Direct:
    """Echoes without a task."""

    last: "Direct"

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_full = False
        Direct.last = self

    def take(self, messages):
        for message in messages:
            if message == b"bug":
                raise ValueError("a bug")
            self.call.send_framed(framed(message))

    def take_whole(self, buffer, start, end):
        return False

    def end_input(self):
        self.call.finish(GrpcStatus.OK)


class Whole(Direct):
    """Echoes whole messages on the fast path, and counts them."""

    count = 0

    def take_whole(self, buffer, start, end):
        message = buffer[start:end]
        if message == framed(b"bug"):
            raise ValueError("a bug")
        if message != framed(message[PREFIX_BYTES:]):
            return False
        Whole.count += 1
        self.call.answer(framed(b"short"))
        return True


METHODS = {
    b"/s/Echo": Method(echo, 1 << 20),
    b"/s/Count": Method(count, 1 << 20),
    b"/s/Fail": Method(fail),
    b"/s/Flood": Method(flood),
    b"/s/Wait": Method(wait),
    b"/s/One": Method(one),
    b"/s/Direct": DirectMethod(Direct, 1 << 20),
    b"/s/Whole": DirectMethod(Whole, 1 << 20),
    b"/grpc.health.v1.Health/Watch": Method(watch),
}


class Guarded:
    """The parts of a broker that access control needs."""

    image = MetadataImage()
    clock = ManualClock()


class Client:
    """A client's end, and the connection it talks to."""

    def __init__(self, *, window=None, access=None):
        access = access or Access(BrokerConfig(), None)
        self.shared = GrpcListener(METHODS, Telemetry(), access).shared
        self.wire = Wire()
        self.server = GrpcConnection(self.shared)
        self.server.connection_made(self.wire)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({4: window})
        self.data = b""
        self.trailers = {}
        self.events = []

    def begin(self, stream_id, path, *extra):
        self.h2.send_headers(stream_id, [(b":path", path), *HEADERS, *extra])

    async def exchange(self, rounds=20):
        """Let both talk until they have said everything."""
        for _ in range(rounds):
            if not self.wire.closed:
                data = self.h2.data_to_send()
                if data:
                    self.server.data_received(data)
            await asyncio.sleep(0)
            for event in self.h2.receive_data(self.wire.take()):
                self.events.append(event)
                if isinstance(event, DataReceived):
                    self.data += event.data
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, TrailersReceived | ResponseReceived):
                    self.trailers |= dict(event.headers)


async def test_small_messages_share_frames():
    """A thousand answers leave in a few frames of HTTP/2, as large as the client takes."""
    client = Client()
    client.begin(1, b"/s/Echo")
    await client.exchange()
    for _ in range(10):
        client.h2.send_data(1, framed(b"x" * 20) * 100)
    client.h2.end_stream(1)
    await client.exchange()
    assert client.data == framed(b"x" * 20) * 1000
    assert client.trailers[b"grpc-status"] == b"0"
    frames = [event for event in client.events if isinstance(event, DataReceived)]
    assert len(frames) <= 4


async def test_many_calls_may_come_before_the_greeting_is_answered():
    """A fast client is not closed for limits that it cannot know yet."""
    client = Client()
    for n in range(500):
        client.begin(2 * n + 1, b"/s/Wait")
    client.server.data_received(client.h2.data_to_send())
    await client.exchange(rounds=500)  # they take several rounds of the loop
    assert not client.wire.closed
    assert client.server.multiplexer.busy == 500
    client.server.connection_lost(None)


async def test_output_waits_for_the_window():
    """Data waits for the client's window, and continues when it opens."""
    client = Client(window=10)
    client.begin(1, b"/s/Echo")
    await client.exchange()
    client.h2.send_data(1, framed(b"y" * 95), end_stream=True)
    await client.exchange(rounds=200)
    assert client.data == framed(b"y" * 95)


@pytest.mark.parametrize("count", [1, 600])
async def test_what_waits_for_a_slow_client_is_limited_in_all(count):
    """However many calls it has; a few calls have as much each as is good for a fast one."""
    client = Client(window=0)
    for n in range(count):
        client.begin(2 * n + 1, b"/s/Flood")
    for _ in range(100):  # rounds of a loaded machine take fewer calls each
        await client.exchange()
        if len(client.server.multiplexer.calls) == count:
            break
    for _ in range(5):
        await client.exchange()
    waiting = [call.pending_bytes for call in client.server.multiplexer.calls.values()]
    assert len(waiting) == count
    # Calls that began when there were few of them have a larger share.
    assert sum(waiting) < 4 * OUTPUT_BYTES_ALL
    assert count > 1 or sum(waiting) > OUTPUT_BYTES_HIGH
    client.server.connection_lost(None)


async def test_a_bug_in_a_call_is_its_own(caplog):
    """INTERNAL without the exception's text; the connection continues."""
    client = Client()
    client.begin(1, b"/s/Fail")
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"13"
    assert b"a bug" not in client.trailers[b"grpc-message"]
    assert "a bug" in caplog.text
    client.begin(3, b"/s/Echo")
    client.h2.send_data(3, framed(b"z"), end_stream=True)
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"0"


async def test_a_deadline_ends_a_call():
    """DEADLINE_EXCEEDED, however long its handler would take."""
    client = Client()
    client.begin(1, b"/s/Wait", (b"grpc-timeout", b"1m"))
    for _ in range(1000):
        await client.exchange(rounds=1)
        if b"grpc-status" in client.trailers:
            break
        await asyncio.sleep(0.001)
    assert client.trailers[b"grpc-status"] == b"4"
    assert client.server.multiplexer.busy == 0


async def test_a_client_that_takes_calls_back_is_sent_away():
    """Rapid reset: the connection is closed after too many calls that were not let finish."""
    client = Client()
    for n in range(RESETS_MAX + 200):
        stream_id = 2 * n + 1
        client.begin(stream_id, b"/s/Wait")
        client.h2.reset_stream(stream_id)
        if n % 100 == 0:
            await client.exchange(rounds=2)
        if client.wire.closed:
            break
    await client.exchange(rounds=500)
    assert client.wire.closed
    assert any(isinstance(event, ConnectionTerminated) for event in client.events)
    assert client.server.multiplexer.busy == 0


async def test_a_client_that_says_goodbye_gets_its_answers():
    """Calls in progress end normally, as when a channel is shut down."""
    client = Client()
    client.begin(1, b"/s/Echo")
    client.begin(3, b"/s/Echo")
    client.h2.send_data(1, framed(b"a"))
    await client.exchange()
    client.server.data_received(HEADER.pack(0, 8, GOAWAY, 0, 0) + bytes(8))
    for call in (1, 3):
        client.h2.send_data(call, framed(b"b"), end_stream=True)
    await client.exchange()
    assert client.data == framed(b"a") + framed(b"b") * 2
    ends = [event for event in client.events if isinstance(event, TrailersReceived)]
    assert len(ends) == 2
    assert not client.wire.closed


async def test_calls_that_can_be_told_nothing_more_are_stopped():
    """The connection has lost track of them, so nothing else would stop them."""
    client = Client()
    client.begin(1, b"/s/Echo")
    client.h2.send_data(1, framed(b"a"))
    client.server.data_received(client.h2.data_to_send())
    [call] = client.server.multiplexer.calls.values()
    client.server.go_away()
    await client.exchange()
    assert call.task.done()


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_flood_of_settings_costs_the_connection(is_slow):
    """Each may change the window of every call; a slow client may continue for ever."""
    client = Client()
    client.begin(1, b"/s/Wait")
    await client.exchange()
    for n in range(2 * SETTINGS_MAX):
        if is_slow:
            client.server._control_since_s -= CONTROL_S / 2
        client.h2.update_settings({4: 65_535 + n % 2})
        await client.exchange(rounds=1)
        if client.wire.closed:
            break
    assert client.wire.closed is not is_slow
    ends = [e.error_code for e in client.events if isinstance(e, ConnectionTerminated)]
    assert ends == ([] if is_slow else [ErrorCodes.ENHANCE_YOUR_CALM])
    client.server.connection_lost(None)


def frame(kind, stream_id, payload=b"", flags=0):
    return HEADER.pack(0, len(payload), kind, flags, stream_id) + payload


SMALL = framed(b"abcdefg")
SMALL_FRAMES = (data_header(1, 6) + SMALL[:6] + data_header(1, 6) + SMALL[6:]) * 2500
"""2,500 messages, each in two frames."""
WITHOUT_CONTENT = {
    "PING": frame(6, 0, bytes(8)),
    "PRIORITY": frame(2, 3, bytes(5)),
    "WINDOW_UPDATE": frame(8, 0, b"\0\0\0\1"),
    "unknown": frame(0x55, 0, b"z"),
    "empty DATA": frame(0, 1),
    "tiny DATA": frame(0, 1, b"\0"),
    "GOAWAY": frame(7, 0, bytes(8)),
    "RST_STREAM of no call": frame(3, 1, b"\0\0\0\x08"),
}


@pytest.mark.parametrize("kind", WITHOUT_CONTENT)
async def test_a_flood_of_frames_without_content_costs_the_connection(kind):
    """It ends after a number of frames that takes milliseconds."""
    client = Client()
    client.begin(1, b"/s/Count")
    if kind.startswith("RST"):
        client.h2.reset_stream(1)
    await client.exchange()
    client.server.data_received(WITHOUT_CONTENT[kind] * (CONTROL_MAX + 100))
    for _ in range(100):
        await client.exchange(rounds=1)
    assert client.wire.closed
    ends = [e.error_code for e in client.events if isinstance(e, ConnectionTerminated)]
    assert ends == [ErrorCodes.ENHANCE_YOUR_CALM]
    client.server.connection_lost(None)


@pytest.mark.parametrize("kind", ["PING", "WINDOW_UPDATE"])
async def test_a_client_may_answer_each_output_with_frames_without_content(kind):
    """As Go's clients do, which measure the connection whenever something comes."""
    client = Client()
    client.begin(1, b"/s/Echo")
    await client.exchange()
    for _ in range(CONTROL_MAX):
        client.h2.send_data(1, framed(b"x"))
        await client.exchange(rounds=2)
        client.server.data_received(WITHOUT_CONTENT[kind] * 3)
    await client.exchange()
    assert not client.wire.closed
    client.server.connection_lost(None)


async def test_a_client_may_answer_much_output_late():
    """As one that sends all requests, and then reads and acknowledges each answer."""
    client = Client()
    client.begin(1, b"/s/Echo")
    await client.exchange()
    answers = 2 * CONTROL_MAX
    for _ in range(answers):
        client.h2.send_data(1, framed(b"x" * 60))
        await client.exchange(rounds=2)
    client.server.data_received(WITHOUT_CONTENT["WINDOW_UPDATE"] * answers)
    await client.exchange()
    assert not client.wire.closed
    client.server.connection_lost(None)


@pytest.mark.parametrize("what", ["small DATA", "calls"])
async def test_much_input_lets_the_loop_run_between(what):
    """However much work a client's input makes, others run in between; none is lost."""
    client = Client()
    client.shared.budget = RoundBudget(SLICE_S / 10, ROUND_S / 10)  # on a fast machine, too
    if what == "small DATA":
        client.begin(1, b"/s/Count")
        await client.exchange()
        client.server.data_received(SMALL_FRAMES)
    else:
        for n in range(1500):
            client.begin(2 * n + 1, b"/s/Count")
        client.server.data_received(client.h2.data_to_send())
    rounds = 0
    assert not client.wire.is_reading
    while not client.wire.is_reading:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 10
    if what == "calls":
        assert client.server.multiplexer.busy == 1500
    else:
        client.h2.end_stream(1)
        await client.exchange()
        assert client.data == framed(b"2500")
    client.server.connection_lost(None)


async def test_input_waits_while_output_is_not_taken():
    """A client that does not read is not read from, even if a part of its input is left over."""
    client = Client()
    client.begin(1, b"/s/Count")
    await client.exchange()
    client.server.data_received(SMALL_FRAMES)
    client.server.pause_writing()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not client.wire.is_reading
    client.server.data_received(data_header(1, 0, 1))  # behind what is left
    client.server.resume_writing()
    await client.exchange(rounds=200)
    assert client.wire.is_reading
    assert client.data == framed(b"2500")


@pytest.mark.parametrize("has_greeted", [False, True])
async def test_who_is_not_identified_in_time_is_sent_away(monkeypatch, has_greeted):
    """Without access control it is enough to speak the protocol."""
    monkeypatch.setattr(connections, "IDENTIFY_S", 0.05)
    client = Client()
    if has_greeted:
        await client.exchange(rounds=2)
    await asyncio.sleep(0.15)
    assert client.wire.closed is not has_greeted
    client.server.connection_lost(None)


@pytest.mark.parametrize("shown", ["nothing", "wrong token", "token", "health watch"])
async def test_with_access_control_a_call_has_to_identify_the_client(monkeypatch, shown, tmp_path):
    """A wrong token is rejected; a health probe needs none."""
    monkeypatch.setattr(connections, "IDENTIFY_S", 0.05)
    (tmp_path / "token").write_text("sesame" * 8)
    config = BrokerConfig(auth=AuthConfig(enabled=True, admin_token_file=str(tmp_path / "token")))
    client = Client(access=Access(config, Guarded()))
    if shown == "health watch":
        client.begin(1, b"/grpc.health.v1.Health/Watch")
    elif shown != "nothing":
        token = b"sesame" * 8 if shown == "token" else b"guess"
        client.begin(1, b"/s/Echo", (b"authorization", b"Bearer " + token))
    await client.exchange()
    await asyncio.sleep(0.15)
    assert client.wire.closed is (shown in ("nothing", "wrong token"))
    client.server.connection_lost(None)


async def test_who_does_not_read_is_not_read_from():
    """While output is blocked no input is read; then both continue."""
    client = Client()
    client.begin(1, b"/s/Echo")
    await client.exchange()
    client.server.pause_writing()
    assert not client.wire.is_reading
    client.server.resume_writing()
    assert client.wire.is_reading


async def test_who_takes_back_what_was_answered_is_not_sent_away():
    """Clients that subscribe, read and cancel are not closed; their other calls continue."""
    client = Client()
    client.begin(1, b"/s/Echo")
    for n in range(1, RESETS_MAX + 200):
        client.begin(2 * n + 1, b"/s/Echo")
        client.h2.send_data(2 * n + 1, framed(b"a"))
        await client.exchange(rounds=3)
        client.h2.reset_stream(2 * n + 1)
    client.h2.send_data(1, framed(b"b"), end_stream=True)
    await client.exchange()
    assert not client.wire.closed
    assert client.trailers[b"grpc-status"] == b"0"


async def test_a_lost_connection_ends_its_calls():
    """Their tasks are cancelled, and nothing is left."""
    client = Client()
    client.begin(1, b"/s/Wait")
    await client.exchange()
    assert client.server.multiplexer.busy == 1
    client.server.connection_lost(None)
    await asyncio.sleep(0)
    assert client.server.multiplexer.busy == 0


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_nobody_takes_any_more_is_forgotten(is_lost):
    """An ended call that is still referenced keeps no output."""
    client = Client(window=0)
    client.begin(1, b"/s/Flood")
    await client.exchange()
    call = client.server.multiplexer.calls[1]
    assert call.pending_bytes > 100_000
    if is_lost:
        client.server.connection_lost(None)
    else:
        client.h2.reset_stream(1)
        await client.exchange()
    await asyncio.sleep(0)
    assert (call.pending_bytes, client.server.multiplexer.marked) == (0, {})


@pytest.mark.parametrize("path", [b"/s/None", b"", b"\xff"])
async def test_unknown_methods(path):
    """UNIMPLEMENTED, whatever the path."""
    client = Client()
    client.begin(1, path or b"/")
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"12"


async def test_other_http_is_told_what_this_is():
    """A request that is no gRPC gets an error."""
    client = Client()
    headers = [pair for pair in HEADERS if pair[0] != b"content-type"]
    client.h2.send_headers(1, [(b":path", b"/s/Echo"), *headers], end_stream=True)
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"3"


async def test_a_client_may_send_for_ever():
    """Handled input returns its window to the call and the connection, and no more."""
    client = Client(window=4 << 20)
    client.h2.increment_flow_control_window(4 << 20)
    client.begin(1, b"/s/Count")
    await client.exchange()
    piece, sent = framed(b"x" * 16_000), 0
    for _ in range(100):
        while sent < 12 << 20 and client.h2.local_flow_control_window(1) >= len(piece):
            client.h2.send_data(1, piece)  # more than either window, in all
            sent += len(piece)
        await client.exchange(rounds=2)
    assert sent >= 12 << 20
    client.h2.end_stream(1)
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"0"
    assert client.data == framed(b"%d" % (sent // len(piece)))


async def test_more_than_the_window_takes_costs_the_connection():
    """A client that exceeds its window is closed."""
    client = Client()
    client.begin(1, b"/s/Wait")
    await client.exchange()
    piece = data_header(1, 16_000) + b"\0\0\0\x3e\x7b" + b"x" * 15_995
    for _ in range(200):  # the call takes nothing
        client.server.data_received(piece)
    await client.exchange()
    assert client.wire.closed
    assert any(isinstance(event, ConnectionTerminated) for event in client.events)


HALF = b"\0" + (1 << 20).to_bytes(4, "big")


async def test_half_messages_of_all_calls_are_limited():
    """Incomplete messages are limited in total; a call beyond that is rejected."""
    client = Client()
    client.shared.flushes.buffered_bytes_max = 100_000
    for stream_id in range(1, 41, 2):
        client.begin(stream_id, b"/s/Echo")
        client.h2.send_data(stream_id, HALF + b"x" * 9_000)
        await client.exchange(rounds=3)
    refused = [event for event in client.events if isinstance(event, TrailersReceived)]
    refused += [event for event in client.events if isinstance(event, ResponseReceived)]
    assert {dict(event.headers)[b"grpc-status"] for event in refused} == {b"8"}
    assert client.server.multiplexer.busy == 11
    assert client.shared.flushes.buffered_bytes <= 100_000
    client.server.connection_lost(None)
    assert client.shared.flushes.buffered_bytes == 0


async def test_whole_messages_that_wait_are_limited_too():
    """Unhandled messages count until the call ends."""
    client = Client()
    client.shared.flushes.buffered_bytes_max = 50_000
    client.begin(1, b"/s/Wait")
    for _ in range(10):
        if client.h2.streams[1].open:
            client.h2.send_data(1, framed(b"x" * 9_000))
        await client.exchange(rounds=3)
    assert client.trailers[b"grpc-status"] == b"8"
    assert client.shared.flushes.buffered_bytes == 0
    client.begin(3, b"/s/Echo")
    client.h2.send_data(3, framed(b"z"), end_stream=True)
    await client.exchange()
    assert client.data == framed(b"z")
    assert client.shared.flushes.buffered_bytes == 0


async def test_a_call_of_one_message_takes_no_second():
    """A second message is rejected at once; an empty frame is not one."""
    client = Client()
    client.begin(1, b"/s/One")
    client.h2.send_data(1, framed(b"a"))
    await client.exchange()
    client.h2.send_data(1, b"")
    await client.exchange()
    assert client.server.multiplexer.busy == 1
    client.h2.send_data(1, framed(b"b"))
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"3"


async def test_calls_that_end_leave_the_windows_as_they_were():
    """Unhandled input of an ended call does not reduce the window of later calls."""
    client = Client()
    piece = framed(b"x" * 16_000)
    for n in range(20):  # over 1 MiB each, of which some is held back
        client.begin(2 * n + 1, b"/s/Wait")
        await client.exchange()
        for _ in range(100):
            if client.h2.local_flow_control_window(2 * n + 1) < len(piece):
                break
            client.h2.send_data(2 * n + 1, piece)
            await client.exchange(rounds=1)
        client.h2.reset_stream(2 * n + 1)
        await client.exchange()
    assert client.h2.outbound_flow_control_window > 4 << 20


async def test_a_call_may_announce_its_length():
    """As some HTTP clients do; a wrong length breaks the protocol, one too large ends the call."""
    client = Client()
    message = framed(b"z" * 100)
    client.begin(1, b"/s/Echo", (b"content-length", b"%d" % len(message)))
    client.h2.send_data(1, message, end_stream=True)
    await client.exchange()
    assert client.data == message
    assert client.trailers[b"grpc-status"] == b"0"
    client.begin(3, b"/s/Echo", (b"content-length", b"99999999"))
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"8"


async def test_messages_go_straight_to_who_takes_them():
    """A call without a task: messages as they come, an end when it says so."""
    client = Client()
    client.begin(1, b"/s/Direct")
    client.h2.send_data(1, framed(b"a") + framed(b"b"))
    client.h2.send_data(1, framed(b"c"), end_stream=True)
    await client.exchange()
    assert client.data == framed(b"a") + framed(b"b") + framed(b"c")
    assert client.trailers[b"grpc-status"] == b"0"


async def test_a_bug_in_who_takes_messages_is_its_own(caplog):
    """INTERNAL for its call; the connection and the deadline of the call are as after any end."""
    client = Client()
    client.begin(1, b"/s/Direct", (b"grpc-timeout", b"1H"))
    await client.exchange()
    timer = Direct.last.call.timer
    client.h2.send_data(1, framed(b"bug"))
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"13"
    assert "a bug" in caplog.text
    assert timer.cancelled()
    client.begin(3, b"/s/Echo")
    client.h2.send_data(3, framed(b"z"), end_stream=True)
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"0"


async def test_frames_that_are_one_message_go_the_short_way():
    """Behind the first one: for ever, as the windows are given back, and in order with the rest."""
    client = Client()
    client.begin(1, b"/s/Whole")
    piece, before = framed(b"x" * 16_000), Whole.count
    client.h2.send_data(1, framed(b"first"))
    await client.exchange(rounds=2)
    for _ in range(1000):
        client.h2.send_data(1, piece)
        await client.exchange(rounds=1)
    assert Whole.count - before == 1000
    # Two in a frame, one that is whole, and one that ends the call.
    client.h2.send_data(1, framed(b"a") + framed(b"b"))
    await client.exchange(rounds=2)
    client.h2.send_data(1, framed(b"c"))
    client.h2.send_data(1, framed(b"d"), end_stream=True)
    await client.exchange()
    rest = framed(b"a") + framed(b"b") + framed(b"short") + framed(b"d")
    assert client.data == framed(b"first") + framed(b"short") * 1000 + rest
    assert client.trailers[b"grpc-status"] == b"0"


async def test_a_bug_on_the_short_way_is_its_own(caplog):
    """INTERNAL for its call, and the connection continues."""
    client = Client()
    for call in (1, 3):
        client.begin(call, b"/s/Whole")
        client.h2.send_data(call, framed(b"first"))
    await client.exchange()
    client.h2.send_data(1, framed(b"bug"))
    await client.exchange()
    assert client.trailers[b"grpc-status"] == b"13"
    assert "a bug" in caplog.text
    client.h2.send_data(3, framed(b"z"))
    await client.exchange()
    assert client.data == framed(b"first") * 2 + framed(b"short")


async def test_who_is_full_is_sent_no_more_than_the_window():
    """The sender waits until there is room, then continues."""
    client = Client()
    client.begin(1, b"/s/Direct")
    await client.exchange()
    sink = Direct.last
    sink.is_full = True
    piece = framed(b"x" * 16_000)
    while client.h2.local_flow_control_window(1) >= len(piece):
        client.h2.send_data(1, piece)
        await client.exchange(rounds=2)
    assert client.h2.local_flow_control_window(1) < len(piece)
    sink.is_full = False
    sink.call.resume_sender()
    await client.exchange()
    assert client.h2.local_flow_control_window(1) > len(piece)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_cost_at_most_the_connection(data, after_greeting):
    """No exception leaves the connection, whatever arrives."""

    async def run():
        client = Client()
        if after_greeting:
            await client.exchange(rounds=2)
        client.server.data_received(data)
        await asyncio.sleep(0)
        client.server.connection_lost(None)

    asyncio.run(run())


@given(st.binary(max_size=60))
def test_any_message_costs_at_most_its_call(data):
    """Bytes inside a stream that are no messages end that call."""

    async def run():
        client = Client()
        client.begin(1, b"/s/Echo")
        client.h2.send_data(1, data, end_stream=True)
        await client.exchange(rounds=6)
        assert b"grpc-status" in client.trailers
        assert not client.wire.closed

    asyncio.run(run())

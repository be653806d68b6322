"""A connection on a recording transport: how frames are written, queued and dropped."""

import asyncio
import socket

import pytest

from strandline.broker.peers.connection import (
    MORE_THAN_HANDSHAKE,
    SLICE_BYTES,
    Incoming,
    Outgoing,
    tune,
)
from strandline.broker.peers.frame import FrameDecoder, encode_frame
from strandline.broker.peers.handshake import PeerIdentity, accept_hello, encode_hello
from strandline.broker.peers.limits import LinkLimits
from strandline.types import BrokerId

ME = PeerIdentity(cluster_id="c", broker_id=BrokerId(1), incarnation="a")
PEER = PeerIdentity(cluster_id="c", broker_id=BrokerId(2), incarnation="b")


class Transport(asyncio.Transport):
    """Keeps writes; with ``room`` set, the protocol is paused after that many bytes."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.protocol = None
        self.room = None
        self.is_reading = True
        self.end = None
        self.ended = asyncio.Event()
        self.socket = socket.socket()

    def get_extra_info(self, name, default=None):
        return self.socket if name == "socket" else default

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def writelines(self, list_of_data):
        self.write(b"".join(list_of_data))

    def write(self, data):
        assert self.end is None
        self.writes.append(data)
        if self.room is not None:
            self.room -= len(data)
            if self.room <= 0:
                self.protocol.pause_writing()

    def is_closing(self):
        return self.end is not None

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def close(self):
        self.end = "close"

    def abort(self):
        self.end = "abort"
        self.ended.set()


@pytest.fixture
def transport():
    """Closed at the end."""
    transport = Transport()
    yield transport
    transport.socket.close()


def received(connection, data):
    """Give a connection bytes as a socket would."""
    while data:
        space = connection.get_buffer(-1)
        size = min(len(space), len(data))
        space[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


class Log:
    """The calls that the owner received."""

    def __init__(self):
        self.begun, self.ended, self.answered, self.hellos, self.frames = [], [], [], [], []

    def frame(self, peer, frame):
        self.frames.append((peer, frame))

    def hello(self, connection, frame):
        self.hellos.append(frame)
        known = {PEER.broker_id}
        connection.accept(accept_hello(frame, ME, known, certified=None), ME)


@pytest.fixture
def log():
    """A fresh one."""
    return Log()


def make_outgoing(transport, log, **limits):
    """A connection from ME to PEER that has been answered; writes so far are forgotten."""
    connection = Outgoing(
        LinkLimits(**limits),
        me=ME,
        to=PEER.broker_id,
        on_answer=log.answered.append,
        on_begin=log.begun.append,
        on_end=log.ended.append,
    )
    transport.protocol = connection
    connection.connection_made(transport)
    received(connection, b"".join(encode_hello(PEER, ME.broker_id)))
    assert log.answered == [connection]
    transport.writes.clear()
    return connection


def make_incoming(transport, log, **limits):
    """Return a connection that a peer opened to ME."""
    connection = Incoming(
        LinkLimits(**limits),
        on_frame=log.frame,
        on_hello=log.hello,
        on_begin=log.begun.append,
        on_end=log.ended.append,
    )
    connection.connection_made(transport)
    return connection


async def one_iteration():
    await asyncio.sleep(0)


async def test_frames_of_one_iteration_are_one_write(transport, log):
    """All frames of one loop iteration are written by one call."""
    connection = make_outgoing(transport, log)
    sent = [encode_frame(1, b"%d" % number, [b"batch"]) for number in range(100)]
    for buffers in sent:
        assert connection.send(buffers)
    assert transport.writes == []
    await one_iteration()
    assert transport.writes == [b"".join(b"".join(buffers) for buffers in sent)]
    assert connection.queued_bytes == 0


async def test_a_paused_transport_is_left_alone(transport, log):
    """Frames wait in the queue, which is counted, and go out in order and in slices after."""
    connection = make_outgoing(transport, log)
    connection.pause_writing()
    sent = [encode_frame(1, b"%d" % number, [b"x" * 300_000]) for number in range(10)]
    for buffers in sent:
        connection.send(buffers)
    await one_iteration()
    assert transport.writes == []
    assert connection.queued_bytes == sum(len(b"".join(buffers)) for buffers in sent)
    transport.room = SLICE_BYTES
    connection.resume_writing()
    assert len(transport.writes) == 1, "paused again after the first slice"
    transport.room = None
    connection.resume_writing()
    assert b"".join(transport.writes) == b"".join(b"".join(buffers) for buffers in sent)


async def test_a_peer_that_takes_nothing_is_cut_off(transport, log):
    """Over the limit the queue is dropped and the connection ends; nothing is kept of it."""
    connection = make_outgoing(transport, log, queue_bytes_max=1000)
    connection.pause_writing()
    assert connection.send(encode_frame(1, b"", [b"x" * 900]))
    assert not connection.send(encode_frame(1, b"", [b"x" * 900]))
    assert transport.end == "abort"
    assert connection.queued_bytes == 0
    assert "does not take" in connection.failure
    assert not connection.send(encode_frame(1, b""))
    assert log.ended == [], "told from the loop, not from inside send"
    connection.connection_lost(None)
    assert log.ended == [connection]


async def test_one_frame_may_always_wait(transport, log):
    """A frame over the queue's limit is sent if nothing else waits: otherwise it never could."""
    connection = make_outgoing(transport, log, queue_bytes_max=10)
    assert connection.send(encode_frame(1, b"", [b"x" * 900]))
    await one_iteration()
    assert len(transport.writes) == 1


async def test_finishing_writes_what_is_queued(transport, log):
    """A clean close comes after the last frame, even where the transport was paused."""
    connection = make_outgoing(transport, log)
    connection.pause_writing()
    connection.send(encode_frame(1, b"last"))
    connection.finish("done")
    assert transport.writes == [b"".join(encode_frame(1, b"last"))]
    assert transport.end == "close"
    await one_iteration()


async def test_finishing_what_the_peer_has_ended_writes_nothing(transport, log):
    """The transport is closed before the connection is notified; uvloop's would then raise."""
    connection = make_outgoing(transport, log)
    connection.pause_writing()
    connection.send(encode_frame(1, b"last"))
    transport.end = "lost"
    connection.finish("done")
    assert transport.writes == []
    await one_iteration()


async def test_more_than_an_answer_is_a_violation(transport, log):
    """The broker that was called sends its frames on its own connection."""
    connection = make_outgoing(transport, log)
    received(connection, encode_frame(1, b"")[0])
    assert transport.end == "abort"
    assert connection.failure == MORE_THAN_HANDSHAKE


async def test_who_does_not_answer_is_cut_off(transport, log):
    """The handshake has a time limit, which ends with the handshake."""
    connection = make_incoming(transport, log, handshake_timeout_s=0.001)
    async with asyncio.timeout(60):
        await transport.ended.wait()
    assert connection.failure == "no handshake within 0.001 s"


async def test_a_stranger_gets_no_large_buffer(transport, log):
    """Before the handshake a frame is at most 4 KiB, and so is the memory for it."""
    connection = make_incoming(transport, log)
    assert len(connection.get_buffer(-1)) == 4096
    received(connection, encode_frame(0, b"x" * 5000)[0][:100])
    assert transport.end == "abort"
    assert "at most 4096" in connection.failure


async def test_frames_wait_until_the_peer_is_up(transport, log):
    """Early frames are held, reading stops, and both continue in order at the release."""
    connection = make_incoming(transport, log)
    received(connection, b"".join(encode_hello(PEER, ME.broker_id)))
    decoder = FrameDecoder(frame_bytes_max=4096, attachments_max=0)
    assert len(decoder.feed(b"".join(transport.writes))) == 1, "the answer"
    received(connection, encode_frame(1, b"early")[0])
    assert not transport.is_reading
    assert log.frames == []
    connection.release()
    assert transport.is_reading
    received(connection, encode_frame(1, b"later")[0])
    assert [frame.header for _, frame in log.frames] == [b"early", b"later"]


@pytest.mark.parametrize("size", [17, 16, 1])
async def test_who_does_not_wait_for_the_answer_is_cut_off(transport, log, size):
    """Bytes right behind a hello, a whole frame or not, are a violation."""
    connection = make_incoming(transport, log)
    more = encode_frame(1, b"")[0][:size]
    received(connection, b"".join(encode_hello(PEER, ME.broker_id)) + more)
    assert transport.end == "abort"
    assert log.frames == []
    assert connection.failure == MORE_THAN_HANDSHAKE


async def test_nothing_is_taken_after_the_end(transport, log):
    """Frames after a bad one, and bytes after an abort, are dropped."""
    connection = make_incoming(transport, log)
    received(connection, b"".join(encode_hello(PEER, ME.broker_id)))
    connection.release()
    bad = bytearray(encode_frame(1, b"bad")[0])
    bad[-1] ^= 1
    received(connection, bytes(bad))
    assert transport.end == "abort"
    assert "checksum" in connection.failure
    connection.buffer_updated(0)
    assert log.frames == []


def test_sockets_are_tuned():
    """Small frames leave at once; a dead machine is noticed within seconds."""
    with socket.socket() as sock:
        tune(sock, LinkLimits())
        tcp = socket.IPPROTO_TCP
        assert sock.getsockopt(tcp, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(tcp, socket.TCP_KEEPIDLE) == 5
        assert sock.getsockopt(tcp, socket.TCP_KEEPINTVL) == 1
        assert sock.getsockopt(tcp, socket.TCP_KEEPCNT) == 3
        assert sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 5000


async def test_nothing_is_kept_of_what_a_lost_connection_had_queued(transport, log):
    """Frames may be large, and the peer may be away for long."""
    connection = make_outgoing(transport, log)
    connection.pause_writing()
    assert connection.send(encode_frame(1, b"", [b"x" * 900]))
    assert connection.queued_bytes > 900
    connection.connection_lost(None)
    assert connection.queued_bytes == 0
    assert not connection._queue

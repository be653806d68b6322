"""Queued output and reasons to stop reading."""

import asyncio

import pytest

from strandline.servers.nats.backpressure import Backpressure, NatsPeer


class FakeTransport:
    """Counts the calls."""

    def __init__(self):
        self.written = []
        self.reading = True
        self.closed = self.aborted = False

    def set_write_buffer_limits(self, high):
        self.high = high

    def write(self, data):
        self.written.append(data)

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True


@pytest.fixture
def transport():
    """A transport without a socket."""
    return FakeTransport()


@pytest.fixture
def peer(transport):
    """An open peer."""
    peer = NatsPeer()
    peer.connection_made(transport)
    return peer


def test_output_is_written_in_one_piece(peer, transport):
    """A flush joins queued output, and an empty queue writes nothing."""
    peer.output += [b"a", b"b"]
    peer.flush()
    peer.flush()
    assert transport.written == [b"ab"]


def test_nothing_is_written_after_the_end(peer, transport):
    """A lost connection drops queued output."""
    peer.output.append(b"a")
    peer.connection_lost(None)
    peer.flush()
    peer.write(b"b")
    assert transport.written == []


def test_close_writes_what_is_queued(peer, transport):
    """Closing loses no reply; aborting does not wait."""
    peer.output.append(b"a")
    peer.close()
    assert (transport.written, transport.closed, transport.aborted) == ([b"a"], True, False)
    peer.abort()
    assert transport.aborted


def test_reading_stops_while_any_reason_holds(peer, transport):
    """Reading continues once every reason has ended."""
    peer.pause_writing()
    peer.hold_reading("overload")
    peer.hold_reading("overload")
    assert not transport.reading
    peer.resume_writing()
    assert not transport.reading
    peer.release_reading("overload")
    assert transport.reading
    peer.release_reading("overload")
    assert transport.reading


def test_a_closed_peer_is_not_touched(peer, transport):
    """Pausing or resuming after the end does not reach the transport."""
    peer.connection_lost(None)
    peer.hold_reading("overload")
    peer.release_reading("overload")
    assert transport.reading


def test_a_closing_transport_is_not_touched(peer, transport):
    """A transport that is closing raises when paused, so it is not."""
    transport.closed = True
    peer.hold_reading("stopping")
    peer.release_reading("stopping")
    assert transport.reading


def test_gate_releases_at_the_low_water(peer, transport):
    """Reading stops at half of the limit and continues at a quarter."""
    backpressure = Backpressure(1000)
    assert backpressure.pending_high == 500
    backpressure.hold(peer)
    backpressure.release(251)
    assert not transport.reading
    backpressure.release(250)
    assert transport.reading


def test_unopened_peer_can_be_closed():
    """Closing before the connection was made is harmless."""
    peer = NatsPeer()
    peer.close()
    peer.abort()


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("is_closing", [True, False])
async def test_tls_keeps_what_was_held(peer, transport, monkeypatch, is_held, is_closing):
    """The transport is another one then, which would read on."""
    other = FakeTransport()
    other.closed = is_closing

    async def start_tls(*_, **__):
        return other

    monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", start_tls, raising=False)
    if is_held:
        peer.hold_reading("output")
    await peer.start_tls(None, timeout_s=1)
    assert other.reading == (is_closing or not is_held)
    assert other.high == transport.high
    if not is_closing:
        peer.release_reading("output")
        assert other.reading
    peer.write(b"x")
    assert (other.written, transport.written) == ([b"x"], [])


async def test_a_peer_that_leaves_during_the_handshake_is_an_error(peer, monkeypatch):
    """Nothing is written in the clear."""

    async def start_tls(*_, **__):
        return None

    monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", start_tls, raising=False)
    with pytest.raises(ConnectionAbortedError):
        await peer.start_tls(None, timeout_s=1)

"""One broker's connections, as they begin and end: only the present ones count."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from strandline.broker.peers.handshake import PeerIdentity
from strandline.broker.peers.limits import LinkLimits
from strandline.broker.peers.peer import Address, Peer, tls_times


class Connection:
    """Half of a session; what is done with it."""

    incarnation = "theirs"

    def __init__(self, queued_bytes=0):
        self.queued_bytes, self.aborted, self.sent, self.is_released = queued_bytes, [], [], False
        self.closed = asyncio.get_running_loop().create_future()

    def abort(self, reason):
        self.aborted.append(reason)

    def send(self, buffers):
        self.sent.append(buffers)
        return True

    def release(self):
        self.is_released = True


class Events:
    def __init__(self):
        self.told = []

    def on_peer_back(self, peer):
        self.told.append(("back", peer))

    def on_peer_lost(self, peer):
        self.told.append(("lost", peer))


@pytest.fixture
async def peer():
    me = PeerIdentity(cluster_id="c", broker_id=1, incarnation="i", directory_id="d")
    return Peer(
        2,
        Address("127.0.0.1", 1),
        me=me,
        limits=LinkLimits(),
        events=Events(),
        tls=None,
        rng=random.Random(1),
        on_begin=lambda _: None,
        on_end=lambda _: None,
    )


def end(peer, connection, reason="it broke"):
    connection.closed.set_result(reason)
    peer.ended(connection)


async def test_frames_pass_while_both_connections_are_there(peer):
    """They are sent over the one that we opened; the other is read from then on."""
    out, incoming = Connection(7), Connection()
    assert peer.queued_bytes == 0
    assert not peer.send(["early"])
    peer._answered(out)
    assert not peer.send(["early"])
    peer.called(incoming)
    assert peer.is_up
    assert incoming.is_released
    assert peer.send(["frame"])
    assert out.sent == [["frame"]]
    assert peer.queued_bytes == 7
    assert peer._events.told == [("back", 2)]
    end(peer, incoming)
    assert not peer.is_up
    assert not peer.send(["late"])
    assert out.aborted == ["it broke"]
    assert peer._events.told == [("back", 2), ("lost", 2)]


@pytest.mark.parametrize("is_ours", [True, False])
async def test_the_end_of_an_earlier_connection_costs_nothing(peer, is_ours):
    """It was replaced, and may end long after that."""
    first, second, other = Connection(1), Connection(2), Connection(3)
    begin, rest = (peer._answered, peer.called) if is_ours else (peer.called, peer._answered)
    begin(first)
    begin(second)
    rest(other)
    end(peer, first)
    assert peer.is_up
    assert peer.queued_bytes == (2 if is_ours else 3)
    end(peer, second)
    assert not peer.is_up
    end(peer, other)
    assert peer.queued_bytes == 0


async def test_hanging_up_ends_what_we_opened(peer):
    """Nothing happens where there is nothing."""
    peer.hang_up("removed")
    out = Connection()
    peer._answered(out)
    peer.hang_up("removed")
    assert out.aborted == ["removed"]


async def test_nobody_hears_of_a_peer_that_was_retired(peer):
    """Its connections are closed all the same."""
    out, incoming = Connection(), Connection()
    peer._answered(out)
    peer.called(incoming)
    peer.retire()
    end(peer, incoming)
    assert out.aborted
    assert peer._events.told == [("back", 2)]


def test_asyncio_takes_times_for_tls_only_with_tls():
    """It rejects them without."""
    limits = LinkLimits(handshake_timeout_s=3.0, close_timeout_s=4.0)
    assert set(tls_times(limits, None).values()) == {None}
    with_tls = tls_times(limits, SimpleNamespace())
    assert with_tls == {"ssl_handshake_timeout": 3.0, "ssl_shutdown_timeout": 4.0}

"""Connections of Flight: idle ones end, those with a call in progress stay."""

import socket
from functools import partial
from types import SimpleNamespace

import pyarrow.flight as fl
import pytest

from strandline.clock import ManualClock
from strandline.errors import DisconnectedError
from strandline.servers.connections import ConnectionLimit
from strandline.servers.flight import connections
from strandline.servers.flight.connections import FlightConnections, _parsed
from strandline.servers.flight.sockets import PeerAddress, peers_of
from tests.kit.waiting import until as wait_until


@pytest.fixture
def limit():
    return ConnectionLimit(4)


@pytest.fixture
def looked_after(front_end, limit, monkeypatch):
    """The connections of the front end, looked at when the test says so, by its clock."""
    monkeypatch.setattr(connections, "LOOK_S", 3600)
    front_end._connections.stop()
    clock = ManualClock()
    made = FlightConnections(clock, limit)
    front_end._server.connections = made
    return made, clock


@pytest.fixture
def stranger(front_end):
    """Opens connections that say nothing; once gRPC has taken them."""
    held = []

    def connect():
        held.append(socket.create_connection(("127.0.0.1", front_end.port)))
        address = PeerAddress(*held[-1].getsockname())
        until(lambda: address in peers_of(front_end.port))
        return held[-1]

    yield connect
    for each in held:
        each.close()


until = partial(wait_until, seconds=30)


def has_ended(connection):
    """Whether the other side has closed a connection."""
    connection.settimeout(0.5)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def known(port):
    """A client that has made a call."""
    made = fl.connect(("127.0.0.1", port), generic_options=[("grpc.use_local_subchannel_pool", 1)])
    list(made.list_actions())
    return made


def test_who_makes_no_call_is_sent_away(front_end, looked_after, limit, stranger):
    """A connection without calls is closed after a while, and no other one."""
    looking, clock = looked_after
    client, silent = known(front_end.port), stranger()
    looking.look(front_end.port)
    assert limit.count == 2
    clock.advance_ms(connections.IDENTIFY_S * 1e3 - 1)
    looking.look(front_end.port)
    assert not has_ended(silent)
    clock.advance_ms(2)
    looking.look(front_end.port)
    assert has_ended(silent)
    until(lambda: len(peers_of(front_end.port)) == 1)
    assert list(client.list_actions())
    client.close()


def test_too_many_connections_end_those_without_a_call(
    front_end, looked_after, limit, partition, stranger
):
    """Strangers first, then clients that have been idle, and never one that reads."""
    looking, clock = looked_after
    partition.store(b"v")
    reading = known(front_end.port)
    ticket = fl.Ticket(b'{"stream":"s","follow":true}')
    follower = reading.do_get(ticket)
    assert follower.read_chunk().data.num_rows == 1
    idle = known(front_end.port)
    silent = [stranger() for _ in range(3)]
    limit.connections_max = 2
    looking.look(front_end.port)
    assert all(map(has_ended, silent))
    until(lambda: len(peers_of(front_end.port)) == 2)
    limit.connections_max = 1
    clock.advance_ms(1)
    looking.look(front_end.port)
    until(lambda: len(peers_of(front_end.port)) == 1)
    partition.store(b"w")
    assert follower.read_chunk().data.num_rows == 1
    follower.cancel()
    reading.close()
    idle.close()
    assert looking._clients


@pytest.mark.parametrize("peer", ["", "ipv4:", "unknown"])
def test_a_client_that_is_gone_is_no_bug(looked_after, peer):
    """gRPC has forgotten its address before its call is looked at; it is not remembered."""
    looking, _ = looked_after
    before = looking.clients()
    gone = SimpleNamespace(peer=lambda: peer)
    with pytest.raises(DisconnectedError):
        looking.note_call(gone)
    with pytest.raises(DisconnectedError), looking.call(gone):
        pytest.fail("nobody waits for an answer")
    assert looking.clients() == before


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50000", ("127.0.0.1", 50000)),
        ("ipv6:[::1]:50000", ("::1", 50000)),
        ("ipv6:%5B::1%5D:50000", ("::1", 50000)),
        ("ipv6:[::ffff:10.0.0.1]:7", ("10.0.0.1", 7)),
        ("ipv6:[fe80::1%25eth0]:7", ("fe80::1", 7)),
    ],
)
def test_a_client_is_found_by_grpcs_notation(peer, address):
    """As the socket has it: without a zone, and IPv4 as such."""
    assert _parsed(peer) == PeerAddress(*address)

"""The connections of one listener among all descriptors of the process."""

import os
import socket

import pytest

from strandline.servers.flight import sockets
from strandline.servers.flight.sockets import PeerAddress, cut_connections, peers_of


@pytest.fixture
def listeners():
    """Two listeners with a client each: ``(port, address of the client, accepted, client)``."""
    found, opened = [], []
    for _ in range(2):
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        accepted, address = listener.accept()
        opened += [listener, client, accepted]
        found.append((listener.getsockname()[1], PeerAddress(*address), accepted, client))
    yield found
    for each in opened:
        each.close()


def test_only_the_clients_of_a_port_are_found(listeners):
    """Not the listening sockets, nor our own end of a connection."""
    for port, address, _, _ in listeners:
        assert list(peers_of(port)) == [address]


def test_only_the_clients_of_a_port_are_disconnected(listeners):
    """Of these all, or those named; descriptors stay with whoever has opened them."""
    (port, address, accepted, client), (other, *_, stays) = listeners
    assert cut_connections(port, {PeerAddress("127.0.0.1", 1)}) == 0
    assert cut_connections(port, {address}) == 1
    client.settimeout(30)
    assert client.recv(1) == b""
    assert accepted.fileno() >= 0
    stays.setblocking(False)
    with pytest.raises(BlockingIOError):
        stays.recv(1)
    assert cut_connections(other, None) == 1


def test_a_connection_that_another_thread_closes_meanwhile_is_left(monkeypatch):
    """gRPC closes its connections whenever it likes, also between two looks at a descriptor."""
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    gone = (closed, PeerAddress("127.0.0.1", 1))
    monkeypatch.setattr(sockets, "_connections", lambda _: iter([gone]))
    assert cut_connections(1) == 0

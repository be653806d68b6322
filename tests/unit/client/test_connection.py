"""Addresses people write, and what a client says when nobody answers there."""

import socket

import pytest

from strandline.client.client import connect
from strandline.client.connection import BrokerConnection, parse_address
from strandline.errors import DisconnectedError, InvalidRequestError


@pytest.mark.parametrize(
    ("given", "shown", "uri"),
    [
        ("h:1", "h:1", "grpc+tcp://h:1"),
        ("h", "h:9293", "grpc+tcp://h:9293"),
        (":7", "127.0.0.1:7", "grpc+tcp://127.0.0.1:7"),
        (" grpc://h:1/ ", "h:1", "grpc+tcp://h:1"),
        ("grpc+tls://h:1", "h:1", "grpc+tls://h:1"),
        ("strandline://h", "h:9293", "grpc+tcp://h:9293"),
        ("[::1]:5", "[::1]:5", "grpc+tcp://[::1]:5"),
    ],
)
def test_addresses_as_people_write_them(given, shown, uri):
    """Host and port, with or without a scheme, IPv6 in brackets."""
    assert parse_address(given) == (shown, uri)


@pytest.mark.parametrize("given", ["", "h:0", "h:65536", "http://h:1", "a b:1", "h:1:2", "h:x"])
def test_what_is_no_address_is_rejected_with_an_example(given):
    """The error shows what an address looks like, or which part is wrong."""
    with pytest.raises(InvalidRequestError, match=r"address|port"):
        BrokerConnection(given, timeout_s=1.0)


def test_nobody_at_the_address_names_it_and_the_remedy():
    """The first thing a new user gets wrong is to have no broker running."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(DisconnectedError) as caught:
        connect(f"127.0.0.1:{port}", timeout_s=5.0)
    assert f"127.0.0.1:{port}" in caught.value.message
    assert "strandline serve" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_closed_client_says_so():
    """Use after close is an error, not a new connection."""
    connection = BrokerConnection("127.0.0.1:9", timeout_s=1.0)
    connection.close()
    connection.close()
    with pytest.raises(DisconnectedError, match="closed"):
        connection.flight()

"""Fixtures for users' tests, found by pytest without configuration.

``strandline_server`` is a broker per test, and ``strandline_url`` its address. For a test that also
uses ``strandline_nats_url``, the broker has a nats-server. Only pytest is imported until a test
uses one of these.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from strandline.testing.server import Server, ServerUrl


NATS_FIXTURE = "strandline_nats_url"


@pytest.fixture
def strandline_server(request: pytest.FixtureRequest) -> "Iterator[Server]":
    """A real broker on free ports with a temporary data directory.

    The broker has a nats-server only if the test uses ``strandline_nats_url``: it takes time to
    start.
    """
    from strandline.testing.server import Server

    server = Server(nats=NATS_FIXTURE in request.fixturenames)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def strandline_url(strandline_server: "Server") -> "ServerUrl":
    """The address of the test's broker, for ``strandline.connect``."""
    return strandline_server.url


@pytest.fixture
def strandline_nats_url(strandline_server: "Server") -> str:
    """The URL of the nats-server of the test's broker, for any NATS client."""
    if strandline_server.nats_url is None:
        pytest.fail(f"the broker was started without NATS: make {NATS_FIXTURE} an argument")
    return strandline_server.nats_url

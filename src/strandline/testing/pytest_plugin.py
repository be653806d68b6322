"""Fixtures for users' tests, found by pytest without configuration.

``strandline_server`` is a broker per test; ``strandline_url`` is its address. Only pytest is
imported until a test uses one of them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from strandline.testing.server import Server, ServerUrl


@pytest.fixture
def strandline_server() -> "Iterator[Server]":
    """A real broker on free ports with a temporary data directory, without NATS."""
    from strandline.testing.server import Server

    server = Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def strandline_url(strandline_server: "Server") -> "ServerUrl":
    """The address of the test's broker, for ``strandline.connect``."""
    return strandline_server.url

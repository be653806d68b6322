"""Fixtures for users' tests, found by pytest without configuration.

``strandline_server`` is a broker of its own for each test; ``strandline_url`` is where it listens.
Nothing but pytest is imported until a test asks for one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from strandline.testing.server import Server, ServerUrl


@pytest.fixture
def strandline_server() -> "Iterator[Server]":
    """A real broker on free ports, its data in a temporary directory, without NATS."""
    from strandline.testing.server import Server

    server = Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def strandline_url(strandline_server: "Server") -> "ServerUrl":
    """Where the test's broker listens: give it to ``strandline.connect``."""
    return strandline_server.url

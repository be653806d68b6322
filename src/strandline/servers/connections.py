"""The limit of client connections over all listeners of a broker.

Rules: an identified client stays connected. When there are too many connections, the oldest
unidentified client is disconnected, so that clients without credentials cannot keep out those with
credentials. Flight reports only how many connections it has, and closes them itself. Methods run on
the loop's thread, except where stated.
"""

from asyncio import BaseTransport
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from strandline.api.monitoring import ConnectionInfo
from strandline.config import bracketed
from strandline.storage.descriptors import current_shares

HTTP_SHARE = 4
"""The HTTP listener, which has its own limit, gets one in this many of the connections."""


@runtime_checkable
class DescribedConnection(Protocol):
    """A connection that can report its client's address and principal."""

    def client_info(self) -> ConnectionInfo:
        """Return the client's address and principal; any thread."""
        ...


def address_text(transport: BaseTransport | None) -> str:
    """Return ``host:port`` of the other end of a connection; empty if it is closed."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return f"{bracketed(peer[0])}:{peer[1]}" if peer else ""


class ConnectionLimit:
    """A count of connections with a limit.

    Args:
        connections_max: on all listeners but HTTP's; by default as many as the process has
            descriptors for.
    """

    def __init__(self, connections_max: int | None = None) -> None:
        share = current_shares().connections
        self.connections_max = share - share // HTTP_SHARE
        if connections_max is not None:
            self.connections_max = connections_max
        self._known: set[object] = set()
        self._strangers: dict[object, Callable[[], None]] = {}
        self._of_flight = 0
        self._sources: list[Callable[[], list[ConnectionInfo]]] = []

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._known) + len(self._strangers) + self._of_flight

    @property
    def excess(self) -> int:
        """The number of connections above the limit."""
        return max(0, self.count - self.connections_max)

    def admit(self, connection: object, drop: Callable[[], None]) -> bool:
        """Count a new connection whose client is not identified yet.

        Args:
            connection: an object that identifies the connection.
            drop: closes the connection at once; called to make room for a newer one.

        Returns:
            True if the connection may stay.
        """
        while self.count >= self.connections_max and self._strangers:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest)()
        is_admitted = self.count < self.connections_max
        self._strangers[connection] = drop
        return is_admitted

    def add_source(self, source: Callable[[], list[ConnectionInfo]]) -> None:
        """Add a source of connections that are not counted here but listed by ``clients``.

        Args:
            source: returns such connections, for example those of the embedded nats-server. It is
                called on the thread that calls ``clients`` and may take a second.
        """
        self._sources.append(source)

    def clients(self) -> list[ConnectionInfo]:
        """Return the connections that can describe themselves, without Flight's.

        Any thread but the loop's, because the sources may block.
        """
        every = [*self._known, *self._strangers]
        ours = [each.client_info() for each in every if isinstance(each, DescribedConnection)]
        return ours + [info for source in self._sources for info in source()]

    def note_identified(self, connection: object) -> None:
        """Record that a connection's client is identified."""
        if self._strangers.pop(connection, None) is not None:
            self._known.add(connection)

    def forget(self, connection: object) -> None:
        """Record the end of a connection."""
        self._known.discard(connection)
        self._strangers.pop(connection, None)

    def note_flight(self, count: int) -> None:
        """Record the number of Flight's connections; any thread."""
        self._of_flight = count

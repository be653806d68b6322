"""The limit of client connections over all listeners of a broker.

Rules: an identified client stays connected. When there are too many connections, the oldest
unidentified client is disconnected, so that clients without credentials cannot keep out those with
credentials. Flight reports only how many connections it has, and closes them itself. Loop thread,
except ``note_flight``.
"""

from collections.abc import Callable

from strandline.storage.descriptors import current_shares

HTTP_SHARE = 4
"""One connection in this many is reserved for the HTTP listener, which has its own limit."""


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

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._known) + len(self._strangers) + self._of_flight

    @property
    def excess(self) -> int:
        """The number of connections above the limit."""
        return max(0, self.count - self.connections_max)

    def admit(self, connection: object, drop: Callable[[], None]) -> bool:
        """Count a new connection whose client is not identified yet.

        Args:
            connection: an object that identifies the connection.
            drop: closes the connection at once; called when another needs its place.

        Returns:
            True if the connection may stay.
        """
        while self.count >= self.connections_max and self._strangers:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest)()
        is_admitted = self.count < self.connections_max
        self._strangers[connection] = drop
        return is_admitted

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

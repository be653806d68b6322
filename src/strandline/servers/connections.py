"""How many clients may be connected, on all listeners of a broker together.

Rules: a client that has shown who it is stays connected; one that has not makes room for the next
when there are too many, the oldest first. So strangers keep nobody out who has credentials. Of
Flight's connections only the number is known here; it ends them by itself. Loop thread, but for
``note_flight``.
"""

from collections.abc import Callable

from strandline.storage.descriptors import current_shares

HTTP_SHARE = 4
"""One connection in so many is kept for the HTTP listener, which has a limit of its own."""


class ConnectionLimit:
    """Counts connections.

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
        """Connections there are."""
        return len(self._known) + len(self._strangers) + self._of_flight

    @property
    def excess(self) -> int:
        """How many of them are too many."""
        return max(0, self.count - self.connections_max)

    def admit(self, connection: object, drop: Callable[[], None]) -> bool:
        """Count a new connection, of somebody who has not shown who it is.

        Args:
            connection: to be told apart from others.
            drop: ends it at once; called when it has to make room for another.

        Returns:
            Whether there is room for it.
        """
        while self.count >= self.connections_max and self._strangers:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest)()
        is_admitted = self.count < self.connections_max
        self._strangers[connection] = drop
        return is_admitted

    def note_identified(self, connection: object) -> None:
        """A client has shown who it is."""
        if self._strangers.pop(connection, None) is not None:
            self._known.add(connection)

    def forget(self, connection: object) -> None:
        """A connection has ended."""
        self._known.discard(connection)
        self._strangers.pop(connection, None)

    def note_flight(self, count: int) -> None:
        """So many connections are Flight's; any thread."""
        self._of_flight = count

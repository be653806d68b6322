"""The metadata cache of a client: the brokers of its cluster, and the leaders of partitions.

The routes of a stream are kept until a call to one of its leaders fails; then they are looked up
again. Calls that need the newest partitions always look them up.

Rule: metadata older than some that was seen before is rejected, as long as another broker may have
newer. Safe to use from several threads: every attribute is replaced as a whole.
"""

import time
from collections.abc import Iterator

from strandline.api.admin import PartitionInfo, ServerInfo, StreamInfo
from strandline.errors import UnavailableError

STALE_S = 3.0
"""The time for which metadata older than some seen before is rejected."""

Routes = dict[int, PartitionInfo]
"""The leader and the replicas of each partition."""


class ClusterMetadata:
    """A client's cache of brokers and leaders.

    Args:
        seeds: the addresses given by the user.
    """

    def __init__(self, seeds: tuple[str, ...]) -> None:
        self.seeds = seeds
        self.brokers: tuple[str, ...] = ()
        """The brokers of the cluster, as listed by one of them; empty without a cluster."""
        self.home = seeds[0]
        """The broker that answered last."""
        self._routes: dict[str, Routes] = {}
        self._newest_index = 0
        """The highest metadata index in any answer so far."""
        self._stale_since_s: float | None = None
        """The time since which answers are older than that; None if they are not."""

    @property
    def is_cluster(self) -> bool:
        """Return whether there are several brokers to ask."""
        return bool(self.brokers) or len(self.seeds) > 1

    def learn(self, info: ServerInfo) -> None:
        """Note the brokers listed in an answer."""
        if info.brokers:
            self.brokers = info.brokers

    def order(self) -> Iterator[str]:
        """Yield the broker that answered last, then the other brokers."""
        home = self.home
        yield home
        yield from dict.fromkeys(a for a in (*self.brokers, *self.seeds) if a != home)

    def ask_another(self) -> None:
        """Prefer another broker next, since the leaders that this one named did not answer."""
        ring = tuple(dict.fromkeys((*self.brokers, *self.seeds, self.home)))
        self.home = ring[(ring.index(self.home) + 1) % len(ring)]

    def take(self, info: StreamInfo) -> Routes:
        """Note and return the routes of a stream from a broker's answer."""
        # A broker that is starting does not list the other brokers, but may name replicas on them.
        copies = {at for each in info.partitions for at in each.in_sync}
        if not copies.issubset(self.brokers):
            self.brokers = tuple(sorted(copies.union(self.brokers)))
        routes = {each.partition: each for each in info.partitions}
        self._routes[info.name] = routes
        return routes

    def routes(self, stream: str) -> Routes | None:
        """Return the routes of a stream, if they are known."""
        return self._routes.get(stream)

    def forget(self, stream: str) -> None:
        """Drop the routes of a stream after a call to one of its leaders failed."""
        self._routes.pop(stream, None)

    def check_newest(self, address: str, index: int) -> None:
        """Reject metadata older than some seen before, such as of a broker that is cut off.

        Args:
            address: the broker that answered.
            index: the newest metadata entry that the broker has applied; 0 is not checked.

        Raises:
            UnavailableError: the metadata is older, and answers have been for less than
                ``STALE_S``.
        """
        now_s = time.monotonic()
        if not index:
            return
        if index >= self._newest_index:
            self._newest_index, self._stale_since_s = index, None
            return
        self._stale_since_s = self._stale_since_s or now_s
        if now_s - self._stale_since_s < STALE_S:
            raise UnavailableError(
                f"{address} has metadata up to entry {index}, other brokers up to "
                f"{self._newest_index}; retry"
            )
        # No broker has newer metadata: a forced recovery has lost the newer entries.
        self._newest_index, self._stale_since_s = index, None

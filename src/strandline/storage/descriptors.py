"""Shares of the process's file descriptors for storage, connections and memory maps.

A listener uses a descriptor for each connection. If connections could use all of them, the broker
could not open its next segment.

Rules: everything but the storage may have ``DescriptorShares.others`` descriptors. To enforce that,
the process's soft limit is kept at that number plus those that the storage has open. The storage
may exceed the soft limit, up to the hard one. Any thread.
"""

import contextlib
import errno
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

UNLIMITED: Final = 1 << 20
"""The limit to assume if the system has none."""
PROCESS: Final = 64
"""Descriptors for the event loop, child processes, other brokers, NATS servers and gRPC."""
JOURNAL: Final = 32
"""Descriptors for the journal's files, and for files that are open for a moment."""


class DescriptorShares(NamedTuple):
    """The most file descriptors that each part of the process may have."""

    limit: int
    """The process's limit."""
    others: int
    """Everything except the storage."""
    connections: int
    """Connections of clients, on all listeners together."""
    maps: int
    """Segments that stay mapped for readers."""
    unsynced: int
    """Sealed segments that no checkpoint has synced yet, before one is due."""
    partitions: int
    """Partitions, each of which may have its active segment open."""


def shares_of(limit: int) -> DescriptorShares:
    """Divide ``limit`` descriptors."""
    others = limit * 3 // 8
    maps = max(8, min(256, limit // 16))
    unsynced = max(8, min(1024, limit // 16))
    partitions = limit - others - maps - unsynced - JOURNAL
    return DescriptorShares(limit, others, others - PROCESS, maps, unsynced, partitions)


def current_shares() -> DescriptorShares:
    """Divide the descriptors that this process may have."""
    if STORAGE_DESCRIPTORS.shares is not None:
        return STORAGE_DESCRIPTORS.shares
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return shares_of(soft if soft >= 0 else UNLIMITED)


class StorageDescriptors:
    """The reserve of descriptors for the storage only; off until ``begin``."""

    def __init__(self) -> None:
        # Reentrant: files are also closed by the garbage collector, at any moment.
        self._lock = threading.RLock()
        self._held = 0
        self.shares: DescriptorShares | None = None

    @property
    def held(self) -> int:
        """The number of long-lived files that the storage has open."""
        return self._held

    def begin(self) -> DescriptorShares:
        """Reserve the storage's share, up to the hard limit."""
        with self._lock:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            self.shares = shares_of(hard if hard >= 0 else UNLIMITED)
            self._restrict()
            return self.shares

    def end(self) -> None:
        """End the reservation."""
        with self._lock:
            self.shares = None
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def note_opened(self) -> None:
        """Note that the storage has opened a file that stays open."""
        with self._lock:
            self._held += 1
            self._restrict()

    def note_closed(self) -> None:
        """Note that the storage has closed such a file."""
        with self._lock:
            self._held -= 1
            self._restrict()

    def open(self, action: Callable[[], T]) -> T:
        """Run an action that opens a descriptor for the storage.

        Raises:
            OSError: as ``action``; too many open files only if the storage's share is used up.
        """
        try:
            return action()
        except OSError as error:
            if error.errno != errno.EMFILE or self.shares is None:
                raise
        with self.reserve():
            return action()

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Let the block open files of the storage's share, such as those of a module."""
        with self._lock:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if self.shares is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            try:
                yield
            finally:
                self._restrict()

    def _restrict(self) -> None:
        if self.shares is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            soft = self.shares.others + self._held
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, self.shares.limit), hard))


STORAGE_DESCRIPTORS: Final = StorageDescriptors()
"""One for the process, because descriptors belong to the process."""

"""A throttle for copying records to replicas that are being added.

Rules: reads for all such replicas share one rate; each read waits until the earlier ones have used
up their time. Existing replicas are not throttled, since they may lead next; ``ReplicationLimits``
gives publishers priority over them. Runs on the loop.
"""

import asyncio
from collections.abc import Callable, Hashable

SLICE_BYTES_MIN = 64 << 10
SLICES_PER_S = 4


class ReplicationThrottle:
    """Limits the rate at which this broker's leaders send to replicas added by a move.

    Args:
        bytes_per_s: the rate, above 0.
    """

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0, "without a limit nobody asks"
        self._bytes_per_s = bytes_per_s
        self._loop = asyncio.get_running_loop()
        self._free_at_s = 0.0
        self._waiting: dict[Hashable, asyncio.TimerHandle] = {}
        self.slice_bytes = max(SLICE_BYTES_MIN, bytes_per_s // SLICES_PER_S)
        """The most bytes of one read."""

    def ask(self, reader: Hashable, read: Callable[[], None]) -> None:
        """Read as soon as the rate allows; a reader that waits already is not queued again."""
        waiting = self._waiting.pop(reader, None)
        if waiting is not None:
            waiting.cancel()
        wait_s = self._free_at_s - self._loop.time()
        if wait_s <= 0:
            read()
        else:
            self._waiting[reader] = self._loop.call_later(wait_s, self._go, reader, read)

    def _go(self, reader: Hashable, read: Callable[[], None]) -> None:
        del self._waiting[reader]
        read()

    def spent(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        free_s = max(self._free_at_s, self._loop.time())
        self._free_at_s = free_s + size_bytes / self._bytes_per_s

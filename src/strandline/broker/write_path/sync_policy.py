"""Decides where the journal is synced: on the loop only for small group commits on a fast disk.

A lone publisher would wait longer for the hand-over to another thread than for the sync. So would
the publishers of a single connection: while the loop syncs, their nats-server or client collects
more messages, and sends larger pieces. In all other cases the loop has enough to read while the
disk works (docs/adr/0037 has the figures).
"""

import asyncio

from strandline.broker.write_path.sync_process import SyncProcess
from strandline.broker.write_path.sync_thread import Done, SyncThread
from strandline.clock import Clock
from strandline.storage.disk import Disk

INLINE_BYTES_MAX = 8 << 10
"""A few records. With more bytes, other publishers have something to read meanwhile."""
ONE_BYTES_MAX = 96 << 10
"""The limit if one connection carries many publishers; with more, half arrives meanwhile."""
INLINE_MS_MAX = 1.0
"""If the recent average sync takes longer, the loop does not wait for syncs."""
SMOOTHING = 0.1
"""Weight of the newest sync in that average."""
COUNTED_MS_MAX = 4.0
"""A sync counts as at most this long: an outlier says little about the next one."""


class SyncPolicy:
    """Decides where to sync, and syncs outside the loop.

    Args:
        loop: runs the ``done`` callbacks.
        disk: the file system.
        clock: measures the syncs of a thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, clock: Clock) -> None:
        self._elsewhere = (
            SyncProcess(loop) if disk.syncs_plainly else SyncThread(loop, disk.fdatasync, clock)
        )
        self.average_ms = 0.0

    def is_inline(self, size: int, *, is_from_one: bool, is_read_here: bool) -> bool:
        """Whether to sync on the loop; always if there is no thread or process to sync.

        Args:
            size: the bytes of the group commit's batches.
            is_from_one: all records of this and the previous group commit came over one connection.
            is_read_here: the loop itself reads that connection, publish by publish.
        """
        bytes_max = ONE_BYTES_MAX if is_from_one else INLINE_BYTES_MAX
        is_gathered = is_from_one and not is_read_here
        is_quick = self.average_ms < INLINE_MS_MAX
        if is_quick and (is_gathered or size <= bytes_max):
            return True
        return not self._elsewhere.is_there()

    def observe(self, took_ms: float) -> None:
        """Record how long a sync took."""
        self.average_ms += SMOOTHING * (min(took_ms, COUNTED_MS_MAX) - self.average_ms)

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` outside the loop, then call ``done(error or None, ms)`` on the loop.

        Call this only after ``is_inline`` returned False.
        """
        self._elsewhere.submit(fd, done)

    def close(self) -> None:
        """Wait for the submitted syncs, and stop."""
        self._elsewhere.close()

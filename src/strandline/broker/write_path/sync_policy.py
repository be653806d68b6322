"""Syncing the journal: on the loop if the disk is quick and that is best, else beside it.

A lone publisher would wait longer for the hand-over than for the sync, and so do the few of one
connection. What a nats-server or a client gathers comes in larger pieces if it has to wait. Else
the loop has enough to read while the disk works (docs/adr/0037 has the figures).
"""

import asyncio

from strandline.broker.write_path.sync_process import SyncProcess
from strandline.broker.write_path.sync_thread import Done, SyncThread
from strandline.clock import Clock
from strandline.storage.disk import Disk

INLINE_BYTES_MAX = 8 << 10
"""A few records; with more of them there are others to read from meanwhile."""
ONE_BYTES_MAX = 96 << 10
"""Of one connection that many publish over; with more of them the next half comes meanwhile."""
INLINE_MS_MAX = 1.0
"""Syncs that take longer than this, on average of late, are not waited for on the loop."""
SMOOTHING = 0.1
"""Weight of the newest sync in that average."""
COUNTED_MS_MAX = 4.0
"""A sync counts as no longer than this: one hiccup says little about the next sync."""


class SyncPolicy:
    """Knows where to sync, and who syncs beside the loop.

    Args:
        loop: where ``done`` callbacks run.
        disk: whose files are synced.
        clock: measures the syncs of a thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, clock: Clock) -> None:
        self._beside = (
            SyncProcess(loop) if disk.syncs_plainly else SyncThread(loop, disk.fdatasync, clock)
        )
        self.average_ms = 0.0

    def is_inline(self, size: int, *, is_from_one: bool, is_read_here: bool) -> bool:
        """Whether a sync should run on the loop; always, where nobody can be had to do it beside.

        Args:
            size: bytes of the turn's batches.
            is_from_one: its records, and those of the turn before, came over one connection.
            is_read_here: the loop itself reads that, publish by publish.
        """
        bytes_max = ONE_BYTES_MAX if is_from_one else INLINE_BYTES_MAX
        is_gathered = is_from_one and not is_read_here
        is_quick = self.average_ms < INLINE_MS_MAX
        if is_quick and (is_gathered or size <= bytes_max):
            return True
        return not self._beside.is_there()

    def observe(self, took_ms: float) -> None:
        """Learn how long a sync took."""
        self.average_ms += SMOOTHING * (min(took_ms, COUNTED_MS_MAX) - self.average_ms)

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` beside the loop, then call ``done(error or None, ms)`` on it.

        Only if it was not to be done inline.
        """
        self._beside.submit(fd, done)

    def close(self) -> None:
        """Finish what was submitted."""
        self._beside.close()

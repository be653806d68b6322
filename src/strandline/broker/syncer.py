"""Syncing the journal: on the loop if the disk is quick and no other socket waits, else beside it.

A lone publisher would wait longer for the hand-over than for the sync, and what comes over one
connection, as from a nats-server, comes in larger pieces if it has to wait. Where there are many
connections the loop has enough to do while the disk works (docs/adr/0003 has the figures).
"""

import asyncio
import queue
import threading
from collections.abc import Callable

from strandline.clock import Clock
from strandline.errors import StrandlineError

INLINE_BYTES_MAX = 8 << 10
"""A few records; with more of them there are others to read from meanwhile."""
INLINE_MS_MAX = 1.0
"""Syncs that take longer than this, on average of late, go to the thread."""
SMOOTHING = 0.1
"""Weight of the newest sync in that average."""
COUNTED_MS_MAX = 4.0
"""A sync counts as no longer than this: one hiccup says little about the next sync."""

Sync = Callable[[int], None]
Done = Callable[[StrandlineError | None, float], None]
"""Told the failure, if any, and how long the sync itself took in ms: waiting for a busy loop to
take notice is not the disk's slowness."""


class Syncer:
    """One thread that syncs files and reports back on the loop.

    Args:
        loop: where ``done`` callbacks run.
        sync: fdatasync of a file descriptor; raises StrandlineError when it fails.
        clock: measures the syncs of the thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sync: Sync, clock: Clock) -> None:
        self._loop = loop
        self._sync = sync
        self._clock = clock
        self._jobs: queue.SimpleQueue[tuple[int, Done] | None] = queue.SimpleQueue()
        self.average_ms = 0.0
        self._thread = threading.Thread(target=self._run, name="strandline-sync", daemon=True)
        self._thread.start()

    def is_inline(self, size: int, *, is_from_one: bool) -> bool:
        """Whether a sync should run on the loop.

        Args:
            size: bytes of the turn's batches.
            is_from_one: its records came over one connection.
        """
        return (is_from_one or size <= INLINE_BYTES_MAX) and self.average_ms < INLINE_MS_MAX

    def observe(self, took_ms: float) -> None:
        """Learn how long a sync took."""
        self.average_ms += SMOOTHING * (min(took_ms, COUNTED_MS_MAX) - self.average_ms)

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` in the thread, then call ``done(error or None, ms)`` on the loop."""
        self._jobs.put((fd, done))

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            # Its turn's logs may be deleted before the next one comes: their disk space waits here.
            del job

    def _do(self, fd: int, done: Done) -> None:
        error: StrandlineError | None = None
        started_ms = self._clock.monotonic_ms()
        try:
            self._sync(fd)
        except StrandlineError as failure:
            error = failure
        took_ms = self._clock.monotonic_ms() - started_ms
        self._loop.call_soon_threadsafe(done, error, took_ms)

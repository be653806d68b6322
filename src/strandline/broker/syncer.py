"""Syncing the journal: inline when little waits, beside the loop when much does.

Handing a sync to a thread costs a lone appender three times the sync itself, and syncing inline
under load wastes the time in which the next turn could be parsed (docs/adr/0003 has the figures).
"""

import asyncio
import queue
import threading
from collections.abc import Callable

from strandline.errors import StrandlineError

INLINE_RECORDS_MAX = 4
"""A turn of at most this many records is synced inline."""

Sync = Callable[[int], None]
Done = Callable[[StrandlineError | None], None]


class Syncer:
    """One thread that syncs files and reports back on the loop.

    Args:
        loop: where ``done`` callbacks run.
        sync: fdatasync of a file descriptor; raises StrandlineError when it fails.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sync: Sync) -> None:
        self._loop = loop
        self._sync = sync
        self._jobs: queue.SimpleQueue[tuple[int, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="strandline-sync", daemon=True)
        self._thread.start()

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` in the thread, then call ``done(error or None)`` on the loop."""
        self._jobs.put((fd, done))

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            fd, done = job
            error: StrandlineError | None = None
            try:
                self._sync(fd)
            except StrandlineError as failure:
                error = failure
            self._loop.call_soon_threadsafe(done, error)

"""A thread that syncs files and reports on the loop, for disks that inject faults into a sync.

Tests and chaos runs use such disks; their faults must happen in this process.
"""

import asyncio
import queue
import threading
from collections.abc import Callable

from strandline.clock import Clock
from strandline.errors import StrandlineError

Sync = Callable[[int], None]
Done = Callable[[StrandlineError | None, float], None]
"""Called with the error, if any, and how long the sync took in ms, without the time after it until
a busy loop makes this call."""


class SyncThread:
    """A thread that syncs files.

    Args:
        loop: runs the ``done`` callbacks.
        sync: syncs a file descriptor as fdatasync does; raises StrandlineError if that fails.
        clock: measures the syncs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sync: Sync, clock: Clock) -> None:
        self._loop = loop
        self._sync = sync
        self._clock = clock
        self._jobs: queue.SimpleQueue[tuple[int, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="strandline-sync", daemon=True)
        self._thread.start()

    def is_there(self) -> bool:
        """Always True: the thread runs."""
        return True

    def submit(self, fd: int, done: Done) -> None:
        """Sync ``fd`` on the thread, then call ``done(error or None, ms)`` on the loop."""
        self._jobs.put((fd, done))

    def close(self) -> None:
        """Wait for the submitted syncs, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            # Release the job's logs, or the disk space of deleted ones would stay allocated.
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

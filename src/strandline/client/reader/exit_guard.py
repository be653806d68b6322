"""The end of reads when the interpreter exits.

Arrow's C++ code calls a Python iterator for the batches of a read. When Python exits it ends each
daemon thread at the moment when the thread asks for the interpreter. Within such a call this aborts
the process ("PyGILState_Release: thread state must be current"). Rules: at exit all reads are
cancelled, and a thread within such a call never returns from it; exit waits until no thread is
about to enter one.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Self

import pyarrow as pa

WAIT_S = 10.0
"""The longest wait of exit for reads."""
QUIET_S = 0.1
"""Exit goes on after no thread has entered a read for so long. A thread enters Arrow's code before
this module, and on a busy machine it waits tens of milliseconds for a core in between."""


class GuardedBatches:
    """The batches of a read, for Arrow's C++ code to iterate.

    Args:
        batches: the batches to iterate.
        cancel: ends the read; any thread may call it.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], cancel: Callable[[], None]) -> None:
        self._batches = batches
        self.cancel = cancel
        _calls.begun(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        _calls.enter()
        try:
            return next(self._batches)
        finally:
            _calls.leave()


class _Calls:
    """The reads in progress, and the calls from Arrow's code that are running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: weakref.WeakSet[GuardedBatches] = weakref.WeakSet()
        self._running: set[int] = set()
        """The threads within a call; a set, whose changes are atomic without a lock."""
        self._entered = 0
        self._is_exiting = False

    def begun(self, read: GuardedBatches) -> None:
        """Register a read, to be cancelled at exit."""
        self._stay_if_exiting()
        with self._lock:
            self._reads.add(read)

    def enter(self) -> None:
        """Note that this thread is within a call."""
        self._entered += 1
        self._running.add(threading.get_ident())
        self._stay_if_exiting()

    def leave(self) -> None:
        """Note that this thread's call has ended."""
        self._stay_if_exiting()
        self._running.discard(threading.get_ident())

    def _stay_if_exiting(self) -> None:
        """If the interpreter exits on the main thread, never return."""
        if self._is_exiting and threading.current_thread() is not threading.main_thread():
            self._running.discard(threading.get_ident())
            threading.Event().wait()

    def end(self) -> None:
        """Cancel all reads, and wait until no thread is within one."""
        self._is_exiting = True
        with self._lock:
            reads = list(self._reads)
        for read in reads:
            read.cancel()
        deadline_s = time.monotonic() + WAIT_S
        entered = -1
        while reads and (self._running or entered != self._entered):
            if time.monotonic() >= deadline_s:
                return
            entered = self._entered
            time.sleep(QUIET_S)


_calls = _Calls()
atexit.register(_calls.end)

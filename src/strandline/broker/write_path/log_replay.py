"""State of a partition that is read back from its log, on a thread if there is much to read.

A broker must go on answering its peers meanwhile: one whose event loop stands still for longer than
its session is fenced, and the next leader would have as much to read.

Rules: used on the loop, which alone changes the state; a load reads the log and nothing else. A
load that was cancelled is ignored when it ends.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from strandline.errors import StillLoadingError, StrandlineError

INLINE_BYTES: Final = 1 << 20
"""So much is read at once: it takes a few milliseconds, up to thirty of records stored singly."""

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="log-replay")
"""One for all partitions: each thread that runs Python takes time from the event loop."""

StateT = TypeVar("StateT")
IsWanted = Callable[[], bool]
"""Whether a load is still wanted; asked on its thread, now and then."""


class _Load:
    """A load under way."""

    def __init__(self) -> None:
        self.is_wanted = True


class LogReplay(Generic[StateT]):
    """At most one load at a time.

    Args:
        take: called on the loop with the state that was loaded.
        what: name of the state and its partition, for messages.
        failed: called on the loop when a load on a thread has failed; None: who asks next is told.
    """

    def __init__(
        self,
        take: Callable[[StateT], None],
        *,
        what: str,
        failed: Callable[[StrandlineError], None] | None = None,
    ) -> None:
        self._take = take
        self._failed = failed or self._keep_failure
        self._what = what
        self._load: _Load | None = None
        self._failure: StrandlineError | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a load runs on a thread."""
        return self._load is not None

    def read(self, load: Callable[[IsWanted], StateT], *, size_bytes: Callable[[], int]) -> None:
        """Load the state; it is taken before this returns if little is to be read.

        Args:
            load: reads the log.
            size_bytes: about how much it reads; not asked while a load is under way.

        Raises:
            StillLoadingError: it is taken later.
            StrandlineError: the log cannot be read, now or in the load that ended last.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._load is None:
            if size_bytes() <= INLINE_BYTES:
                self._take(load(lambda: True))
                return
            self._begin(load)
        raise StillLoadingError(f"{self._what} are still read back from the log; retry")

    def begin(self, load: Callable[[IsWanted], StateT]) -> None:
        """Load the state on the thread, however little it is, unless a load is under way."""
        if self._load is None:
            self._begin(load)

    def cancel(self) -> None:
        """Ignore what is being loaded."""
        if self._load is not None:
            self._load.is_wanted = False
        self._load = self._failure = None

    def _keep_failure(self, error: StrandlineError) -> None:
        self._failure = error

    def _begin(self, load: Callable[[IsWanted], StateT]) -> None:
        under_way = self._load = _Load()

        def ended(done: "asyncio.Future[StateT]") -> None:
            if under_way is not self._load:
                done.cancelled() or done.exception()  # looked at: nobody waits for it
                return
            self._load = None
            try:
                state = done.result()
            except StrandlineError as error:
                self._failed(error)
            else:
                self._take(state)

        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(_THREAD, load, lambda: under_way.is_wanted)
        running.add_done_callback(ended)

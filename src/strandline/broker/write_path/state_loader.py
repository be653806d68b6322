"""Loading of a partition's state from its log, on a thread if there is much to read.

The broker must answer its peers while it loads: if its event loop were blocked for longer than its
session timeout, it would be fenced, and the next leader would have as much to read.

Rules: used on the event loop, which alone changes the state; a load only reads the log. The result
of a cancelled load is ignored.
of a cancelled load is ignored.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from strandline.errors import StillLoadingError, StrandlineError

INLINE_BYTES: Final = 1 << 20
"""The most bytes to read on the loop; takes a few ms, or up to 30 if batches have one record."""

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="state-loader")
"""One thread for all partitions: each thread that runs Python takes time from the event loop."""

StateT = TypeVar("StateT")
IsWanted = Callable[[], bool]
"""Whether a load is still wanted; the load calls this from time to time, on its thread."""


class _Load:
    """A load in progress."""

    def __init__(self) -> None:
        self.is_wanted = True


class StateLoader(Generic[StateT]):
    """Loads the state of one partition; at most one load runs at a time.

    Args:
        take: called on the loop with the loaded state.
        what: name of the state and its partition, for messages.
        failed: called on the loop when a load on a thread failed; None: the next ``read`` raises
            the error.
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
        """Load the state; if there is little to read, ``take`` is called before this returns.

        Args:
            load: reads the log.
            size_bytes: returns about how much ``load`` reads; not called during a load.

        Raises:
            StillLoadingError: the state is being loaded; retry.
            StrandlineError: the log cannot be read, or could not be in the last load.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._load is None:
            if size_bytes() <= INLINE_BYTES:
                self._take(load(lambda: True))
                return
            self._begin(load)
        raise StillLoadingError(f"{self._what} are still being loaded from the log; retry")

    def begin(self, load: Callable[[IsWanted], StateT]) -> None:
        """Start to load the state on the thread, unless a load is in progress."""
        if self._load is None:
            self._begin(load)

    def cancel(self) -> None:
        """Ignore the result of the load in progress."""
        if self._load is not None:
            self._load.is_wanted = False
        self._load = self._failure = None

    def _keep_failure(self, error: StrandlineError) -> None:
        self._failure = error

    def _begin(self, load: Callable[[IsWanted], StateT]) -> None:
        under_way = self._load = _Load()

        def ended(done: "asyncio.Future[StateT]") -> None:
            if under_way is not self._load:
                done.cancelled() or done.exception()  # consume the result: nobody awaits it
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

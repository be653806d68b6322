"""Threads for what blocks, awaited by asyncio; whoever awaits may be cancelled."""

import asyncio
import concurrent.futures
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from strandline.errors import StrandlineError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[], None]

UNDO_S = 2.0
"""So long a task that was cancelled waits at most: what comes next may close the client."""


async def begun(begin: Callable[[], T], *, undo: Callable[[T], object]) -> T:
    """What is begun on a thread of asyncio's; a caller that is cancelled leaves nothing begun.

    A context that was not entered is not left, so nobody else would undo it.

    Args:
        begin: begins it.
        undo: ends what was begun for nobody; on a thread, too, and waited for a moment.
    """
    loop = asyncio.get_running_loop()
    beginning, job = _job(begin)
    loop.run_in_executor(None, job)
    try:
        return await asyncio.wrap_future(beginning)
    except asyncio.CancelledError:
        if not beginning.cancel():  # it has begun
            undone = loop.run_in_executor(None, _undo, beginning, undo)
            await asyncio.wait((undone,), timeout=UNDO_S)
        raise


def _undo(beginning: "concurrent.futures.Future[T]", undo: Callable[[T], object]) -> None:
    if beginning.exception() is not None:
        return
    try:
        undo(beginning.result())
    except StrandlineError as error:
        logger.warning("what was begun as its task was cancelled stays open: %s", error)


def _job(function: Callable[[], T]) -> "tuple[concurrent.futures.Future[T], Job]":
    """A call to make on some thread, and what comes of it."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def job() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
            future.set_exception(error)

    return future, job


class OneThread:
    """A thread for calls that block for long, so that they do not use up asyncio's own.

    It is a daemon: a call that never ends does not keep the process from ending. One that nobody
    refers to any more ends.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_ended = False
        self._ending = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function on the thread."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> "concurrent.futures.Future[T]":
        """Have a function run on the thread; on a new one after ``end``, as nobody else would."""
        future, job = _job(function)
        with self._ending:
            if not self._has_ended:
                self._jobs.put(job)
                return future
        threading.Thread(target=job, name=self._name, daemon=True).start()
        return future

    def end(self) -> None:
        """Let the thread go once it is done; does not wait."""
        with self._ending:
            self._has_ended = True
            self._jobs.put(None)


class Results(Generic[T]):
    """What a call gives that is made again and again on a thread; none of it is lost.

    Whoever stops waiting, because of a timeout perhaps, leaves what comes to who waits next.

    Args:
        thread: where to call.
        call: what to call.
    """

    def __init__(self, thread: OneThread, call: Callable[[], T]) -> None:
        self._thread = thread
        self._call = call
        self._left: deque[concurrent.futures.Future[T]] = deque()

    async def next(self) -> T:
        """The next result."""
        future = self._left.popleft() if self._left else self._thread.submit(self._call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():  # it has begun
                self._left.append(future)
            raise


def _work(jobs: "queue.SimpleQueue[Job | None]") -> None:
    """Do one job after the other; holds on to none of them, nor to who gives them."""
    while (job := jobs.get()) is not None:
        job()
        del job

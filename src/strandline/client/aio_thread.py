"""Threads for blocking calls that asyncio awaits and may cancel."""

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
"""The longest wait of a cancelled task for ``undo``: the caller may close the client next."""


async def start_on_thread(begin: Callable[[], T], *, undo: Callable[[T], object]) -> T:
    """Run ``begin`` on a thread and return its result; undo it if the caller is cancelled.

    ``async with`` does not exit a context whose entry was cancelled, so nothing else would undo it.

    Args:
        begin: starts something, such as a transaction.
        undo: ends what ``begin`` has started; runs on a thread, waited for at most ``UNDO_S``.
    """
    loop = asyncio.get_running_loop()
    started, job = _job(begin)
    loop.run_in_executor(None, job)
    try:
        return await asyncio.wrap_future(started)
    except asyncio.CancelledError:
        if not started.cancel():  # it is running already
            undone = loop.run_in_executor(None, _undo, started, undo)
            await asyncio.wait((undone,), timeout=UNDO_S)
        raise


def _undo(started: "concurrent.futures.Future[T]", undo: Callable[[T], object]) -> None:
    if started.exception() is not None:
        return
    try:
        undo(started.result())
    except StrandlineError as error:
        logger.warning("a call whose task was cancelled could not be undone: %s", error)


def _job(function: Callable[[], T]) -> "tuple[concurrent.futures.Future[T], Job]":
    """Return a future, and a job that runs the function and sets the future's result."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def job() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)

    return future, job


class DedicatedThread:
    """A thread for calls that block for long, so that they do not occupy asyncio's thread pool.

    The thread is a daemon, so a call that never ends does not keep the process alive. It ends once
    nothing refers to this object any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_ended = False
        self._ending = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function on the thread and return its result."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> "concurrent.futures.Future[T]":
        """Queue a function for the thread; after ``end`` it runs on a new thread."""
        future, job = _job(function)
        with self._ending:
            if not self._has_ended:
                self._jobs.put(job)
                return future
        threading.Thread(target=job, name=self._name, daemon=True).start()
        return future

    def end(self) -> None:
        """Let the thread end after its queued jobs; does not wait."""
        with self._ending:
            self._has_ended = True
            self._jobs.put(None)


class Results(Generic[T]):
    """Runs a blocking call repeatedly on one thread and delivers its results in order.

    A cancelled waiter leaves its result for the next one.

    Args:
        thread: the thread to run on.
        call: the call to repeat.
    """

    def __init__(self, thread: DedicatedThread, call: Callable[[], T]) -> None:
        self._thread = thread
        self._call = call
        self._left: deque[concurrent.futures.Future[T]] = deque()

    async def next(self) -> T:
        """Return the next result."""
        future = self._left.popleft() if self._left else self._thread.submit(self._call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():  # it is running
                self._left.append(future)
            raise


def _work(jobs: "queue.SimpleQueue[Job | None]") -> None:
    """Run jobs one after another; keep no reference to a job or its owner while waiting."""
    while (job := jobs.get()) is not None:
        job()
        del job

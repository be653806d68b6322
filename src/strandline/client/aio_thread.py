"""A thread for what blocks for long, awaited by asyncio."""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class OneThread:
    """A thread for calls that block for long, so that they do not use up asyncio's own.

    It is a daemon: a call that never ends does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_ended = False
        self._ending = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function on the thread."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> "concurrent.futures.Future[T]":
        """Have a function run on the thread; on a new one after ``end``, as nobody else would."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
                future.set_exception(error)

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

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

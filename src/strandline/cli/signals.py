"""Signals for commands that run until they are stopped.

Rules: SIGTERM means the same as Ctrl-C. A command that has something to finish is notified by the
first signal; a second one ends it at once.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Self

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C; handle Ctrl-C even if the shell started us with it ignored."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in STOP_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class GracefulStop:
    """The stop signals of a command while its context is entered.

    Args:
        at_once: called by the second signal, before it ends the process.
    """

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.requested = threading.Event()
        """Set by the first signal."""
        self._at_once = at_once
        self._before = {each: signal.getsignal(each) for each in STOP_SIGNALS}

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Set the handlers; call again after a library has set its own."""
        for each in STOP_SIGNALS:
            signal.signal(each, self._handle)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self.requested.is_set():
            self.requested.set()
            name = signal.Signals(number).name
            logger.info("stopping after signal %s; a second one stops at once", name)
            return
        self._at_once()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

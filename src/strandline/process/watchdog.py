"""A watchdog that logs when the event loop was blocked, and where.

While the loop is blocked no record is acknowledged, and in a cluster other brokers soon take over.
A thread samples the loop's stack shortly before ``STALL_MS`` has passed.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from strandline.broker.log_throttle import LogThrottle
from strandline.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

STALL_MS: Final = 200.0
BEAT_S: Final = 0.05
FRAMES_MAX: Final = 5
PACKAGE: Final = str(Path(__file__).parents[1])
UNKNOWN: Final = "an unknown place: the machine was busy, or native code held the interpreter"


class LoopWatchdog:
    """A watchdog of the running loop; created and stopped on the loop's thread.

    Args:
        clock: measures the time between beats, which the loop makes.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._log_throttle = LogThrottle()
        self._place = ""
        self._is_over = threading.Event()
        self._beat_ms = self._clock.monotonic_ms()
        self._timer = self._loop.call_later(BEAT_S, self._beat)
        self._thread = threading.Thread(target=self._run, name="loop-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        """Record that the loop is running; loop thread."""
        now_ms = self._clock.monotonic_ms()
        stalled_ms = now_ms - self._beat_ms - BEAT_S * 1e3
        place, self._place = self._place or UNKNOWN, ""
        self._beat_ms = now_ms
        self._timer = self._loop.call_later(BEAT_S, self._beat)
        if stalled_ms > STALL_MS and self._log_throttle.is_due(place, now_ms / 1e3):
            logger.warning("the event loop was blocked for %d ms, in %s", stalled_ms, place)

    def _run(self) -> None:
        while not self._is_over.wait(BEAT_S):
            stalled_ms = self._clock.monotonic_ms() - self._beat_ms - BEAT_S * 1e3
            if stalled_ms < STALL_MS - BEAT_S * 1e3:
                continue
            frame = sys._current_frames().get(self._watched)  # noqa: SLF001  documented
            if frame is not None:
                self._place = " < ".join(_places(frame))


def _places(frame: FrameType) -> Iterator[str]:
    """Yield the calls in progress, innermost first, up to the first one of Strandline's code."""
    walked: FrameType | None = frame
    for _ in range(FRAMES_MAX):
        if walked is None:
            return
        yield _place(walked)
        walked = walked.f_back
    while walked is not None:
        if walked.f_code.co_filename.startswith(PACKAGE):
            yield _place(walked)
            return
        walked = walked.f_back


def _place(frame: FrameType) -> str:
    name = frame.f_code.co_filename.removeprefix(PACKAGE).removeprefix("/")
    return f"{frame.f_code.co_qualname} ({name}:{frame.f_lineno})"

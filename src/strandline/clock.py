"""The only module that reads a clock; all other code receives the time.

A component that needs the time takes a ``Clock``, so that tests and the simulator control it.
"""

import time
from typing import Protocol

from strandline.types import TimestampNs


class Clock(Protocol):
    """The source of time for everything outside the cores."""

    def now_ns(self) -> TimestampNs:
        """Return the Unix time in nanoseconds; it may step back when the clock is set."""
        ...

    def monotonic_ms(self) -> float:
        """Return milliseconds that never run backwards, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> TimestampNs:
        """Return the Unix time in nanoseconds."""
        return TimestampNs(time.time_ns())

    def monotonic_ms(self) -> float:
        """Return milliseconds since an arbitrary start."""
        return time.monotonic() * 1000


class SteadyTime:
    """A Unix time that advances with the monotonic clock: setting the wall clock does not move it.

    Args:
        clock: gives the initial Unix time; afterwards only its monotonic time is used.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ns = clock.now_ns()
        self._start_ms = clock.monotonic_ms()

    def now_ns(self) -> TimestampNs:
        """Return the Unix time in nanoseconds; never runs backwards."""
        elapsed_ms = self._clock.monotonic_ms() - self._start_ms
        return TimestampNs(self._start_ns + int(elapsed_ms * 1e6))


class ManualClock:
    """A clock for tests that moves only when the test advances it."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._elapsed_ms = 0.0

    def now_ns(self) -> TimestampNs:
        """Return the Unix time in nanoseconds."""
        return TimestampNs(self._now_ns)

    def monotonic_ms(self) -> float:
        """Return the milliseconds advanced since the clock was created."""
        return self._elapsed_ms

    def advance_ms(self, milliseconds: float) -> None:
        """Move the time forward.

        Args:
            milliseconds: the amount, not negative.
        """
        assert milliseconds >= 0, "a manual clock does not run backwards"
        self._now_ns += int(milliseconds * 1e6)
        self._elapsed_ms += milliseconds

    def set_wall_clock(self, now_ns: int) -> None:
        """Set the Unix time, forward or back; the monotonic clock is unaffected."""
        self._now_ns = now_ns

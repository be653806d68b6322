"""Retry policy: which errors are retried, and after which pause.

The fields of the error's class decide (``errors.py``). ``call_with_retries`` repeats a call; the
classes below are for tasks that take longer than one call.

Policy: records are delivered at least once. An unacknowledged batch is sent again, in order, until
its delivery timeout; with a producer sequence or message ids the broker stores it once.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from strandline.client.deadline import within
from strandline.errors import (
    DisconnectedError,
    LogPoisonedError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
)

FIRST_S = 0.05
MOST_S = 1.0
RETRY_S_MAX = 5.0
LOG_INTERVAL_S = 60.0
T = TypeVar("T")


def is_passing(error: StrandlineError) -> bool:
    """Return whether a repeatable request should be repeated, perhaps at another broker."""
    return error.passes_soon or isinstance(error, RequestTimeoutError)


def call_with_retries(
    attempt: Callable[[], T],
    *,
    timeout_s: float,
    should_retry: Callable[[StrandlineError], bool],
    before_retry: Callable[[], None] = lambda: None,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Call ``attempt`` until it succeeds, with growing pauses.

    Args:
        attempt: the call; the time left is its deadline (see ``deadline``).
        timeout_s: how long to try; the caller's deadline may be earlier.
        should_retry: whether to try again after an error.
        before_retry: called before the pause.
        pause: waits for a number of seconds, or less.

    Raises:
        StrandlineError: the last error.
    """
    backoff = RetryBackoff()
    with within(timeout_s) as deadline_s:
        while True:
            try:
                return attempt()
            except StrandlineError as error:
                now_s = time.monotonic()
                backoff.failed(now_s)
                if not should_retry(error) or backoff.not_before_s >= deadline_s:
                    raise
                before_retry()
                pause(backoff.wait_s(now_s))


def unknown_outcome(error: StrandlineError) -> StrandlineError:
    """Return the error for a record that was sent in an earlier attempt, and so may be stored."""
    is_indefinite = isinstance(error, DisconnectedError | RequestTimeoutError | LogPoisonedError)
    kind = type(error) if is_indefinite or type(error) is UnavailableError else RequestTimeoutError
    return kind(f"{error.message}; whether the record was stored is unknown")


class RetryBackoff:
    """Pauses between attempts: they double up to a limit; a success resets them."""

    def __init__(self, *, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s
        self.not_before_s = 0.0
        """The time of the next attempt."""

    def failed(self, now_s: float) -> None:
        """Note a failed attempt at ``now_s``."""
        self.not_before_s = now_s + self._next_s
        self._next_s = min(2 * self._next_s, self._most_s)

    def succeeded(self) -> None:
        """Note a successful attempt."""
        self._next_s = self._first_s
        self.not_before_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next attempt."""
        return max(0.0, self.not_before_s - now_s)


class RetrySchedule(RetryBackoff):
    """A retry schedule for a repeated task; it also limits how often a failure is logged."""

    def __init__(self) -> None:
        super().__init__(most_s=RETRY_S_MAX)
        self._logged_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Return whether to try now."""
        return now_s >= self.not_before_s

    def should_log(self, now_s: float) -> bool:
        """Return whether to log a failure at ``now_s``: the first one, then one per interval."""
        if self._logged_s is not None and now_s - self._logged_s < LOG_INTERVAL_S:
            return False
        self._logged_s = now_s
        return True

    def succeeded(self) -> None:
        """Note a success, or that the task is no longer needed."""
        super().succeeded()
        self._logged_s = None


class RetryDeadline:
    """Pauses between attempts, with a deadline for failures that no success interrupts.

    Args:
        timeout_s: the time from the first failure to the deadline.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._backoff = RetryBackoff()
        self._deadline_s: float | None = None

    def succeeded(self) -> None:
        """Note a successful attempt."""
        self._backoff.succeeded()
        self._deadline_s = None

    @property
    def is_failing(self) -> bool:
        """Return whether there was no success after the last failure."""
        return self._deadline_s is not None

    def left_s(self, now_s: float) -> float:
        """Return the time left for an attempt at ``now_s``; the first call starts the clock."""
        self._deadline_s = self._deadline_s or now_s + self._timeout_s
        return max(0.0, self._deadline_s - now_s)

    def pause_s(self, error: StrandlineError, now_s: float) -> float:
        """Return the pause before the next attempt.

        Raises:
            StrandlineError: ``error`` itself, after the deadline.
        """
        self._deadline_s = self._deadline_s or now_s + self._timeout_s
        self._backoff.failed(now_s)
        if self._backoff.not_before_s >= self._deadline_s:
            raise error
        return self._backoff.wait_s(now_s)

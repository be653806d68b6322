"""The reconnect schedule of a followed read: partitions not being read, and the next attempt.

Pure. Rules:
- each partition has its own deadline. An unreachable partition is an error even if others are read,
  since a reader cannot distinguish missing records from no records;
- the deadline restarts when records arrived, or a read was open for a while: losing a leader once
  an
  hour is no outage of hours.
"""

from collections.abc import Collection
from typing import Final

from strandline.client.retry_policy import RetryDeadline
from strandline.errors import StrandlineError

STABLE_S: Final = 2.0
"""A read that was open for so long had reached its partitions, even without a record."""


class ReconnectSchedule:
    """The partitions of one read.

    Args:
        numbers: all partitions of the read.
        timeout_s: how long a partition may be unreachable.
    """

    def __init__(self, numbers: Collection[int], *, timeout_s: float) -> None:
        self.closed = set(numbers)
        """The partitions that are not being read."""
        self._timeout_s = timeout_s
        self._retry_deadlines: dict[int, RetryDeadline] = {}
        self._opened_s: dict[int, float] = {}
        self._next_s = 0.0

    def opened(self, numbers: Collection[int], now_s: float) -> None:
        """Note that partitions are being read."""
        self.closed.difference_update(numbers)
        self._opened_s.update(dict.fromkeys(numbers, now_s))

    def came(self, numbers: Collection[int]) -> None:
        """Note that records of partitions have arrived."""
        for number in numbers if self._retry_deadlines else ():
            self._retry_deadlines.pop(number, None)

    def lost(self, numbers: Collection[int], error: StrandlineError, now_s: float) -> None:
        """Note that the read of partitions has broken off.

        Raises:
            StrandlineError: as for ``failed``.
        """
        for number in numbers:
            if now_s - self._opened_s[number] >= STABLE_S:
                self._retry_deadlines.pop(number, None)
        self.closed.update(numbers)
        self.failed(numbers, error, now_s)

    def failed(self, numbers: Collection[int], error: StrandlineError, now_s: float) -> None:
        """Note that partitions could not be opened.

        Raises:
            StrandlineError: ``error``, if a partition's deadline has passed.
        """
        pauses_s = [
            self._retry_deadlines.setdefault(number, RetryDeadline(self._timeout_s)).pause_s(
                error, now_s
            )
            for number in numbers
        ]
        self._next_s = now_s + min(pauses_s)

    def left_s(self, now_s: float) -> float:
        """Return the timeout of an attempt to open all closed partitions."""
        return min(self._retry_deadline(number).left_s(now_s) for number in self.closed)

    def wait_s(self, now_s: float) -> float | None:
        """Return the time until the next attempt; None if all partitions are being read."""
        return max(0.0, self._next_s - now_s) if self.closed else None

    def _retry_deadline(self, number: int) -> RetryDeadline:
        return self._retry_deadlines.setdefault(number, RetryDeadline(self._timeout_s))

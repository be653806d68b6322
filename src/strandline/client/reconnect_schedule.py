"""Which partitions of a followed read nobody reads now, since when, and when to try again. Pure.

Rules:
- each partition has its own patience: one that cannot be reached is told of, however well others
  flow, for a reader would take what is missing for what is not there;
- it begins anew when records came, or when a read has stood for a while: leaders that are lost once
  an hour are no outage of hours.
"""

from collections.abc import Collection
from typing import Final

from strandline.client.retry import Patience
from strandline.errors import StrandlineError

STANDS_S: Final = 2.0
"""A read that has stood so long had reached its partitions, though no record came."""


class ReconnectSchedule:
    """The partitions of one read.

    Args:
        numbers: all that are to be read.
        timeout_s: how long one may be out of reach.
    """

    def __init__(self, numbers: Collection[int], *, timeout_s: float) -> None:
        self.closed = set(numbers)
        """Those that nobody reads."""
        self._timeout_s = timeout_s
        self._patience: dict[int, Patience] = {}
        self._opened_s: dict[int, float] = {}
        self._next_s = 0.0

    def opened(self, numbers: Collection[int], now_s: float) -> None:
        """Somebody reads them."""
        self.closed.difference_update(numbers)
        self._opened_s.update(dict.fromkeys(numbers, now_s))

    def came(self, numbers: Collection[int]) -> None:
        """The read of these has brought records."""
        for number in numbers if self._patience else ():
            self._patience.pop(number, None)

    def lost(self, numbers: Collection[int], error: StrandlineError, now_s: float) -> None:
        """The read of these broke off.

        Raises:
            StrandlineError: as ``failed``.
        """
        for number in numbers:
            if now_s - self._opened_s[number] >= STANDS_S:
                self._patience.pop(number, None)
        self.closed.update(numbers)
        self.failed(numbers, error, now_s)

    def failed(self, numbers: Collection[int], error: StrandlineError, now_s: float) -> None:
        """They could not be opened.

        Raises:
            StrandlineError: ``error``, when the time of one is over.
        """
        pauses_s = [
            self._patience.setdefault(number, Patience(self._timeout_s)).pause_s(error, now_s)
            for number in numbers
        ]
        self._next_s = now_s + min(pauses_s)

    def left_s(self, now_s: float) -> float:
        """How long an attempt to open all of them may take."""
        return min(
            self._patience.setdefault(number, Patience(self._timeout_s)).left_s(now_s)
            for number in self.closed
        )

    def wait_s(self, now_s: float) -> float | None:
        """How long until the next attempt; None: there is nothing to open."""
        return max(0.0, self._next_s - now_s) if self.closed else None

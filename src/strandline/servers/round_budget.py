"""The time that clients' input may take in one round of the event loop.

Input in tiny pieces costs the broker far more work than the client. Without a limit one connection
could block the loop for seconds: other clients' records would wait, and in a cluster the broker
would be fenced because it does not answer.

Rules: a connection works until ``slice_end`` and then defers the rest; until that has run, it reads
nothing. Deferred work runs first in the next round, in the order in which it was deferred, and at
least one piece of it in each round. Loop thread only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.002
"""The limit for one connection. An acknowledgement takes about three rounds."""
ROUND_S: Final = 0.005
"""The limit for all connections of a listener together."""
SPENT: Final = 0.0
PIECES_MAX: Final = 256
"""Pieces of input, such as messages, that are handled between two looks at the clock."""


class RoundBudget:
    """The budget shared by the connections of one listener.

    Args:
        slice_s: seconds per round for one connection.
        round_s: seconds per round for all of them.
    """

    def __init__(self, slice_s: float = SLICE_S, round_s: float = ROUND_S) -> None:
        self._slice_s = slice_s
        # A round can use the rest of one window and the whole of the next.
        self._window_s = round_s / 2
        self._deferred: deque[Callable[[], None]] = deque()
        self._end_s = SPENT
        self.unclocked = 0
        """Pieces of input that may be handled before the next look at the clock."""
        self._is_last_window = False
        """Whether the round ends with this window; then ``_next_round`` is scheduled."""

    def slice_end(self) -> float:
        """Return the loop time at which the caller must stop; ``SPENT`` means not to start."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s >= self._end_s:
            if self._is_last_window:
                return SPENT
            # A window may span several rounds, and counting them would take a callback in each,
            # which makes the loop poll once more. So one callback a window is scheduled.
            self._is_last_window = True
            self._end_s = now_s + self._window_s
            loop.call_soon(self._next_round)
        self.unclocked = PIECES_MAX
        slice_end_s = now_s + self._slice_s
        return min(self._end_s, slice_end_s)

    def charge(self, seconds: float) -> None:
        """Charge seconds to the round now, for work that the caller's input causes later."""
        self._end_s -= seconds

    def defer(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` in a later round that has time left."""
        if not self._is_last_window:
            self._is_last_window = True
            asyncio.get_running_loop().call_soon(self._next_round)
        self._deferred.append(resume)

    def _next_round(self) -> None:
        """Run deferred work while the round has time."""
        self._is_last_window = False
        for _ in range(len(self._deferred)):
            if self.slice_end() == SPENT:
                break
            self._deferred.popleft()()

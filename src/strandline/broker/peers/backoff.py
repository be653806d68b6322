"""The wait before reconnecting to a peer. Pure: randomness is an argument."""


class ReconnectBackoff:
    """A wait that doubles from ``min_s`` to ``max_s``, shortened by a random part of up to half.

    The random part prevents brokers from reconnecting at the same moments. A connection that lasts
    only briefly does not reset the wait; otherwise a peer that accepts and closes would be called
    without pause.

    Args:
        min_s: the longest first wait.
        max_s: the longest wait, and how long a connection must last to reset it to ``min_s``.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        assert 0 < min_s <= max_s, "limits in order"
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s

    def next_s(self, random: float, *, lasted_s: float = 0.0) -> float:
        """Return the number of seconds to wait before the next attempt.

        Args:
            random: from 0 up to 1.
            lasted_s: how long the last connection lasted.
        """
        if lasted_s >= self._max_s:
            self._next_s = self._min_s
        wait_s = self._next_s * (0.5 + random / 2)
        self._next_s = min(self._next_s * 2, self._max_s)
        return wait_s

"""The wait before a peer is called again. Pure: randomness is an argument."""


class ReconnectBackoff:
    """Doubles from ``min_s`` to ``max_s``; each wait is half to all of that.

    The random half keeps brokers that lost each other at one moment from calling in step. A
    connection that did not last does not reset it, or a peer that accepts and hangs up would be
    called without end at full speed.

    Args:
        min_s: the first wait, at most.
        max_s: the longest, and how long a connection must have lasted to begin from ``min_s``.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        assert 0 < min_s <= max_s, "limits in order"
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s

    def next_s(self, random: float, *, lasted_s: float = 0.0) -> float:
        """Seconds to wait now.

        Args:
            random: from 0 up to 1.
            lasted_s: how long the connection that ended had been up.
        """
        if lasted_s >= self._max_s:
            self._next_s = self._min_s
        wait_s = self._next_s * (0.5 + random / 2)
        self._next_s = min(self._next_s * 2, self._max_s)
        return wait_s

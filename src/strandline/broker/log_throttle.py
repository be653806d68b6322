"""Warnings of what goes on for long: said at once, and then once in ten minutes.

Rules: no I/O and no clock; remembers a bounded number of texts, for strangers may choose them.
"""

INTERVAL_S = 600.0
TEXTS_MAX = 64


class LogThrottle:
    """Knows which texts were said of late."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_due(self, text: str, now_s: float) -> bool:
        """Whether to say it now; if so, it counts as said."""
        if now_s - self._said.get(text, now_s - INTERVAL_S) < INTERVAL_S:
            return False
        self._said.pop(text, None)
        if len(self._said) >= TEXTS_MAX:
            del self._said[next(iter(self._said))]  # the one that was said longest ago
        self._said[text] = now_s
        return True

    def forget(self, text: str) -> None:
        """Reset the throttle, so that the next occurrence is logged at once."""
        self._said.pop(text, None)

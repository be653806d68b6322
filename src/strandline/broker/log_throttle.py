"""Throttle for repeated warnings: logged at once, then every ten minutes.

Rules: no I/O and no clock. It remembers a limited number of texts, since clients may choose them.
"""

INTERVAL_S = 600.0
TEXTS_MAX = 64


class LogThrottle:
    """Remembers which texts were logged recently."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_due(self, text: str, now_s: float) -> bool:
        """Whether to log a text now; if so, it counts as logged."""
        if now_s - self._said.get(text, now_s - INTERVAL_S) < INTERVAL_S:
            return False
        self._said.pop(text, None)
        if len(self._said) >= TEXTS_MAX:
            del self._said[next(iter(self._said))]  # the one that was logged longest ago
        self._said[text] = now_s
        return True

    def forget(self, text: str) -> None:
        """Reset the throttle, so that the next occurrence is logged at once."""
        self._said.pop(text, None)

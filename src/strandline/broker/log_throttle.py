"""Throttle for repeated warnings: logged at once, then every ten minutes.

Rules: no I/O and no clock. The number of remembered texts is limited, since clients may choose
them.
"""

INTERVAL_S = 600.0
TEXTS_MAX = 64


class LogThrottle:
    """The texts that were logged recently."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_due(self, text: str, now_s: float) -> bool:
        """Return whether to log a text now; if so, count it as logged."""
        if now_s - self._said.get(text, now_s - INTERVAL_S) < INTERVAL_S:
            return False
        self._said.pop(text, None)
        if len(self._said) >= TEXTS_MAX:
            del self._said[next(iter(self._said))]  # the text that was logged longest ago
        self._said[text] = now_s
        return True

    def forget(self, text: str) -> None:
        """Reset the throttle, so that the next occurrence is logged at once."""
        self._said.pop(text, None)

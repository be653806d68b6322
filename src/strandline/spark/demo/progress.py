"""Progress output of the demo: a changing line on a terminal, occasional lines elsewhere."""

import sys
import time
from typing import TextIO

_QUIET_S = 5.0
_WIDTH = 24


class DemoProgress:
    """Writes to ``out``.

    Args:
        out: the output; a terminal gets one line that is overwritten.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._is_terminal = self._out.isatty()
        self._started_s = time.monotonic()
        self._shown_s = 0.0
        self._is_open = False

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._end_line()
        elapsed = time.monotonic() - self._started_s
        self._out.write(f"[{elapsed:5.1f} s] {text}\n")
        self._out.flush()
        self._shown_s = 0.0

    def plain(self, text: str) -> None:
        """Print permanent lines without the time."""
        self._end_line()
        self._out.write(text + "\n")
        self._out.flush()

    def show(self, *, published: int, landed: int, counted: int, total: int) -> None:
        """Show the current progress."""
        now = time.monotonic()
        if now - self._shown_s < (0.2 if self._is_terminal else _QUIET_S):
            return
        self._shown_s = now
        bar = ("█" * (landed * _WIDTH // max(1, total))).ljust(_WIDTH, "·")
        text = (
            f"[{now - self._started_s:5.1f} s] {bar} published {published:,}  "
            f"landed {landed:,}  counted {counted:,}  of {total:,}"
        )
        if self._is_terminal:
            self._out.write(f"\r\x1b[2K{text}")
            self._is_open = True
        else:
            self._out.write(text + "\n")
        self._out.flush()

    def _end_line(self) -> None:
        if self._is_open:
            self._out.write("\r\x1b[2K")
            self._is_open = False

"""An event loop whose time passes at once, and a world whose events run on it.

Rules: waiting takes no real time; the loop's clock jumps to the next timer. Nothing waits for a
file or a thread, so a history depends on its seed only.
"""

import asyncio
import selectors
from collections.abc import Callable

from simulation.world import World


class _NoWaiting(selectors.SelectSelector):
    """A selector that lets virtual time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the virtual time pass; fail without a timer, since nothing would ever happen."""
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits for somebody else"
            self.now_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._waiting = _NoWaiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        """Return the virtual time."""
        return self._waiting.now_s


class LoopWorld(World):
    """A world whose events are timers of an event loop.

    Args:
        seed: determines everything random.
        loop: runs the events.
    """

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        super().__init__(seed)

    @property
    def now_ms(self) -> float:
        """The virtual time."""
        return self._loop.time() * 1e3

    @now_ms.setter
    def now_ms(self, value: float) -> None:
        assert value == 0, "the loop moves the time"

    def after(self, delay_ms: float, action: Callable[..., None], *args: object) -> None:
        """Call ``action(*args)`` after this many virtual milliseconds."""

        def happen() -> None:
            self.events += 1
            action(*args)

        self._loop.call_later(delay_ms / 1e3, happen)

"""The deadline of a call, which covers all its attempts at all brokers.

A call begins with ``within``. Every request that its thread makes inside gets only the time left,
however deeply calls are nested. Threads that the call starts have deadlines of their own.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

LEFT_S_MIN = 1e-3
_DEADLINE_S: ContextVar[float] = ContextVar("deadline_s", default=inf)


@contextmanager
def within(timeout_s: float) -> Iterator[float]:
    """Limit all requests inside the block to this time, or to the caller's limit if it is less.

    Yields the deadline by the clock of ``time.monotonic``.
    """
    deadline_s = min(_DEADLINE_S.get(), time.monotonic() + timeout_s)
    token = _DEADLINE_S.set(deadline_s)
    try:
        yield deadline_s
    finally:
        _DEADLINE_S.reset(token)


def limited(timeout_s: float) -> float:
    """Return the timeout of a request: ``timeout_s`` or the time left, whichever is less."""
    return max(LEFT_S_MIN, min(timeout_s, _DEADLINE_S.get() - time.monotonic()))


def has_passed() -> bool:
    """Return whether no time is left."""
    return time.monotonic() >= _DEADLINE_S.get()

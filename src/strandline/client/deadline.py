"""The deadline of a call, which holds for all its attempts together, at whatever brokers.

A call begins with ``within``; every request that its thread makes inside gets no more time than is
left of it, however many there are and however deep they are nested. Threads that the call starts
have deadlines of their own.
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
    """Limit everything inside to this time, or to what is left of the caller's if that is less.

    Gives the deadline, on the clock of ``time.monotonic``.
    """
    deadline_s = min(_DEADLINE_S.get(), time.monotonic() + timeout_s)
    token = _DEADLINE_S.set(deadline_s)
    try:
        yield deadline_s
    finally:
        _DEADLINE_S.reset(token)


def limited(timeout_s: float) -> float:
    """The time that a request may take: at most ``timeout_s``, and no more than is left."""
    return max(LEFT_S_MIN, min(timeout_s, _DEADLINE_S.get() - time.monotonic()))

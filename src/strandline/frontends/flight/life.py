"""What the calls of one Flight front end share: whether to go on, what to wait for, who is busy.

Rules: a call waits in slices of ``POLL_S``, so that a client that went away and a broker that stops
free its thread promptly; nothing here blocks longer. Any thread may use any method but ``notify``.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from strandline.broker.broker import Broker
from strandline.errors import ShuttingDownError

LISTENER = "flight"
POLL_S = 0.25
"""How long a thread may wait before it looks whether its client is still there."""


class Life:
    """Shared by all calls of a front end.

    Args:
        broker: whose turns wake the waiting.
    """

    def __init__(self, broker: Broker) -> None:
        self.stopping = threading.Event()
        """Begin nothing new."""
        self.gave_up = threading.Event()
        """Wait for nothing any more."""
        self._clock = broker.clock
        self._telemetry = broker.telemetry
        self._waiters: list[threading.Event] = []
        self._lock = threading.Lock()
        self._streams = 0

    def now_ms(self) -> float:
        """Milliseconds of a clock that never runs backwards."""
        return self._clock.monotonic_ms()

    def check(self) -> None:
        """Refuse to go on when the broker stops.

        Raises:
            ShuttingDownError: it does.
        """
        if self.stopping.is_set():
            raise ShuttingDownError("the broker is stopping; ask again when it is back")

    def pause(self, seconds: float, is_cancelled: Callable[[], bool]) -> None:
        """Let time pass, because a quota wants it; it ends early when the client goes away.

        Raises:
            ShuttingDownError: the broker stops.
        """
        deadline_ms = self.now_ms() + seconds * 1e3
        while (left_ms := deadline_ms - self.now_ms()) > 0 and not is_cancelled():
            self.stopping.wait(min(left_ms / 1e3, POLL_S))
            self.check()

    def notify(self) -> None:
        """A turn has ended: wake who waits for any partition. On the loop."""
        # A copy, because threads come and go meanwhile.
        for waiter in tuple(self._waiters):
            waiter.set()

    def waiter(self) -> "TurnWaiter":
        """Something to wait for turns with; use it as a context."""
        return TurnWaiter(self._waiters)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """A call that streams records goes on inside."""
        self._telemetry.count_listener(LISTENER, connections=1)
        with self._lock:
            self._streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1
            self._telemetry.count_listener(LISTENER, connections=-1)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Inside a stream: nothing is under way, so stopping need not wait for it."""
        with self._lock:
            self._streams -= 1
        try:
            yield
        finally:
            with self._lock:
                self._streams += 1

    @property
    def busy(self) -> int:
        """Streams with something under way."""
        return self._streams


class TurnWaiter:
    """Waits for turns to end; none is missed between ``wait``s."""

    def __init__(self, waiters: list[threading.Event]) -> None:
        self._waiters = waiters
        self._event = threading.Event()

    def __enter__(self) -> Self:
        self._waiters.append(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._waiters.remove(self._event)

    def arm(self) -> None:
        """Forget turns that ended; call before looking at what they may have changed."""
        self._event.clear()

    def wait(self, timeout_s: float) -> None:
        """Wait until a turn ends after ``arm``, at most ``POLL_S``."""
        self._event.wait(max(0.0, min(timeout_s, POLL_S)))

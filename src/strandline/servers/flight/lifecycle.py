"""What the calls of one Flight front end share: whether to go on, what to wait for, who is busy.

Rules: a call waits in slices of ``POLL_S``, so that a client that went away and a broker that stops
free its thread promptly; nothing here blocks longer. Any thread may use any method. Who waits is
woken by the partitions it waits for, and by no others: a thread that wakes in vain costs the rest.
"""

import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from strandline.broker.broker import Broker
from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.read_path.partition_reads import PartitionReads
from strandline.broker.write_path.partition import Partition
from strandline.errors import ShuttingDownError
from strandline.servers.metering import WAIT_S_MAX

LISTENER = "flight"
POLL_S = 0.25
"""How long a thread may wait before it looks whether its client is still there."""
END_PATIENCE_S: Final = 2.0
"""How long a new leader may take to know its end: our client gives an attempt three seconds, and
tries again with what it was told."""


class ServerLifecycle:
    """Shared by all calls of a front end.

    Args:
        broker: whose calls they are.
    """

    def __init__(self, broker: Broker) -> None:
        self.stopping = threading.Event()
        """Begin nothing new."""
        self.gave_up = threading.Event()
        """Wait for nothing any more."""
        self._run_coroutine = broker.run_coroutine
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

    def hold(
        self, wait_s: float, ask_again: Callable[[], float], is_cancelled: Callable[[], bool]
    ) -> None:
        """Let the time pass that a quota wants, which may be more than was said at first.

        Raises:
            ShuttingDownError: the broker stops.
        """
        self.pause(wait_s, is_cancelled)
        while wait_s >= WAIT_S_MAX and not is_cancelled():
            wait_s = ask_again()
            self.pause(wait_s, is_cancelled)

    def wait_until_caught_up(
        self, partitions: Iterable[Partition], is_cancelled: Callable[[], bool]
    ) -> None:
        """Wait until what may have been acknowledged is known, or the client goes away.

        Raises:
            UnavailableError: a new leader does not know yet.
            ShuttingDownError: the broker stops.
        """
        unknown = [partition for partition in partitions if not partition.knows_end]
        if not unknown:
            return
        self.check()
        asked = self._run_coroutine(wait_until_caught_up(*unknown, patience_s=END_PATIENCE_S))
        try:
            while not asked.done() and not is_cancelled():
                self.check()
                concurrent.futures.wait((asked,), POLL_S)
            if asked.done():
                asked.result()
        except concurrent.futures.CancelledError:
            raise ShuttingDownError("the broker stopped before the end was known") from None
        finally:
            asked.cancel()

    def notify(self) -> None:
        """Wake all who wait: the broker stops."""
        # A copy, because threads come and go meanwhile.
        for waiter in tuple(self._waiters):
            waiter.set()

    def waiter(self, partitions: Iterable[PartitionReads]) -> "PartitionWatcher":
        """Something to wait for news of partitions with; use it as a context."""
        return PartitionWatcher(self._waiters, partitions)

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


class PartitionWatcher:
    """Waits for commits and changes of partitions; none is missed between ``wait``s."""

    def __init__(
        self, waiters: list[threading.Event], partitions: Iterable[PartitionReads]
    ) -> None:
        self._waiters = waiters
        self._partitions = tuple(partitions)
        self._event = threading.Event()

    def __enter__(self) -> Self:
        self._waiters.append(self._event)
        for partition in self._partitions:
            partition.watch(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        for partition in self._partitions:
            partition.unwatch(self._event)
        self._waiters.remove(self._event)

    def arm(self) -> None:
        """Forget the news so far; call before looking at what they may have changed."""
        self._event.clear()

    @property
    def has_news(self) -> bool:
        """Whether there are any since ``arm``."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait until there are news since ``arm``, at most ``POLL_S``."""
        self._event.wait(max(0.0, min(timeout_s, POLL_S)))

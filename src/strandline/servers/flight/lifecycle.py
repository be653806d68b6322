"""State shared by the calls of a Flight server: stopping, waiting, and open streams.

Rules: a call waits in slices of ``POLL_S`` and does not block for longer, so that its thread is
free soon after the client disconnects or the broker stops. Any thread may call any method. A
waiter is woken only by its own partitions, because needless wake-ups slow down all other threads.
"""

import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from strandline.broker.broker import Broker
from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.write_path.partition import Partition
from strandline.errors import ShuttingDownError
from strandline.servers.metering import WAIT_S_MAX

LISTENER = "flight"
POLL_S = 0.25
"""The longest wait of a thread before it checks whether its client is still connected."""
END_WAIT_S: Final = 2.0
"""How long a new leader may take to learn its end. The Strandline client waits three seconds for
an attempt, and so gets the error before that, and retries."""


class ServerLifecycle:
    """The state shared by all calls of a Flight server.

    Args:
        broker: the broker that is served.
    """

    def __init__(self, broker: Broker) -> None:
        self.stopping = threading.Event()
        """Set when no new work may start."""
        self.gave_up = threading.Event()
        """Set when calls must stop waiting."""
        self._run_coroutine = broker.run_coroutine
        self._clock = broker.clock
        self._telemetry = broker.telemetry
        self._waiters: list[threading.Event] = []
        self._lock = threading.Lock()
        self._streams = 0

    def now_ms(self) -> float:
        """Return monotonic time in milliseconds."""
        return self._clock.monotonic_ms()

    def check(self) -> None:
        """Raise if the broker is stopping.

        Raises:
            ShuttingDownError: the broker is stopping.
        """
        if self.stopping.is_set():
            raise ShuttingDownError("the broker is stopping; retry when it is back")

    def pause(self, seconds: float, is_cancelled: Callable[[], bool]) -> None:
        """Wait for a quota, or until the client has disconnected.

        Raises:
            ShuttingDownError: the broker is stopping.
        """
        deadline_ms = self.now_ms() + seconds * 1e3
        while (left_ms := deadline_ms - self.now_ms()) > 0 and not is_cancelled():
            self.stopping.wait(min(left_ms / 1e3, POLL_S))
            self.check()

    def hold(
        self, wait_s: float, ask_again: Callable[[], float], is_cancelled: Callable[[], bool]
    ) -> None:
        """Wait for a quota; after a wait of ``WAIT_S_MAX``, the longest allowed, ask for the rest.

        Raises:
            ShuttingDownError: the broker is stopping.
        """
        self.pause(wait_s, is_cancelled)
        while wait_s >= WAIT_S_MAX and not is_cancelled():
            wait_s = ask_again()
            self.pause(wait_s, is_cancelled)

    def wait_until_caught_up(
        self, partitions: Iterable[Partition], is_cancelled: Callable[[], bool]
    ) -> None:
        """Wait until the partitions' leaders know their ends, or the client disconnects.

        Raises:
            UnavailableError: a new leader did not learn its end in time.
            ShuttingDownError: the broker is stopping.
        """
        unknown = [partition for partition in partitions if not partition.knows_end]
        if not unknown:
            return
        self.check()
        asked = self._run_coroutine(wait_until_caught_up(*unknown, patience_s=END_WAIT_S))
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
        """Wake all waiters, because the broker stops."""
        # Iterate over a copy: other threads add and remove waiters.
        for waiter in tuple(self._waiters):
            waiter.set()

    def waiter(self, partitions: Iterable[Partition]) -> "PartitionWatcher":
        """Return a context in which to wait for changes of partitions."""
        return PartitionWatcher(self._waiters, partitions)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a streaming call for the duration of the context."""
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
        """Mark a stream as idle inside the context, so that stopping does not wait for it."""
        with self._lock:
            self._streams -= 1
        try:
            yield
        finally:
            with self._lock:
                self._streams += 1

    @property
    def busy(self) -> int:
        """The number of streaming calls that are not idle."""
        return self._streams


class PartitionWatcher:
    """A waiter for commits and other changes of partitions; it misses none between two waits."""

    def __init__(self, waiters: list[threading.Event], partitions: Iterable[Partition]) -> None:
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
        """Clear the flag; call before reading the state that may have changed."""
        self._event.clear()

    @property
    def has_changed(self) -> bool:
        """Whether a partition has changed since ``arm``."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait for a change since ``arm``, for at most ``timeout_s`` and ``POLL_S``."""
        self._event.wait(max(0.0, min(timeout_s, POLL_S)))

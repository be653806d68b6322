"""Virtual time and a faulty network, the base of every simulated cluster.

Rules: everything that happens is an event in one queue, ordered by time and then by insertion. All
randomness comes from one generator that is seeded once. Nothing here reads a clock, iterates a set
or hashes a string, so a seed replays exactly under any hash seed. Must not know what the messages
mean.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from zlib import crc32

from strandline.core.replication.trace import Trace


@dataclass(slots=True)
class NetworkFaults:
    """The faults of the network: shares from 0 to 1, times in milliseconds."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_ms_max: float = 5.0
    straggler: float = 0.0
    """Share of messages that take up to 60 times as long, so that others overtake them."""


class World:
    """The queue of events, the clock it drives and the network between numbered processes.

    Args:
        seed: determines everything random.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0.0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.faults = NetworkFaults()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._asked = 0
        self.write_trace: Callable[[str], object] | None = None
        """Receives the lines of a trace, if set; nothing else depends on it."""
        self._traces: dict[int, Trace] = {}
        self._cut: set[tuple[int, int]] = set()
        self._fingerprint = 0

    # Time

    def after(self, delay_ms: float, action: Callable[..., None], *args: object) -> None:
        """Call ``action(*args)`` after this many virtual milliseconds."""
        self._asked += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._asked, action, args))

    def run_until(self, end_ms: float) -> None:
        """Run all events before ``end_ms``."""
        queue = self._queue
        while queue and queue[0][0] < end_ms:
            self.now_ms, _, action, args = heapq.heappop(queue)
            self.events += 1
            action(*args)
        self.now_ms = end_ms

    def note(self, what: str) -> None:
        """Add to the history's fingerprint; equal histories have equal fingerprints."""
        self._fingerprint = crc32(f"{self.now_ms:.6f} {what}".encode(), self._fingerprint)

    @property
    def fingerprint(self) -> str:
        """A hash of everything noted and of the number of events."""
        return f"{self._fingerprint:08x}-{self.events}"

    # Traces

    def begin_trace(self, process: int, host: str) -> Trace | None:
        """Return the trace of a process that starts under this name; None without tracing."""
        if self.write_trace is None:
            return None
        self._traces[process] = Trace(host, self.write_trace)
        return self._traces[process]

    def tell(self, process: int, what: str) -> None:
        """Add an event of a process to the trace."""
        if process in self._traces:
            self._traces[process].note(what)

    def stamped(self, link: tuple[int, int], deliver: Callable[..., None]) -> Callable[..., None]:
        """Wrap a delivery, so that the message carries the sender's vector clock."""
        sender, receiver = (self._traces.get(process) for process in link)
        if sender is None or receiver is None:
            return deliver
        clock = sender.clock

        def deliver_both(*args: object) -> None:
            if link[1] in self._traces:
                self._traces[link[1]].received(clock)
            deliver(*args)

        return deliver_both

    # The network

    def send(self, link: tuple[int, int], deliver: Callable[..., None], *args: object) -> None:
        """Call ``deliver(*args)`` later, once, twice or never, depending on the faults.

        Args:
            link: (sender, receiver).
            deliver: passes the message to the receiver.
            args: arguments of ``deliver``.
        """
        faults, rng = self.faults, self.rng
        copies = 2 if faults.repeat and rng.random() < faults.repeat else 1
        for _ in range(copies):
            if faults.loss and rng.random() < faults.loss:
                self.counts["lost"] += 1
                continue
            delay_ms = rng.uniform(0.1, faults.delay_ms_max)
            if faults.straggler and rng.random() < faults.straggler:
                delay_ms *= rng.choice((5, 20, 60))
            self.after(delay_ms, self._arrive, link, self.stamped(link, deliver), args)

    def _arrive(
        self, link: tuple[int, int], deliver: Callable[..., None], args: tuple[object, ...]
    ) -> None:
        if link in self._cut:
            self.counts["cut"] += 1
        else:
            self.counts["delivered"] += 1
            deliver(*args)

    def is_cut(self, link: tuple[int, int]) -> bool:
        """Whether messages of a link are lost now."""
        return link in self._cut

    def partition(self, side: Iterable[int], everybody: Iterable[int], *, one_way: float) -> None:
        """Block the links between ``side`` and the others, in place of those blocked before.

        Args:
            side: processes on one side.
            everybody: all processes.
            one_way: the chance that links stay open in one direction.
        """
        inside, all_of_them = frozenset(side), sorted(everybody)
        self.counts["partitions"] += 1
        self._cut = {
            (a, b)
            for a in all_of_them
            for b in all_of_them
            if (a in inside) != (b in inside) and self.rng.random() >= one_way
        }

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Block exactly these links, each one way, in place of those blocked before."""
        self.counts["partitions"] += 1
        self._cut = set(links)

    def heal(self) -> None:
        """Unblock every link."""
        self._cut = set()

    def calm(self) -> None:
        """Unblock every link, and no longer lose, repeat or delay messages."""
        self.heal()
        self.faults = NetworkFaults()

"""The pulls that wait at a consumer: the order in which they are served, and their timers.

Rules: a served pull goes to the end of the queue. There may be thousands of pulls, and each record
and each new pull is a step, so no step looks at every pull: pulls are found by their token, and
their times are a heap.

Invariants: a pull with a time has one entry in the heap, which is not later than its time. Entries
of pulls that no longer wait are dropped when they come first, or when they are the majority.
``check`` asserts the first.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final, NamedTuple

from strandline.core.consumers.effects import EndPull

TIMERS_MIN: Final = 1_000
"""Outdated timers are removed once there are this many, and more than valid ones."""


class Pull:
    """A request for records that waits until they are there.

    Args:
        token: identifies the pull in effects.
        batch: how many records it asks for.
        expires_ms: when it ends; None: never.
        no_wait: whether it ends when there are no more records.
        bytes_max: the limit of its records' bytes; 0: none.
        heartbeat_ms: the longest silence before a heartbeat is sent to it; 0: send none.
    """

    __slots__ = (
        "beat_due_ms",
        "bytes_left",
        "expires_ms",
        "has_limit",
        "heartbeat_ms",
        "left",
        "no_wait",
        "served",
        "token",
    )

    def __init__(
        self,
        token: object,
        *,
        batch: int = 1,
        expires_ms: float | None = None,
        no_wait: bool = False,
        bytes_max: int = 0,
        heartbeat_ms: int = 0,
    ) -> None:
        self.token = token
        self.left = batch
        self.expires_ms = expires_ms
        self.no_wait = no_wait
        self.bytes_left = bytes_max
        self.has_limit = bytes_max > 0
        self.heartbeat_ms = heartbeat_ms
        self.beat_due_ms = 0.0
        self.served = 0

    def end(self, status: str) -> EndPull:
        """Return the effect that ends the pull."""
        return EndPull(self.token, status, self.left, self.bytes_left)

    @property
    def due_ms(self) -> float | None:
        """When the pull ends or needs a heartbeat; None: never. It moves only to later times."""
        if not self.heartbeat_ms:
            return self.expires_ms
        if self.expires_ms is None:
            return self.beat_due_ms
        return min(self.expires_ms, self.beat_due_ms)

    @property
    def ends_without_records(self) -> bool:
        """Whether the pull ends when there is no record; one with an expiry waits for its first."""
        return self.no_wait and (self.served > 0 or self.expires_ms is None)


class ServedPulls(NamedTuple):
    """The pulls that received records in turn."""

    tokens: list[object]
    records: int
    """How many records they received together."""
    done: list[Pull]
    """The pulls that received their last record."""


class PullQueue:
    """Waiting pulls in the order in which they are served."""

    def __init__(self) -> None:
        self._pulls: OrderedDict[Pull, None] = OrderedDict()
        self._by_token: dict[object, dict[Pull, None]] = {}
        self._impatient: dict[Pull, None] = {}
        """Pulls that end when there is no record."""
        self._timers: list[tuple[float, int, Pull]] = []
        self._timed: set[Pull] = set()
        """Pulls with an entry in the heap."""
        self._entries = 0
        """Number of the next heap entry, so that entries of one time are compared by it."""

    def __len__(self) -> int:
        return len(self._pulls)

    def __iter__(self) -> Iterator[Pull]:
        return iter(self._pulls)

    def has(self, token: object) -> bool:
        """Whether a pull of this token waits."""
        return token in self._by_token

    @property
    def first(self) -> Pull:
        """The pull to serve next; the queue must not be empty."""
        return next(iter(self._pulls))

    def append(self, pull: Pull) -> None:
        """Add a pull at the end."""
        self._pulls[pull] = None
        self._by_token.setdefault(pull.token, {})[pull] = None
        if pull.ends_without_records:
            self._impatient[pull] = None
        self.watch(pull)

    def remove(self, pull: Pull) -> None:
        """Remove a waiting pull."""
        del self._pulls[pull]
        several = self._by_token[pull.token]
        del several[pull]
        if not several:
            del self._by_token[pull.token]
        self._impatient.pop(pull, None)

    def popleft(self) -> Pull:
        """Remove and return the pull to serve next."""
        pull = self.first
        self.remove(pull)
        return pull

    def serve(self, size: int, count: int, now_ms: float) -> ServedPulls:
        """Give records to waiting pulls in turn, and remove those that get their last one.

        Args:
            size: the bytes of the first record; a pull with a limit is served alone.
            count: how many records there are.
            now_ms: the time.
        """
        turn, each = self._next_turn(count)
        is_whole, done = len(turn) == len(self._pulls), []
        for pull in turn:
            pull.served += each
            pull.left -= each
            pull.beat_due_ms = now_ms + pull.heartbeat_ms
            if pull.has_limit:
                pull.bytes_left -= size
            if not pull.left:
                self.remove(pull)
                done.append(pull)
                continue
            if pull.no_wait:
                self._impatient[pull] = None  # it has its first record
            if not is_whole:
                self._pulls.move_to_end(pull)
        return ServedPulls([pull.token for pull in turn], each * len(turn), done)

    def _next_turn(self, count: int) -> tuple[list[Pull], int]:
        """Return the pulls that are served next, and how many records each of them gets."""
        if self.first.has_limit:
            return [self.first], 1
        turn = list(islice(takewhile(lambda pull: not pull.has_limit, self._pulls), count))
        if len(turn) < len(self._pulls):
            return turn, 1
        return turn, min(count // len(turn), *(pull.left for pull in turn))

    def rotate(self) -> None:
        """Move the first pull to the end."""
        self._pulls.move_to_end(self.first)

    def drop(self, token: object) -> None:
        """Remove the pulls of a token, if there are any."""
        for pull in list(self._by_token.get(token, ())):
            self.remove(pull)

    def clear(self) -> None:
        """Remove every pull."""
        for pull in list(self._pulls):
            self.remove(pull)

    def take_impatient(self) -> list[Pull]:
        """Remove and return the pulls that end when there is no record."""
        taken = list(self._impatient)
        for pull in taken:
            self.remove(pull)
        return taken

    # Times

    def watch(self, pull: Pull) -> None:
        """Put a pull's time into the heap, unless the entry of an earlier time is there."""
        due_ms = pull.due_ms
        if due_ms is None or pull in self._timed:
            return
        self._timed.add(pull)
        self._entries += 1
        heapq.heappush(self._timers, (due_ms, self._entries, pull))
        if len(self._timers) > TIMERS_MIN + 2 * len(self._pulls):
            self._timers = [entry for entry in self._timers if entry[2] in self._pulls]
            heapq.heapify(self._timers)
            self._timed = {pull for _, _, pull in self._timers}

    @property
    def next_due_ms(self) -> float | None:
        """When the next pull ends or needs a heartbeat; None: no pull has a time."""
        while self._timers:
            due_ms, _, pull = self._timers[0]
            if pull in self._pulls and pull.due_ms == due_ms:
                return due_ms
            self._pop_timer()
            if pull in self._pulls:
                self.watch(pull)
        return None

    def take_due(self, now_ms: float) -> list[Pull]:
        """Return the pulls whose time has come; the caller watches again those that go on."""
        due: list[Pull] = []
        while (next_ms := self.next_due_ms) is not None and next_ms <= now_ms:
            due.append(self._pop_timer())
        return due

    def _pop_timer(self) -> Pull:
        pull = heapq.heappop(self._timers)[2]
        self._timed.discard(pull)
        return pull

    def check(self) -> None:
        """Assert the invariants; for tests."""
        entries = [pull for _, _, pull in self._timers]
        assert set(entries) == self._timed
        assert len(entries) == len(self._timed)
        for due_ms, _, pull in self._timers:
            assert pull not in self._pulls or due_ms <= (pull.due_ms or 0.0)
        assert all(pull in self._timed for pull in self._pulls if pull.due_ms is not None)
        assert sum(map(len, self._by_token.values())) == len(self._pulls)
        assert all(pull in self._by_token[pull.token] for pull in self._pulls)
        assert set(self._impatient) == {p for p in self._pulls if p.ends_without_records}

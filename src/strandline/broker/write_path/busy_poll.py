"""A lone publisher's next record is polled for, not slept for.

Who publishes one record at a time sends the next as soon as the last is acked. A loop that has gone
to sleep by then wakes up late and finds cold caches (docs/adr/0039 has the figures).

Rules: only behind a turn of a single record, and only if the one before it was followed by silence
and soon answered. Where others were waiting, rounds of the loop without them would make smaller
turns; and a trickle of records costs nothing. A poll is bounded, and there is none on a single CPU,
which the publisher needs.
"""

import asyncio
import os

SOON_MS = 0.5
"""Who sends a record within this time of a sync has waited for it."""
SILENT_ROUNDS = 4
"""Whoever waited while the disk was busy is in a turn before the loop has gone round so often."""
ROUNDS_MAX = 200
"""Rounds without anything to do take 1.1 us each, 0.2 ms together."""


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BusyPoll:
    """Keeps the loop from sleeping, by always having something to call in its next round.

    Args:
        loop: the broker's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_possible = cpus() > 1
        self._is_on = False
        self._rounds = 0
        """Of the loop since the last sync, as far as they were counted."""
        self._rounds_wanted = 0
        self._synced_ms = -SOON_MS

    def synced(self, began_ms: float, ended_ms: float) -> None:
        """A turn of a single record was synced on the loop.

        Args:
            began_ms: when, by the monotonic clock.
            ended_ms: likewise.
        """
        if not self._is_possible:
            return
        is_alone = self._rounds >= SILENT_ROUNDS and began_ms - self._synced_ms < SOON_MS
        self._synced_ms = ended_ms
        self._rounds = 0
        self._rounds_wanted = ROUNDS_MAX if is_alone else SILENT_ROUNDS
        if not self._is_on:
            self._is_on = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._rounds += 1
        self._is_on = self._rounds < self._rounds_wanted
        if self._is_on:
            self._loop.call_soon(self._round)

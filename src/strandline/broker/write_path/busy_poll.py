"""Busy polling: the loop does not sleep while it expects the next record of a lone publisher.

A publisher that sends one record at a time sends the next as soon as the last is acknowledged. A
loop that sleeps by then wakes up late, with cold caches (docs/adr/0039 has the figures).

Rules: the loop polls only after a group commit of a single record, and only if nothing else arrived
between the sync before and this record, and the record came soon after that sync. With several
publishers polling would make group commits smaller, and it must cost nothing if records only
trickle in. A poll is limited in time. There is none on a single CPU, which the publisher needs.
"""

import asyncio
import os

SOON_MS = 0.5
"""A record that arrives within this time after a sync is the answer to its ack."""
SILENT_ROUNDS = 4
"""Records that arrived during a sync are in a group commit within this many rounds."""
ROUNDS_MAX = 200
"""A round without work takes 1.1 us, so these take 0.2 ms."""


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BusyPoll:
    """Keeps the loop from sleeping, by scheduling a call for its next round again and again.

    Args:
        loop: the broker's event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_possible = cpus() > 1
        self._is_on = False
        self._rounds = 0
        """Rounds of the loop since the last sync, as far as they were counted."""
        self._rounds_wanted = 0
        self._synced_ms = -SOON_MS

    def synced(self, began_ms: float, ended_ms: float) -> None:
        """Note that a group commit of a single record was synced on the loop.

        Args:
            began_ms: the start of the sync, by the monotonic clock.
            ended_ms: its end, by the same clock.
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

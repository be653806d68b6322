"""Busy polling: the loop does not sleep while a lone publisher's next record is expected.

A publisher that sends one record at a time sends the next as soon as the last is acked. A loop that
sleeps by then wakes up late, with cold caches (docs/adr/0039 has the figures).

Rules: only after a group commit of a single record, and only if the previous one was followed by
silence and then soon by a record. With other publishers waiting, polling would make group commits
smaller; a slow trickle of records must cost nothing. A poll is limited in time, and there is none
on a single CPU, which the publisher needs.
"""

import asyncio
import os

SOON_MS = 0.5
"""A publisher that sends a record within this time of a sync has waited for it."""
SILENT_ROUNDS = 4
"""A record that arrived during the sync is in a group commit within this many rounds."""
ROUNDS_MAX = 200
"""Rounds without work take 1.1 us each, 0.2 ms together."""


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BusyPoll:
    """Keeps the loop from sleeping, by always having something to call in its next round.

    Args:
        loop: the broker's event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_possible = cpus() > 1
        self._is_on = False
        self._rounds = 0
        """Counted rounds of the loop since the last sync."""
        self._rounds_wanted = 0
        self._synced_ms = -SOON_MS

    def synced(self, began_ms: float, ended_ms: float) -> None:
        """Note that a group commit of a single record was synced on the loop.

        Args:
            began_ms: the start, by the monotonic clock.
            ended_ms: the end, likewise.
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

"""Reads traces and checks their vector clocks; ``replication.trace`` has the format.

Rules: a host's own clock grows by one from each of its events to the next. In a host's events the
clock of another host never goes back, and is never ahead of the other host's events.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from strandline.testing.history import ViolationError


class TraceEvent(NamedTuple):
    """One event of a trace."""

    host: str
    clock: dict[str, int]
    what: str

    def knows(self, other: "TraceEvent") -> bool:
        """Whether another event happened before this one, or is this one."""
        return self.clock.get(other.host, 0) >= other.clock[other.host]


def read_trace(lines: Iterable[str]) -> list[TraceEvent]:
    """Return the events of a trace, in order; several files may be concatenated.

    Raises:
        ValueError: the lines are no trace.
    """
    stripped = [line.rstrip("\n") for line in lines]
    if len(stripped) % 2:
        raise ValueError("a trace has two lines an event")
    events = []
    for head, what in zip(stripped[::2], stripped[1::2], strict=True):
        host, _, clock = head.partition(" ")
        events.append(TraceEvent(host, json.loads(clock), what))
    return events


def check_clocks(events: Iterable[TraceEvent]) -> None:
    """Check the clocks of whole traces.

    Raises:
        ViolationError: a clock is wrong; the message names the event.
    """
    last: dict[str, dict[str, int]] = {}
    known = list(events)
    for event in known:
        before = last.get(event.host, {})
        if event.clock[event.host] != before.get(event.host, 0) + 1:
            raise ViolationError(f"not the next event of its host: {event}")
        if any(event.clock.get(host, 0) < time for host, time in before.items()):
            raise ViolationError(f"forgets what its host knew: {event}")
        last[event.host] = event.clock
    for event in known:
        for host, time in event.clock.items():
            if time > last.get(host, {}).get(host, 0):
                raise ViolationError(f"knows of what {host} never told: {event}")

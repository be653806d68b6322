"""Rates over the last minute, from counters sampled once a second.

Rules: the caller passes the time; samples older than a minute are dropped.
"""

from collections import deque
from itertools import pairwise
from typing import NamedTuple

from strandline.telemetry import Telemetry

SAMPLES_MAX = 61
RECENT_SAMPLES = 6
"""Rates are means over this many samples (five seconds), steadier than the last second alone."""


class Sample(NamedTuple):
    """The counters at one moment."""

    at_ms: float
    records_appended: int
    bytes_appended: int
    acks: int
    read_records: int
    read_bytes: int
    group_commits: int
    syncs: int


class Rates(NamedTuple):
    """Rates per second over the last few seconds."""

    records_appended: float = 0.0
    bytes_appended: float = 0.0
    acks: float = 0.0
    read_records: float = 0.0
    read_bytes: float = 0.0
    group_commits: float = 0.0
    syncs: float = 0.0

    @property
    def records_per_sync(self) -> float:
        """The average number of records per sync; 0 without a sync."""
        return self.records_appended / self.syncs if self.syncs else 0.0


class RateMeter:
    """One minute of samples of a ``Telemetry``."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def sample(self, telemetry: Telemetry, at_ms: float) -> None:
        """Sample the counters; ``at_ms`` is monotonic."""
        self._samples.append(
            Sample(
                at_ms=at_ms,
                records_appended=telemetry.records_appended,
                bytes_appended=telemetry.bytes_appended,
                acks=telemetry.acks,
                read_records=telemetry.read_records,
                read_bytes=telemetry.read_bytes,
                group_commits=telemetry.group_commits,
                syncs=telemetry.sync_seconds.count,
            )
        )

    def rates(self) -> Rates:
        """Return the rates of the last few seconds; all 0 before there are two samples."""
        recent = list(self._samples)[-RECENT_SAMPLES:]
        if len(recent) < 2 or recent[-1].at_ms <= recent[0].at_ms:
            return Rates()
        first, last = recent[0], recent[-1]
        seconds = (last.at_ms - first.at_ms) / 1000
        return Rates(
            records_appended=(last.records_appended - first.records_appended) / seconds,
            bytes_appended=(last.bytes_appended - first.bytes_appended) / seconds,
            acks=(last.acks - first.acks) / seconds,
            read_records=(last.read_records - first.read_records) / seconds,
            read_bytes=(last.read_bytes - first.read_bytes) / seconds,
            group_commits=(last.group_commits - first.group_commits) / seconds,
            syncs=(last.syncs - first.syncs) / seconds,
        )

    def records_per_second(self) -> list[float]:
        """Return the records stored per second between successive samples, oldest first."""
        return [
            (later.records_appended - earlier.records_appended)
            / max((later.at_ms - earlier.at_ms) / 1000, 1e-3)
            for earlier, later in pairwise(list(self._samples))
        ]

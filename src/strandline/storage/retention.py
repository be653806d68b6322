"""Which records have had their time.

Rules: age and size go by whole segments, oldest first, and never touch the active one (an active
segment that is too old throughout is sealed first); a record count is kept exactly, by moving the
log start offset. The time is told, not read.
"""

from collections.abc import Iterable
from typing import NamedTuple

from strandline.storage.log import Log
from strandline.storage.segment import Segment
from strandline.types import Offset, TimestampNs


class RetentionPolicy(NamedTuple):
    """Limits of one partition; 0 means none."""

    age_ms: int = 0
    bytes_max: int = 0
    records_max: int = 0


class SegmentFacts(NamedTuple):
    """What retention needs to know of a sealed segment."""

    next_offset: int
    size: int
    max_timestamp: TimestampNs


def start_by_age(sealed: Iterable[SegmentFacts], *, oldest_ns: int) -> int:
    """The offset before which all segments hold only records older than ``oldest_ns``; or 0."""
    start = 0
    for facts in sealed:
        if facts.max_timestamp >= oldest_ns:
            break
        start = facts.next_offset
    return start


def start_by_bytes(sealed: Iterable[SegmentFacts], *, total: int, bytes_max: int) -> int:
    """The offset before which segments must go so that no more than ``bytes_max`` remain; or 0."""
    start = 0
    for facts in sealed:
        if total <= bytes_max:
            break
        total -= facts.size
        start = facts.next_offset
    return start


def seal_if_old(log: Log, policy: RetentionPolicy, *, now_ns: TimestampNs) -> None:
    """Seal the active segment if the policy keeps nothing of it; on the thread that owns the log.

    Raises:
        DiskFullError: no space to write it; call again later.
        LogPoisonedError: now or earlier a write failed.
    """
    active = log.segments[-1]
    oldest_ns = now_ns - policy.age_ms * 1_000_000
    if policy.age_ms and active.size and active.max_timestamp < oldest_ns:
        log.roll()


def retention_start(log: Log, policy: RetentionPolicy, *, now_ns: TimestampNs) -> Offset | None:
    """The first offset that the policy keeps, if that is not the log's start; any thread.

    Raises:
        UnavailableError: an index cannot be read.
    """
    start = 0
    if policy.age_ms:
        oldest_ns = now_ns - policy.age_ms * 1_000_000
        start = start_by_age(map(_facts, log.segments[:-1]), oldest_ns=oldest_ns)
    if policy.bytes_max:
        sealed = map(_sizes, log.segments[:-1])
        start = max(start, start_by_bytes(sealed, total=log.size_bytes, bytes_max=policy.bytes_max))
    if policy.records_max:
        start = max(start, log.log_end_offset - policy.records_max)
    return Offset(start) if start > log.log_start_offset else None


def _facts(segment: Segment) -> SegmentFacts:
    """Asks for the time index, which is read from disk on first use: only as far as needed."""
    segment.timestamps()
    return SegmentFacts(segment.next_offset, segment.size, segment.max_timestamp)


def _sizes(segment: Segment) -> SegmentFacts:
    return SegmentFacts(segment.next_offset, segment.size, TimestampNs(0))

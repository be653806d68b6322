"""Retention: which records have expired, as pure decisions.

Rules: limits of age and size remove whole segments, oldest first, and never the active one (an
active segment that is too old as a whole is sealed first). A limit of records is exact: it moves
the log start offset. The time is an argument.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from strandline.storage.log import Log
from strandline.storage.segment import Segment
from strandline.types import Offset


class RetentionPolicy(NamedTuple):
    """Limits of one partition; 0 means none."""

    age_ms: int = 0
    bytes_max: int = 0
    records_max: int = 0


class SegmentFacts(NamedTuple):
    """The properties of a sealed segment that retention needs."""

    next_offset: int
    size: int
    written_ns: int
    """The time of its last write."""


def newest_timestamp(segment: Segment) -> int:
    """Return the time of a segment's last write by its timestamps, which a wrong clock falsifies.

    Loads the time index, which is read from disk on first use.
    """
    segment.timestamps()
    return segment.max_timestamp


class WriteTimes:
    """The times of the last writes to a log's segments, by the monotonic clock.

    So a wall clock that is set forward deletes nothing too early, and a timestamp far in the
    future keeps nothing for ever. Segments of an earlier run of the process have the age of
    their timestamps, but at least the time since this process first saw them.
    """

    def __init__(self) -> None:
        self._wall_ahead_ns: int | None = None
        """The smallest difference seen between the wall clock and the monotonic clock."""
        self._first_end = 0
        self._first_ns = 0
        self._last_ns = 0
        self._written: dict[int, tuple[int, int]] = {}
        """By base offset: a segment's end offset at its last write in this run, and the time."""

    def note(self, log: Log, *, wall_ns: int, monotonic_ns: int) -> None:
        """Note the log's present segments: those that changed were written since the last call."""
        ahead_ns = wall_ns - monotonic_ns
        if self._wall_ahead_ns is None:
            self._wall_ahead_ns = ahead_ns
            self._first_end, self._first_ns = log.log_end_offset, monotonic_ns
        self._wall_ahead_ns = min(self._wall_ahead_ns, ahead_ns)
        written: dict[int, tuple[int, int]] = {}
        for segment in reversed(log.segments):
            if segment.next_offset <= self._first_end:
                break
            known = self._written.get(segment.base_offset)
            if known is None or known[0] != segment.next_offset:
                when_ns = max(self._last_ns, segment.max_timestamp - ahead_ns)
                known = (segment.next_offset, min(when_ns, monotonic_ns))
            written[segment.base_offset] = known
        self._written, self._last_ns = written, monotonic_ns

    def of(self, segment: Segment) -> int:
        """Return the time of a segment's last write, in monotonic nanoseconds."""
        assert self._wall_ahead_ns is not None, "note the log first"
        known = self._written.get(segment.base_offset)
        if known is not None:
            return known[1]
        return min(newest_timestamp(segment) - self._wall_ahead_ns, self._first_ns)


def start_by_age(sealed: Iterable[SegmentFacts], *, oldest_ns: int) -> int:
    """Return the offset before which all segments are older than ``oldest_ns``; 0 if none is."""
    start = 0
    for facts in sealed:
        if facts.written_ns >= oldest_ns:
            break
        start = facts.next_offset
    return start


def start_by_bytes(sealed: Iterable[SegmentFacts], *, total: int, bytes_max: int) -> int:
    """Return the offset before which segments exceed ``bytes_max``; 0 if they do not."""
    start = 0
    for facts in sealed:
        if total <= bytes_max:
            break
        total -= facts.size
        start = facts.next_offset
    return start


def seal_if_old(
    log: Log,
    policy: RetentionPolicy,
    *,
    now_ns: int,
    written_ns: Callable[[Segment], int] = newest_timestamp,
) -> None:
    """Seal the active segment if all of it has expired; on the thread that owns the log.

    Args:
        log: the partition's log.
        policy: its limits.
        now_ns: the time by the clock of ``written_ns``.
        written_ns: returns when a segment was last written.

    Raises:
        DiskFullError: no space to write the segment; call again later.
        LogPoisonedError: a write failed, now or earlier.
    """
    active = log.segments[-1]
    oldest_ns = now_ns - policy.age_ms * 1_000_000
    if policy.age_ms and active.size and written_ns(active) < oldest_ns:
        log.roll()


def retention_start(
    log: Log,
    policy: RetentionPolicy,
    *,
    now_ns: int,
    written_ns: Callable[[Segment], int] = newest_timestamp,
) -> Offset | None:
    """Return the first offset that the policy keeps; None if that is the log start. Any thread.

    Args:
        log: the partition's log.
        policy: its limits.
        now_ns: by the clock of ``written_ns``.
        written_ns: when a segment was last written.

    Raises:
        UnavailableError: an index cannot be read.
    """
    start = 0
    if policy.age_ms:
        oldest_ns = now_ns - policy.age_ms * 1_000_000
        # A generator, so that time indexes are read only as far as needed.
        sealed = (
            SegmentFacts(each.next_offset, each.size, written_ns(each))
            for each in log.segments[:-1]
        )
        start = start_by_age(sealed, oldest_ns=oldest_ns)
    if policy.bytes_max:
        sizes = map(_sizes, log.segments[:-1])
        start = max(start, start_by_bytes(sizes, total=log.size_bytes, bytes_max=policy.bytes_max))
    if policy.records_max:
        start = max(start, log.log_end_offset - policy.records_max)
    return Offset(start) if start > log.log_start_offset else None


def _sizes(segment: Segment) -> SegmentFacts:
    return SegmentFacts(segment.next_offset, segment.size, 0)

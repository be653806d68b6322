"""The parts of a log that a read with a pattern of subjects has to look at, by the subject index.

Rules: what is passed over cannot match, whatever it is; what is read is filtered as without an
index. A segment without an index, or with many matching records, is read whole. One thread.
"""

from typing import Final, NamedTuple

import numpy as np

from strandline.reading.cursor import OffsetRun
from strandline.storage.log import Log
from strandline.storage.log_reads import Layout
from strandline.storage.segment import Segment
from strandline.storage.subject_index import Numbers, SubjectIndex

GAP_BYTES: Final = 64 << 10
"""Less than this between two matching records is read along."""
DENSE: Final = 8
"""With more than one in so many records matching, a segment is read whole."""


class _Matches(NamedTuple):
    """The matching records of a segment."""

    segment: Segment
    size: int
    """Of the segment when it was looked at: an active one grows."""
    offsets: Numbers | None
    """None: they are not known, or many."""


class SubjectRuns:
    """Finds runs of records in a log that may match a pattern.

    Args:
        log: of a partition.
        pattern: of subjects.
    """

    def __init__(self, log: Log, pattern: str) -> None:
        self._log = log
        self._pattern = pattern
        self._known: _Matches | None = None

    def next_run(self, position: int, end: int) -> OffsetRun:
        """Return the next run from ``position`` on; an empty one at ``end``: there is none."""
        return self._log.as_it_is(lambda layout: self._next_run(layout, position, end))

    def is_sparse(self, start: int, stop: int) -> bool:
        """Return whether a read of these offsets would pass over most of the records."""
        return self._log.as_it_is(lambda layout: self._is_sparse(layout, start, stop))

    def _is_sparse(self, layout: Layout, start: int, stop: int) -> bool:
        matching = records = 0
        for segment in layout.segments:
            if segment.base_offset < stop and segment.next_offset > start:
                found = self._log.subjects.look(segment, self._counts)
                if found is None:
                    return False
                matching += sum(count for count, _ in found)
                records += sum(count for _, count in found)
        return matching * DENSE <= records

    def _counts(self, index: SubjectIndex) -> tuple[int, int]:
        return int(index.counts(index.find((self._pattern,))).sum()), index.records

    def _next_run(self, layout: Layout, position: int, end: int) -> OffsetRun:
        if position < self._log.log_start_offset:
            return OffsetRun(position, end, 0)  # the reader is told that records are gone
        for segment in layout.segments:
            first, stop = max(position, segment.base_offset), min(end, segment.next_offset)
            if first >= stop:
                continue
            offsets = self._matches(segment)
            if offsets is None:
                return OffsetRun(first, stop, 0)
            low, high = np.searchsorted(offsets, (first, stop))
            if low < high:
                return _run(offsets[low:high], segment)
        return OffsetRun(end, end, 0)

    def _matches(self, segment: Segment) -> Numbers | None:
        known = self._known
        if known is None or known.segment is not segment or known.size != segment.size:
            size = segment.size
            found = self._log.subjects.look(segment, self._offsets)
            offsets = None
            if found and all(part is not None for part in found):
                offsets = np.concatenate([part for part in found if part is not None])
            known = self._known = _Matches(segment, size, offsets)
        return known.offsets

    def _offsets(self, index: SubjectIndex) -> Numbers | None:
        numbers = index.find((self._pattern,))
        if int(index.counts(numbers).sum()) * DENSE > index.records > DENSE:
            return None
        return index.offsets(numbers)


def _run(offsets: Numbers, segment: Segment) -> OffsetRun:
    """Return the first of these offsets with those near it, and about how large that is."""
    span = max(1, segment.next_offset - segment.base_offset)
    record_bytes = max(1, segment.size // span)
    gaps = np.flatnonzero(np.diff(offsets) > max(1, GAP_BYTES // record_bytes))
    start, last = int(offsets[0]), int(offsets[gaps[0] if len(gaps) else -1])
    return OffsetRun(start, last + 1, (last + 1 - start) * record_bytes)

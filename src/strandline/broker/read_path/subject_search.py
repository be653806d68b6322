"""The search for records of some subjects in a log, by its subject index.

Rules: an answer names the offsets that it does not cover, since a segment may have no index, and
the index cannot tell whether records of transactions count. The caller reads those offsets instead.
Records that a search skips cannot match. Any thread; several at the same time get the same answers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from strandline.reading.cursor import OffsetRun
from strandline.storage.log import Log
from strandline.storage.log_reads import Layout
from strandline.storage.segment import Segment
from strandline.storage.subject_index import Numbers, SubjectIndex

GAP_BYTES: Final = 64 << 10
"""A smaller gap between two matching records is read, too, in one run."""
DENSE: Final = 8
"""If more than one in so many records matches, a part of a log is read whole."""
KNOWN_MAX: Final = 64
T = TypeVar("T")


class Uncovered(NamedTuple):
    """Offsets that an answer does not cover; ``stop`` is exclusive."""

    start: int
    stop: int


class Tally(NamedTuple):
    """The number of records of a subject, and the offset of the last one."""

    records: int
    last: int


class _Part(NamedTuple):
    """A part of a log (``stop`` is exclusive), with its subject index."""

    start: int
    stop: int
    subjects: SubjectIndex | None
    record_bytes: int

    @property
    def exact_index(self) -> SubjectIndex | None:
        """The index of the part, if all records in it count; else None."""
        return None if self.subjects is None or self.subjects.has_transactions else self.subjects


class SubjectSearch:
    """Finds the records of a log whose subjects match one of the patterns.

    Args:
        log: the log of a partition.
        patterns: the patterns of subjects; none, or one that is ``>``: every subject matches.

    Attributes:
        patterns: the patterns; empty: every subject matches.
    """

    def __init__(self, log: Log, patterns: Sequence[str]) -> None:
        self._log = log
        self.patterns = () if ">" in patterns else tuple(patterns)
        self._known: dict[SubjectIndex, Numbers | None] = {}

    def next_run(self, position: int, end: int) -> OffsetRun:
        """Return the next run of records that may match; empty, at ``end``, if there is none."""
        if position < self._log.log_start_offset:
            return OffsetRun(position, end, 0)  # reading it tells the reader that records are gone
        found = self._ask(position, end, self._first_run, is_one_enough=True)
        return found[0] if found else OffsetRun(end, end, 0)

    def last_run(self, start: int, end: int) -> OffsetRun:
        """Return the last run of records that may match; empty, at ``start``, if there is none."""
        found = self._ask(start, end, self._last_run, is_backwards=True, is_one_enough=True)
        return found[0] if found else OffsetRun(start, start, 0)

    def is_sparse(self, start: int, stop: int) -> bool:
        """Return whether most records in a range do not match, so that a search pays."""
        found = self._ask(start, stop, self._share)
        return sum(each[0] for each in found) * DENSE <= sum(each[1] for each in found)

    def count(self, start: int, stop: int) -> tuple[int, list[Uncovered]]:
        """Count the matching records of a range; also return the offsets not covered."""
        total, uncovered = 0, list[Uncovered]()
        answers: list[int | Uncovered] = self._ask(start, stop, self._count)
        for found in answers:
            if isinstance(found, Uncovered):
                uncovered.append(found)
            else:
                total += found
        return total, uncovered

    def tally(self, start: int, stop: int) -> tuple[dict[str, Tally], list[Uncovered]]:
        """Return the tallies of matching subjects in a range, and the offsets not covered."""
        tallies, uncovered = dict[str, Tally](), list[Uncovered]()
        answers: list[list[tuple[str, Tally]] | Uncovered] = self._ask(start, stop, self._tally)
        for found in answers:
            if isinstance(found, Uncovered):
                uncovered.append(found)
                continue
            for name, tally in found:
                before = tallies.get(name)
                tallies[name] = Tally(tally.records + (before.records if before else 0), tally.last)
        return tallies, uncovered

    # One part

    def _first_run(self, part: _Part) -> OffsetRun | None:
        offsets = self._offsets(part)
        if offsets is None:
            return OffsetRun(part.start, part.stop, 0)
        low, high = np.searchsorted(offsets, (part.start, part.stop))
        if low == high:
            return None
        found = offsets[low:high]
        gaps = np.flatnonzero(np.diff(found) > max(1, GAP_BYTES // part.record_bytes))
        start, last = int(found[0]), int(found[gaps[0] if len(gaps) else -1])
        return OffsetRun(start, last + 1, (last + 1 - start) * part.record_bytes)

    def _last_run(self, part: _Part) -> OffsetRun | None:
        if part.subjects is None:
            return OffsetRun(part.start, part.stop, 0)
        offsets = part.subjects.offsets(part.subjects.find(self.patterns))
        place = int(np.searchsorted(offsets, part.stop)) - 1
        if place < 0 or offsets[place] < part.start:
            return None
        last = int(offsets[place])
        return OffsetRun(last, last + 1, part.record_bytes)

    def _share(self, part: _Part) -> tuple[int, int]:
        if part.subjects is None:
            return 1, 0
        return int(
            part.subjects.counts(part.subjects.find(self.patterns)).sum()
        ), part.subjects.records

    def _count(self, part: _Part) -> int | Uncovered:
        index = part.exact_index
        if index is None:
            return Uncovered(part.start, part.stop)
        return index.count(index.find(self.patterns), part.start, part.stop)

    def _tally(self, part: _Part) -> list[tuple[str, Tally]] | Uncovered:
        index = part.exact_index
        if index is None:
            return Uncovered(part.start, part.stop)
        numbers, counts, lasts = index.tally(index.find(self.patterns), part.start, part.stop)
        return list(zip(index.names(numbers), map(Tally, counts, lasts), strict=True))

    def _offsets(self, part: _Part) -> Numbers | None:
        """Return the matching offsets in a part's segment; None if they are many or unknown."""
        index = part.subjects
        if index is None:
            return None
        if index not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            numbers = index.find(self.patterns)
            is_dense = int(index.counts(numbers).sum()) * DENSE > index.records > DENSE
            self._known[index] = None if is_dense else index.offsets(numbers)
        return self._known.get(index)

    # Parts

    def _ask(
        self,
        start: int,
        stop: int,
        ask: Callable[[_Part], T | None],
        *,
        is_backwards: bool = False,
        is_one_enough: bool = False,
    ) -> list[T]:
        """Ask each part of the log, in order; return all answers that are not None."""

        def ask_all(layout: Layout) -> list[T]:
            answers: list[T] = []
            for segment in reversed(layout.segments) if is_backwards else layout.segments:
                if max(start, segment.base_offset) >= min(stop, segment.next_offset):
                    continue
                ask_index = partial(_ask_index, ask, _part_of(segment, start, stop))
                found = self._log.subjects.look(segment, ask_index)
                if found is None:
                    found = [ask_index(None)]
                answers += [
                    each for each in found[:: -1 if is_backwards else 1] if each is not None
                ]
                if answers and is_one_enough:
                    break
            return answers

        return self._log.with_layout(ask_all)


def _part_of(segment: Segment, start: int, stop: int) -> _Part:
    first, end = max(start, segment.base_offset), min(stop, segment.next_offset)
    span = segment.next_offset - segment.base_offset
    return _Part(first, end, None, max(1, segment.size // span))


def _ask_index(
    ask: Callable[[_Part], T | None], part: _Part, index: SubjectIndex | None
) -> T | None:
    """Ask about the offsets of a part that an index covers."""
    if index is None:
        return ask(part)
    start, stop = max(part.start, index.about.base_offset), min(part.stop, index.about.next_offset)
    return ask(part._replace(start=start, stop=stop, subjects=index)) if start < stop else None

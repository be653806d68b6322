"""Per-subject retention for readers: takes effect at once, before compaction frees any space.

Rules: which records are kept is computed from the log, by applying its records in order. Every read
first applies the log up to the stable offset, so nothing has to be updated between reads. Records
older than the stream's age limit are hidden at once, too. After a start or a reopening, the first
read applies the whole log. Corrupt batches are skipped: the records that they replaced stay visible
until the batches are repaired; then the whole log is applied again. Any thread.
"""

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from strandline.broker.read_path.subject_search import SubjectSearch, Tally, Uncovered
from strandline.broker.read_path.visible import read_visible
from strandline.clock import Clock
from strandline.config import StreamConfig
from strandline.errors import CorruptBatchError, OffsetOutOfRangeError
from strandline.reading.cursor import OffsetRun
from strandline.record.batch import Buffer, read_header
from strandline.record.decode import walk
from strandline.record.visible import always_committed
from strandline.storage.log import Log
from strandline.storage.subject_history import SubjectHistory
from strandline.storage.subject_index import Numbers
from strandline.types import Offset, TimestampNs

READ_BYTES: Final = 4 << 20
INLINE_BYTES: Final = 256 << 10
"""The bytes of the log that may be applied on the loop; takes a few milliseconds."""
READ_ALONG: Final = 10_000
"""The most offsets that are read without looking up the matching records."""
EXPIRY_NS: Final = 20_000_000
"""The interval at which expired records are determined."""
REPAIR_MS: Final = 1_000
"""The interval at which a skipped corrupt batch is checked for a repair."""


class _Applied:
    """The state of retention after a part of the log was applied."""

    def __init__(self, limit: int) -> None:
        self.history = SubjectHistory(limit)
        self.position = 0
        self.pruned_at = 0
        """The log start offset when deleted records were last removed from this state."""
        self.corrupt_at = -1
        """The offset of a corrupt batch that was skipped; -1: there was none."""


class SubjectRetention:
    """The visible records of each subject of a partition.

    Args:
        log: the log of the partition.
        config: the stream's settings.
        clock: gives the age of records.
    """

    def __init__(self, log: Log, config: StreamConfig, clock: Clock) -> None:
        self._log = log
        self._age_ns = config.retention_age_ms * 1_000_000
        self._clock = clock
        self._limit = config.max_records_per_subject
        self._applied = _Applied(self._limit)
        self._lock = threading.Lock()
        """Held while the log is applied, and while all subjects are searched."""
        self._looked_ms = 0.0
        """The time of the last check whether a corrupt batch was repaired."""
        self._expired_below, self._expiry_ns = 0, -EXPIRY_NS

    @property
    def position(self) -> int:
        """The offset up to which the log is applied."""
        return self._applied.position

    @property
    def start(self) -> int:
        """The first offset that readers see."""
        now_ns = self._clock.now_ns()
        if self._age_ns and abs(now_ns - self._expiry_ns) >= EXPIRY_NS:
            self._expiry_ns = now_ns
            oldest, first = TimestampNs(now_ns - self._age_ns), Offset(self._expired_below)
            self._expired_below = self._log.offset_for_timestamp(oldest, start=first)
        return max(self._expired_below, self._log.log_start_offset)

    def bytes_left(self) -> int:
        """Return about how many bytes of the log are not applied yet."""
        return self._log.bytes_from(self.position)

    def last(self, subject: str) -> int:
        """Return the offset of a subject's newest applied record; -1 if there is none.

        It may be below ``start``.
        """
        return self._applied.history.last(subject)

    def is_kept(self, subject: str, offset: int) -> bool:
        """Return whether readers see a record, as far as the log was applied."""
        return offset >= self.start and self._applied.history.keeps(subject, offset)

    def is_current(self, end: int) -> bool:
        """Return whether the log is applied up to a stable offset; first apply the rest if small.

        Raises:
            StrandlineError: as for ``catch_up``.
        """
        return self.bytes_left() <= INLINE_BYTES and self.catch_up(end, may_wait=False)

    def catch_up(self, end: int, *, may_wait: bool = True) -> bool:
        """Apply the log up to a stable offset; return whether that is done.

        Args:
            end: the stable offset.
            may_wait: whether to wait for another thread that is applying it.

        Raises:
            EncryptionKeyError, DecryptionError: the log is encrypted, and cannot be decrypted.
            UnavailableError: the log cannot be read.
        """
        applied = self._applied
        is_done = applied.position >= end and applied.pruned_at == self._log.log_start_offset
        if is_done and applied.corrupt_at < 0:
            return True
        if not self._lock.acquire(blocking=may_wait):
            return False
        try:
            self._catch_up(end)
        finally:
            self._lock.release()
        return True

    def _catch_up(self, end: int) -> None:
        applied = _Applied(self._limit) if self._is_repaired() else self._applied
        start = self._log.log_start_offset
        if applied.pruned_at != start:
            applied.history.forget_below(start)
            applied.pruned_at = start
        while applied.position < end:
            applied.position = max(applied.position, start)
            try:
                found = self._log.read(applied.position, READ_BYTES, below=Offset(end))
            except CorruptBatchError as error:
                applied.corrupt_at = applied.position
                applied.position = max(applied.position + 1, error.next_offset)
                continue
            except OffsetOutOfRangeError:
                start = self._log.log_start_offset
                if start <= applied.position:
                    break  # the log was truncated meanwhile
                continue
            if not found.buffer:
                applied.position = max(applied.position, min(found.next_offset, end))
                break
            # If encrypted, ``decrypted`` may return only the first batches, and drops placeholders.
            batches = memoryview(self._log.decrypted(found.buffer))
            applied.history.apply(batches)
            applied.position = _end_of(batches) if batches else found.next_offset
        self._applied = applied  # only now: readers must not see a half-applied state

    def _is_repaired(self) -> bool:
        """Whether a skipped corrupt batch was repaired; checks it only once in a while."""
        corrupt_at, now_ms = self._applied.corrupt_at, self._clock.monotonic_ms()
        if corrupt_at < 0 or now_ms < self._looked_ms + REPAIR_MS:
            return False
        self._looked_ms = now_ms
        try:
            self._log.read(corrupt_at, 1)
        except CorruptBatchError:
            return False
        except OffsetOutOfRangeError:
            return True
        return True

    def read(self, offset: Offset, bytes_max: int, *, below: Offset) -> pa.Buffer:
        """Read the batches that readers may see, with only the kept records.

        Args:
            offset: the offset of the first record wanted.
            bytes_max: about how many bytes to return.
            below: the stable offset.

        Returns:
            Whole batches in order; empty if no record is left.

        Raises:
            OffsetOutOfRangeError, CorruptBatchError: as for ``Log.read``.
            EncryptionKeyError, DecryptionError: the log is encrypted, and cannot be decrypted.
        """
        self.catch_up(below)
        start = self.start
        offset = Offset(max(offset, start))
        while offset < below:
            seen: Buffer = read_visible(
                self._log, offset, bytes_max, below=below, is_committed=always_committed
            )
            if not seen:
                break
            plain = memoryview(self._log.decrypted(seen))
            kept = self._applied.history.filtered(plain, start)
            if kept:
                return pa.py_buffer(kept[0] if len(kept) == 1 else b"".join(kept))
            offset = Offset(_end_of(plain))
        return pa.py_buffer(b"")

    def tally(self, patterns: Sequence[str], start: int, stop: int) -> dict[str, Tally]:
        """Return, per matching subject, how many kept records a range has, and the last offset."""
        first, found = max(start, self.start), dict[str, Tally]()
        with self._lock:
            for subject, offset in self._applied.history.kept(patterns):
                if first <= offset < stop:
                    before = found.get(subject)
                    found[subject] = Tally(before.records + 1 if before else 1, offset)
        return found

    def offsets(self, patterns: Sequence[str]) -> Numbers:
        """Return the offsets of all kept records that match, in order."""
        with self._lock:
            offsets = [offset for _, offset in self._applied.history.kept(patterns)]
        found = np.sort(np.array(offsets, np.int64))
        visible: Numbers = found[np.searchsorted(found, self.start) :]
        return visible


def retention_of(log: Log, config: StreamConfig, clock: Clock) -> SubjectRetention | None:
    """Return the retention of a partition, if its stream limits the records per subject."""
    return SubjectRetention(log, config, clock) if config.max_records_per_subject else None


class RetainedSearch:
    """A search among the kept records; used instead of a ``SubjectSearch``.

    Args:
        retention: the retention of the partition.
        patterns: the patterns of subjects; none, or one that is ``>``: every subject matches.

    Attributes:
        patterns: the patterns; empty: every subject matches.
    """

    def __init__(self, retention: SubjectRetention, patterns: Sequence[str]) -> None:
        self._retention = retention
        self.patterns = () if ">" in patterns else tuple(patterns)

    def next_run(self, position: int, end: int) -> OffsetRun:
        """Return the next run of records that may match; empty, at ``end``, if there is none."""
        if not self.patterns or end - position <= READ_ALONG:
            return OffsetRun(position, end, 0)
        self._retention.catch_up(end)
        offsets = self._retention.offsets(self.patterns)
        place = int(np.searchsorted(offsets, position))
        if place == len(offsets) or offsets[place] >= end:
            return OffsetRun(end, end, 0)
        return OffsetRun(int(offsets[place]), int(offsets[place]) + 1, 1)

    def last_run(self, start: int, end: int) -> OffsetRun:
        """Return the newest matching record as a run; empty, at ``start``, if there is none.

        The record may be after ``end``, if it has just replaced an older one.
        """
        self._retention.catch_up(end)
        if len(self.patterns) == 1 and "*" not in self.patterns[0] and ">" not in self.patterns[0]:
            last = self._retention.last(self.patterns[0])
        else:
            offsets = self._retention.offsets(self.patterns)
            last = int(offsets[-1]) if len(offsets) else -1
        is_seen = last >= max(start, self._retention.start)
        return OffsetRun(last, last + 1, 1) if is_seen else OffsetRun(start, start, 0)

    def is_sparse(self, _start: int, _stop: int) -> bool:
        """Return True: a read of the log itself would include records that are not kept."""
        return True

    def count(self, start: int, stop: int) -> tuple[int, list[Uncovered]]:
        """Count the matching records of a range; no part of it is uncovered."""
        self._retention.catch_up(stop)
        offsets = self._retention.offsets(self.patterns)
        return int(np.searchsorted(offsets, stop) - np.searchsorted(offsets, start)), []

    def tally(self, start: int, stop: int) -> tuple[dict[str, Tally], list[Uncovered]]:
        """Return the tallies of all matching subjects with a record in a range."""
        self._retention.catch_up(stop)
        return self._retention.tally(self.patterns, start, stop), []


def _end_of(batches: memoryview) -> int:
    """Return the offset after the last of whole batches."""
    return read_header(batches, walk(batches)[-1][0]).next_offset


def search_of(
    records: Log | SubjectRetention, patterns: Sequence[str]
) -> SubjectSearch | RetainedSearch:
    """Return a search in a log, or in its kept records."""
    if isinstance(records, SubjectRetention):
        return RetainedSearch(records, patterns)
    return SubjectSearch(records, patterns)

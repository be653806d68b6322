"""The subject indexes of a log: loaded from their files, or built if there are none.

Rules: nothing is indexed while it is written. A sealed segment's index is built on a thread and
kept in a mapped file. That of the active segment is in memory, built on first use and then
extended; one that has stopped growing gets a file, too. A segment with corruption has no index, so
it is read, and the corruption is found. In an encrypted stream the file is a sealed batch whose
value is the index: it is decrypted into memory, and no subject is on the disk in clear. Any thread.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from strandline.errors import StrandlineError
from strandline.record.batch import HEADER_BYTES, Buffer, read_header
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.record.decode import walk
from strandline.record.sealed import Sealer
from strandline.record.visible import visible_stretches
from strandline.storage.disk import Disk
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.storage.scan import OFFSET_MAX, Run, header_at, intact_at, scan
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import SUBJECTS_SUFFIX
from strandline.storage.subject_index import (
    HAS_TRANSACTIONS,
    SPAN_MAX,
    DamagedIndexError,
    IndexedLog,
    SubjectIndex,
    SubjectRows,
    decode_subjects,
    encode_subjects,
    merge_rows,
)
from strandline.types import LeaderEpoch, Offset, TimestampNs

WINDOW_BYTES: Final = 4 << 20
WORTH_STORING_BYTES: Final = 1 << 20
"""An active segment's file is written again when so much more is indexed."""
MERGE_BYTES: Final = 128 << 20
"""Rows of this many bytes of log are merged, so that decoded batches are freed."""
T = TypeVar("T")


class IndexedFiles(Protocol):
    """The log, as far as its indexes need to know it."""

    sealer: Sealer | None

    def opened(self, batches: Buffer) -> pa.Buffer:
        """Return batches as they were before they were sealed."""

    def keep_index(self, segment: Segment, path: Path, data: Buffer) -> bool:
        """Give a segment an index file, unless it went away; return whether it has it."""


class GrowingIndex:
    """The index of a segment on its way to the end of the segment.

    Args:
        segment: active, or sealed and without a file.
        log: opens what is encrypted.
        beginning: the index of its beginning, from a file.
    """

    def __init__(
        self, segment: Segment, log: IndexedFiles, beginning: SubjectIndex | None = None
    ) -> None:
        self._segment = segment
        self._log = log
        self.cuts = segment.cuts
        """How often the segment had been truncated: after one more this is of no use."""
        self.lock = threading.Lock()
        self.runs: list[SubjectIndex] = []
        """Indexes of neighbouring parts; each about twice as large as the next."""
        self.is_broken = False
        """Whether corruption was met, so that nobody knows all subjects."""
        self._about = IndexedLog(0, 0, 0, segment.base_offset, segment.base_offset)
        self._flags = 0
        if beginning is not None:
            self.runs, self._about = [beginning], beginning.about
        self.stored_bytes = self._about.log_bytes
        """How much of the segment the file tells of."""

    def catch_up(self) -> None:
        """Index what was appended since the last call; the lock is held.

        Raises:
            StrandlineError: the segment cannot be read, or not decrypted.
        """
        segment, before = self._segment, self._about
        size, rows, unmerged = segment.size, list[SubjectRows](), 0
        self._flags = 0
        while self._about.log_bytes < size and not self.is_broken:
            view, run = self._next_batches(size)
            if not run.end:
                self.is_broken = True
                return
            rows += self._rows(view[: run.end])
            position, unmerged = self._about.log_bytes, unmerged + run.end
            last = read_header(view, run.last)
            self._about = IndexedLog(
                position + run.end, position + run.last, last.crc, before.base_offset,
                run.next_offset,
            )  # fmt: skip
            if unmerged > MERGE_BYTES:
                rows, unmerged = [merge_rows(rows)], 0
        if self._about == before:
            return
        if self._about.next_offset - segment.base_offset >= SPAN_MAX:
            self.is_broken = True
            return
        about = self._about._replace(base_offset=before.next_offset)
        self.runs.append(SubjectIndex(encode_subjects(about, rows, flags=self._flags)))
        while len(self.runs) > 1 and self.runs[-2].records <= 2 * self.runs[-1].records:
            self._merge_last(2)

    @property
    def indexed_bytes(self) -> int:
        """How much of the segment is indexed."""
        return self._about.log_bytes

    def whole(self) -> Buffer | None:
        """Return the index of all that is indexed, if it is anything; the lock is held."""
        return None if self.is_broken or not self.runs else self._merged(self.runs)

    def _next_batches(self, size: int) -> tuple[memoryview, Run]:
        position, segment = self._about.log_bytes, self._segment
        view = segment.view(position, min(WINDOW_BYTES, size - position))
        header = header_at(view, 0)
        if header is not None and len(view) < header.length <= size - position:
            view = segment.view(position, header.length)
        return view, scan(view, 0, len(view), below=OFFSET_MAX)

    def _rows(self, batches: memoryview) -> list[SubjectRows]:
        """Return the records that readers may see."""

        def counts(_producer_id: int, _base_offset: int) -> bool:
            self._flags = HAS_TRANSACTIONS
            return True

        found = []
        for piece in visible_stretches(batches, counts):
            plain: Buffer | pa.Buffer = piece
            if self._log.sealer is not None:  # which may open only the first of several
                each = (self._log.opened(piece[at : at + size]) for at, size in walk(piece))
                plain = b"".join(batch.to_pybytes() for batch in each)
            for batch in decode_batches(plain, columns=["offset", "subject"]):
                offsets, subjects = batch.columns
                found.append(SubjectRows(offsets.to_numpy(), subjects))
        return found

    def _merge_last(self, count: int) -> None:
        merged = self._merged(self.runs[-count:])
        self.runs[-count:] = [SubjectIndex(merged)]

    def _merged(self, runs: list[SubjectIndex]) -> Buffer:
        if len(runs) == 1:
            return runs[0].data
        about = runs[-1].about._replace(base_offset=runs[0].about.base_offset)
        flags = HAS_TRANSACTIONS if any(run.has_transactions for run in runs) else 0
        return encode_subjects(about, (run.rows() for run in runs), flags=flags)


class LogSubjects:
    """The subject indexes of one log.

    Args:
        log: whose segments are asked about.
        disk: the file system.
    """

    def __init__(self, log: IndexedFiles, disk: Disk) -> None:
        self._log = log
        self._disk = disk
        self._lock = threading.Lock()
        """Held while an index is loaded, so that a segment has one."""

    def look(self, segment: Segment, ask: Callable[[SubjectIndex], T]) -> list[T] | None:
        """Ask the index of a segment, in order of offsets if it has several parts.

        Returns:
            The answers; None if the segment has no index, so that its records have to be read.

        Raises:
            RetiredSegmentError: it was removed or replaced.
            StrandlineError: it cannot be read, or not decrypted.
        """
        for _ in range(2):
            indexes = self._indexes(segment)
            if indexes is None:
                return None
            try:
                return [ask(each) for each in indexes]
            except DamagedIndexError:
                segment.subjects = None
                self._disk.unlink(segment.path.with_suffix(SUBJECTS_SUFFIX))
        return None

    def prepare(self, segment: Segment) -> None:
        """Make the index file of a sealed segment, if it has none, or of one that is quiet.

        Raises:
            StrandlineError: as ``look``.
        """
        if not segment.size:
            return
        if segment.sealed:
            if not self._disk.exists(segment.path.with_suffix(SUBJECTS_SUFFIX)):
                self._indexes(segment)
            return
        self._indexes(segment)
        growing = segment.subjects
        if not isinstance(growing, GrowingIndex):
            return
        with growing.lock:
            if growing.indexed_bytes - growing.stored_bytes < WORTH_STORING_BYTES:
                return
            whole = growing.whole()
        if whole is not None:
            stored = GrowingIndex(segment, self._log, self._store(segment, whole))
            stored.cuts = growing.cuts
            segment.subjects = stored

    def _indexes(self, segment: Segment) -> list[SubjectIndex] | None:
        is_sealed = segment.sealed
        with self._lock:
            known = segment.subjects
            if isinstance(known, GrowingIndex) and known.cuts != segment.cuts:
                known = None
            if known is None:
                known = self._load(segment)
                if known is None or known.about.log_bytes < segment.size or not is_sealed:
                    known = GrowingIndex(segment, self._log, known)
            segment.subjects = known
        if is_sealed:
            MAPPED_SEGMENTS.note_use(segment)  # lets go of its index, too, if nobody uses it
        if isinstance(known, SubjectIndex):
            return [known]
        assert isinstance(known, GrowingIndex), "there are two kinds"
        with known.lock:
            if not known.is_broken:
                known.catch_up()
            if known.is_broken:
                return None
            whole = known.whole() if is_sealed else None
            if whole is None or known.indexed_bytes != segment.size:
                return list(known.runs)
        index = self._store(segment, whole)
        segment.subjects = index
        return [index]

    def _store(self, segment: Segment, data: Buffer) -> SubjectIndex:
        """Write an index file; if that is not possible the index stays in memory."""
        stored: Buffer = data
        if self._log.sealer is not None:
            stamp = Stamp(Offset(0), LeaderEpoch(0), TimestampNs(0), "none")
            stored = self._log.sealer.seal(encode_records([bytes(data)], [""], stamp))
        kept: SubjectIndex | None = None
        try:
            if self._log.keep_index(segment, segment.path.with_suffix(SUBJECTS_SUFFIX), stored):
                kept = self._load(segment)
        except StrandlineError:
            kept = None  # such as a full disk: it is a hint, and here
        return kept or SubjectIndex(data)

    def _load(self, segment: Segment) -> SubjectIndex | None:
        """Return the index that a sealed segment's file has; None: no file is of any use."""
        path = segment.path.with_suffix(SUBJECTS_SUFFIX)
        if not self._disk.exists(path):
            return None
        fd = self._disk.open(path)
        try:
            size = self._disk.size(fd)
            data: Buffer = memoryview(self._disk.map(fd, size) if size else b"")
        finally:
            self._disk.close(fd)
        if self._log.sealer is not None:
            data = self._decrypted(memoryview(data))
        index = decode_subjects(data)
        if index is None or not _describes(index.about, segment):
            return None
        return index

    def _decrypted(self, stored: memoryview) -> bytes:
        header = intact_at(stored, 0)
        if header is None or header.length != len(stored):
            return b""
        for batch in decode_batches(self._log.opened(stored), columns=["value"]):
            value: bytes = batch.column(0)[0].as_py()
            return value
        return b""


def _describes(about: IndexedLog, segment: Segment) -> bool:
    """Whether an index is of this segment or its beginning, not of what was cut off."""
    if about.log_bytes > segment.size or about.base_offset != segment.base_offset:
        return False
    header = header_at(segment.view(about.last_position, HEADER_BYTES), 0)
    return header is not None and header.crc == about.last_crc

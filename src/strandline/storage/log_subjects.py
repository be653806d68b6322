"""The subject indexes of a log: loaded from their files, or built if there are none.

Rules: writes do not index. A sealed segment's index is built on a thread and kept in a mapped file.
The active segment's index is in memory, built on first use and then extended; it gets a file, too,
when the segment stops growing. A segment with corruption has no index, so it is read, and the
corruption is found. In an encrypted stream the file is a sealed batch whose value is the index: it
is decrypted into memory, and no subject is on disk in clear. Any thread.
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
"""An active segment's index file is written again when this many more bytes are indexed."""
MERGE_BYTES: Final = 128 << 20
"""After this many bytes of log the rows are merged, so that decoded batches are freed."""
T = TypeVar("T")


class IndexedFiles(Protocol):
    """The part of a log that its indexes use."""

    sealer: Sealer | None

    def decrypted(self, batches: Buffer) -> pa.Buffer:
        """Return batches decrypted."""

    def keep_index(self, segment: Segment, path: Path, data: Buffer) -> bool:
        """Write a segment's index file unless the segment was removed; return whether it was."""


class GrowingIndex:
    """The index of a segment that is not complete yet.

    Args:
        segment: an active segment, or a sealed one without an index file.
        log: decrypts batches.
        beginning: the index of the segment's beginning, from a file.
    """

    def __init__(
        self, segment: Segment, log: IndexedFiles, beginning: SubjectIndex | None = None
    ) -> None:
        self._segment = segment
        self._log = log
        self.truncations = segment.truncations
        """The segment's truncations so far; after another one this index is invalid."""
        self.lock = threading.Lock()
        self.runs: list[SubjectIndex] = []
        """Indexes of consecutive parts, each about twice as large as the next."""
        self.is_broken = False
        """Whether corruption was found, so that some subjects are unknown."""
        self._about = IndexedLog(0, 0, 0, segment.base_offset, segment.base_offset)
        self._flags = 0
        if beginning is not None:
            self.runs, self._about = [beginning], beginning.about
        self.stored_bytes = self._about.log_bytes
        """How many bytes of the segment the index file covers."""

    def catch_up(self) -> None:
        """Index the batches appended since the last call; the lock must be held.

        Raises:
            StrandlineError: the segment cannot be read or decrypted.
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
        """How many bytes of the segment are indexed."""
        return self._about.log_bytes

    def whole(self) -> Buffer | None:
        """Return one index of all parts; None if there is none. The lock must be held."""
        return None if self.is_broken or not self.runs else self._merged(self.runs)

    def _next_batches(self, size: int) -> tuple[memoryview, Run]:
        position, segment = self._about.log_bytes, self._segment
        view = segment.view(position, min(WINDOW_BYTES, size - position))
        header = header_at(view, 0)
        if header is not None and len(view) < header.length <= size - position:
            view = segment.view(position, header.length)
        return view, scan(view, 0, len(view), below=OFFSET_MAX)

    def _rows(self, batches: memoryview) -> list[SubjectRows]:
        """Return the records of batches that readers may see."""

        def counts(_producer_id: int, _base_offset: int) -> bool:
            self._flags = HAS_TRANSACTIONS
            return True

        found = []
        for piece in visible_stretches(batches, counts):
            plain: Buffer | pa.Buffer = piece
            if self._log.sealer is not None:  # which may open only the first of several
                each = (self._log.decrypted(piece[at : at + size]) for at, size in walk(piece))
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
        log: the log.
        disk: the file system.
    """

    def __init__(self, log: IndexedFiles, disk: Disk) -> None:
        self._log = log
        self._disk = disk
        self._lock = threading.Lock()
        """Held while an index is loaded, so that it is loaded once."""

    def look(self, segment: Segment, ask: Callable[[SubjectIndex], T]) -> list[T] | None:
        """Call ``ask`` with each part of a segment's index, in order of offsets.

        Returns:
            The results; None if the segment has no index, so that its records have to be read.

        Raises:
            RetiredSegmentError: the segment was removed or replaced.
            StrandlineError: the segment cannot be read or decrypted.
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
        """Write the missing index file of a sealed segment, or that of an active one.

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
            stored.truncations = growing.truncations
            segment.subjects = stored

    def _indexes(self, segment: Segment) -> list[SubjectIndex] | None:
        is_sealed = segment.sealed
        with self._lock:
            known = segment.subjects
            if isinstance(known, GrowingIndex) and known.truncations != segment.truncations:
                known = None
            if known is None:
                known = self._load(segment)
                if known is None or known.about.log_bytes < segment.size or not is_sealed:
                    known = GrowingIndex(segment, self._log, known)
            segment.subjects = known
        if is_sealed:
            MAPPED_SEGMENTS.note_use(segment)  # unmapping the segment also frees its index
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
        """Write an index file; if that fails the index stays in memory."""
        stored: Buffer = data
        if self._log.sealer is not None:
            stamp = Stamp(Offset(0), LeaderEpoch(0), TimestampNs(0), "none")
            stored = self._log.sealer.seal(encode_records([bytes(data)], [""], stamp))
        kept: SubjectIndex | None = None
        try:
            if self._log.keep_index(segment, segment.path.with_suffix(SUBJECTS_SUFFIX), stored):
                kept = self._load(segment)
        except StrandlineError:
            kept = None  # such as a full disk: the file is only a cache
        return kept or SubjectIndex(data)

    def _load(self, segment: Segment) -> SubjectIndex | None:
        """Return the index in a sealed segment's file; None: there is no file, or it is invalid."""
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
        for batch in decode_batches(self._log.decrypted(stored), columns=["value"]):
            value: bytes = batch.column(0)[0].as_py()
            return value
        return b""


def _describes(about: IndexedLog, segment: Segment) -> bool:
    """Whether an index describes this segment or its beginning, not batches since truncated."""
    if about.log_bytes > segment.size or about.base_offset != segment.base_offset:
        return False
    header = header_at(segment.view(about.last_position, HEADER_BYTES), 0)
    return header is not None and header.crc == about.last_crc

"""The read side of a log: its present segments, and batches from an offset on.

Any thread may use it while another writes: readers take the tuple of segments once, and what they
hold stays valid. A batch is served only if its checksum is right; corruption raises
``CorruptBatchError``, which has the offset at which reading can continue. Must not know how
segments are added and removed.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from strandline.errors import (
    CorruptBatchError,
    LogPoisonedError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    StrandlineError,
)
from strandline.record.batch import HEADER_BYTES, Buffer
from strandline.record.sealed import Sealer
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.storage.scan import OFFSET_MAX, header_at, intact_at, scan
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import RetiredSegmentError
from strandline.storage.time_index import first_record_at
from strandline.types import Offset, Position, TimestampNs

T = TypeVar("T")


class LogSlice(NamedTuple):
    """Consecutive whole, intact batches; empty if there is nothing to serve from the offset on.

    An empty slice may still advance the offset: compaction may have removed everything there.
    """

    buffer: memoryview
    base_offset: Offset
    """The base offset of the first batch; below the requested offset if that lies inside the batch,
    above it if compaction removed records."""
    next_offset: Offset
    """The offset at which to continue."""
    file: Path
    position: Position


class Layout(NamedTuple):
    """The segments and their base offsets, replaced together."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]


class LogReads:
    """The read side of a log.

    Attributes:
        log_start_offset: the first offset that may be read.
        poisoned: a write or sync failed; the log has to be reopened.
    """

    def __init__(self, directory: Path, segments: Sequence[Segment], start: Offset) -> None:
        self.directory = directory
        self.log_start_offset = start
        self.poisoned = False
        self.sealer: Sealer | None = None
        """Encrypts and decrypts the batches of an encrypted stream; they are served as stored."""
        self._closed = False
        self._arrange(segments)

    def seal_with(self, sealer: Sealer | None) -> None:
        """Encrypt and decrypt batches with ``sealer``; None: they are stored in clear."""
        self.sealer = sealer

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record."""
        return self._active.next_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches, without indexes."""
        return sum(segment.size for segment in self._layout.segments)

    def bytes_from(self, offset: int) -> int:
        """Return about how many bytes there are from an offset to the end, rounded up."""

        def count(layout: Layout) -> int:
            first = max(bisect_right(layout.bases, offset) - 1, 0)
            later = sum(segment.size for segment in layout.segments[first + 1 :])
            return later + layout.segments[first].bytes_from(offset)

        return self.with_layout(count)

    def with_layout(self, look: Callable[[Layout], T]) -> T:
        """Call ``look`` with the segments; again if one was removed or replaced meanwhile.

        Raises:
            ShuttingDownError: the log was closed or deleted.
        """
        while True:
            layout = self._layout
            try:
                return look(layout)
            except RetiredSegmentError:
                if self._closed:
                    raise self._unusable_error() from None
                if layout is self._layout:
                    raise

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The present segments, the last one active."""
        return self._layout.segments

    def _arrange(self, segments: Sequence[Segment]) -> None:
        self._layout = Layout(tuple(segments), tuple(s.base_offset for s in segments))
        self._active = segments[-1]

    def read(
        self, offset: int, bytes_max: int, *, below: int = OFFSET_MAX, verify: bool = True
    ) -> LogSlice:
        """Return whole batches, starting with the one that contains ``offset``.

        Args:
            offset: from the log start offset to the log end offset.
            bytes_max: the most bytes to return, but at least one batch.
            below: return only batches whose base offset is less than this.
            verify: check every batch's checksum.

        Returns:
            Batches up to the first corruption; those of sealed segments are not copied.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            CorruptBatchError: the offset is in a corrupt batch; has the offset to continue at.
        """
        return self.with_layout(
            lambda layout: self._read(layout, offset, bytes_max, below=below, verify=verify)
        )

    def is_at_hand(self, offset: int) -> bool:
        """Return whether a record can be read at once: it is in memory, and in a small batch."""
        layout = self._layout
        segment = layout.segments[max(bisect_right(layout.bases, offset) - 1, 0)]
        try:
            return segment.is_at_hand(offset)
        except StrandlineError:
            return False  # whoever reads the record gets the error

    def _read(
        self, layout: Layout, offset: int, bytes_max: int, *, below: int, verify: bool
    ) -> LogSlice:
        if self._closed:
            raise self._unusable_error()
        limit = layout.segments[-1].next_offset
        if not self.log_start_offset <= offset <= limit:
            raise self._out_of_range(offset)
        for index in range(max(bisect_right(layout.bases, offset) - 1, 0), len(layout.segments)):
            segment = layout.segments[index]
            place = segment.locate(offset, verify=verify)
            if place is None:
                continue
            found = _collect(segment, place.position, bytes_max, below=below, verify=verify)
            if found is None:  # the remembered position was stale
                segment.forget(offset)
                place = segment.locate(offset, verify=verify)
                if place is None:
                    continue
                found = _collect(segment, place.position, bytes_max, below=below, verify=verify)
            if found is None:
                raise segment.corrupt(segment.hole(place.position, place.expected))
            if found.buffer:
                self._prepare_next(layout, index, found)
            return found._replace(next_offset=Offset(max(found.next_offset, offset)))
        end, following = layout.segments[-1], Offset(max(offset, min(limit, below)))
        return LogSlice(memoryview(b""), following, following, end.path, Position(end.size))

    def read_dense(self, offset: int, bytes_max: int, *, below: int = OFFSET_MAX) -> LogSlice:
        """Read like ``read``, from a log without compaction: a gap in the offsets is corruption.

        Raises:
            OffsetOutOfRangeError, CorruptBatchError: as ``read``.
        """
        found = self.read(offset, bytes_max, below=below)
        following = found.base_offset
        if following <= offset:
            return found
        raise CorruptBatchError(
            f"records {offset} to {following - 1} are missing from the files before it;"
            f" reading can continue at offset {following}",
            file=str(found.file),
            position=found.position,
            first_offset=offset,
            next_offset=following,
        )

    def _prepare_next(self, layout: Layout, index: int, found: LogSlice) -> None:
        """Remember the reader's position, read ahead, and limit the maps."""
        segment = layout.segments[index]
        end = found.position + len(found.buffer)
        if end < segment.size or not segment.sealed:
            segment.remember(found.next_offset, end)
        if not segment.sealed:
            return
        MAPPED_SEGMENTS.note_use(segment)
        if not found.position and index:
            passed = layout.segments[index - 1]
            passed.read_past(0, passed.size)
        if segment.read_ahead(found.position, end):
            layout.segments[index + 1].read_ahead(0, 0)

    def decrypted(self, batches: Buffer) -> pa.Buffer:
        """Return this log's batches decrypted, if the stream is encrypted; see ``Sealer``.

        Raises:
            EncryptionKeyError, DecryptionError: the first batch cannot be decrypted.
        """
        return pa.py_buffer(batches) if self.sealer is None else self.sealer.decrypt(batches)

    def offset_since(self, timestamp_ns: TimestampNs) -> Offset:
        """Return an offset before all records since ``timestamp_ns``, searching backwards.

        The result may be too early, but not too late. One record with a wrong timestamp moves it by
        a segment or two, while ``offset_for_timestamp`` would return that record.
        """
        newest: list[int] = []
        start = self.log_start_offset
        for segment in reversed([each for each in self._layout.segments if each.size]):
            segment.timestamps()
            newest.append(segment.max_timestamp)
            # A segment older than its predecessor was written after the clock was set back.
            if len(newest) > 1 and newest[-1] <= newest[-2] < timestamp_ns:
                start = max(start, Offset(segment.next_offset))
                break
        return self.offset_for_timestamp(timestamp_ns, start=start)

    def offset_for_timestamp(
        self, timestamp_ns: TimestampNs, *, start: Offset | None = None
    ) -> Offset:
        """Return the offset of the first record whose timestamp is at or after ``timestamp_ns``.

        Args:
            timestamp_ns: Unix time.
            start: search from this offset on; None: the whole log.

        Returns:
            The log end offset if there is none. Corrupt batches are skipped. If a batch cannot be
            decrypted, its first offset is returned, which is not too late.
        """
        first = max(start or 0, self.log_start_offset)

        def find(layout: Layout) -> Offset:
            for segment in layout.segments:
                if segment.next_offset > first:
                    found = first_record_at(
                        segment, timestamp_ns, start=first, decrypt=self.decrypted
                    )
                    if found is not None:
                        return Offset(found)
            return Offset(layout.segments[-1].next_offset)

        return self.with_layout(find)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {offset} is not in the log, which holds"
            f" {self.log_start_offset} up to (not including) {self.log_end_offset}"
        )

    def _unusable_error(self) -> LogPoisonedError | ShuttingDownError:
        if self._closed:
            return ShuttingDownError("the log was closed or deleted")
        return LogPoisonedError(f"a write to {self.directory} failed; reopen the log to verify it")


def _collect(
    segment: Segment, position: int, bytes_max: int, *, below: int, verify: bool
) -> LogSlice | None:
    """Return the intact batches from ``position`` on; None if there is corruption first."""
    rest = segment.size - position
    view = segment.view(position, min(max(bytes_max, HEADER_BYTES), rest))
    header = header_at(view, 0)
    if header is None:
        return None
    if header.base_offset >= below:
        whole = segment.view(position, min(header.length, rest))
        if verify and intact_at(whole, 0) is None:
            return None  # a corrupt base offset must not look like the end of the read
        following = Offset(below)
        return LogSlice(memoryview(b""), following, following, segment.path, Position(position))
    if len(view) < header.length <= rest:
        view = segment.view(position, header.length)
    run = scan(view, 0, len(view), below=below, verify=verify)
    if not run.end:
        return None
    return LogSlice(
        view[: run.end],
        header.base_offset,
        Offset(run.next_offset),
        segment.path,
        Position(position),
    )

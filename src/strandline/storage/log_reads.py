"""The read side of a log: its segments at a moment, and batches from an offset on.

Any thread may use it while another writes: readers take the tuple of segments once and keep alive
what they hold. A batch is served only if its checksum is right; corruption raises
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
    """Of the first batch; may be below the offset asked for, or above it where compaction cut."""
    next_offset: Offset
    """The offset of the next read."""
    file: Path
    position: Position


class Layout(NamedTuple):
    """Segments and their base offsets, replaced together."""

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
        """Decrypts the batches of an encrypted stream, which are served as stored."""
        self._closed = False
        self._arrange(segments)

    def seal_with(self, sealer: Sealer | None) -> None:
        """Encrypt and decrypt batches by ``sealer``; None: they are stored in the clear."""
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
        """Return the bytes from an offset to the end, or a little more: the index is sparse."""

        def count(layout: Layout) -> int:
            first = max(bisect_right(layout.bases, offset) - 1, 0)
            later = sum(segment.size for segment in layout.segments[first + 1 :])
            return later + layout.segments[first].bytes_from(offset)

        return self.as_it_is(count)

    def as_it_is(self, look: Callable[[Layout], T]) -> T:
        """Call ``look``, again if a segment was removed or replaced meanwhile.

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
        """The segments at this moment, the last one active."""
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
            below: only batches whose base offset is less than this.
            verify: check every batch's checksum.

        Returns:
            Batches up to the first corruption; those of sealed segments are not copied.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            CorruptBatchError: the offset is in a corrupt batch; has the offset to continue at.
        """
        return self.as_it_is(
            lambda layout: self._read(layout, offset, bytes_max, below=below, verify=verify)
        )

    def is_at_hand(self, offset: int) -> bool:
        """Return whether a record can be read at once: it is in memory, and in a small batch."""
        layout = self._layout
        segment = layout.segments[max(bisect_right(layout.bases, offset) - 1, 0)]
        try:
            return segment.is_at_hand(offset)
        except StrandlineError:
            return False  # who reads it gets the error

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
            f" reading can go on from offset {following}",
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

    def opened(self, batches: Buffer) -> pa.Buffer:
        """Return this log's batches decrypted, if the stream is encrypted; see ``Sealer``.

        Raises:
            EncryptionKeyError, DecryptionError: the first one cannot be decrypted.
        """
        return pa.py_buffer(batches) if self.sealer is None else self.sealer.open(batches)

    def offset_since(self, timestamp_ns: TimestampNs) -> Offset:
        """Return the offset at which records since ``timestamp_ns`` begin, searching backwards.

        The result may be too early, not too late. A single record with a wrong timestamp moves it
        by a segment or two; it would move that of ``offset_for_timestamp`` to the record.
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
            The log end offset if there is none. Corrupt batches are skipped. Of a batch that
            cannot be decrypted it is the first offset, which is not too late.
        """
        first = max(start or 0, self.log_start_offset)

        def find(layout: Layout) -> Offset:
            for segment in layout.segments:
                if segment.next_offset > first:
                    found = first_record_at(segment, timestamp_ns, start=first, opened=self.opened)
                    if found is not None:
                        return Offset(found)
            return Offset(layout.segments[-1].next_offset)

        return self.as_it_is(find)

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
            return None  # a corrupt offset must not look like an uncommitted one
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

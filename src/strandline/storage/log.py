"""A partition's log: segments in a row, the last of them active.

``log_start_offset <= ... <= log_end_offset``, half-open. ``append``, ``roll``, ``truncate_to``,
``truncate_before``, ``checkpoint``, ``replace`` and ``delete`` belong to one thread; everything
else may run on any number of threads meanwhile: readers take the tuple of segments once and keep
what they hold alive. ``flush`` may run on another thread too.

Rules: a batch is served only if its checksum is right; damage raises ``CorruptBatchError`` that
says where reading can go on. A failed write or sync poisons the log; a full disk does not, and
leaves it as it was. Does not decode records and knows nothing of the journal.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from strandline.errors import (
    CorruptBatchError,
    DiskFullError,
    LogPoisonedError,
    OffsetOutOfRangeError,
    ShuttingDownError,
)
from strandline.record.batch import HEADER_BYTES, BatchHeader
from strandline.storage.checkpoint import LogCheckpoint
from strandline.storage.disk import Bytes, Disk
from strandline.storage.log_redo import START_NAME, LogRedo, format_start
from strandline.storage.scan import OFFSET_MAX, header_at, intact_at, scan
from strandline.storage.segment import Segment
from strandline.storage.time_index import first_record_at
from strandline.types import Offset, Position, TimestampNs

DELETED_SUFFIX = ".deleted"
MAPPED_MAX = 8
"""Sealed segments of one log that stay mapped for readers to come."""


class LogSlice(NamedTuple):
    """Whole intact batches in a row; empty if there is nothing to serve from the offset on.

    An empty one may still have moved on: compaction may have removed all that was left.
    """

    buffer: memoryview
    base_offset: Offset
    """Of the first batch; may be below the offset asked for, or above it where compaction cut."""
    next_offset: Offset
    """Where the next read goes on."""
    file: Path
    position: Position


class _Layout(NamedTuple):
    """Segments and their base offsets, swapped together."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]


class Log:
    """Batches of one partition, in order of offset.

    Attributes:
        log_start_offset: the first offset that may be read.
        poisoned: a write or sync failed; only reopening helps.
    """

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk,
        segment_bytes: int,
        segment_age_ms: int,
        segments: Sequence[Segment],
        log_start_offset: Offset,
    ) -> None:
        assert segments, "a log has an active segment at least"
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segment_age_ms = segment_age_ms
        self.poisoned = False
        self._disk = disk
        self._mapped: tuple[Segment, ...] = ()
        self._stable_base = 0
        self._closed = False
        self.log_start_offset = log_start_offset
        if log_start_offset > segments[-1].next_offset:
            # What was removed was not durable itself; its offsets stay used all the same.
            segments[-1].seal()
            segments = [*segments, Segment(directory, log_start_offset, disk=disk)]
        self._arrange(segments)
        self._drop_below(log_start_offset)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        disk: Disk,
        segment_bytes: int,
        segment_age_ms: int,
        at: LogCheckpoint | None = None,
    ) -> "Log":
        """Open or create a log on its own; ``recovery`` opens logs with their journal.

        Args:
            directory: made if missing.
            disk: the file system.
            segment_bytes: roll to a new segment before it would grow beyond this.
            segment_age_ms: roll when the active segment spans more than this.
            at: how far it is known to be durable; None scans the last segment instead.

        Raises:
            LogPoisonedError: the files cannot be read or cut.
        """
        redo = LogRedo(directory, disk=disk, segment_bytes=segment_bytes, at=at)
        return cls.redone(redo, disk=disk, segment_age_ms=segment_age_ms)

    @classmethod
    def redone(
        cls, redo: LogRedo, *, disk: Disk, segment_age_ms: int, keep_lost: bool = False
    ) -> "Log":
        """The log that a recovery has brought up to date."""
        return cls(
            redo.directory,
            disk=disk,
            segment_bytes=redo.segment_bytes,
            segment_age_ms=segment_age_ms,
            segments=redo.finish(keep_lost=keep_lost),
            log_start_offset=redo.log_start_offset,
        )

    # -- state ---------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> Offset:
        """The offset the next record gets."""
        return Offset(self._layout.segments[-1].next_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches, without indexes."""
        return sum(segment.size for segment in self._layout.segments)

    def bytes_from(self, offset: int) -> int:
        """Bytes from an offset to the end; a little more, as the index knows only some places."""
        layout = self._layout
        first = max(bisect_right(layout.bases, offset) - 1, 0)
        later = sum(segment.size for segment in layout.segments[first + 1 :])
        return later + layout.segments[first].bytes_from(offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments at this moment, the last one active."""
        return self._layout.segments

    @property
    def stable_segments(self) -> tuple[Segment, ...]:
        """Sealed segments that no recovery will touch, so that compaction may replace them."""
        return tuple(s for s in self._layout.segments[:-1] if s.base_offset < self._stable_base)

    def _arrange(self, segments: Sequence[Segment]) -> None:
        self._layout = _Layout(tuple(segments), tuple(s.base_offset for s in segments))

    # -- writing (one thread) --------------------------------------------------------------------

    def append(self, batch: Bytes, header: BatchHeader) -> None:
        """Add a batch at the end; not synced, and readable at once.

        Args:
            batch: exactly one batch, which is kept and must not change.
            header: its decoded header; the base offset is the log end offset.

        Raises:
            DiskFullError: no space; the log is as before and may be appended to later.
            LogPoisonedError: now or earlier a write failed.
        """
        if self.poisoned or self._closed:
            raise self._refusal()
        active = self._layout.segments[-1]
        assert header.base_offset == active.next_offset, "offsets are dense"
        try:
            if active.size and self._is_due(active, header):
                active = self._roll(active)
            active.append(batch, header)
        except LogPoisonedError:
            self.poisoned = True
            raise

    def _is_due(self, active: Segment, header: BatchHeader) -> bool:
        if active.size + header.length > self.segment_bytes:
            return True
        span = header.last_timestamp - active.first_timestamp
        return span > self.segment_age_ms * 1_000_000 > 0

    def roll(self) -> None:
        """Seal the active segment, if it holds anything, and begin a new one.

        Raises:
            DiskFullError: no space; the log is as before.
            LogPoisonedError: now or earlier a write failed.
        """
        if self.poisoned or self._closed:
            raise self._refusal()
        active = self._layout.segments[-1]
        try:
            if active.size:
                self._roll(active)
        except LogPoisonedError:
            self.poisoned = True
            raise

    def _roll(self, active: Segment) -> Segment:
        active.seal()
        fresh = Segment(self.directory, active.next_offset, disk=self._disk)
        self._arrange([*self._layout.segments, fresh])
        return fresh

    def truncate_to(self, offset: int) -> Offset:
        """Remove the records from ``offset`` on, and the whole batch if it is inside one.

        Returns:
            The log end offset, at most ``offset``.

        Raises:
            OffsetOutOfRangeError: below the log start offset.
            LogPoisonedError: the files could not be cut.
        """
        if offset < self.log_start_offset:
            raise self._out_of_range(offset)
        if offset >= self.log_end_offset:
            return self.log_end_offset
        try:
            self._cut(offset)
        except (LogPoisonedError, DiskFullError):
            self.poisoned = True  # the files may already be shorter than the log believes
            raise
        return self.log_end_offset

    def _cut(self, offset: int) -> None:
        segments = list(self._layout.segments)
        while segments[-1].base_offset > offset:
            segments.pop().remove_files()
        last = segments[-1]
        place = last.locate(offset, verify=False)
        position, end = last.size, offset
        if place is not None:
            position = place.position
            header = header_at(last.view(position, HEADER_BYTES), 0)
            end = min(offset, header.base_offset) if header is not None else offset
        if last.sealed:
            segments[-1] = self._unsealed(last, position, end)
        else:
            last.cut(position, end)
        self._arrange(segments)

    def _unsealed(self, segment: Segment, position: int, next_offset: int) -> Segment:
        """A copy of the beginning of a sealed segment under its name: readers map the old file."""
        segment.pin()
        content = segment.view(0, position)
        self._disk.write_atomically(segment.path, content)
        fresh = Segment(self.directory, segment.base_offset, disk=self._disk)
        fresh.size, fresh.next_offset = position, next_offset
        fresh.adopt(position)
        fresh.has_durable_name = True
        fresh.load_indexes()
        return fresh

    def truncate_before(self, offset: int) -> None:
        """Remove the records below ``offset``: durably unreadable, files go by whole segments.

        Raises:
            OffsetOutOfRangeError: beyond the log end offset.
            DiskFullError: no space for the new start, even after removing segments.
            LogPoisonedError: a write failed.
        """
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset <= self.log_start_offset:
            return
        path, text = self.directory / START_NAME, format_start(offset)
        try:
            self._disk.write_atomically(path, text)
        except DiskFullError:
            # What goes may be just the space that is missing. Recovery finds by itself that files
            # before the checkpoint are gone; the others must wait until the start is durable.
            self._drop_below(min(offset, self._stable_base))
            self._disk.sync_directory(self.directory)
            self._disk.write_atomically(path, text)
        self.log_start_offset = Offset(offset)
        self._drop_below(offset)

    def restart_at(self, offset: int) -> None:
        """Give up every record and go on, empty, at ``offset`` beyond the end; durable on return.

        For a copy that was away for so long that what comes next here is gone everywhere else.

        Raises:
            DiskFullError: no space; nothing changed.
            LogPoisonedError: a write failed.
        """
        assert offset > self.log_end_offset, "up to the end, truncate_before does"
        self._disk.write_atomically(self.directory / START_NAME, format_start(offset))
        old = self._layout.segments
        self._arrange([Segment(self.directory, Offset(offset), disk=self._disk)])
        self.log_start_offset = Offset(offset)
        for segment in old:
            segment.remove_files()
        # Their names must not come back after a power loss: recovery would go on in them.
        self._disk.sync_directory(self.directory)

    def _drop_below(self, offset: int) -> None:
        segments = self._layout.segments
        keep = [s for s in segments[:-1] if s.next_offset > offset]
        if len(keep) + 1 < len(segments):
            gone = segments[: len(segments) - 1 - len(keep)]
            self._arrange([*keep, segments[-1]])
            self.log_start_offset = Offset(max(self.log_start_offset, self._layout.bases[0]))
            for segment in gone:
                segment.remove_files()

    def replace(self, old: Segment, new: Segment | None) -> None:
        """Swap a sealed segment for its compacted self, or take it out if nothing is left of it."""
        segments = [new if segment is old else segment for segment in self._layout.segments]
        self._arrange([segment for segment in segments if segment is not None])

    def delete(self) -> None:
        """Remove the log and its directory; readers that are in the middle finish.

        Raises:
            LogPoisonedError: a file could not be removed.
        """
        self._closed = True
        for segment in self._layout.segments:
            segment.pin()
        delete_log_directory(self.directory, disk=self._disk)

    def close(self) -> None:
        """Let go of the files; what was not flushed is the journal's to bring back."""
        self._closed = True
        for segment in self._layout.segments:
            segment.release()

    # -- checkpoint ------------------------------------------------------------------------------

    def checkpoint(self) -> LogCheckpoint:
        """The state that the next ``flush`` makes durable; on the owner's thread.

        Raises:
            DiskFullError: no space to write what was gathered in memory; the log is as before.
            LogPoisonedError: now or earlier a write failed.
        """
        if self.poisoned:
            raise self._refusal()
        active = self._layout.segments[-1]
        try:
            active.write_pending()
        except LogPoisonedError:
            self.poisoned = True
            raise
        return LogCheckpoint(
            segment_base=Offset(active.base_offset),
            position=Position(active.size),
            log_start_offset=self.log_start_offset,
            log_end_offset=Offset(active.next_offset),
            first_timestamp=active.first_timestamp,
            max_timestamp=active.max_timestamp,
        )

    def flush(self) -> None:
        """Make everything up to the last ``checkpoint`` survive a power loss; any thread.

        Raises:
            DiskFullError: no space for an index; call again later.
            LogPoisonedError: a sync failed.
        """
        if self._closed:
            return
        try:
            unnamed: list[Segment] = []
            for segment in reversed(self._layout.segments):
                if segment.sealed and segment.has_durable_name and segment.is_synced:
                    break
                if segment.written_bytes and not segment.has_durable_name:
                    unnamed.append(segment)
                segment.sync()
                segment.write_indexes()
                segment.release()
            if unnamed:
                self._disk.sync_directory(self.directory)
            for segment in unnamed:
                segment.has_durable_name = True
        except LogPoisonedError:
            if self._closed:  # deleted meanwhile, and its names with it
                return
            self.poisoned = True
            raise

    def mark_checkpointed(self, checkpoint: LogCheckpoint) -> None:
        """Tell that ``checkpoint`` is durable: what is sealed before it may be compacted."""
        self._stable_base = checkpoint.segment_base

    # -- reading (any thread) ----------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int, *, below: int = OFFSET_MAX, verify: bool = True
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset`` on.

        Args:
            offset: from the log start offset to the log end offset.
            bytes_max: at most so many bytes, but one batch at least.
            below: only batches whose base offset is less than this.
            verify: check every batch's checksum.

        Returns:
            Batches that end before damage, if there is any; of sealed segments without a copy.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            CorruptBatchError: the offset is in a damaged batch; says where reading can go on.
        """
        layout = self._layout
        if self._closed:
            raise self._refusal()
        limit = layout.segments[-1].next_offset
        if not self.log_start_offset <= offset <= limit:
            raise self._out_of_range(offset)
        for index in range(max(bisect_right(layout.bases, offset) - 1, 0), len(layout.segments)):
            segment = layout.segments[index]
            place = segment.locate(offset, verify=verify)
            if place is None:
                continue
            found = _collect(segment, place.position, bytes_max, below=below, verify=verify)
            if found is None:  # the note about the offset was stale
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
        """As ``read``, where compaction has removed nothing: records that are missing are damage.

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

    def _prepare_next(self, layout: _Layout, index: int, found: LogSlice) -> None:
        """Expect a sequential reader: remember its place, ask for data ahead, bound the maps."""
        segment = layout.segments[index]
        end = found.position + len(found.buffer)
        if end < segment.size or not segment.sealed:
            segment.remember(found.next_offset, end)
        if not segment.sealed:
            return
        if segment not in self._mapped:
            mapped = (*self._mapped, segment)
            self._mapped = mapped[-MAPPED_MAX:]
            for passed in mapped[:-MAPPED_MAX]:
                passed.release()
        if not found.position and index:
            passed = layout.segments[index - 1]
            passed.read_past(0, passed.size)
        if segment.read_ahead(found.position, end):
            layout.segments[index + 1].read_ahead(0, 0)

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> Offset:
        """The offset of the first record whose timestamp is at or after ``timestamp_ns``.

        Returns:
            The log end offset if there is none. Damaged batches are passed over.
        """
        segments = self._layout.segments
        for segment in segments:
            if segment.next_offset > self.log_start_offset:
                found = first_record_at(segment, timestamp_ns, start=self.log_start_offset)
                if found is not None:
                    return Offset(found)
        return Offset(segments[-1].next_offset)

    # -- errors ------------------------------------------------------------------------------------

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {offset} is not in the log, which holds"
            f" {self.log_start_offset} up to (not including) {self.log_end_offset}"
        )

    def _refusal(self) -> LogPoisonedError | ShuttingDownError:
        if self._closed:
            return ShuttingDownError("the log was closed or deleted")
        return LogPoisonedError(f"a write to {self.directory} failed; reopen the log to verify it")


def _collect(
    segment: Segment, position: int, bytes_max: int, *, below: int, verify: bool
) -> LogSlice | None:
    """The intact batches from ``position`` on; None if there is none where one should be."""
    rest = segment.size - position
    view = segment.view(position, min(max(bytes_max, HEADER_BYTES), rest))
    header = header_at(view, 0)
    if header is None:
        return None
    if header.base_offset >= below:
        whole = segment.view(position, min(header.length, rest))
        if verify and intact_at(whole, 0) is None:
            return None  # a damaged offset must not pass for one that is not committed yet
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


def delete_log_directory(directory: Path, *, disk: Disk) -> None:
    """Remove a log's files and their directory; fine if it is not there.

    The directory loses its name first, so that a flush on another thread cannot add to it, and a
    crash in the middle leaves nothing that looks like a log.

    Raises:
        LogPoisonedError: a file could not be removed.
    """
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    _remove_directory(doomed, disk=disk)
    if disk.exists(directory):
        disk.rename(directory, doomed)
        disk.sync_directory(directory.parent)
    _remove_directory(doomed, disk=disk)


def _remove_directory(directory: Path, *, disk: Disk) -> None:
    for name in disk.listing(directory):
        disk.unlink(directory / name)
    disk.remove_directory(directory)

"""A partition's log: consecutive segments, the last of them active.

``log_start_offset <= ... <= log_end_offset``, half-open. ``append``, ``roll``, ``move_start`` and
``checkpoint`` belong to one thread. Everything else may run on any number of threads meanwhile:
readers take the tuple of segments once, and retry if one of them was removed. ``store_start``,
``replace``, ``flush``, ``sync_written`` and, after the last write, ``delete`` may run on other
threads, too. So may ``truncate_to`` and ``restart_at``, as long as nothing is appended.

Removed segments leave the tuple at once; ``reclaim`` removes their files, since a file system takes
long to free gigabytes.

Rules: a batch is served only if its checksum is right; corruption raises ``CorruptBatchError``,
which has the offset at which reading can continue. A failed write or sync poisons the log; a full
disk does not, and leaves it as it was. Does not decode records. ``log_durability`` describes which
failures each part survives.
"""

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from strandline.errors import DiskFullError, LogPoisonedError
from strandline.record.batch import HEADER_BYTES, TIMESTAMP_MIN, BatchHeader, Extent
from strandline.storage.checkpoint import LogCheckpoint
from strandline.storage.disk import Bytes, Disk
from strandline.storage.journal import Journal
from strandline.storage.log_directory import doom_log_directory, remove_doomed
from strandline.storage.log_durability import LogDurability
from strandline.storage.log_replay import LogReplayer
from strandline.storage.log_start import START_NAME, format_start
from strandline.storage.log_subjects import LogSubjects
from strandline.storage.scan import header_at
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import SUBJECTS_SUFFIX, RetiredSegmentError
from strandline.storage.truncation_marker import TruncationMarker, write_marker
from strandline.types import Offset


class _TruncationPoint(NamedTuple):
    """The point at which a log is truncated.

    Attributes:
        segments: how many segments are kept.
        position: how many bytes of the last of them are kept.
        end: the log end offset after the truncation.
    """

    segments: int
    position: int
    end: int


class Log(LogDurability):
    """Batches of one partition, in order of offset."""

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
        self.segment_bytes = segment_bytes
        self.segment_age_ms = segment_age_ms
        if log_start_offset > segments[-1].next_offset:
            # The deleted records were not durable, but their offsets must not be used again.
            segments[-1].seal()
            segments = [*segments, Segment(directory, log_start_offset, disk=disk)]
        super().__init__(directory, segments, log_start_offset, disk=disk)
        self.subjects = LogSubjects(self, disk)
        self._indexed_active = (-1, 0)
        """Base offset and size of the active segment at the last call of ``index_subjects``."""
        self._stored_start = log_start_offset
        """The last log start that was stored durably."""
        self._names_lock = threading.RLock()
        """Held while a thread writes, replaces or removes files by their names."""
        self._truncation_lock = threading.RLock()
        """Held while the log is truncated; acquired before ``_names_lock``."""
        self._layout_lock = threading.Lock()
        """Held while the tuple of segments is replaced, which two threads may do; never for I/O."""
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
            directory: created if missing.
            disk: the file system.
            segment_bytes: roll to a new segment before it would grow beyond this.
            segment_age_ms: roll when the active segment spans more than this.
            at: the part that is known to be durable; None: scan the last segment.

        Raises:
            LogPoisonedError: the files cannot be read or truncated.
        """
        redo = LogReplayer(
            directory, disk=disk, segment_bytes=segment_bytes, at=at, is_only_copy=False
        )
        return cls.from_replay(redo, disk=disk, segment_age_ms=segment_age_ms)

    @classmethod
    def from_replay(
        cls, redo: LogReplayer, *, disk: Disk, segment_age_ms: int, keep_lost: bool = False
    ) -> "Log":
        """Return the log that a replay of the journal has completed."""
        return cls(
            redo.directory,
            disk=disk,
            segment_bytes=redo.segment_bytes,
            segment_age_ms=segment_age_ms,
            segments=redo.finish(keep_lost=keep_lost),
            log_start_offset=redo.log_start_offset,
        )

    @contextmanager
    def files_held(self) -> Iterator[None]:
        """Prevent other threads from replacing, truncating or removing files; any thread.

        Raises:
            ShuttingDownError: the log was closed or deleted.
        """
        with self._names_lock:
            if self._closed:
                raise self._unusable_error()
            yield

    # -- writing (one thread) --------------------------------------------------------------------

    def append(self, batch: Bytes, extent: BatchHeader | Extent) -> bool:
        """Append a batch; not synced, and readable at once.

        Args:
            batch: exactly one batch; the log keeps the buffer, so it must not change.
            extent: the batch's offsets and times; it must start at the log end offset.

        Returns:
            Whether the batches in memory are enough to be worth a system call.

        Raises:
            DiskFullError: no space; the log is as before and may be appended to later.
            LogPoisonedError: a write failed, now or earlier.
        """
        if self.poisoned or self._closed:
            raise self._unusable_error()
        if self._lacked_space:
            self.write_pending()
        active = self._active
        assert extent.base_offset == active.next_offset, "offsets are dense"
        try:
            if active.size and self._is_due(active, extent):
                active = self._roll(active)
            return active.append(batch, extent)
        except LogPoisonedError:
            self.poisoned = True
            raise

    def _is_due(self, active: Segment, extent: BatchHeader | Extent) -> bool:
        if active.size + extent.length > self.segment_bytes:
            return True
        if active.first_timestamp == TIMESTAMP_MIN:
            return False  # only placeholders so far
        # The absolute value, so that a wrong timestamp of the first record keeps no segment open.
        span = abs(extent.last_timestamp - active.first_timestamp)
        return span > self.segment_age_ms * 1_000_000 > 0

    def roll(self) -> None:
        """Seal the active segment, unless it is empty, and begin a new one.

        Raises:
            DiskFullError: no space; the log is as before.
            LogPoisonedError: a write failed, now or earlier.
        """
        if self.poisoned or self._closed:
            raise self._unusable_error()
        if not self._truncation_lock.acquire(blocking=False):
            return  # the log is being truncated; retention retries later
        try:
            active = self._active
            if active.size:
                self._roll(active)
        except LogPoisonedError:
            self.poisoned = True
            raise
        finally:
            self._truncation_lock.release()

    def _roll(self, active: Segment) -> Segment:
        active.seal()
        fresh = Segment(self.directory, active.next_offset, disk=self._disk)
        with self._layout_lock:
            self._arrange([*self._layout.segments, fresh])
        return fresh

    def truncate_to(self, offset: int, *, synced_sequence: int | None = None) -> Offset:
        """Remove the records from ``offset`` on, and the whole batch if it is inside one.

        Durable on return: no recovery restores them, although the journal has them.

        Args:
            offset: not below the log start offset.
            synced_sequence: the journal is durable up to this entry, and no later one has batches
                of this log; None: sync it here, which only the owner's thread may do.

        Returns:
            The log end offset, at most ``offset``; not below the log start.

        Raises:
            OffsetOutOfRangeError: below the log start offset.
            DiskFullError: no space for the marker; the log has to be reopened.
            LogPoisonedError: the files could not be truncated.
        """
        return self._truncate_to(offset, self.journal, synced_sequence)

    def undo_to(self, offset: int) -> Offset:
        """Truncate records that are in no journal entry; no truncation marker is written."""
        return self._truncate_to(offset, None, None)

    def _truncate_to(
        self, offset: int, journal: Journal | None, synced_sequence: int | None
    ) -> Offset:
        with self._truncation_lock, self.files_held():
            if offset < self.log_start_offset:
                raise self._out_of_range(offset)
            if offset >= self.log_end_offset:
                return self.log_end_offset
            self._version += 1
            try:
                self._mark_and_truncate(self._truncation_point(offset), journal, synced_sequence)
            except (LogPoisonedError, DiskFullError):
                self.poisoned = True  # the files may already be shorter than the log's state
                raise
            # Again, because a checkpoint that began meanwhile describes a state in between.
            self._version += 1
            return self.log_end_offset

    def _mark_and_truncate(
        self, place: _TruncationPoint, journal: Journal | None, synced_sequence: int | None
    ) -> None:
        truncations = self.truncations
        if journal is not None:
            truncations = self._write_marker(place, journal, synced_sequence)
        self._truncate(place)
        # Set last: until the log is truncated, the marker must take precedence over any checkpoint.
        self.truncations = truncations
        start = max(self.log_start_offset, self._stored_start)
        if self.log_end_offset < start:  # the log start lies inside the removed batch
            self.restart_at(start)

    def _truncation_point(self, offset: int) -> _TruncationPoint:
        """Return the point at which the segments are truncated for ``offset``."""
        segments = self._layout.segments
        kept = bisect_right(self._layout.bases, offset)
        last = segments[kept - 1]
        place = last.locate(offset, verify=False)
        position, end = last.size, offset
        if place is not None:
            position = place.position
            header = header_at(last.view(position, HEADER_BYTES), 0)
            end = min(offset, header.base_offset) if header is not None else offset
        return _TruncationPoint(kept, position, end)

    def _write_marker(
        self, place: _TruncationPoint, journal: Journal, synced_sequence: int | None
    ) -> int:
        """Write the truncation marker, once the batches that stay are durable.

        Returns:
            The number of truncations, this one included.
        """
        self.write_pending()
        self.sync_written()
        if synced_sequence is None:
            # After a power loss the journal reuses the sequences of lost entries.
            synced_sequence = journal.sync()
        last = self._layout.segments[place.segments - 1]
        state = self._state(last, place.position, end=place.end, truncations=self.truncations + 1)
        write_marker(
            self.directory, TruncationMarker(sequence=synced_sequence, state=state), disk=self._disk
        )
        self._stable_base = min(self._stable_base, last.base_offset)
        return state.truncations

    def _truncate(self, place: _TruncationPoint) -> None:
        kept = self._layout.segments[: place.segments]
        gone = list(reversed(self._layout.segments[place.segments :]))
        for segment in gone:
            segment.doom()  # before the previous segment's remaining batches are written durably
        last = active = kept[-1]
        if last.sealed:
            active = self._unsealed(last, place.position, place.end)
            gone.append(last)
        else:
            last.truncate(place.position, place.end)
        with self._layout_lock:  # retention may have removed the first segments meanwhile
            there = self._layout.segments
            self._arrange([*(each for each in kept[:-1] if each in there), active])
        self._free_segments(gone)

    def _unsealed(self, segment: Segment, position: int, next_offset: int) -> Segment:
        """Return a copy of the beginning of a sealed segment, since readers map the old file."""
        segment.pin()
        content = segment.view(0, position)
        self._disk.write_atomically(segment.path, content)
        fresh = Segment(self.directory, segment.base_offset, disk=self._disk)
        fresh.size, fresh.next_offset = position, Offset(next_offset)
        fresh.adopt(position)
        fresh.has_durable_name = True
        fresh.load_indexes()
        self._disk.unlink(segment.path.with_suffix(SUBJECTS_SUFFIX))
        return fresh

    def delete_before(self, offset: int) -> None:
        """Delete the records below ``offset`` durably; files are removed by whole segments.

        Raises:
            OffsetOutOfRangeError: ``offset`` is beyond the log end offset.
            DiskFullError: no space to store the new start, even after removing segments.
            LogPoisonedError: a write failed.
        """
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset <= self.log_start_offset:
            return
        try:
            self.store_start(offset)
        except DiskFullError:
            self.make_room(offset)
            self.store_start(offset)
        self.move_start(offset)

    def store_start(self, offset: int) -> None:
        """Store the new log start durably; any thread.

        Raises:
            DiskFullError: no space; ``make_room`` may help.
            LogPoisonedError: a write failed.
            ShuttingDownError: the log was closed or deleted; its directory may be a new log's.
        """
        with self.files_held():
            if offset > self._stored_start:
                self._disk.write_atomically(self.directory / START_NAME, format_start(offset))
                self._stored_start = Offset(offset)

    def make_room(self, offset: int) -> None:
        """Remove the segments below ``offset`` that may be removed before the start is stored.

        That may free the space that storing the start needs. Recovery accepts that files before
        the checkpoint are missing; the others must stay until the start is durable.
        """
        self._drop_below(min(offset, self._stable_base))
        self._reclaim(partial(self._disk.sync_directory, self.directory))

    def move_start(self, offset: int) -> None:
        """Move the log start to ``offset``, which was stored, and remove segments below it."""
        if self._closed or offset > self.log_end_offset:
            return  # the log was deleted or truncated meanwhile
        with self._layout_lock:
            self.log_start_offset = Offset(max(offset, self.log_start_offset))
        self._drop_below(offset)

    def restart_at(self, offset: int) -> None:
        """Drop every record and continue, empty, at ``offset`` beyond the end; durable on return.

        For a replica that was offline so long that the leader no longer has the records it lacks.

        Raises:
            DiskFullError: no space; nothing changed.
            LogPoisonedError: a write failed.
        """
        assert offset > self.log_end_offset, "for offsets up to the end call delete_before"
        with self._truncation_lock, self.files_held():
            self._version += 1
            self.store_start(offset)
            with self._layout_lock:
                old = self._layout.segments
                self._arrange([Segment(self.directory, Offset(offset), disk=self._disk)])
                self.log_start_offset = Offset(offset)
            for segment in old:
                segment.doom()
            # The files must not return after a power loss, since recovery would continue in them.
            self._disk.sync_directory(self.directory)
            self._version += 1  # as in ``_truncate_to``
        self._free_segments(old)

    def _drop_below(self, offset: int) -> None:
        with self._layout_lock:
            segments = self._layout.segments
            keep = [s for s in segments[:-1] if s.next_offset > offset]
            gone = segments[: len(segments) - 1 - len(keep)]
            if gone:
                self._arrange([*keep, segments[-1]])
                self.log_start_offset = Offset(max(self.log_start_offset, self._layout.bases[0]))
        self._free_segments(gone)

    def _free_segments(self, gone: Sequence[Segment]) -> None:
        """Free the space of segments that no longer belong to the log.

        If another segment has taken the name, only the mapped bytes are freed.
        """
        names = {segment.path for segment in self._layout.segments}
        if gone:
            self._reclaim(partial(self._remove_files, gone, names))

    def _remove_files(self, segments: Sequence[Segment], names: Collection[Path]) -> None:
        for segment in segments:
            with self._names_lock:
                segment.retire()
                if segment.path in names or self._closed:  # a closed log's goes whole
                    continue
                segment.doom()
            self._disk.remove_large(segment.path)  # takes long; no other segment has this name

    def replace(self, old: Segment, new: Segment, cleaned: Path) -> bool:
        """Replace a sealed segment by its compacted version, unless it was removed meanwhile.

        Args:
            old: the present segment.
            new: the contents of ``cleaned``, which gets the old segment's name; not synced.
            cleaned: the path that it was written to.

        Returns:
            Whether it was replaced.

        Raises:
            LogPoisonedError: renaming failed; the old segment stays.
        """
        with self._names_lock:
            if old not in self._layout.segments[:-1]:
                self._disk.unlink(cleaned)
                return False
            old.pin()
            old.remove_indexes()
            self._disk.rename(cleaned, old.path)
            with self._layout_lock:
                self._arrange([new if each is old else each for each in self._layout.segments])
            self._free_segments([old])  # now, before a truncation may remove the new segment's file
        return True

    def keep_index(self, segment: Segment, path: Path, data: Bytes) -> bool:
        """Write a segment's index file, unless the segment was removed meanwhile; any thread.

        Not synced. A new file replaces the old one, because readers have mapped that.

        Returns:
            Whether it was written.

        Raises:
            DiskFullError: no space.
            LogPoisonedError: the file could not be written.
        """
        fresh = path.with_name(path.name + ".new")
        self._disk.write_whole(fresh, data)
        with self._names_lock:
            if self._closed or segment not in self._layout.segments:
                self._disk.unlink(fresh)
                return False
            self._disk.rename(fresh, path)
        return True

    def index_subjects(self, start: int) -> int:
        """Build missing subject indexes of stable segments from ``start`` on; any thread.

        The active segment gets one, too, if it has not grown since the last call.

        Returns:
            The offset to continue from.

        Raises:
            StrandlineError: a segment cannot be read or decrypted.
        """
        for segment in self.stable_segments:
            if segment.next_offset > start:
                with contextlib.suppress(RetiredSegmentError):  # removed, or replaced, just now
                    self.subjects.prepare(segment)
                start = segment.next_offset
        active = self.segments[-1]
        known, self._indexed_active = self._indexed_active, (active.base_offset, active.size)
        if known == self._indexed_active:
            self.subjects.prepare(active)
        return start

    def delete(self) -> None:
        """Remove the log and its directory; views that readers hold stay valid.

        Raises:
            LogPoisonedError: a file could not be removed.
        """
        with self._names_lock:  # others hold the lock only for a small file, a name or a directory
            self._closed = True
            for segment in self._layout.segments:
                segment.is_retired = True
            doomed = doom_log_directory(self.directory, disk=self._disk)
        self._reclaim(partial(self._remove_directory, doomed))

    def _remove_directory(self, doomed: Path) -> None:
        for segment in self._layout.segments:
            segment.retire()
        self._disk.sync_directory(doomed.parent)
        remove_doomed(doomed, disk=self._disk)

    def close(self) -> None:
        """Close the files; the journal restores what was not flushed."""
        self._closed = True
        for segment in self._layout.segments:
            segment.release()

"""A partition's log: segments in a row, the last of them active.

``log_start_offset <= ... <= log_end_offset``, half-open. ``append``, ``roll``, ``drop_before`` and
``checkpoint`` belong to one thread; everything else may run on any number of threads meanwhile:
readers take the tuple of segments once, and look again if one of them is gone. ``note_start``,
``replace``, ``flush``, ``sync_written`` and, once nothing is written any more, ``delete`` may run
on other threads, too. So may ``truncate_to`` and ``restart_at``, as long as nothing is appended.

What is removed leaves the segments at once; its files go by ``reclaim``, since a file system takes
long to free gigabytes.

Rules: a batch is served only if its checksum is right; corruption raises ``CorruptBatchError`` that
says where reading can go on. A failed write or sync poisons the log; a full disk does not, and
leaves it as it was. Does not decode records. ``log_durability`` says what survives what.
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


class _Place(NamedTuple):
    """The point at which a log is truncated.

    Attributes:
        segments: how many stay.
        position: bytes of the last of them that stay.
        end: the log end offset then.
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
            # What was removed was not durable itself; its offsets stay used all the same.
            segments[-1].seal()
            segments = [*segments, Segment(directory, log_start_offset, disk=disk)]
        super().__init__(directory, segments, log_start_offset, disk=disk)
        self.subjects = LogSubjects(self, disk)
        self._noted_start = log_start_offset
        """As far as the start was ever noted durably."""
        self._names_lock = threading.RLock()
        """Held while a thread writes, replaces or removes files by their names."""
        self._cut_lock = threading.RLock()
        """Held while the end of the log is cut; taken before ``_names_lock``."""
        self._layout_lock = threading.Lock()
        """Held for an assignment, never for a file: two threads may arrange segments at once."""
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
        redo = LogReplayer(
            directory, disk=disk, segment_bytes=segment_bytes, at=at, is_only_copy=False
        )
        return cls.redone(redo, disk=disk, segment_age_ms=segment_age_ms)

    @classmethod
    def redone(
        cls, redo: LogReplayer, *, disk: Disk, segment_age_ms: int, keep_lost: bool = False
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

    @contextmanager
    def files_held(self) -> Iterator[None]:
        """Keep others from replacing, cutting or removing files meanwhile; any thread.

        Raises:
            ShuttingDownError: the log was closed or deleted.
        """
        with self._names_lock:
            if self._closed:
                raise self._unusable_error()
            yield

    # -- writing (one thread) --------------------------------------------------------------------

    def append(self, batch: Bytes, extent: BatchHeader | Extent) -> None:
        """Add a batch at the end; not synced, and readable at once.

        Args:
            batch: exactly one batch, which is kept and must not change.
            extent: what it covers, as its header says; from the log end offset on.

        Raises:
            DiskFullError: no space; the log is as before and may be appended to later.
            LogPoisonedError: now or earlier a write failed.
        """
        if self.poisoned or self._closed:
            raise self._unusable_error()
        if self._is_held_up:
            self.write_pending()
        active = self._layout.segments[-1]
        assert extent.base_offset == active.next_offset, "offsets are dense"
        try:
            if active.size and self._is_due(active, extent):
                active = self._roll(active)
            active.append(batch, extent)
        except LogPoisonedError:
            self.poisoned = True
            raise

    def _is_due(self, active: Segment, extent: BatchHeader | Extent) -> bool:
        if active.size + extent.length > self.segment_bytes:
            return True
        if active.first_timestamp == TIMESTAMP_MIN:
            return False  # only fillers yet
        # A clock that was wrong for the first record must not keep the segment open.
        span = abs(extent.last_timestamp - active.first_timestamp)
        return span > self.segment_age_ms * 1_000_000 > 0

    def roll(self) -> None:
        """Seal the active segment, if it holds anything, and begin a new one.

        Raises:
            DiskFullError: no space; the log is as before.
            LogPoisonedError: now or earlier a write failed.
        """
        if self.poisoned or self._closed:
            raise self._unusable_error()
        if not self._cut_lock.acquire(blocking=False):
            return  # it is being cut; whoever finds it too old asks again
        try:
            active = self._layout.segments[-1]
            if active.size:
                self._roll(active)
        except LogPoisonedError:
            self.poisoned = True
            raise
        finally:
            self._cut_lock.release()

    def _roll(self, active: Segment) -> Segment:
        active.seal()
        fresh = Segment(self.directory, active.next_offset, disk=self._disk)
        with self._layout_lock:
            self._arrange([*self._layout.segments, fresh])
        return fresh

    def truncate_to(self, offset: int, *, synced_sequence: int | None = None) -> Offset:
        """Remove the records from ``offset`` on, and the whole batch if it is inside one.

        Durable on return: no recovery brings them back, though the journal has them.

        Args:
            offset: from the log start offset on.
            synced_sequence: the journal is durable up to this entry, and no later one has batches
                of this log; None: it is synced here, which its owner's thread alone may do.

        Returns:
            The log end offset, at most ``offset``; not below the log start.

        Raises:
            OffsetOutOfRangeError: below the log start offset.
            DiskFullError: no space to note it; the log has to be reopened.
            LogPoisonedError: the files could not be cut.
        """
        return self._truncate_to(offset, self.journal, synced_sequence)

    def undo_to(self, offset: int) -> Offset:
        """Truncate records that are in no journal entry; writes no truncation marker."""
        return self._truncate_to(offset, None, None)

    def _truncate_to(
        self, offset: int, journal: Journal | None, synced_sequence: int | None
    ) -> Offset:
        with self._cut_lock, self.files_held():
            if offset < self.log_start_offset:
                raise self._out_of_range(offset)
            if offset >= self.log_end_offset:
                return self.log_end_offset
            self._version += 1
            try:
                self._cut_at(self._place_of(offset), journal, synced_sequence)
            except (LogPoisonedError, DiskFullError):
                self.poisoned = True  # the files may already be shorter than the log believes
                raise
            # Once more: a checkpoint begun meanwhile is of neither before nor after.
            self._version += 1
            return self.log_end_offset

    def _cut_at(self, place: _Place, journal: Journal | None, synced_sequence: int | None) -> None:
        truncations = self.truncations
        if journal is not None:
            truncations = self._write_marker(place, journal, synced_sequence)
        self._cut(place)
        # Last: until it is truncated, the marker must count more than any checkpoint.
        self.truncations = truncations
        start = max(self.log_start_offset, self._noted_start)
        if self.log_end_offset < start:  # which is within the batch that went
            self.restart_at(start)

    def _place_of(self, offset: int) -> _Place:
        """Return the point at which truncation at ``offset`` cuts the segments."""
        segments = self._layout.segments
        kept = bisect_right(self._layout.bases, offset)
        last = segments[kept - 1]
        place = last.locate(offset, verify=False)
        position, end = last.size, offset
        if place is not None:
            position = place.position
            header = header_at(last.view(position, HEADER_BYTES), 0)
            end = min(offset, header.base_offset) if header is not None else offset
        return _Place(kept, position, end)

    def _write_marker(self, place: _Place, journal: Journal, synced_sequence: int | None) -> int:
        """Write the marker of a truncation, after what it keeps is durable.

        Returns:
            The number of truncations, this one included.
        """
        self.write_pending()
        self.sync_written()
        if synced_sequence is None:
            # After a power loss the journal gives the sequences of entries that are lost to others.
            synced_sequence = journal.sync()
        last = self._layout.segments[place.segments - 1]
        state = self._state(last, place.position, end=place.end, truncations=self.truncations + 1)
        write_marker(
            self.directory, TruncationMarker(sequence=synced_sequence, state=state), disk=self._disk
        )
        self._stable_base = min(self._stable_base, last.base_offset)
        return state.truncations

    def _cut(self, place: _Place) -> None:
        kept = self._layout.segments[: place.segments]
        gone = list(reversed(self._layout.segments[place.segments :]))
        for segment in gone:
            segment.doom()  # before what is left of the one before is written durably
        last = active = kept[-1]
        if last.sealed:
            active = self._unsealed(last, place.position, place.end)
            gone.append(last)
        else:
            last.cut(place.position, place.end)
        with self._layout_lock:  # retention may have let go of the first ones meanwhile
            there = self._layout.segments
            self._arrange([*(each for each in kept[:-1] if each in there), active])
        self._let_go(gone)

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
        self._disk.unlink(segment.path.with_suffix(SUBJECTS_SUFFIX))
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
        try:
            self.note_start(offset)
        except DiskFullError:
            self.make_room(offset)
            self.note_start(offset)
        self.drop_before(offset)

    def note_start(self, offset: int) -> None:
        """Note durably that the records below ``offset`` are removed; any thread.

        Raises:
            DiskFullError: no space; ``make_room`` may help.
            LogPoisonedError: a write failed.
            ShuttingDownError: the log was closed or deleted; its directory may be another's by now.
        """
        with self.files_held():
            if offset > self._noted_start:
                self._disk.write_atomically(self.directory / START_NAME, format_start(offset))
                self._noted_start = Offset(offset)

    def make_room(self, offset: int) -> None:
        """Remove of the records below ``offset`` what may go before the start is noted.

        That may be just the space that is missing. Recovery finds by itself that files before the
        checkpoint are gone; the others must wait until the start is durable.
        """
        self._drop_below(min(offset, self._stable_base))
        self.reclaim(partial(self._disk.sync_directory, self.directory))

    def drop_before(self, offset: int) -> None:
        """Remove the records below ``offset``, which was noted as the start."""
        if self._closed or offset > self.log_end_offset:
            return  # it was deleted, or cut, meanwhile
        with self._layout_lock:
            self.log_start_offset = Offset(max(offset, self.log_start_offset))
        self._drop_below(offset)

    def restart_at(self, offset: int) -> None:
        """Give up every record and go on, empty, at ``offset`` beyond the end; durable on return.

        For a copy that was away for so long that what comes next here is gone everywhere else.

        Raises:
            DiskFullError: no space; nothing changed.
            LogPoisonedError: a write failed.
        """
        assert offset > self.log_end_offset, "up to the end, truncate_before does"
        with self._cut_lock, self.files_held():
            self._version += 1
            self.note_start(offset)
            with self._layout_lock:
                old = self._layout.segments
                self._arrange([Segment(self.directory, Offset(offset), disk=self._disk)])
                self.log_start_offset = Offset(offset)
            for segment in old:
                segment.doom()
            # Their names must not come back after a power loss: recovery would go on in them.
            self._disk.sync_directory(self.directory)
            self._version += 1  # as in ``_truncate_to``
        self._let_go(old)

    def _drop_below(self, offset: int) -> None:
        with self._layout_lock:
            segments = self._layout.segments
            keep = [s for s in segments[:-1] if s.next_offset > offset]
            gone = segments[: len(segments) - 1 - len(keep)]
            if gone:
                self._arrange([*keep, segments[-1]])
                self.log_start_offset = Offset(max(self.log_start_offset, self._layout.bases[0]))
        self._let_go(gone)

    def _let_go(self, gone: Sequence[Segment]) -> None:
        """Give back the space of segments that are part of the log no more.

        Of one whose name another has taken only the bytes that it had mapped.
        """
        names = {segment.path for segment in self._layout.segments}
        if gone:
            self.reclaim(partial(self._remove_files, gone, names))

    def _remove_files(self, segments: Sequence[Segment], names: Collection[Path]) -> None:
        for segment in segments:
            with self._names_lock:
                segment.retire()
                if segment.path in names or self._closed:  # then its directory goes as a whole
                    continue
                segment.doom()
            self._disk.remove_large(segment.path)  # takes long; nobody else means this name

    def replace(self, old: Segment, new: Segment, cleaned: Path) -> bool:
        """Swap a sealed segment for its compacted self, unless it went away meanwhile.

        Args:
            old: as it is.
            new: what is in ``cleaned``, under the name of the old one from now on; not synced.
            cleaned: where it was written.

        Returns:
            Whether it was swapped.

        Raises:
            LogPoisonedError: renaming failed; the old segment stands.
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
            self._let_go([old])  # before a cut may take the name of the new one away
        return True

    def keep_index(self, segment: Segment, path: Path, data: Bytes) -> bool:
        """Give a segment an index file, unless it went away meanwhile; not synced; any thread.

        The file is replaced, not written: readers have it mapped.

        Returns:
            Whether it has it.

        Raises:
            DiskFullError: no space.
            LogPoisonedError: it could not be written.
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
        """Make the subject indexes that stable segments from ``start`` on lack; any thread.

        Returns:
            Where to go on.

        Raises:
            StrandlineError: a segment cannot be read, or not decrypted.
        """
        for segment in self.stable_segments:
            if segment.next_offset > start:
                with contextlib.suppress(RetiredSegmentError):  # removed, or replaced, just now
                    self.subjects.prepare(segment)
                start = segment.next_offset
        return start

    def delete(self) -> None:
        """Remove the log and its directory; what readers hold of it stays valid.

        Raises:
            LogPoisonedError: a file could not be removed.
        """
        with self._names_lock:  # which others hold for a small file, a name or a directory only
            self._closed = True
            for segment in self._layout.segments:
                segment.is_retired = True
            doomed = doom_log_directory(self.directory, disk=self._disk)
        self.reclaim(partial(self._remove_directory, doomed))

    def _remove_directory(self, doomed: Path) -> None:
        for segment in self._layout.segments:
            segment.retire()
        self._disk.sync_directory(doomed.parent)
        remove_doomed(doomed, disk=self._disk)

    def close(self) -> None:
        """Let go of the files; what was not flushed is the journal's to bring back."""
        self._closed = True
        for segment in self._layout.segments:
            segment.release()

"""The parts of a log that are in memory, in its files, and durable on disk.

Rules: batches are gathered in memory, since the journal has them. The log's owner writes them to
the file; any thread may sync the file. A checkpoint names the part that a sync has made durable.
Batches that are in no journal may be synced alone, as long as no recovery could replace them by
others. A log whose batches are in a journal gets a truncation marker (``truncation_marker``) before
it is truncated.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from strandline.errors import LogPoisonedError, UnavailableError
from strandline.storage.checkpoint import LogCheckpoint
from strandline.storage.disk import Disk
from strandline.storage.journal import Journal
from strandline.storage.log_reads import LogReads
from strandline.storage.segment import WORTH_WRITING_BYTES, Segment
from strandline.storage.segment_reads import RetiredSegmentError
from strandline.types import Offset, Position


class LogDurability(LogReads):
    """A log whose batches become durable.

    Args:
        directory: the directory of the log.
        segments: in order, the last of them active.
        log_start_offset: the offset of the first record that counts.
        disk: the file system.
    """

    def __init__(
        self,
        directory: Path,
        segments: Sequence[Segment],
        log_start_offset: Offset,
        *,
        disk: Disk,
    ) -> None:
        super().__init__(directory, segments, log_start_offset)
        self._disk = disk
        self.journal: Journal | None = None
        """The journal that has the log's batches, too, and that recovery reads; None without one.
        """
        self._reclaim: Callable[[Callable[[], None]], None] = _now
        self.truncations = 0
        """The number of truncations that had a marker."""
        self._lacked_space = False
        """Whether the last ``write_pending`` failed for lack of space."""
        self._write_lock = threading.Lock()
        """Held during ``write_pending``, since another thread may be about to truncate."""
        self._stable_base = 0
        self._version = 1
        """Incremented by each truncation."""
        self._captured_version, self._checkpointed_version = 0, 0
        """The versions of the last checkpoint that was taken, and of the last durable one."""

    def reclaim_with(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Pass removals of files to ``run``, which runs them at once or on a thread, in order."""
        self._reclaim = run

    # -- in memory, or written (one thread) ------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """The bytes of batches that are in memory only."""
        return self._active.pending_bytes

    @property
    def can_write_pending(self) -> bool:
        """Whether the batches in memory are enough to be worth a system call."""
        return self.pending_bytes >= WORTH_WRITING_BYTES and not (self._closed or self.poisoned)

    def write_pending(self) -> None:
        """Write the batches that are in memory only; not synced.

        Raises:
            DiskFullError: no space; the batches stay in memory, and the log is as before.
            LogPoisonedError: a write failed, now or earlier.
        """
        if self.poisoned:
            raise self._unusable_error()
        try:
            with self._write_lock:
                self._active.write_pending()
        except LogPoisonedError:
            self.poisoned = True
            raise
        except UnavailableError:
            self._lacked_space = True
            raise
        self._lacked_space = False

    # -- written, or on the disk -----------------------------------------------------------------

    @property
    def can_do_without_journal(self) -> bool:
        """Whether recovery keeps synced batches that are in no journal.

        It does once a checkpoint includes the last truncation. Until then the journal may have
        truncated batches, and recovery would overwrite later batches with them.
        """
        return self._version == self._checkpointed_version and not (self._closed or self.poisoned)

    def checkpoint(self) -> LogCheckpoint:
        """Return the state that the next ``flush`` makes durable; on the owner's thread.

        Raises:
            DiskFullError: no space for the batches in memory; the log is as before.
            LogPoisonedError: a write failed, now or earlier.
        """
        self.write_pending()
        self._captured_version = self._version
        active = self._active
        return self._state(
            active, active.size, end=active.next_offset, truncations=self.truncations
        )

    def _state(self, last: Segment, position: int, *, end: int, truncations: int) -> LogCheckpoint:
        """Return the log's state if it ends at ``end``, at this position of a segment."""
        return LogCheckpoint(
            segment_base=Offset(last.base_offset),
            position=Position(position),
            log_start_offset=self.log_start_offset,
            log_end_offset=Offset(end),
            first_timestamp=last.first_timestamp,
            max_timestamp=last.max_timestamp,
            truncations=truncations,
        )

    @property
    def can_write_back(self) -> bool:
        """Whether the disk could start writing part of what the next ``flush`` waits for."""
        return not self._closed and self._active.can_write_back

    def write_back(self) -> None:
        """Start writing the next part to the disk; any thread."""
        active = self._active  # it may be replaced meanwhile
        if not self._closed and active.can_write_back:
            with contextlib.suppress(RetiredSegmentError):  # the segment was removed just now
                active.write_back()

    def flush(self) -> None:
        """Make everything up to the last ``checkpoint`` survive a power loss; any thread.

        Raises:
            DiskFullError: no space for an index; call again later.
            LogPoisonedError: a sync failed.
        """
        if not self._closed:
            self._sync(with_indexes=True)

    def sync_written(self) -> None:
        """Make every batch that is in a file, not only in memory, survive a power loss; any thread.

        For batches that are in no journal; see ``can_do_without_journal``. They are dropped from
        the page cache: a replica that catches up has no readers yet, and would displace other data.

        Raises:
            LogPoisonedError: a sync failed, now or earlier.
            ShuttingDownError: the log was closed or deleted.
        """
        if not (self.poisoned or self._closed):
            self._sync(with_indexes=False)
        if self.poisoned or self._closed:
            raise self._unusable_error()

    def _sync(self, *, with_indexes: bool) -> None:
        try:
            self._sync_segments(with_indexes=with_indexes)
        except LogPoisonedError:
            if self._closed:  # the log was deleted meanwhile
                return
            self.poisoned = True
            raise

    def _sync_segments(self, *, with_indexes: bool) -> None:
        unnamed: list[Segment] = []
        for segment in reversed(self._layout.segments):
            if segment.is_durable and (segment.is_indexed or not with_indexes):
                break
            if segment.written_bytes and not segment.has_durable_name:
                unnamed.append(segment)
            try:
                segment.sync()
                if with_indexes:
                    segment.write_indexes()
                else:
                    segment.drop_cache()
            except RetiredSegmentError:
                continue  # retention removed it first
            segment.release()
        if unnamed:
            self._disk.sync_directory(self.directory)
        for segment in unnamed:
            segment.has_durable_name = True

    def mark_checkpointed(self, checkpoint: LogCheckpoint) -> None:
        """Note that ``checkpoint`` is durable: sealed segments before it may be compacted."""
        if self._captured_version == self._version:  # else it is older than a truncation
            self._stable_base = checkpoint.segment_base
        self._checkpointed_version = self._captured_version

    @property
    def stable_segments(self) -> tuple[Segment, ...]:
        """Return sealed segments that no recovery will change, so compaction may replace them."""
        return tuple(s for s in self._layout.segments[:-1] if s.base_offset < self._stable_base)


def _now(removal: Callable[[], None]) -> None:
    removal()

"""Journal replay: brings one log from its checkpoint to the state that the journal describes.

Rules:
- bytes that might be the only copy are not removed before the whole journal has been read;
- a journaled batch that is intact in the segment is only counted, else it is written there;
- where the journal is corrupt, intact batches that continue the log on disk fill the gap. A range
  that neither has is a hole, which is reported;
- a journaled batch below the log end means that the log was truncated before the batch was written;
- if the checkpoint's segment is missing, a log without replicas continues after the lost range, so
  that no offset is used twice. A replica truncates there, since its leader has everything;
- intact batches after the last journaled one are kept: they were written in order, and their
  publishers were not answered yet.

One thread, before the log is used.
"""

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from strandline.errors import CorruptBatchError
from strandline.record.batch import HEADER_BYTES, BatchHeader
from strandline.storage.log_opening import LogOpening
from strandline.storage.scan import OFFSET_MAX, header_at, intact_at
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import LOG_SUFFIX
from strandline.types import Position

LOST_SUFFIX = ".lost"


class _Unreadable(NamedTuple):
    """A corrupt batch in the journal."""

    batch: memoryview
    header: BatchHeader | None
    """Its header, if that is plausible."""
    file: Path
    position: Position
    after: int
    """The log end offset when the replay reached the batch."""


class LogReplayer(LogOpening):
    """A log that is being recovered.

    Attributes:
        records: how many records of the journal were counted or written.
        bytes: how many bytes these are.
    """

    records = 0
    bytes = 0
    _was_truncated = False

    @cached_property
    def _unreadable(self) -> list[_Unreadable]:
        """Corrupt batches of the journal since the last intact one."""
        return []

    def apply(self, part: memoryview, *, file: Path, position: Position) -> None:
        """Replay the journal entry at ``position`` of ``file`` for this log.

        Args:
            part: the batches; empty if the journal has another entry's batches there.
            file: the file of the journal.
            position: the position of the entry.
        """
        if not part:
            self._corrupt(part, None, file=file, position=position)
        at = 0
        while at < len(part):
            header = header_at(part, at)
            if header is None or at + header.length > len(part):
                self._corrupt(part[at:], None, file=file, position=position)
                return
            self._redo(part[at : at + header.length], header, file=file, position=position)
            at += header.length

    def finish(self, *, keep_lost: bool = False) -> list[Segment]:
        """Discard what does not count; return the segments, the last of them active.

        Args:
            keep_lost: rename files that do not fit instead of removing them, because the journal
                was corrupt.
        """
        self._skip_removed()
        self._settle(below=OFFSET_MAX)
        self._extend(OFFSET_MAX)
        self._continue_after_loss()
        self._discard_tail()
        for base in sorted(self._later):
            segment = Segment(self.directory, base, disk=self._disk)
            if keep_lost:
                self._report(segment.path, 0, "a segment beyond a gap was set aside")
                self._disk.rename(segment.path, segment.path.with_suffix(LOG_SUFFIX + LOST_SUFFIX))
            self._remove(segment)
        if self._has_removed:
            self._disk.sync_directory(self.directory)
        return [*self._sealed, self._active]

    def _continue_after_loss(self) -> None:
        """Report lost records that the checkpoint promises; an only copy continues after them."""
        at = self._at
        end = max(self.log_end_offset, self.log_start_offset)
        if at is None or end >= at.log_end_offset or self._was_truncated:
            return
        lost = f"records {self.log_end_offset} to {at.log_end_offset - 1} are lost"
        self._report(self._active.path, self._active.size, lost)
        if self._is_only_copy:
            # Before files that do not fit are removed, since one that begins here fits now.
            self._continue_at(at.log_end_offset)
            self._extend(OFFSET_MAX)

    def _redo(
        self, batch: memoryview, header: BatchHeader, *, file: Path, position: Position
    ) -> None:
        base = header.base_offset
        if header.next_offset <= self.log_start_offset or self._is_known(batch, header):
            return
        if self._lacks_file and base > self.log_end_offset:
            return
        if self._count_if_there(batch, header):
            self._counted(header)
        elif intact_at(batch, 0) is None:
            self._corrupt(batch, header, file=file, position=position)
        else:
            self._settle(below=base)
            if base < self.log_end_offset:
                self._truncate(base)
            elif base > self.log_end_offset:
                self._cross_gap(base)
            if not self._count_if_there(batch, header):
                self._write(batch, header)
            self._counted(header)

    def _counted(self, header: BatchHeader) -> None:
        self.records += header.record_count
        self.bytes += header.length

    def _cross_gap(self, base_offset: int) -> None:
        """Continue to ``base_offset`` with intact batches on disk, or with a reported hole."""
        self._skip_removed()
        self._extend(base_offset)
        end = self.log_end_offset
        if end >= base_offset:
            return
        if end >= self.log_start_offset:
            lost = f"records {end} to {base_offset - 1} are lost"
            self._report(self._active.path, self._active.size, lost)
        # Otherwise these records, or all but the first of them, had been deleted.
        self._continue_at(base_offset)

    def _skip_removed(self) -> None:
        """Continue in the segment with the log start, if earlier ones were deleted."""
        there = [base for base in self._later if base <= self.log_start_offset]
        if there and not self._active.size and self.log_end_offset < self.log_start_offset:
            self._remove(self._active)
            self._begin_at(max(there))

    def _count_if_there(self, batch: memoryview, header: BatchHeader) -> bool:
        """Count the batch if it is intact at the log's end, or at the start of the next file."""
        if header.base_offset != self.log_end_offset:
            return False
        if self._same_at(self._active.size, batch, header):
            self._active.advance(header)
            return True
        if header.base_offset in self._later and self._active.size:
            self._roll(header.base_offset)
            if self._same_at(0, batch, header):
                self._active.advance(header)
                return True
        return False

    def _same_at(self, position: int, batch: memoryview, header: BatchHeader) -> bool:
        if position + header.length > self._on_disk:
            return False
        there = self._seen(position, header.length)
        return there[:HEADER_BYTES] == batch[:HEADER_BYTES] and intact_at(there, 0) is not None

    def _is_known(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether this batch is below the end and already part of the log."""
        active = self._active
        if header.base_offset >= active.next_offset:
            return False
        if header.base_offset < active.base_offset:
            return self._at is None  # in a sealed segment, which may have been compacted since
        try:
            place = active.locate(header.base_offset)
        except CorruptBatchError as hole:
            return self._filled(batch, header, hole)
        return place is not None and self._same_at(place.position, batch, header)

    def _filled(self, batch: memoryview, header: BatchHeader, hole: CorruptBatchError) -> bool:
        """Repair a hole with the journal's copy if that is exactly what is missing."""
        fits = (hole.first_offset, hole.next_offset) == (header.base_offset, header.next_offset)
        if fits and intact_at(batch, 0) is not None:
            self._active.overwrite(bytes(batch), hole.position)
            self._active.synced_bytes = min(self._active.synced_bytes, hole.position)
        return True

    def _corrupt(
        self, batch: memoryview, header: BatchHeader | None, *, file: Path, position: Position
    ) -> None:
        """Remember a corrupt batch of the journal until its end is known; see ``_settle``."""
        self._unreadable.append(_Unreadable(batch, header, file, position, self.log_end_offset))

    def _settle(self, *, below: int) -> None:
        """Replace corrupt batches of the journal by those on disk, or keep them as a hole.

        Args:
            below: the offset at which the next intact batch begins.
        """
        unreadable, self._unreadable = self._unreadable, []
        kept = 0
        for batch, header, file, position, after in unreadable:
            self._extend(below)
            end = self.log_end_offset
            restored = end > max(after, kept)
            if header is not None and header.base_offset == end and header.next_offset <= below:
                self._write(batch, header)  # so that later batches keep their offsets
                kept, restored = self.log_end_offset, False
            where = f"in the journal after offset {after} of {self.directory.name}"
            outcome = "restored from the segment" if restored else "not restored"
            self._report(file, position, f"corrupt batch {where}: {outcome}")

    def _write(self, batch: memoryview, header: BatchHeader) -> None:
        active = self._active
        if active.size and active.size + header.length > self.segment_bytes:
            self._roll(header.base_offset)
            active = self._active
        active.overwrite(bytes(batch), active.size)
        self._on_disk = max(self._on_disk, active.size + header.length)
        active.synced_bytes = min(active.synced_bytes, active.size)
        active.advance(header)

    def _truncate(self, offset: int) -> None:
        """Truncate the log at ``offset``, as it was before the next batch was written."""
        self._was_truncated = True
        while offset < self._active.base_offset and self._sealed:
            self._remove(self._active)
            last = self._sealed.pop()
            reopened = Segment(self.directory, last.base_offset, disk=self._disk)
            reopened.size, reopened.next_offset = last.size, last.next_offset
            self._begin(reopened, last.size)
            reopened.load_indexes()
        place = self._active.locate(offset, verify=False)
        if place is not None:
            self._active.truncate(place.position, offset)
            self._on_disk = place.position

"""The first step of recovery: opens a log from its files, before the journal is read.

It starts in the segment that the checkpoint names; earlier segments are complete. Without a
checkpoint everything up to the last intact batch counts.

Rules: bytes that might be the only copy are not removed here; intact batches that continue the log
are counted. Within a segment offsets are dense; gaps lie between segments. One thread.
"""

from collections.abc import Iterator
from pathlib import Path

from strandline.record.batch import BatchHeader
from strandline.storage.checkpoint import LogCheckpoint
from strandline.storage.disk import Disk
from strandline.storage.journal_scan import JournalCorruption
from strandline.storage.log_start import START_NAME, parse_start
from strandline.storage.scan import OFFSET_MAX, find_intact, header_at, intact_at
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import LOG_SUFFIX
from strandline.types import Offset, Position


class LogOpening:
    """A log that is being opened.

    Args:
        directory: the directory of the log; created if missing.
        disk: the file system.
        segment_bytes: roll to a new segment before it would grow beyond this.
        at: the part that is known to be durable; None: unknown.
        is_only_copy: whether no other replica has records that are lost here.

    Attributes:
        log_start_offset: the largest start offset that was ever made durable.
        corruption: ranges that could not be restored.
    """

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk,
        segment_bytes: int,
        at: LogCheckpoint | None,
        is_only_copy: bool,
    ) -> None:
        self.directory = directory
        self.corruption: list[JournalCorruption] = []
        self.segment_bytes = segment_bytes
        self._disk = disk
        self._at = at
        self._is_only_copy = is_only_copy
        self._has_removed = False
        disk.make_directory(directory)
        sizes = self._log_files()
        # Records below the first file were deleted, unless the checkpoint promises them.
        start = max(self._stored_start(), at.log_start_offset if at else 0)
        boundary = self._boundary(sizes, start)
        self._lacks_file = at is not None and boundary < at.segment_base
        """Whether the checkpoint's segment is missing, and a leader has its records."""
        self._later = {base: size for base, size in sizes.items() if base > boundary}
        earlier = sorted(base for base in sizes if base < boundary)
        self._sealed = [
            Segment.sealed_on_disk(
                directory, base, disk=disk, size=sizes[base], next_offset=next_offset
            )
            for base, next_offset in zip(earlier, [*earlier, boundary][1:], strict=True)
        ]
        first = min((base for base in sizes if base <= boundary), default=0)
        self.log_start_offset = Offset(max(start, first))
        self._begin(Segment(directory, boundary, disk=disk), sizes.get(boundary, 0))
        self._load_active()

    def _log_files(self) -> dict[int, int]:
        """Return base offset and size of each segment file, after removing unfinished files."""
        sizes: dict[int, int] = {}
        for name, size in self._disk.listing(self.directory).items():
            stem, dot, suffix = name.partition(".")
            if dot + suffix == LOG_SUFFIX and stem.isdigit():
                sizes[int(stem)] = size
            elif suffix.endswith(("new", "cleaned", "doomed")):
                self._disk.unlink(self.directory / name)
        return sizes

    def _stored_start(self) -> int:
        path = self.directory / START_NAME
        data = self._disk.read_bytes(path)
        if data is None:
            return 0
        start = parse_start(data)
        if start is None:
            self._report(path, 0, "the log start offset is corrupt; the checkpoint's is used")
        return start or 0

    def _boundary(self, sizes: dict[int, int], start: int) -> int:
        """Return the base offset of the segment to start in: all before it are complete."""
        at = self._at
        boundary = at.segment_base if at else max(sizes, default=0)
        before = [base for base in sizes if base < boundary]
        if at is None or boundary in sizes or not (before and at.position and boundary > start):
            return boundary
        return boundary if self._is_only_copy else max(before)

    def _load_active(self) -> None:
        """Load the active segment up to the checkpoint, or as far as it is intact."""
        segment, at = self._active, self._at
        if (
            at is not None
            and at.segment_base == segment.base_offset
            and self._on_disk >= at.position
        ):
            segment.size, segment.next_offset = at.position, at.log_end_offset
            segment.load_indexes()
            segment.first_timestamp = at.first_timestamp
            segment.max_timestamp = max(segment.max_timestamp, at.max_timestamp)
            segment.synced_bytes = at.position
            segment.has_durable_name = at.position > 0
            if not self._has_other_batches(at):
                return
            # The log was truncated since, and has grown again with another leader's batches.
            self._begin(
                Segment(self.directory, segment.base_offset, disk=self._disk), self._on_disk
            )
        self._take_all()

    def _has_other_batches(self, at: LogCheckpoint) -> bool:
        """Whether intact batches cross the checkpoint's end, or reach it with another offset.

        Corruption is no proof of that: then the checkpoint counts, and no offset is used twice.
        """
        index = self._active.index
        marks = reversed(index.positions) if index is not None else ()
        position = next((p for p in marks if any(True for _ in self._intact_from(p))), 0)
        end = at.log_end_offset
        for header in self._intact_from(position):
            if position >= at.position:
                break
            position, end = position + header.length, header.next_offset
        return position > at.position or (position == at.position and end != at.log_end_offset)

    def _take_all(self) -> None:
        """Count everything up to the last intact batch, including holes, without a checkpoint."""
        self._extend(OFFSET_MAX)
        while (rest := self._on_disk - self._active.size) > 0:
            segment = self._active  # extending may have replaced it
            view = self._seen(segment.size, rest)
            found = find_intact(view, 0, after=segment.next_offset, below=OFFSET_MAX)
            if found < 0:
                return
            why = "corrupt batches were stepped over while opening without a checkpoint"
            self._report(segment.path, segment.size, why)
            segment.size += found
            header = intact_at(view, found)
            assert header is not None, "it was found intact"
            segment.advance(header)
            self._extend(OFFSET_MAX)

    @property
    def log_end_offset(self) -> int:
        """The end of the log as restored so far."""
        return self._active.next_offset

    def _begin_at(self, base_offset: int) -> None:
        """Continue in the segment with this base offset, in its file if it exists."""
        on_disk = self._later.pop(base_offset, 0)
        self._begin(Segment(self.directory, base_offset, disk=self._disk), on_disk)

    def _begin(self, segment: Segment, on_disk: int) -> None:
        """Continue in ``segment``, whose file has ``on_disk`` bytes that do not count yet."""
        self._active = segment
        self._on_disk = on_disk
        segment.adopt(on_disk)
        at = self._at
        durable = at.position if at is not None and at.segment_base == segment.base_offset else 0
        if on_disk > durable:
            file = segment.file
            self._disk.drop_cache(file.fd)

    def _extend(self, limit: int) -> None:
        """Count intact batches on disk that continue the log, up to offset ``limit``."""
        while True:
            for header in self._intact_from(self._active.size):
                if header.base_offset != self.log_end_offset or header.next_offset > limit:
                    return
                self._active.advance(header)
            if self._active.next_offset not in self._later or not self._active.size:
                return
            self._roll(self._active.next_offset)

    def _intact_from(self, position: int) -> Iterator[BatchHeader]:
        size = self._on_disk
        while position < size:
            window = self._seen(position, min(1 << 20, size - position))
            at = 0
            while (header := intact_at(window, at)) is not None:
                yield header
                at += header.length
            if at == 0:
                first = header_at(window, 0)
                if first is None or first.length <= len(window) or first.length > size - position:
                    return
                if intact_at(self._seen(position, first.length), 0) is None:
                    return
                yield first
                at = first.length
            position += at

    def _seen(self, position: int, length: int) -> memoryview:
        return memoryview(self._disk.pread(self._active.file.fd, length, position))

    def _roll(self, base_offset: int) -> None:
        """Continue in the next segment, in the file with this name if it exists."""
        self._discard_tail()
        self._active.seal()
        self._active.sync()  # so that its file can be closed: a log may have many
        self._active.release()
        self._sealed.append(self._active)
        self._begin_at(base_offset)

    def _continue_at(self, base_offset: int) -> None:
        """Continue at ``base_offset`` in another segment: gaps lie between segments only."""
        if self._active.size:
            self._roll(base_offset)
        else:
            self._remove(self._active)
            self._begin_at(base_offset)

    def _discard_tail(self) -> None:
        """Discard the bytes of the active file that do not count, such as torn batches."""
        active = self._active
        if self._on_disk > active.size:
            self._disk.truncate(active.file.fd, active.size)
            self._on_disk = active.size
            active.synced_bytes = min(active.synced_bytes, active.size)
        active.adopt(active.size)

    def _remove(self, segment: Segment) -> None:
        """Remove a segment's files; they must not return where the log will grow."""
        segment.remove_files()
        self._has_removed = True

    def _report(self, file: Path, position: int, why: str) -> None:
        self.corruption.append(JournalCorruption(file, Position(position), why))

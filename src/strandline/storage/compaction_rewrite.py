"""One segment on its way to its compacted self, in a file beside it.

Rules: the new segment stands for exactly the offsets of the old one, and so does each batch: it
keeps its base offset and its end, with gaps where records went (``Attributes.OFFSET_DELTAS``), and
a filler takes the place of batches in a row of which nothing stays. So logs are dense, compacted or
not, and tell their leader epochs. Nothing is written as long as nothing was removed. Runs on any
thread; the old segment is only read.
"""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import StrandlineError
from strandline.record.batch import Attributes, BatchHeader, read_header
from strandline.record.codec import FILLER_OFFSETS_MAX, encode_again, encode_filler
from strandline.storage.compaction_keys import CompactionKeys, Scope, rows
from strandline.storage.disk import BUFFERS_MAX, Bytes, Disk
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import CorruptRange
from strandline.storage.walk import FoundBatch, walk
from strandline.types import LeaderEpoch

CLEANED_SUFFIX = ".cleaned"
_WRITE_BYTES = 4 << 20


class Tombstone(NamedTuple):
    """A null value that stays."""

    time_ns: int
    offset: int


class _Stretch(NamedTuple):
    """Offsets in a row of which nothing stays."""

    base_offset: int
    next_offset: int
    leader_epoch: LeaderEpoch
    filler: memoryview | None
    """The batch that stands for just these already."""


class SegmentRewrite:
    """Writes ``.cleaned``.

    Attributes:
        new: what is to take the segment's place, after ``write``; None: it is fine as it is.
        records_removed: by this run.
        tombstones: null values that stay.
        held_ns: for how long records stay that would go if no retry were told by them.
    """

    def __init__(self, segment: Segment, keys: CompactionKeys, scope: Scope, *, disk: Disk) -> None:
        self.new: Segment | None = None
        self.records_removed = 0
        self.tombstones: list[Tombstone] = []
        self.held_ns: list[int] = []
        self._segment = segment
        self._keys = keys
        self._scope = scope
        self._writer = _Writer(segment, disk=disk)
        self._stretch: _Stretch | None = None

    def write(self) -> None:
        """Write what stays, unless that is all, or the segment is corrupt.

        Raises:
            DiskFullError: no space; nothing is left behind.
            LogPoisonedError: reading or writing failed.
        """
        holes: list[CorruptRange] = []
        writer = self._writer
        try:
            for found in walk(self._segment, on_hole=holes.append):
                self._take(found)
            self._end_stretch()
            if not self.records_removed or holes:
                writer.discard()
                return
            self.new = writer.finish()
        except StrandlineError:
            writer.discard()
            raise

    def _take(self, found: FoundBatch) -> None:
        header = found.header
        if header.attributes & Attributes.REMOVED:
            self._lengthen_stretch(header, found.view)
            return
        batch = self._filtered(found)
        if batch is None:
            self._lengthen_stretch(header, None)
        else:
            self._end_stretch()
            self._add(batch)

    def _lengthen_stretch(self, header: BatchHeader, filler: memoryview | None) -> None:
        """Nothing stays of a batch; fillers of one leader epoch become one."""
        before = self._stretch
        end = header.next_offset
        if (
            before is not None
            and (before.next_offset, before.leader_epoch)
            == (header.base_offset, header.leader_epoch)
            and end - before.base_offset <= FILLER_OFFSETS_MAX
        ):
            self._stretch = before._replace(next_offset=end, filler=None)
            return
        self._end_stretch()
        self._stretch = _Stretch(header.base_offset, end, header.leader_epoch, filler)

    def _end_stretch(self) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            base, end, epoch, filler = stretch
            self._add(filler or encode_filler(base, end, leader_epoch=epoch))

    def _add(self, batch: Bytes) -> None:
        self._writer.add(batch, may_wait=not self.records_removed)

    def _filtered(self, found: FoundBatch) -> Bytes | None:
        """The batch with the records that stay; None if none do."""
        header = found.header
        if header.next_offset > self._scope.below:
            return found.view
        if not self._scope.counts(header):
            self.records_removed += header.record_count
            return None
        history = self._scope.history
        is_kept = header.attributes & (Attributes.MARKER | Attributes.PURGE)
        if is_kept or (history is None and not header.attributes & Attributes.KEYS):
            return found.view
        batch = rows(self._scope.log.opened(found.view))
        keep = self._keep(batch, header) if history is None else history.stays(batch)
        if (
            not any(keep)
            and self._keys.tells_numbers(header)
            and self._is_held(self._scope.numbers_held_ns(header))
        ):
            keep[-1] = True
        kept = keep.count(True)
        if kept == len(keep) or self._is_held(self._scope.ids_held_ns(header)):
            return found.view
        if kept:
            # All of them count: what was aborted is gone, and so will be who says that.
            smaller = encode_again(batch.filter(pa.array(keep)), header)
            if self._scope.log.sealer is not None:
                smaller = self._scope.log.sealer.seal(smaller)
            if len(smaller) >= header.length and not self._reveals_deleted(batch, keep):
                return found.view  # the gaps would take more than the records did
        self.records_removed += len(keep) - kept
        return smaller if kept else None

    def _is_held(self, held_ns: int) -> bool:
        """Whether something stays for so long."""
        if held_ns >= 0:
            self.held_ns.append(held_ns)
        return held_ns >= 0

    def _reveals_deleted(self, batch: pa.RecordBatch, keep: list[bool]) -> bool:
        """Whether a record that may go is of a deleted key, whose null value waits for it to go."""
        keys = batch.column("key").to_pylist()
        deleted = self._keys.deleted
        return any(key in deleted for key, stays in zip(keys, keep, strict=True) if not stays)

    def _keep(self, batch: pa.RecordBatch, header: BatchHeader) -> list[bool]:
        newest = self._keys.newest
        keys = batch.column("key").to_pylist()
        offsets = batch.column("offset").to_pylist()
        keep = [
            key is None or newest.get(key, -1) <= offset
            for key, offset in zip(keys, offsets, strict=True)
        ]
        if header.attributes & Attributes.NULL_VALUES:
            nulls = pc.is_null(batch.column("value")).to_pylist()
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            for row, (key, is_null) in enumerate(zip(keys, nulls, strict=True)):
                if is_null and key is not None and keep[row]:
                    keep[row] = self._keep_tombstone(key, Tombstone(times[row], offsets[row]))
        return keep

    def _keep_tombstone(self, key: bytes, tombstone: Tombstone) -> bool:
        """Whether a key's null value stays, until nobody can miss it."""
        scope = self._scope
        is_seen = tombstone.offset < scope.tombstones_below
        is_old = tombstone.time_ns < scope.oldest_tombstone_ns
        if is_seen and is_old and self._keys.may_forget(key):
            return False
        self.tombstones.append(tombstone)
        return True


class _Writer:
    """Writes ``.cleaned``, but nothing as long as the segment may turn out to need no rewriting."""

    def __init__(self, old: Segment, *, disk: Disk) -> None:
        self.path = old.path.with_suffix(CLEANED_SUFFIX)
        self._old = old
        self._disk = disk
        self._new = old.successor()
        self._fd = -1
        self._size = 0
        self._waiting: list[Bytes] = []
        self._waiting_bytes = 0

    def add(self, batch: Bytes, *, may_wait: bool) -> None:
        """Append a batch; written when enough have come together."""
        self._new.note(read_header(batch), self._size)
        self._size += len(batch)
        self._waiting.append(batch)
        self._waiting_bytes += len(batch)
        if not may_wait and self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._fd < 0:
            self._fd = self._disk.open(self.path, write=True, create=True)
            self._disk.truncate(self._fd, 0)
        position = self._size - self._waiting_bytes
        for start in range(0, len(self._waiting), BUFFERS_MAX):
            group = self._waiting[start : start + BUFFERS_MAX]
            self._disk.pwritev(self._fd, group, position)
            position += sum(map(len, group))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> Segment:
        """Make the file durable."""
        self._write()
        self._disk.sync_fresh(self._fd)
        self._disk.close(self._fd)
        self._fd = -1
        self._new.finish_successor(self._size, self._old.next_offset)
        return self._new

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._disk.unlink(self.path)

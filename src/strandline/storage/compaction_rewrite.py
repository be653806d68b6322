"""Compaction of one segment into a new file beside it.

Rules: the new segment covers exactly the offsets of the old one, and so does each batch: it keeps
its base offset and its end, with gaps where records were removed (``Attributes.OFFSET_DELTAS``). A
placeholder batch replaces consecutive batches of which no record is kept. So logs stay dense and
keep their leader epochs. No file is written until a record is removed. Runs on any thread; the old
segment is only read.
"""

from typing import NamedTuple

import pyarrow as pa

from strandline import arrow_compute as pc
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
    """A null value that is kept."""

    time_ns: int
    offset: int


class _Stretch(NamedTuple):
    """Consecutive offsets of which no record is kept."""

    base_offset: int
    next_offset: int
    leader_epoch: LeaderEpoch
    filler: memoryview | None
    """The existing placeholder batch for exactly these offsets, if any."""


class SegmentRewrite:
    """Writes a segment's ``.cleaned`` file.

    Attributes:
        new: the replacement of the segment, after ``write``; None: nothing was removed.
        records_removed: how many records this run has removed.
        tombstones: the null values that are kept.
        held_ns: for how many ns each batch is kept that is there only to detect retries.
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
        """Write the kept records, unless all are kept or the segment is corrupt.

        Raises:
            DiskFullError: no space; no file is left behind.
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
        """Drop a batch; consecutive placeholders of one leader epoch become one."""
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
        """Return the batch with the records that are kept; None if there are none."""
        header = found.header
        if header.next_offset > self._scope.below:
            return found.view
        if not self._scope.is_committed(header):
            self.records_removed += header.record_count
            return None
        history = self._scope.history
        is_kept = header.attributes & (Attributes.MARKER | Attributes.PURGE)
        if is_kept or (history is None and not header.attributes & Attributes.KEYS):
            return found.view
        batch = rows(self._scope.log.decrypted(found.view))
        keep = self._keep(batch, header) if history is None else history.stays(batch)
        if (
            not any(keep)
            and self._keys.is_last_numbered(header)
            and self._is_held(self._scope.numbers_held_ns(header))
        ):
            keep[-1] = True
        kept = keep.count(True)
        if kept == len(keep) or self._is_held(self._scope.ids_held_ns(header)):
            return found.view
        if kept:
            # The remaining records are committed, so the new batch needs no transaction's flags.
            smaller = encode_again(batch.filter(pa.array(keep)), header)
            if self._scope.log.sealer is not None:
                smaller = self._scope.log.sealer.seal(smaller)
            if len(smaller) >= header.length and not self._reveals_deleted(batch, keep):
                return found.view  # the gaps would take more bytes than the records did
        self.records_removed += len(keep) - kept
        return smaller if kept else None

    def _is_held(self, held_ns: int) -> bool:
        """Note that a batch is kept for this many ns; return False if it is negative."""
        if held_ns >= 0:
            self.held_ns.append(held_ns)
        return held_ns >= 0

    def _reveals_deleted(self, batch: pa.RecordBatch, keep: list[bool]) -> bool:
        """Whether a removed record is of a deleted key, whose null value waits for that."""
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
        """Whether a key's null value is kept, because a reader or replica may need it."""
        scope = self._scope
        is_seen = tombstone.offset < scope.tombstones_below
        is_old = tombstone.time_ns < scope.oldest_tombstone_ns
        if is_seen and is_old and self._keys.may_forget(key):
            return False
        self.tombstones.append(tombstone)
        return True


class _Writer:
    """Writes ``.cleaned``, once the segment is known to need a rewrite."""

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
        """Append a batch; batches are written when they are many enough."""
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
        """Remove the file."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._disk.unlink(self.path)

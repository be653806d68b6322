"""Key compaction: the newest record of each key stays, and of a deleted key none.

Rules: only sealed segments that a checkpoint has passed are rewritten, one file each: the rest goes
to ``.cleaned``, is synced, and takes the old name; readers of the old file keep it. Records keep
their offsets; a batch becomes one with gaps (``Attributes.OFFSET_DELTAS``). Records without a key
stay. A null value stays visible for the delay, so that readers learn of the deletion, then it goes.
A segment with damage in it is left as it is. Deciding and writing may take long and run on any
thread; ``apply`` belongs to the log's thread.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import DiskFullError, StrandlineError
from strandline.record.batch import Attributes, BatchHeader, read_header
from strandline.record.codec import Stamp, decode_batches, encode_arrow
from strandline.record.compression import CODEC_NUMBERS
from strandline.storage.disk import BUFFERS_MAX, Bytes, Disk
from strandline.storage.log import Log
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import Hole
from strandline.storage.walk import Found, walk
from strandline.types import Offset, TimestampNs

CLEANED_SUFFIX = ".cleaned"
DIRTY_SHARE = 0.1
"""A run waits until this share of the stable bytes is new."""
_WRITE_BYTES = 4 << 20
_CODEC_NAMES = {number: name for name, number in CODEC_NUMBERS.items()}


Counts = Callable[[BatchHeader], bool]
"""Whether the records of a batch count: those of an aborted transaction do not."""


class _Scope(NamedTuple):
    """Which records replace others."""

    below: Offset
    counts: Counts
    log: Log
    """Who opens and seals what is encrypted."""


class Rewritten(NamedTuple):
    """A segment and what is to take its place."""

    old: Segment
    new: Segment | None
    """None: nothing is left of it."""
    cleaned: Path


class Compaction(NamedTuple):
    """What a run found and prepared."""

    rewritten: list[Rewritten]
    records_removed: int
    bytes_removed: int
    tombstone_due_ns: int
    """When the next null value that is still kept may go; 0 if there is none."""


class Compactor:
    """Compacts one log; remembers how far it has got so that idle logs cost nothing."""

    def __init__(self, log: Log, *, disk: Disk, tombstone_delay_ms: int) -> None:
        self._log = log
        self._disk = disk
        self._delay_ns = tombstone_delay_ms * 1_000_000
        self._done_before = -1
        self._tombstone_due_ns = 0

    def is_due(self, *, now_ns: TimestampNs) -> bool:
        """Whether a run may find something: new sealed segments, or null values past the delay."""
        stable = self._log.stable_segments
        if not stable:
            return False
        if self._tombstone_due_ns and now_ns >= self._tombstone_due_ns:
            return True
        dirty = sum(segment.size for segment in stable if segment.base_offset >= self._done_before)
        return dirty > DIRTY_SHARE * sum(segment.size for segment in stable)

    def prepare(
        self, *, below: Offset, now_ns: TimestampNs, counts: Counts | None = None
    ) -> Compaction:
        """Find the newest record of each key and write the segments anew; on any thread.

        Args:
            below: records from here on may yet be undone; they replace nothing, and stay.
            now_ns: for the age of null values.
            counts: whether the records of a batch do; others go, and replace nothing. None: all do.

        Raises:
            DiskFullError: no space; nothing is left behind.
            EncryptionKeyError: the stream is encrypted, and its key is not here.
            LogPoisonedError: reading or writing failed.
        """
        stable = self._log.stable_segments
        scope = _Scope(below, counts or (lambda _: True), self._log)
        newest = _newest_offsets(self._log.segments, scope)
        oldest_tombstone_ns = now_ns - self._delay_ns
        rewritten: list[Rewritten] = []
        tombstones: list[int] = []
        records = saved = 0
        for segment in stable:
            run = _Rewrite(segment, newest, oldest_tombstone_ns=oldest_tombstone_ns, scope=scope)
            found = run.write(disk=self._disk)
            tombstones += run.tombstones
            if found is not None:
                rewritten.append(found)
                records += run.records_removed
                saved += segment.size - (found.new.size if found.new else 0)
        due = min(tombstones) + self._delay_ns + 1 if tombstones else 0
        if stable:
            self._done_before = stable[-1].next_offset
        self._tombstone_due_ns = due
        return Compaction(rewritten, records, saved, due)

    def apply(self, compaction: Compaction) -> None:
        """Put the new segments in place; on the thread that owns the log.

        Segments that retention or a truncation has taken away meanwhile stay away.

        Raises:
            LogPoisonedError: renaming failed; the old segments stand.
        """
        for old, new, cleaned in compaction.rewritten:
            if old not in self._log.segments[:-1]:
                self._disk.unlink(cleaned)
            elif new is None:
                self._log.replace(old, None)
                old.remove_files()
            else:
                old.pin()
                old.remove_indexes()
                self._disk.rename(cleaned, old.path)
                self._log.replace(old, new)
                self._disk.sync_directory(old.path.parent)
                with contextlib.suppress(DiskFullError):  # an index is rebuilt when it is missing
                    new.write_indexes()


class _Rewrite:
    """One segment on its way to its compacted self."""

    def __init__(
        self,
        segment: Segment,
        newest: dict[bytes, int],
        *,
        oldest_tombstone_ns: int,
        scope: _Scope,
    ) -> None:
        self._segment = segment
        self._newest = newest
        self._scope = scope
        self._oldest_tombstone_ns = oldest_tombstone_ns
        self._holes: list[Hole] = []
        self.records_removed = 0
        self.tombstones: list[int] = []
        """Timestamps of the null values that stay."""

    def write(self, *, disk: Disk) -> Rewritten | None:
        """Write ``.cleaned``; None if the segment is fine as it is, or damaged."""
        old = self._segment
        writer = _Writer(old, disk=disk)
        try:
            for found in walk(old, on_hole=self._holes.append):
                batch = self._filtered(found)
                if batch is not None:
                    writer.add(batch, may_wait=not self.records_removed)
            if not self.records_removed or self._holes:
                writer.discard()
                return None
            new = writer.finish()
        except StrandlineError:
            writer.discard()
            raise
        return Rewritten(old, new, writer.path)

    def _filtered(self, found: Found) -> Bytes | None:
        """The batch with the records that stay; the same if all do or it would not get smaller."""
        header = found.header
        if header.base_offset >= self._scope.below:
            return found.view
        if not self._scope.counts(header):
            self.records_removed += header.record_count
            return None
        if not header.attributes & Attributes.KEYS:
            return found.view
        rows = _rows(self._scope.log.opened(found.view))
        keep = self._keep(rows, header)
        kept = keep.count(True)
        if kept == len(keep):
            return found.view
        if kept == 0:
            self.records_removed += len(keep)
            return None
        batch = _encode(rows.filter(pa.array(keep)), header)
        if self._scope.log.sealer is not None:
            batch = self._scope.log.sealer.seal(batch)
        if len(batch) >= header.length:
            return found.view  # the gaps would take more than the records did
        self.records_removed += len(keep) - kept
        return batch

    def _keep(self, rows: pa.RecordBatch, header: BatchHeader) -> list[bool]:
        newest = self._newest
        keys = rows.column("key").to_pylist()
        offsets = rows.column("offset").to_pylist()
        keep = [
            key is None or newest.get(key, -1) <= offset
            for key, offset in zip(keys, offsets, strict=True)
        ]
        if header.attributes & Attributes.NULL_VALUES:
            nulls = pc.is_null(rows.column("value")).to_pylist()
            times = rows.column("timestamp").cast(pa.int64()).to_pylist()
            for row, (key, null, time) in enumerate(zip(keys, nulls, times, strict=True)):
                if null and key is not None and keep[row]:
                    keep[row] = time >= self._oldest_tombstone_ns
                    if keep[row]:
                        self.tombstones.append(time)
        return keep


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

    def finish(self) -> Segment | None:
        """Make the file durable; None if there is nothing in it."""
        if not self._size:
            return None
        self._write()
        self._disk.fdatasync(self._fd)
        self._disk.close(self._fd)
        self._fd = -1
        self._new.finish_successor(self._size, self._old.next_offset)
        return self._new

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._disk.unlink(self.path)


def _newest_offsets(segments: Sequence[Segment], scope: _Scope) -> dict[bytes, int]:
    """Offset of the newest record of each key, of those that count."""
    newest: dict[bytes, int] = {}
    below = scope.below
    for segment in segments:
        if segment.base_offset >= below:
            break
        for found in walk(segment):
            if found.header.base_offset >= below:
                break
            if found.header.attributes & Attributes.KEYS and scope.counts(found.header):
                rows = _rows(scope.log.opened(found.view), columns=["offset", "key"])
                keys, offsets = rows.column("key").to_pylist(), rows.column("offset").to_pylist()
                newest.update(
                    (key, offset)
                    for key, offset in zip(keys, offsets, strict=True)
                    if key is not None and offset < below
                )
    return newest


def _rows(batch: pa.Buffer, *, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The records of one batch."""
    (rows,) = decode_batches(batch, columns=columns)
    return rows


def _encode(rows: pa.RecordBatch, header: BatchHeader) -> bytearray:
    """A batch of the rows that stay, at their offsets and times."""
    offsets = rows.column("offset").to_pylist()
    base = offsets[0]
    stamp = Stamp(
        base_offset=base,
        leader_epoch=header.leader_epoch,
        timestamp_ns=header.first_timestamp,
        compression=_CODEC_NAMES[header.codec],
    )
    return encode_arrow(
        rows,
        stamp,
        default_subject="",
        offset_deltas=[offset - base for offset in offsets],
        timestamps_ns=rows.column("timestamp").cast(pa.int64()),
    )

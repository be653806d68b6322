"""Compaction: keeps only the newest record of each key, and none of a deleted key.

In a stream that limits the records of a subject it keeps those that ``subject_history`` keeps.

Rules: only sealed segments below a checkpoint are rewritten, one file each: the kept batches are
written to ``.cleaned``, synced, and renamed over the old file, which open readers keep. Records
keep their offsets, and logs stay dense (``compaction_rewrite``). Records without a key are kept. A
null value is kept for the delay, so that readers see the deletion, and until every replica has it,
so that no replica keeps the deleted record. Batches by which retries are detected are kept as long
as a retry may arrive: young ones with message ids, and one record of each producer's last batch (as
in Kafka). A segment with corruption is not changed. Everything except ``is_due`` may take long and
runs on any thread.
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

from strandline.errors import DiskFullError
from strandline.storage.compaction_keys import IsCommitted, Scope, scan_keys
from strandline.storage.compaction_rewrite import CLEANED_SUFFIX, SegmentRewrite, Tombstone
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import RetiredSegmentError
from strandline.storage.subject_history import SubjectHistory
from strandline.types import Offset, TimestampNs

DIRTY_SHARE = 0.1
"""A run starts only when this share of the stable bytes is new."""
_NEVER_NS = 1 << 63


class Rewritten(NamedTuple):
    """A segment and its replacement."""

    old: Segment
    new: Segment

    @property
    def cleaned(self) -> Path:
        """The path of the rewritten segment until it replaces the old one."""
        return self.old.path.with_suffix(CLEANED_SUFFIX)


class Compaction(NamedTuple):
    """The result of a compaction run."""

    rewritten: list[Rewritten]
    records_removed: int
    bytes_removed: int
    tombstone_due_ns: int
    """When the next null value that is still kept may be removed; 0 if there is none."""


class Compactor:
    """Compacts one log; remembers how far it is compacted, so that an idle log costs nothing.

    Args:
        log: the log of the partition.
        disk: the file system.
        tombstone_delay_ms: how long null values are kept.
        ids_ms: how long message ids detect retries; 0: not at all.
        numbers_ms: how long producers' sequence numbers detect retries; 0: not at all.
        records_per_subject: how many records of each subject are kept; 0: the newest of each key.
    """

    def __init__(
        self,
        log: Log,
        *,
        disk: Disk,
        tombstone_delay_ms: int,
        ids_ms: int = 0,
        numbers_ms: int = 0,
        records_per_subject: int = 0,
    ) -> None:
        self._log = log
        self._disk = disk
        self._delay_ns = tombstone_delay_ms * 1_000_000
        self._ids_ms = ids_ms
        self._numbers_ms = numbers_ms
        self._records_per_subject = records_per_subject
        self._done_before = -1
        self._tombstone_due_ns = 0
        self._tombstone_first = 0
        self._held_due_ns = 0

    def is_due(self, *, now_ns: TimestampNs, tombstones_below: Offset) -> bool:
        """Whether a run may remove something: there are new sealed segments, or a delay has passed.

        Args:
            now_ns: the time, for the age of null values.
            tombstones_below: null values from here on are kept: a replica may lack them.
        """
        stable = self._log.stable_segments
        if not stable:
            return False
        is_seen = self._tombstone_first < tombstones_below
        if is_seen and self._tombstone_due_ns and now_ns >= self._tombstone_due_ns:
            return True
        if self._held_due_ns and now_ns >= self._held_due_ns:
            return True
        dirty = sum(segment.size for segment in stable if segment.base_offset >= self._done_before)
        return dirty > DIRTY_SHARE * sum(segment.size for segment in stable)

    def prepare(
        self,
        *,
        below: Offset,
        tombstones_below: Offset,
        now_ns: TimestampNs,
        is_committed: IsCommitted | None = None,
    ) -> Compaction:
        """Find the newest record of each key and write the new segments; on any thread.

        Args:
            below: records from here on may still be truncated: they are kept and replace no others.
            tombstones_below: null values from here on are kept: a replica may lack them.
            now_ns: the time, for the age of null values, message ids and sequence numbers.
            is_committed: whether a batch is committed; others are removed. None: all are.

        Raises:
            DiskFullError: no space; no file is left behind.
            EncryptionKeyError: the stream is encrypted, and its key is not available.
            LogPoisonedError: reading or writing failed.
        """
        stable = self._log.stable_segments
        oldest_ns = now_ns - self._delay_ns
        scope = Scope(
            below,
            is_committed or (lambda _: True),
            tombstones_below,
            oldest_ns,
            ids_from_ns=_since(now_ns, self._ids_ms),
            numbers_from_ns=_since(now_ns, self._numbers_ms),
            log=self._log,
            history=SubjectHistory(limit) if (limit := self._records_per_subject) else None,
        )
        keys = scan_keys(scope)
        rewritten: list[Rewritten] = []
        tombstones: list[Tombstone] = []
        held_ns: list[int] = []
        records = 0
        for segment in stable:
            rewrite = SegmentRewrite(segment, keys, scope, disk=self._disk)
            rewrite.write()
            tombstones += rewrite.tombstones
            held_ns += rewrite.held_ns
            if rewrite.new is not None:
                rewritten.append(Rewritten(segment, rewrite.new))
                records += rewrite.records_removed
        if stable:
            self._done_before = stable[-1].next_offset
        self._held_due_ns = now_ns + min(held_ns) + 1 if held_ns else 0
        self._tombstone_due_ns = 0
        if tombstones and keys.is_whole:  # corruption blocks all removals; do not retry every time
            self._tombstone_due_ns = min(tombstones).time_ns + self._delay_ns + 1
            self._tombstone_first = min(each.offset for each in tombstones)
        saved = sum(old.size - new.size for old, new in rewritten)
        return Compaction(rewritten, records, saved, self._tombstone_due_ns)

    def apply(self, compaction: Compaction) -> None:
        """Replace segments by their new versions, one by one, durably; on any thread.

        A segment that retention or a truncation has removed meanwhile is skipped. Each one is
        durable before the next, which may lack the null value that deletes a record here.

        Raises:
            DiskFullError: no space for a name; the segments not yet replaced stay.
            LogPoisonedError: renaming failed; the old segments stay.
        """
        for each in compaction.rewritten:
            if self._log.replace(each.old, each.new, each.cleaned):
                self._settle(each.new)

    def _settle(self, new: Segment) -> None:
        self._disk.sync_directory(new.path.parent)
        # Ignored: a missing index is rebuilt.
        with contextlib.suppress(DiskFullError, RetiredSegmentError):
            new.write_indexes()


def _since(now_ns: TimestampNs, memory_ms: int) -> int:
    """Return the time ``memory_ms`` ago; if that is 0, one in the far future."""
    return now_ns - memory_ms * 1_000_000 if memory_ms else _NEVER_NS

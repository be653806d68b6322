"""A partition's log on a simulated disk: unsynced changes may be lost in a crash.

Rules: changes reach the disk in the order in which they were made, so a crash leaves a prefix of
those since the last sync; a torn batch counts as not written, as recovery discards it.
Corruption at rest stays until it is repaired. Must not know who replicates what.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.replication_keys import StoredKey, filler, may_merge, scan_keys, tail, without
from strandline.types import LeaderEpoch, Offset


class Reach(NamedTuple):
    """A compaction's limits: batches up to ``upto`` are rewritten, for keys up to ``below``."""

    upto: int
    below: int
    tombstones_below: int


@dataclass(slots=True)
class Image:
    """A log's contents: batches by base offset, in order, and the log's start and end.

    It may start inside its first batch, if that batch's first records were deleted.
    """

    batches: dict[int, StoredKey] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def append(self, stored: StoredKey) -> None:
        """Add a batch at the end."""
        if stored.ref.base_offset != self.end:
            raise AssertionError(f"a batch at {stored.ref.base_offset}, the log ends at {self.end}")
        self.batches[self.end] = stored
        self.end = stored.ref.next_offset

    def truncate_to(self, offset: int) -> None:
        """Truncate at the end of a batch."""
        while self.end > offset:
            _, stored = self.batches.popitem()
            self.end = max(stored.ref.base_offset, self.start)
        if self.end != offset:
            raise AssertionError(f"truncated inside a batch: {offset}")

    def reset_to(self, offset: int) -> None:
        """Empty the log, and continue at an offset."""
        self.batches = {}
        self.start = self.end = offset

    def delete_before(self, offset: int) -> None:
        """Delete the records below an offset; batches are removed as a whole."""
        self.start = max(self.start, offset)
        for base, stored in list(self.batches.items()):
            if stored.ref.next_offset > self.start:
                break
            del self.batches[base]

    def at(self, offset: int) -> StoredKey | None:
        """Return the batch that begins at an offset, or the rest of the batch that contains it."""
        stored = self.batches.get(offset)
        if stored is not None:
            return stored
        for each in self.batches.values():
            if each.ref.base_offset < offset < each.ref.next_offset:
                return tail(each, offset)
        return None

    def compact(self, reach: Reach) -> None:
        """Remove records as ``storage.compaction`` does; the log stays dense."""
        keys = scan_keys(self.batches.values(), reach.below)
        compacted: dict[int, StoredKey] = {}
        last: StoredKey | None = None
        for stored in self.batches.values():
            kept = stored
            if stored.ref.next_offset <= reach.upto:
                kept = without(stored, keys, tombstones_below=reach.tombstones_below)
                if last is not None and may_merge(last, kept):
                    kept = filler(last.ref.base_offset, kept.ref.next_offset, kept.ref.leader_epoch)
            compacted[kept.ref.base_offset] = last = kept
        self.batches = compacted

    def replace(self, stored: StoredKey) -> None:
        """Replace a batch by its repaired version."""
        if stored.ref.base_offset in self.batches:
            self.batches[stored.ref.base_offset] = stored

    def between(self, first: int, after: int) -> list[StoredKey]:
        """Return the batches that begin from ``first`` to ``after``, exclusive."""
        found = []
        while first < after:
            stored = self.at(first)
            if stored is None:
                raise AssertionError(f"no batch begins at {first}")
            found.append(stored)
            first = stored.ref.next_offset
        return found

    def copy(self) -> "Image":
        """Return a copy."""
        return Image(dict(self.batches), self.start, self.end)


class SimLog:
    """The log as its broker sees it, and its durable part."""

    def __init__(self) -> None:
        self.seen = Image()
        self.disk = Image()
        self.corrupt: set[int] = set()
        self.high_watermark = 0
        """The high watermark in the checkpoint."""
        self._changes: list[tuple[Callable[..., None], object]] = []
        self._sync_size = 0
        self._sync_end: int | None = None
        self._synced_end: int | None = None

    # Changes

    def append(self, stored: StoredKey) -> None:
        """Write a batch."""
        self._change(Image.append, stored)

    def repair(self, stored: StoredKey) -> None:
        """Replace a corrupt batch."""
        self.corrupt.discard(stored.ref.base_offset)
        self._change(Image.replace, stored)

    def truncate_to(self, offset: int) -> None:
        """Truncate; a sync in progress covers only what remains."""
        self._change(Image.truncate_to, offset)
        self.corrupt = {base for base in self.corrupt if base < offset}
        if self._sync_end is not None:
            self._sync_end = min(self._sync_end, offset)
        if self._synced_end is not None:
            self._synced_end = min(self._synced_end, offset)

    def reset_to(self, offset: int) -> None:
        """Empty the log; a sync in progress does not cover the new one."""
        self._change(Image.reset_to, offset)
        self.corrupt = set()
        self._sync_end = self._synced_end = None

    def compact(self, reach: Reach) -> None:
        """Compact the log in one step; the real one works segment by segment, see other tests."""
        self._change(Image.compact, reach)

    def delete_before(self, offset: int) -> None:
        """Delete records, as retention does."""
        self._change(Image.delete_before, offset)
        self.corrupt = {base for base in self.corrupt if base >= offset}

    def _change(self, how: Callable[..., None], what: object) -> None:
        how(self.seen, what)
        self._changes.append((how, what))

    # Durability

    @property
    def is_dirty(self) -> bool:
        """Whether a sync would change anything."""
        return bool(self._changes)

    def begin_sync(self) -> None:
        """Begin a sync, which covers the changes made so far."""
        self._sync_size = len(self._changes)
        self._sync_end = self.seen.end

    def end_sync(self) -> None:
        """End a sync; the broker is notified later and may truncate the log before that."""
        for how, what in self._changes[: self._sync_size]:
            how(self.disk, what)
        del self._changes[: self._sync_size]
        self._sync_size = 0
        self._synced_end, self._sync_end = self._sync_end, None

    def take_synced(self) -> Offset | None:
        """Return the end of the log that is certain to survive a crash; None if it is not known."""
        end, self._synced_end = self._synced_end, None
        return None if end is None else Offset(end)

    def crash(self, rng: random.Random) -> int:
        """Lose unsynced changes from some point on; return how many were lost."""
        kept = rng.choice((0, len(self._changes), rng.randint(0, len(self._changes))))
        for how, what in self._changes[:kept]:
            how(self.disk, what)
        lost = len(self._changes) - kept
        self._changes.clear()
        self._sync_size, self._sync_end, self._synced_end = 0, None, None
        self.seen = self.disk.copy()
        return lost

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.seen, self.disk = Image(), Image()
        self._changes.clear()
        self.corrupt = set()
        self.high_watermark = 0

    def epochs(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """Return the start offset of each epoch, as recovery reads it from the batches."""
        found: list[tuple[LeaderEpoch, Offset]] = []
        for stored in self.seen.batches.values():
            if not found or stored.ref.leader_epoch > found[-1][0]:
                start = max(stored.ref.base_offset, Offset(self.seen.start))
                found.append((stored.ref.leader_epoch, start))
        return tuple(found)

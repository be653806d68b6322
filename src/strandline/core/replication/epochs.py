"""First offset of each leader epoch, by which two logs find where they diverge (KIP-101).

Batches carry the epoch of the leader that wrote them, and an epoch has one leader; so two logs with
the same epoch at an offset are equal up to there (the induction of KIP-101).

Invariants: epochs and offsets both ascend; the first entry is at or before the log start.
"""

from bisect import bisect_right

from strandline.core.replication.messages import NO_EPOCH
from strandline.types import LeaderEpoch, Offset

Entry = tuple[LeaderEpoch, Offset]


class EpochList:
    """The epochs of a log with their start offsets, in order; empty if it never had a batch."""

    __slots__ = ("entries",)

    def __init__(self, entries: tuple[Entry, ...] = ()) -> None:
        self.entries = entries

    def __repr__(self) -> str:
        return " ".join(f"{epoch}@{offset}" for epoch, offset in self.entries) or "none"

    @property
    def last(self) -> LeaderEpoch:
        """The epoch of the last batch."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def note(self, epoch: LeaderEpoch, base_offset: Offset) -> None:
        """Note that a batch of ``epoch`` was appended at ``base_offset``."""
        if epoch > self.last:
            # Retention may have left an epoch without batches at the log end: replace it.
            self.truncate_to(base_offset)
            self.entries = (*self.entries, (epoch, base_offset))
        else:
            assert epoch == self.last, "a log's epochs never go back"

    def end_of(self, epoch: LeaderEpoch, *, log_end_offset: Offset) -> Entry | None:
        """Return the largest epoch of this log up to ``epoch``, and its end; None if there is none.

        The other log may have epochs that this one never had. Both then walk back until they find
        a common one (KIP-279).
        """
        found = bisect_right(self.entries, epoch, key=_epoch_of) - 1
        if found < 0:
            return None
        is_last = found + 1 == len(self.entries)
        return self.entries[found][0], log_end_offset if is_last else self.entries[found + 1][1]

    def truncate_to(self, offset: Offset) -> None:
        """Forget the epochs that begin at or after ``offset``, where the log was truncated."""
        while self.entries and self.entries[-1][1] >= offset:
            self.entries = self.entries[:-1]

    def delete_before(self, offset: Offset) -> None:
        """Let the epoch in force at ``offset`` begin there, after earlier records were removed."""
        found = bisect_right(self.entries, offset, key=_start_of) - 1
        if found >= 0:
            in_force = self.entries[found][0]
            self.entries = ((in_force, offset), *self.entries[found + 1 :])


def _epoch_of(entry: Entry) -> LeaderEpoch:
    return entry[0]


def _start_of(entry: Entry) -> Offset:
    return entry[1]

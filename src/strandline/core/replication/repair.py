"""Repair of corrupt batches from another replica, whatever the role.

Rules: a range is requested only from a replica that is known to have the same batches, and answered
only in the same epoch. Ranges are requested one at a time, the lowest first, and again from the
next replica until repaired. The log is never truncated for corruption, since later records may be
committed. The broker verifies the checksums of received batches before it writes them.
"""

from strandline.core.replication.effects import Effect, Repair, Send
from strandline.core.replication.messages import BatchRef, Buffer, FetchRange, Range
from strandline.types import BrokerId, LeaderEpoch, Offset


class Repairs:
    """The corrupt ranges of one replica's log.

    Args:
        resend_ms: after this time without an answer the next replica is asked.
    """

    def __init__(self, *, resend_ms: int) -> None:
        self.deadline_ms: int | None = None
        self._resend_ms = resend_ms
        self._corrupt: list[tuple[Offset, Offset]] = []
        self._asked = 0

    @property
    def wanted(self) -> tuple[Offset, Offset] | None:
        """The range to repair next; None if there is none."""
        return self._corrupt[0] if self._corrupt else None

    def note(self, first_offset: Offset, next_offset: Offset) -> None:
        """Add a corrupt range."""
        found = (first_offset, next_offset)
        if found not in self._corrupt:
            self._corrupt = sorted([*self._corrupt, found])

    def forget_outside(self, log_start_offset: Offset, log_end_offset: Offset) -> None:
        """Forget ranges that are no longer in the log."""
        there = [
            (max(first, log_start_offset), min(after, log_end_offset))
            for first, after in self._corrupt
        ]
        self._corrupt = [(first, after) for first, after in there if first < after]
        if not self._corrupt:
            self.deadline_ms = None

    def ask(self, sources: list[BrokerId], epoch: LeaderEpoch, now_ms: int) -> list[Effect]:
        """Request the lowest range from one of ``sources``, another one each time."""
        if self.wanted is None:
            self.deadline_ms = None
            return []
        self.deadline_ms = now_ms + self._resend_ms
        if not sources:
            return []  # no replica is known to have it now; that may change
        source = sources[self._asked % len(sources)]
        self._asked += 1
        return [Send(source, FetchRange(epoch, *self.wanted))]

    def take(self, message: Range, buffers: tuple[Buffer, ...]) -> list[Effect]:
        """Repair the range with received batches, if they cover it."""
        if self.wanted is None or not _covers(message.batches, *self.wanted):
            return []
        self._corrupt.pop(0)
        self.deadline_ms = None
        return [Repair(message.batches, buffers)]


def _covers(refs: tuple[BatchRef, ...], first_offset: Offset, next_offset: Offset) -> bool:
    """Return whether contiguous batches cover the range."""
    if not refs:
        return False
    return refs[0].base_offset <= first_offset and refs[-1].next_offset >= next_offset

"""The in-sync replicas as a leader may rely on them, and who should join or leave.

Rules: metadata decides, by compare-and-set of the partition's version; we propose, one change at a
time. While a proposal is open nobody knows which set is in force, so a record counts as committed
only if *both* have it: the maximal ISR (KIP-497). ``min_isr`` is measured by what was decided.

Invariants: versions only grow; a proposal is open until its version is passed or it is refused;
the leader is a member, always.
"""

from strandline.core.replication.effects import ProposeIsr
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.progress import Phase, Progress
from strandline.types import BrokerId, LeaderEpoch, Offset

Members = tuple[BrokerId, ...]
Joining = tuple[tuple[BrokerId, str], ...]


class InSync:
    """ISR, version and open proposal of one leadership.

    Args:
        members: as assigned.
        version: of the partition.
        epoch: of the leadership.
    """

    def __init__(self, members: Members, *, version: int, epoch: LeaderEpoch) -> None:
        self.members: Members = tuple(sorted(members))
        self.version = version
        self.proposed: Members | None = None
        self.hold_ms: int | None = None
        """No proposal before: the last one was refused, and would be again."""
        self._epoch = epoch
        self._proposals = 0

    @property
    def counted(self) -> Members:
        """Return the replicas whose sync a record needs: all that may be in the ISR."""
        if self.proposed is None:
            return self.members
        return tuple(sorted({*self.members, *self.proposed}))

    def propose(self, members: set[BrokerId], joining: Joining) -> ProposeIsr:
        """Open a proposal; ``joining`` are those of ``members`` that are new."""
        assert self.proposed is None, "one change at a time"
        self.proposed = tuple(sorted(members))
        self._proposals += 1
        return ProposeIsr(self._epoch, self.version, self.proposed, self._proposals, joining)

    def changed(self, version: int, members: Members) -> bool:
        """Metadata says what is in force; False if that is old news.

        A higher version closes our proposal whoever made the change: it was this one, or it can no
        longer pass.
        """
        if version <= self.version:
            return False
        self.version, self.members = version, tuple(sorted(members))
        self.proposed = self.hold_ms = None
        return True

    def rejected(self, proposal: int, *, hold_ms: int) -> None:
        """Metadata decided against the proposal."""
        if self.proposed is not None and proposal == self._proposals:
            self.proposed = None
            self.hold_ms = hold_ms


def lag_deadline(progress: Progress, log_end_offset: Offset, limits: ReplicationLimits) -> int:
    """Return when a member leaves the ISR unless it catches up; only for one that is behind."""
    assert progress.durable_offset < log_end_offset, "who has everything has no deadline"
    return progress.caught_up_ms + limits.replica_lag_ms_max


def must_leave(
    progress: Progress,
    high_watermark: Offset,
    *,
    log_end_offset: Offset,
    limits: ReplicationLimits,
    now_ms: int,
) -> bool:
    """Whether a member of the ISR no longer belongs there.

    One that comes back with less than is committed has lost what it synced (a wiped disk): it
    leaves at once, or it might be elected.
    """
    if progress.phase is Phase.STREAMING and progress.next_offset < high_watermark:
        return True
    if progress.durable_offset >= log_end_offset:
        return False
    return now_ms >= lag_deadline(progress, log_end_offset, limits)


def may_join(progress: Progress, high_watermark: Offset, *, epoch_start: Offset) -> bool:
    """Whether a follower has all that may be committed.

    The high watermark alone is not enough: a new leader's may be older than what its predecessor
    committed, which is all below the log end with which it began.
    """
    is_current = progress.phase is Phase.STREAMING and progress.acked
    return is_current and progress.durable_offset >= max(high_watermark, epoch_start)

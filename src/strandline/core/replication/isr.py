"""The in-sync replicas of a leader, and the rules for joining and leaving them.

Rules: metadata decides, by compare-and-set of the partition's version; we propose, one change at a
time. While a proposal is open it is unknown which set is in force, so a record is committed only if
all members of *both* have it: the maximal ISR (KIP-497). ``min_isr`` is compared with the decided
set.

Invariants: versions only grow; a proposal is open until a higher version is decided or it is
rejected; the leader is always a member.
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
        version: the version of the partition.
        epoch: the epoch of the leadership.
    """

    def __init__(self, members: Members, *, version: int, epoch: LeaderEpoch) -> None:
        self.members: Members = tuple(sorted(members))
        self.version = version
        self.proposed: Members | None = None
        self.hold_ms: int | None = None
        """The time before which nothing is proposed, because the last proposal was rejected."""
        self._epoch = epoch
        self._proposals = 0

    @property
    def counted(self) -> Members:
        """Return the replicas whose sync a record needs: all that may be in the ISR."""
        if self.proposed is None:
            return self.members
        return tuple(sorted({*self.members, *self.proposed}))

    def propose(self, members: set[BrokerId], joining: Joining) -> ProposeIsr:
        """Open a proposal; ``joining`` are the new ones among ``members``."""
        assert self.proposed is None, "one change at a time"
        self.proposed = tuple(sorted(members))
        self._proposals += 1
        return ProposeIsr(self._epoch, self.version, self.proposed, self._proposals, joining)

    def changed(self, version: int, members: Members) -> bool:
        """Take over a decided ISR; return False if it is not newer.

        A higher version closes our proposal: either it is the change, or it can no longer pass.
        """
        if version <= self.version:
            return False
        self.version, self.members = version, tuple(sorted(members))
        self.proposed = self.hold_ms = None
        return True

    def rejected(self, proposal: int, *, hold_ms: int) -> None:
        """Close a rejected proposal; make none before ``hold_ms``."""
        if self.proposed is not None and proposal == self._proposals:
            self.proposed = None
            self.hold_ms = hold_ms


def lag_deadline(progress: Progress, log_end_offset: Offset, limits: ReplicationLimits) -> int:
    """Return when a member leaves the ISR unless it catches up; only for one that is behind."""
    assert progress.durable_offset < log_end_offset, (
        "a follower that has all records has no deadline"
    )
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

    A follower that comes back with less than what is committed has lost synced records (a wiped
    disk). It leaves at once, because it must not be elected.
    """
    if progress.phase is Phase.STREAMING and progress.next_offset < high_watermark:
        return True
    if progress.durable_offset >= log_end_offset:
        return False
    return now_ms >= lag_deadline(progress, log_end_offset, limits)


def may_join(progress: Progress, high_watermark: Offset, *, epoch_start: Offset) -> bool:
    """Whether a follower has all records that may be committed.

    The high watermark alone is not enough. A new leader's may be lower than its predecessor's, but
    everything that the predecessor committed is below the log end at the start of the epoch.
    """
    is_current = progress.phase is Phase.STREAMING and progress.acked
    return is_current and progress.durable_offset >= max(high_watermark, epoch_start)

"""A follower of a partition: makes its log a copy of the leader's, and says what is synced.

    WAITING ──leader known, link back──► FETCHING ──first Replicate──► STREAMING
       ▲                                  │  ▲  │                          │
       └────────────link lost─────────────┘  │  └─Diverged: truncate─┐     │ gap
                                             └───────────────────────┴─────┘
    STUCK: the leader lacks what was committed here; only a new assignment leads out.

Rules:
- Every ``Fetch`` has a session of its own, except when it is repeated because no answer came. All
  that belongs to another session is ignored: an answer to an old question must not cut the log.
- A batch is appended only where the log ends. What is there already is skipped; a gap ends the
  session.
- The log is cut only where the leader of this epoch says that the logs part, back to the last epoch
  both know, as often as it takes (KIP-101, KIP-279), and never below the high watermark, unless an
  operator chose the leader knowing that.
- A copy of a compacted log that was never in sync is filled by one leadership, or anew: a null
  value may be gone from one leader while another still has the record it deletes (ADR 0027).
- ``Acked`` only tells of what our own sync covered.
- Only the wait for the answer to ``Fetch`` is timed: the leader asks if it misses something.

Invariants:
- while streaming, all of the log is the leader's, so ``min(heard, durable)`` is committed here;
- the high watermark never goes back, unless the leader was elected uncleanly, or the copy is filled
  anew.

Must not know what a batch holds or where the log is.
"""

from enum import Enum

from strandline.core.replication.effects import (
    Append,
    Committed,
    DivergenceError,
    Effect,
    Halted,
    ResetTo,
    Send,
    TruncateTo,
)
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import (
    Acked,
    BatchRef,
    Buffer,
    Diverged,
    Fetch,
    Replicate,
    Session,
    StartAt,
)
from strandline.core.replication.state import LogState
from strandline.types import BrokerId, LeaderEpoch, Offset


class FollowerState(Enum):
    """The follower's state towards its leader."""

    WAITING = "waiting"
    FETCHING = "fetching"
    STREAMING = "streaming"
    STUCK = "stuck"


class Follower:
    """A replica under one leader, or under none; made by an assignment, dropped by the next.

    Args:
        log: the replica's log; shared with the replica, not with others.
        epoch: of the assignment.
        leader: None: nobody leads now.
        session: the last one used; those that follow are larger.
        incarnation: of our broker.
        limits: how patient to be.
        may_lose: the leader was elected uncleanly, by an operator's order.
    """

    def __init__(
        self,
        log: LogState,
        epoch: LeaderEpoch,
        leader: BrokerId | None,
        *,
        session: Session,
        incarnation: str,
        limits: ReplicationLimits,
        may_lose: bool = False,
    ) -> None:
        self.log = log
        self.epoch = epoch
        self.leader = leader
        self.session = session
        self.state = FollowerState.WAITING
        self.deadline_ms: int | None = None
        self.min_replica_offset = Offset(0)
        """Records below are on the disk of every replica, as the leader said."""
        self._leader_high_watermark = log.high_watermark
        self._owes_ack = False
        self._limits = limits
        self._incarnation = incarnation
        self._may_lose = may_lose

    # Sessions

    def start(self, now_ms: int) -> list[Effect]:
        """Open a session with the leader, if there is one."""
        if self.leader is None or self.state is FollowerState.STUCK:
            return []
        self.session = Session(self.session + 1)
        self.state = FollowerState.FETCHING
        self._leader_high_watermark = self.log.high_watermark
        self._owes_ack = False
        return self._fetch(now_ms)

    def _fetch(self, now_ms: int) -> list[Effect]:
        """Say where our log ends; again if no answer comes."""
        assert self.leader is not None, "asked only with a leader"
        self.deadline_ms = now_ms + self._limits.resend_ms
        log = self.log
        where = log.log_end_offset, log.last_epoch
        fetch = Fetch(self.epoch, self.session, *where, self._incarnation)
        return [Send(self.leader, fetch)]

    def peer_disconnected(self, broker: BrokerId) -> list[Effect]:
        """Wait for the link; a session does not survive it."""
        if broker == self.leader and self.state is not FollowerState.STUCK:
            self.state = FollowerState.WAITING
            self.deadline_ms = None
        return []

    def peer_connected(self, broker: BrokerId, now_ms: int) -> list[Effect]:
        """Begin again with the leader: what was under way may be lost."""
        return self.start(now_ms) if broker == self.leader else []

    def time_passed(self, now_ms: int) -> list[Effect]:
        """No answer came: ask again, in the same session, as the question may just be slow."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return []
        return self._fetch(now_ms)

    def undone(self, log_end_offset: Offset, now_ms: int) -> list[Effect]:
        """Our disk had no room: give the stream up and try again after a while."""
        assert log_end_offset <= self.log.log_end_offset, "less was kept, not more"
        if log_end_offset < self.log.log_end_offset:
            self.log.truncate_to(log_end_offset)
        if self.leader is not None and self.state is not FollowerState.STUCK:
            self.session = Session(self.session + 1)
            self.state = FollowerState.FETCHING
            self.deadline_ms = now_ms + self._limits.resend_ms
        return []

    def start_over(self) -> list[Effect]:
        """Empty a copy that is being filled, and that another leadership began."""
        log = self.log
        offset = log.log_start_offset
        if offset == log.log_end_offset:
            return []
        log.reset_to(offset)
        return [ResetTo(offset), Committed(offset)]

    # Copying

    def replicate(
        self, message: Replicate, buffers: tuple[Buffer, ...], now_ms: int
    ) -> list[Effect]:
        """Append what is new; expose what is committed."""
        if message.session != self.session or self.state in (
            FollowerState.WAITING,
            FollowerState.STUCK,
        ):
            return []
        self.state = FollowerState.STREAMING
        self.deadline_ms = None
        if message.base_offset > self.log.log_end_offset:
            return self.start(now_ms)  # something was lost on the way
        self._owes_ack |= message.wants_ack
        self._leader_high_watermark = max(self._leader_high_watermark, message.high_watermark)
        self.min_replica_offset = message.min_replica_offset
        effects = self._append(message.batches, buffers)
        return effects + self._advance()

    def _append(self, refs: tuple[BatchRef, ...], buffers: tuple[Buffer, ...]) -> list[Effect]:
        """Append the batches that are not here yet."""
        log = self.log
        known = 0
        while known < len(refs) and refs[known].next_offset <= log.log_end_offset:
            known += 1
        new = refs[known:]
        if not new:
            return []
        is_ours = log.last_epoch <= new[0].leader_epoch and new[-1].leader_epoch <= self.epoch
        if new[0].base_offset != log.log_end_offset or not is_ours:
            return self._get_stuck(DivergenceError.MISALIGNED)
        log.append(new)
        return [Append(new, buffers[known:])]

    def synced(self, offset: Offset, _now_ms: int) -> list[Effect]:
        """Our own sync ended: it may be acked, and what is committed may be read here."""
        before = self.log.durable_offset
        self.log.synced(offset)
        self._owes_ack |= self.log.durable_offset > before
        return self._advance()

    def _advance(self) -> list[Effect]:
        """Raise the high watermark as far as is committed, and durable here."""
        if self.state is not FollowerState.STREAMING:
            return []
        offset = min(self._leader_high_watermark, self.log.durable_offset)
        return [Committed(offset)] if self.log.advance(offset) else []

    def flush(self, _now_ms: int) -> list[Effect]:
        """Ack once for all that was synced since the last turn."""
        if not self._owes_ack or self.state is not FollowerState.STREAMING:
            return []
        assert self.leader is not None, "we stream from it"
        self._owes_ack = False
        ack = Acked(self.epoch, self.session, self.log.durable_offset, self._leader_high_watermark)
        return [Send(self.leader, ack)]

    # Agreeing with the leader

    def diverged(self, message: Diverged, now_ms: int) -> list[Effect]:
        """Cut what the leader does not have, as far as one answer tells, and ask again."""
        if message.session != self.session or self.state is not FollowerState.FETCHING:
            return []
        log = self.log
        target = self._parting(message)
        if target >= log.log_end_offset:
            # A right answer cuts something, so the walk ends; this one would lead in a circle.
            return self._get_stuck(DivergenceError.MISALIGNED)
        if target < log.high_watermark and not self._may_lose:
            return self._get_stuck(DivergenceError.BELOW_HIGH_WATERMARK)
        is_loss = target < log.high_watermark
        log.truncate_to(target)
        lost: list[Effect] = [Committed(target)] if is_loss else []
        return [TruncateTo(target), *lost, *self.start(now_ms)]

    def _parting(self, message: Diverged) -> Offset:
        """The end of what may still agree.

        If we know the leader's epoch too, the shorter of both is common. If not, all that we have
        above it is unknown to the leader, and our last epoch below it is the next to compare.
        """
        log = self.log
        ours = log.epochs.end_of(message.last_epoch, log_end_offset=log.log_end_offset)
        if ours is None:
            return log.log_start_offset
        epoch, end_offset = ours
        shared = min(end_offset, message.end_offset) if epoch == message.last_epoch else end_offset
        return max(shared, log.log_start_offset)

    def start_at(self, message: StartAt, now_ms: int) -> list[Effect]:
        """Drop a log that cannot be compared: the leader keeps nothing that old."""
        is_current = message.session == self.session
        if not is_current or self.state in (FollowerState.WAITING, FollowerState.STUCK):
            return []
        log = self.log
        if self.state is FollowerState.STREAMING and log.log_end_offset >= message.log_start_offset:
            return self.start(now_ms)  # we have more than the leader heard of: say so
        if message.log_start_offset < log.high_watermark and not self._may_lose:
            return self._get_stuck(DivergenceError.BELOW_HIGH_WATERMARK)
        log.reset_to(message.log_start_offset)
        offset = message.log_start_offset
        return [ResetTo(offset), Committed(offset), *self.start(now_ms)]

    def _get_stuck(self, trouble: DivergenceError) -> list[Effect]:
        """Stop, and say why."""
        self.state = FollowerState.STUCK
        self.deadline_ms = None
        return [Halted(trouble)]

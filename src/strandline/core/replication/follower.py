"""A follower of a partition: copies the leader's log and acknowledges what it has synced.

    WAITING ──leader known, link back──► FETCHING ──first Replicate──► STREAMING
       ▲                                  │  ▲  │                          │
       └────────────link lost─────────────┘  │  └─Diverged: truncate─┐     │ gap
                                             └───────────────────────┴─────┘
    HALTED: the leader lacks records that were committed here; only a new assignment ends it.

Rules:
- Every ``Fetch`` has a session of its own, except a repeat because no answer came. Messages of
  another session are ignored: the answer to an old ``Fetch`` must not truncate the log.
- A batch is appended only at the log end. Batches that are already there are skipped; a gap ends
  the session.
- The log is truncated only where the leader of this epoch says that the logs diverge, back to the
  last epoch that both know, in several steps if necessary (KIP-101, KIP-279). It is never truncated
  below the high watermark, unless an operator ordered an unclean election.
- A replica of a compacted log that was never in sync is filled by one leader or starts again: one
  leader may have removed a null value while another still has the record it deletes (ADR 0027).
- ``Acked`` reports only what our own sync covered.
- Only the wait for the answer to ``Fetch`` is timed: the leader asks if it misses an ack.

Invariants:
- while streaming, the whole log is a prefix of the leader's, so records below both the leader's
  high watermark and our own durable offset are committed;
- the high watermark never goes back, except after an unclean election or when the replica is filled
  again.

Must not know what a batch contains or where the log is stored.
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
    HALTED = "halted"


class Follower:
    """A replica as follower of one leader, or of none; each assignment creates a new one.

    Args:
        log: the replica's log; shared with the replica, not with others.
        epoch: the epoch of the assignment.
        leader: the leader; None if there is none now.
        session: the last session used; later ones are larger.
        incarnation: the incarnation of our broker.
        limits: timeouts and sizes.
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
        """Records below it are on the disk of every replica, according to the leader."""
        self._leader_high_watermark = log.high_watermark
        self._owes_ack = False
        self._limits = limits
        self._incarnation = incarnation
        self._may_lose = may_lose

    # Sessions

    def start(self, now_ms: int) -> list[Effect]:
        """Open a session with the leader, if there is one."""
        if self.leader is None or self.state is FollowerState.HALTED:
            return []
        self.session = Session(self.session + 1)
        self.state = FollowerState.FETCHING
        self._leader_high_watermark = self.log.high_watermark
        self._owes_ack = False
        return self._fetch(now_ms)

    def _fetch(self, now_ms: int) -> list[Effect]:
        """Send the end of our log to the leader, and set the timer for a repeat."""
        assert self.leader is not None, "asked only with a leader"
        self.deadline_ms = now_ms + self._limits.resend_ms
        log = self.log
        where = log.log_end_offset, log.last_epoch
        fetch = Fetch(self.epoch, self.session, *where, self._incarnation)
        return [Send(self.leader, fetch)]

    def peer_disconnected(self, broker: BrokerId) -> list[Effect]:
        """Wait for the leader's link: a session ends with its connection."""
        if broker == self.leader and self.state is not FollowerState.HALTED:
            self.state = FollowerState.WAITING
            self.deadline_ms = None
        return []

    def peer_connected(self, broker: BrokerId, now_ms: int) -> list[Effect]:
        """Open a new session: messages of the old one may be lost."""
        return self.start(now_ms) if broker == self.leader else []

    def time_passed(self, now_ms: int) -> list[Effect]:
        """Repeat ``Fetch`` after a timeout, in the same session: the answer may only be late."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return []
        return self._fetch(now_ms)

    def undone(self, log_end_offset: Offset, now_ms: int) -> list[Effect]:
        """Take back appended batches for which the disk had no room, and fetch again later."""
        assert log_end_offset <= self.log.log_end_offset, "less was kept, not more"
        if log_end_offset < self.log.log_end_offset:
            self.log.truncate_to(log_end_offset)
        if self.leader is not None and self.state is not FollowerState.HALTED:
            self.session = Session(self.session + 1)
            self.state = FollowerState.FETCHING
            self.deadline_ms = now_ms + self._limits.resend_ms
        return []

    def start_over(self) -> list[Effect]:
        """Empty a replica that another leader had begun to fill."""
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
        """Append new batches, and raise the high watermark."""
        if message.session != self.session or self.state in (
            FollowerState.WAITING,
            FollowerState.HALTED,
        ):
            return []
        self.state = FollowerState.STREAMING
        self.deadline_ms = None
        if message.base_offset > self.log.log_end_offset:
            return self.start(now_ms)  # a message was lost
        self._owes_ack |= message.wants_ack
        self._leader_high_watermark = max(self._leader_high_watermark, message.high_watermark)
        self.min_replica_offset = message.min_replica_offset
        effects = self._append(message.batches, buffers)
        return effects + self._advance()

    def _append(self, refs: tuple[BatchRef, ...], buffers: tuple[Buffer, ...]) -> list[Effect]:
        """Append the batches that are not here yet."""
        log = self.log
        known = 0
        # A repeat may begin with batches that we already have.
        while known < len(refs) and refs[known].next_offset <= log.log_end_offset:
            known += 1
        new = refs[known:]
        if not new:
            return []
        is_ours = log.last_epoch <= new[0].leader_epoch and new[-1].leader_epoch <= self.epoch
        if new[0].base_offset != log.log_end_offset or not is_ours:
            return self._halt(DivergenceError.MISALIGNED)
        log.append(new)
        return [Append(new, buffers[known:])]

    def synced(self, offset: Offset, _now_ms: int) -> list[Effect]:
        """Note the end of our own sync, which is acknowledged with the next flush."""
        before = self.log.durable_offset
        self.log.synced(offset)
        self._owes_ack |= self.log.durable_offset > before
        return self._advance()

    def _advance(self) -> list[Effect]:
        """Raise the high watermark to what is committed and durable here."""
        if self.state is not FollowerState.STREAMING:
            return []
        offset = min(self._leader_high_watermark, self.log.durable_offset)
        return [Committed(offset)] if self.log.advance(offset) else []

    def flush(self, _now_ms: int) -> list[Effect]:
        """Send one ack for everything that was synced since the last flush."""
        if not self._owes_ack or self.state is not FollowerState.STREAMING:
            return []
        assert self.leader is not None, "we stream from it"
        self._owes_ack = False
        ack = Acked(self.epoch, self.session, self.log.durable_offset, self._leader_high_watermark)
        return [Send(self.leader, ack)]

    # Agreeing with the leader

    def diverged(self, message: Diverged, now_ms: int) -> list[Effect]:
        """Truncate what the leader does not have, as far as its answer shows, and fetch again."""
        if message.session != self.session or self.state is not FollowerState.FETCHING:
            return []
        log = self.log
        target = self._parting(message)
        if target >= log.log_end_offset:
            # A correct answer always truncates something; this one would repeat for ever.
            return self._halt(DivergenceError.MISALIGNED)
        if target < log.high_watermark and not self._may_lose:
            return self._halt(DivergenceError.BELOW_HIGH_WATERMARK)
        is_loss = target < log.high_watermark
        log.truncate_to(target)
        lost: list[Effect] = [Committed(target)] if is_loss else []
        return [TruncateTo(target), *lost, *self.start(now_ms)]

    def _parting(self, message: Diverged) -> Offset:
        """Return the offset up to which the logs may still agree.

        If our log has the epoch that the leader named, the logs agree up to the lower of its two
        ends. If not, the leader has none of our later epochs, and our last epoch below it is the
        next one to compare.
        """
        log = self.log
        ours = log.epochs.end_of(message.last_epoch, log_end_offset=log.log_end_offset)
        if ours is None:
            return log.log_start_offset
        epoch, end_offset = ours
        shared = min(end_offset, message.end_offset) if epoch == message.last_epoch else end_offset
        return max(shared, log.log_start_offset)

    def start_at(self, message: StartAt, now_ms: int) -> list[Effect]:
        """Empty a log that cannot be compared, because the leader has removed records that old."""
        is_current = message.session == self.session
        if not is_current or self.state in (FollowerState.WAITING, FollowerState.HALTED):
            return []
        log = self.log
        if self.state is FollowerState.STREAMING and log.log_end_offset >= message.log_start_offset:
            return self.start(now_ms)  # we have more than the leader knows: report it
        if message.log_start_offset < log.high_watermark and not self._may_lose:
            return self._halt(DivergenceError.BELOW_HIGH_WATERMARK)
        log.reset_to(message.log_start_offset)
        offset = message.log_start_offset
        return [ResetTo(offset), Committed(offset), *self.start(now_ms)]

    def _halt(self, reason: DivergenceError) -> list[Effect]:
        """Stop until a new assignment, and report the reason."""
        self.state = FollowerState.HALTED
        self.deadline_ms = None
        return [Halted(reason)]

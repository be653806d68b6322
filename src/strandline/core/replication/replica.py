"""A broker's replica of a partition: one state machine, as leader or follower.

``step(event, now_ms)`` returns effects, ``deadline_ms`` says when to step ``TimePassed``.

Rules:
- Fencing is here and nowhere else. A message of an older epoch is answered with our epoch, so that
  a deposed leader learns of it. After one of a newer epoch the replica asks for metadata, and a
  leader stops. The roles see only messages of their own epoch.
- The epoch comes from metadata only, and never goes back.
- A role is created by an assignment and replaced by the next: only the log outlives it.
"""

from typing import assert_never

from strandline.core.replication.effects import (
    AskMetadata,
    Effect,
    ReadRange,
    RejectReason,
    RejectWrites,
    Send,
)
from strandline.core.replication.events import (
    Appended,
    Assigned,
    BatchesRead,
    CorruptionFound,
    Event,
    Flush,
    IsrChanged,
    IsrRejected,
    LogStartMoved,
    PeerConnected,
    PeerDisconnected,
    RangeRead,
    Received,
    Resign,
    Synced,
    TimePassed,
    Undone,
)
from strandline.core.replication.follower import Follower, FollowerState
from strandline.core.replication.leader import Leader
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import (
    NO_EPOCH,
    Acked,
    Buffer,
    Diverged,
    Fenced,
    Fetch,
    FetchRange,
    Message,
    Range,
    Replicate,
    Session,
    StartAt,
)
from strandline.core.replication.repair import Repairs
from strandline.core.replication.state import LogState
from strandline.types import BrokerId, LeaderEpoch, Offset


class Replica:
    """One replica of a partition, from the start of its broker to its end.

    Args:
        me: this broker.
        log: as recovered.
        limits: timeouts and sizes.
        session: larger than any session before this start, for instance the broker's number of
            starts times 2**32: an old answer must not be taken for a new one. With a new disk it
            may begin at 0, because the connections of the old one have ended.
        incarnation: the one that the broker registered at this start.
    """

    def __init__(
        self,
        me: BrokerId,
        log: LogState,
        *,
        limits: ReplicationLimits,
        session: Session,
        incarnation: str,
    ) -> None:
        self.me = me
        self.log = log
        self.epoch: LeaderEpoch = NO_EPOCH
        self._limits = limits
        self._repairs = Repairs(resend_ms=limits.resend_ms)
        self._role: Leader | Follower = Follower(
            log, NO_EPOCH, None, session=session, incarnation=incarnation, limits=limits
        )
        self._session = session
        self._incarnation = incarnation
        self._replicas: tuple[BrokerId, ...] = ()
        self._version = -1
        self._filled_by: LeaderEpoch | None = None
        """The epoch of the leader that fills this replica, while it is being filled."""

    # What the broker may ask

    @property
    def leader(self) -> Leader | None:
        """The leader role; None if another broker leads, or none."""
        return self._role if isinstance(self._role, Leader) else None

    @property
    def follower(self) -> Follower | None:
        """The follower role; None if this broker leads."""
        return self._role if isinstance(self._role, Follower) else None

    @property
    def reject_reason(self) -> RejectReason | None:
        """The reason for which records are rejected now; None: they are accepted."""
        leader = self.leader
        return RejectReason.NOT_LEADER if leader is None else leader.reject_reason

    @property
    def can_defer_flush(self) -> bool:
        """Whether a flush may wait a little: it would send the high watermark only."""
        leader = self.leader
        return leader is not None and leader.can_defer_flush

    @property
    def memory_offset(self) -> Offset:
        """The offset below which records have what a ``memory`` ack promises."""
        return self.log.log_end_offset

    @property
    def disk_offset(self) -> Offset:
        """The offset below which records have what a ``disk`` ack promises."""
        return self.log.durable_offset

    @property
    def replicated_offset(self) -> Offset:
        """The offset below which records have what a ``replicated`` ack promises; readable."""
        return self.log.high_watermark

    @property
    def min_replica_offset(self) -> Offset:
        """The offset below which records are committed and on the disk of every replica."""
        return min(self._role.min_replica_offset, self.log.high_watermark)

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next ``TimePassed``, in ms; None if nothing waits for it."""
        mine, repairs = self._role.deadline_ms, self._repairs.deadline_ms
        if mine is None or repairs is None:
            return repairs if mine is None else mine
        return min(mine, repairs)

    # Events

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event; execute the returned effects in order (``effects`` has the rules)."""
        match event:
            case Received():
                return self._received(event, now_ms)
            case Flush():
                return self._role.flush(now_ms)
            case Synced():
                return self._role.synced(event.offset, now_ms)
            case Assigned():
                return self._assigned(event, now_ms)
            case PeerDisconnected():
                return self._role.peer_disconnected(event.broker)
            case PeerConnected():
                return self._role.peer_connected(event.broker, now_ms)
            case TimePassed():
                return self._role.time_passed(now_ms) + self._repair(now_ms, due_only=True)
            case LogStartMoved():
                self.log.delete_before(event.log_start_offset)
                return []
            case CorruptionFound():
                self._repairs.note(event.first_offset, event.next_offset)
                return self._repair(now_ms)
            case RangeRead():
                answer = Range(self.epoch, event.first_offset, event.batches)
                return [Send(event.to, answer, event.buffers)]
            case Undone():
                follower = self.follower
                assert follower is not None, "a leader gets batches only after they are stored"
                effects = follower.undone(event.log_end_offset, now_ms)
                self._forget_corruption()
                return effects
            case Appended() | BatchesRead() | IsrChanged() | IsrRejected() | Resign():
                return [] if self.leader is None else self._lead(self.leader, event, now_ms)
            case _:
                assert_never(event)

    def _lead(
        self,
        leader: Leader,
        event: Appended | BatchesRead | IsrChanged | IsrRejected | Resign,
        now_ms: int,
    ) -> list[Effect]:
        """Handle events for a leader; drop those meant for an earlier leadership."""
        match event:
            case Appended():
                return leader.appended(event, now_ms)
            case BatchesRead():
                return leader.batches_read(event, now_ms)
            case Resign():
                return leader.resign(now_ms)
            case _ if event.epoch != self.epoch:
                return []
            case IsrChanged():
                return leader.isr_changed(event.version, event.isr, now_ms)
            case IsrRejected():
                return leader.isr_rejected(event.proposal, now_ms)
            case _:
                assert_never(event)

    # Roles

    def _assigned(self, event: Assigned, now_ms: int) -> list[Effect]:
        """Take the role of a new epoch; an older or repeated assignment changes no role."""
        if event.epoch <= self.epoch:
            return self._assigned_again(event, now_ms)
        assert event.epoch >= self.log.epochs.last, "registered before it was assigned"
        was_accepting = self.reject_reason is not RejectReason.NOT_LEADER
        if self.follower is not None:
            self._session = self.follower.session
        self.epoch = event.epoch
        self._replicas, self._version = event.replicas, event.version
        if event.leader == self.me:
            leader = Leader(self.log, event, me=self.me, limits=self._limits, now_ms=now_ms)
            self._role = leader
            return leader.start()
        follower = Follower(
            self.log,
            event.epoch,
            event.leader,
            session=self._session,
            incarnation=self._incarnation,
            limits=self._limits,
            may_lose=event.unclean,
        )
        self._role = follower
        refusing: list[Effect] = [RejectWrites(RejectReason.NOT_LEADER)] if was_accepting else []
        return refusing + self._start_over(follower, event) + follower.start(now_ms)

    def _assigned_again(self, event: Assigned, now_ms: int) -> list[Effect]:
        """Take over the ISR and replicas of a newer assignment of the same epoch."""
        if event.epoch != self.epoch:
            return []
        effects: list[Effect] = []
        if self.follower is not None and event.version > self._version:
            if event.filling or not set(event.replicas).issubset(self._replicas):
                # A new replica may lack records that all others have; the leader reports it.
                self.follower.min_replica_offset = Offset(0)
            effects = self._start_over(self.follower, event)
            if effects:
                effects += self.follower.start(now_ms)
        self._version, self._replicas = max(event.version, self._version), event.replicas
        return self.leader.reassigned(event, now_ms) if self.leader is not None else effects

    def _start_over(self, follower: Follower, event: Assigned) -> list[Effect]:
        """Empty this replica if it is being filled and another leader began to fill it.

        After a restart it is unknown which leader began, so the replica starts again. That is rare,
        and costs time only.
        """
        before = self._filled_by
        self._filled_by = event.epoch if self.me in event.filling else None
        if self._filled_by in (None, before):
            return []
        effects = follower.start_over()
        self._forget_corruption()
        return effects

    # Messages

    def _received(self, event: Received, now_ms: int) -> list[Effect]:
        """Fence a message by its epoch, then pass it to the role."""
        message = event.message
        if message.epoch > self.epoch:
            deposed = self.leader.depose() if self.leader is not None else []
            return [*deposed, AskMetadata(message.epoch)]
        if message.epoch < self.epoch:
            return self._fence(event)
        if isinstance(message, FetchRange):
            return self._serve_range(event.sender, message)
        if isinstance(message, Range):
            return self._repairs.take(message, event.buffers) + self._repair(now_ms)
        leader = self.leader
        if leader is not None:
            return _to_leader(leader, event.sender, message, now_ms=now_ms)
        follower = self.follower
        assert follower is not None, "one or the other"
        if event.sender != follower.leader:
            return []
        effects = _to_follower(follower, message, event.buffers, now_ms=now_ms)
        self._forget_corruption()
        return effects

    def _fence(self, event: Received) -> list[Effect]:
        """Answer a request of an older epoch with ours; an old answer needs no reply."""
        if isinstance(event.message, Fetch | Replicate | FetchRange):
            return [Send(event.sender, Fenced(self.epoch))]
        return []

    # Corruption

    def _repair(self, now_ms: int, *, due_only: bool = False) -> list[Effect]:
        """Request the next corrupt range from a replica that is known to have it."""
        deadline_ms = self._repairs.deadline_ms
        if due_only and (deadline_ms is None or now_ms < deadline_ms):
            return []
        self._forget_corruption()
        wanted = self._repairs.wanted
        sources = [] if wanted is None else self._holders(wanted[1])
        return self._repairs.ask(sources, self.epoch, now_ms)

    def _forget_corruption(self) -> None:
        """Forget corruption that was truncated, before the log grows there again."""
        self._repairs.forget_outside(self.log.log_start_offset, self.log.log_end_offset)

    def _holders(self, next_offset: Offset) -> list[BrokerId]:
        """Return replicas known to have the same batches below ``next_offset``, best first.

        Committed records are the same everywhere, and any replica may still have them after
        retention.
        """
        leader, follower = self.leader, self.follower
        if leader is not None:
            return [b for b in leader.followers if leader.holds_range(b, next_offset)]
        assert follower is not None, "one or the other"
        is_streaming = follower.state is FollowerState.STREAMING
        first = [follower.leader] if is_streaming and follower.leader is not None else []
        if next_offset > self.log.high_watermark:
            return first
        return first + [b for b in self._replicas if b not in (self.me, follower.leader)]

    def _serve_range(self, to: BrokerId, message: FetchRange) -> list[Effect]:
        """Send batches to a replica whose own are corrupt, if ours are known to be the same."""
        log, follower = self.log, self.follower
        first, after = message.first_offset, message.next_offset
        if not log.log_start_offset <= first < after <= log.log_end_offset:
            return []
        # A streaming follower has the same log as its leader; others share only committed records.
        is_shared = follower is None or (
            follower.leader == to and follower.state is FollowerState.STREAMING
        )
        if after > log.high_watermark and not is_shared:
            return []
        return [ReadRange(to, first, after)]


def _to_leader(leader: Leader, sender: BrokerId, message: Message, *, now_ms: int) -> list[Effect]:
    """Handle a follower's message; ignore any other, which was meant for an earlier role."""
    match message:
        case Fetch():
            return leader.fetch(sender, message, now_ms)
        case Acked():
            return leader.take_ack(sender, message, now_ms)
        case _:
            return []


def _to_follower(
    follower: Follower, message: Message, buffers: tuple[Buffer, ...], *, now_ms: int
) -> list[Effect]:
    """Handle a leader's message; ignore any other, which was meant for an earlier role."""
    match message:
        case Replicate():
            return follower.replicate(message, buffers, now_ms)
        case Diverged():
            return follower.diverged(message, now_ms)
        case StartAt():
            return follower.start_at(message, now_ms)
        case _:
            return []

"""The leader of a partition: sends to followers, commits records, and maintains the ISR.

Rules:
- A record is committed once every replica that may be in the ISR has synced it, the leader
  included, and the ISR has ``min_isr`` members. Only acks of this epoch and of the follower's
  current session count, and a session begins only when the logs are known to agree.
- Events change the state; ``flush`` sends. So a follower costs one message per group commit,
  whatever the number of records, and the high watermark is sent with the batches. It is sent alone
  only to a follower that has all batches, and is confirmed with the next batch or a later request.
- Nothing is timed unless a follower is behind or owes an answer: an idle partition costs nothing.
- A lost message is detected by a request (an empty ``Replicate`` that wants an ack). Batches are
  not repeated before that: the follower sees the gap and fetches again, or it answers.

Invariants:
- for records committed in this epoch, ``high_watermark <= durable_offset`` of counted replicas;
- the high watermark never goes back, and does not move while the ISR is below ``min_isr``;
- a leader that has seen a newer epoch is deposed: it sends and commits nothing more.

Must not know what a batch contains or where the log is stored.
"""

from strandline.core.replication.effects import (
    Committed,
    Effect,
    ReadLog,
    RejectReason,
    RejectWrites,
    Send,
    TransferLeadership,
)
from strandline.core.replication.events import Appended, Assigned, BatchesRead
from strandline.core.replication.isr import InSync, lag_deadline, may_join, must_leave
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import (
    Acked,
    BatchRef,
    Buffer,
    Diverged,
    Fetch,
    Replicate,
    StartAt,
)
from strandline.core.replication.progress import NO_SESSION, Phase, Progress
from strandline.core.replication.state import LogState
from strandline.types import BrokerId, Offset


class Leader:
    """The leadership of one epoch; created by its assignment.

    Args:
        log: the replica's log; shared with the replica, not with others.
        assignment: makes ``me`` the leader.
        me: this broker.
        limits: timeouts and sizes.
        now_ms: the time.
    """

    def __init__(
        self,
        log: LogState,
        assignment: Assigned,
        *,
        me: BrokerId,
        limits: ReplicationLimits,
        now_ms: int,
    ) -> None:
        assert assignment.leader == me, "assigned to us"
        assert me in assignment.isr, "only an in-sync replica leads"
        self.log = log
        self.epoch = assignment.epoch
        self.min_isr = assignment.min_isr
        self.me = me
        self.epoch_start = log.log_end_offset
        self.isr = InSync(assignment.isr, version=assignment.version, epoch=assignment.epoch)
        self.followers = {
            broker: Progress(broker, log_end_offset=log.log_end_offset, now_ms=now_ms)
            for broker in sorted(assignment.replicas)
            if broker != me
        }
        self._limits = limits
        self._deposed = False
        self._resigning = False
        self._handed_over = False
        self._reported_reason: RejectReason | None = RejectReason.NOT_LEADER
        self._tail: list[tuple[BatchRef, Buffer]] = []
        self._published_ms: int | None = None

    # What the broker may ask

    @property
    def reject_reason(self) -> RejectReason | None:
        """The reason for which records are rejected now; None: they are accepted."""
        if self._deposed:
            return RejectReason.NOT_LEADER
        if self._resigning:
            return RejectReason.RESIGNING
        if len(self.isr.members) < self.min_isr:
            return RejectReason.NOT_ENOUGH_REPLICAS
        return None

    @property
    def min_replica_offset(self) -> Offset:
        """The offset below which committed records are on the disk of every replica.

        Replicas outside the ISR count too. One whose disk was replaced counts with what the old
        disk had until it fetches. That is safe: until then it has no record that a null value
        should have deleted.
        """
        durable = [each.durable_offset for each in self.followers.values()]
        return min([self.log.high_watermark, *durable])

    @property
    def can_defer_flush(self) -> bool:
        """Whether a flush would send the high watermark only, which can wait for a batch."""
        end = self.log.log_end_offset
        return all(
            each.phase is Phase.SILENT or (each.next_offset == end and not each.wants_ack)
            for each in self.followers.values()
        )

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next ``TimePassed``; None while no follower is behind."""
        if self._deposed:
            return None
        times = [p.resend_ms for p in self.followers.values() if p.resend_ms is not None]
        if self.isr.hold_ms is not None:
            times.append(self.isr.hold_ms)
        elif self.isr.proposed is None:
            end = self.log.log_end_offset
            times += [
                lag_deadline(self.followers[broker], end, self._limits)
                for broker in self.isr.members
                if broker != self.me and self.followers[broker].durable_offset < end
            ]
        return min(times, default=None)

    # The local log

    def appended(self, event: Appended, now_ms: int) -> list[Effect]:
        """Note batches that are in the journal; the next flush sends them."""
        assert all(batch.leader_epoch == self.epoch for batch in event.batches), "our epoch"
        old_end = self.log.log_end_offset
        self._published_ms = now_ms
        self.log.append(event.batches)
        for progress in self.followers.values():
            progress.log_grew(old_end, self.log.log_end_offset, now_ms)
        self._tail += zip(event.batches, event.buffers, strict=True)
        return []

    def synced(self, offset: Offset, now_ms: int) -> list[Effect]:
        """Note the end of our own sync: from now on this replica counts for the commit."""
        self.log.synced(offset)
        return self._settle(now_ms)

    # Followers

    def fetch(self, sender: BrokerId, fetch: Fetch, now_ms: int) -> list[Effect]:
        """Begin a session if the follower's log is a prefix of ours; else send the difference."""
        progress = self.followers.get(sender)
        if progress is None or self._deposed or fetch.session < progress.session:
            return []
        if fetch.session == progress.session and progress.acked:
            return []  # a repeat, and its answer has arrived
        answer = self._disagreement(fetch)
        if answer is not None:
            progress.silence(fetch.session)
            return [Send(sender, answer)]
        progress.begin(fetch)
        return self._settle(now_ms)

    def _disagreement(self, fetch: Fetch) -> Diverged | StartAt | None:
        """Return how the follower's log differs; None if it is a prefix of ours."""
        log = self.log
        start = StartAt(self.epoch, fetch.session, log.log_start_offset)
        if fetch.end_offset < log.log_start_offset:
            return start
        if fetch.last_epoch < 0:
            # An empty log cannot differ, but one that begins beyond our end would leave a gap.
            return None if fetch.end_offset <= log.log_end_offset else start
        agreed = log.epochs.end_of(fetch.last_epoch, log_end_offset=log.log_end_offset)
        if agreed is None:
            return start  # its batches are older than all that retention has left here
        epoch, end_offset = agreed
        if epoch == fetch.last_epoch and fetch.end_offset <= end_offset:
            return None
        return Diverged(self.epoch, fetch.session, epoch, end_offset)

    def take_ack(self, sender: BrokerId, ack: Acked, now_ms: int) -> list[Effect]:
        """Handle a follower's ack, which may commit records."""
        progress = self.followers.get(sender)
        if progress is None or self._deposed or progress.phase is not Phase.STREAMING:
            return []
        if ack.session != progress.session:
            return []  # of an earlier session: the follower may have truncated its log since
        progress.take_ack(ack)
        progress.keep_up(self.log.log_end_offset, now_ms)
        self._await_answer(progress, now_ms, anew=True)
        return self._settle(now_ms)

    def batches_read(self, event: BatchesRead, now_ms: int) -> list[Effect]:
        """Send batches that were read from the log for a follower that is behind."""
        progress = self.followers.get(event.follower)
        if progress is None or progress.session != event.session or self._deposed:
            return []
        if not progress.is_reading or progress.next_offset != event.from_offset:
            return []
        if not event.batches:
            return []  # corrupt here; ``is_reading`` delays the next attempt until the timer
        progress.is_reading = False
        return [self._replicate(progress, event.batches, event.buffers, now_ms=now_ms)]

    def peer_disconnected(self, broker: BrokerId) -> list[Effect]:
        """Forget what was in flight to the follower; it fetches again when it has reconnected.

        The session number is forgotten too: a follower with a new disk counts from the beginning,
        and must not be ignored. No message of the old session can arrive any more.
        """
        if broker in self.followers:
            self.followers[broker].silence(NO_SESSION)
        return []

    def peer_connected(self, _broker: BrokerId, _now_ms: int) -> list[Effect]:
        """Do nothing: the follower opens the session."""
        return []

    def reassigned(self, assignment: Assigned, now_ms: int) -> list[Effect]:
        """Take over the ISR and the replicas of a newer assignment of the same epoch."""
        if not self.isr.changed(assignment.version, assignment.isr):
            return []
        self.min_isr = assignment.min_isr
        brokers = {*assignment.replicas, *self.isr.counted} - {self.me}
        end = self.log.log_end_offset
        self.followers = {
            broker: self.followers.get(broker)
            or Progress(broker, log_end_offset=end, now_ms=now_ms)
            for broker in sorted(brokers)
        }
        return self._settle(now_ms)

    # Sending

    def flush(self, now_ms: int) -> list[Effect]:
        """Send to each follower what it lacks, as far as its window allows."""
        effects: list[Effect] = []
        if not self._deposed:
            for progress in self.followers.values():
                if progress.phase is not Phase.SILENT:
                    effects += self._stream(progress, now_ms)
        self._tail.clear()
        return effects

    def _stream(self, progress: Progress, now_ms: int) -> list[Effect]:
        """Return the messages to send to one follower now."""
        log = self.log
        if progress.phase is Phase.STREAMING and progress.next_offset < log.log_start_offset:
            progress.misplace()
        if progress.phase is Phase.MISPLACED:
            return self._restart(progress, now_ms)
        has_all = progress.next_offset == log.log_end_offset
        room = progress.room(self._window_bytes(progress, now_ms))
        effects: list[Effect] = []
        if not has_all and room > 0 and not progress.is_reading:
            tail = self._tail_from(progress.next_offset, room)
            if tail:
                refs, buffers = zip(*tail, strict=True)
                return [self._replicate(progress, refs, buffers, now_ms=now_ms)]
            progress.is_reading = True
            self._await_answer(progress, now_ms)
            bytes_max = min(room, self._limits.read_bytes)
            reader = progress.broker, progress.session, progress.next_offset
            effects.append(ReadLog(*reader, bytes_max))
        has_news = has_all and progress.sent_high_watermark < log.high_watermark
        if has_news or progress.wants_ack:
            effects.append(self._replicate(progress, (), (), now_ms=now_ms))
        return effects

    def _window_bytes(self, progress: Progress, now_ms: int) -> int:
        """Return how many bytes may be in flight to a follower now."""
        limits, published_ms = self._limits, self._published_ms
        is_publishing = published_ms is not None and now_ms - published_ms < limits.publishing_ms
        if is_publishing and progress.is_gaining and progress.broker not in self.isr.counted:
            return limits.spared_window_bytes
        return limits.window_bytes

    def _restart(self, progress: Progress, now_ms: int) -> list[Effect]:
        """Send a follower to our log start; repeated if it does not answer."""
        if not progress.wants_ack:
            return []
        progress.wants_ack = False
        self._await_answer(progress, now_ms)
        start = StartAt(self.epoch, progress.session, self.log.log_start_offset)
        return [Send(progress.broker, start)]

    def _tail_from(self, offset: Offset, room: int) -> list[tuple[BatchRef, Buffer]]:
        """Return the newest batches from ``offset`` on that fit; at least one, if there is any."""
        found: list[tuple[BatchRef, Buffer]] = []
        for ref, buffer in self._tail:
            if ref.base_offset >= offset and room > 0:
                found.append((ref, buffer))
                room -= ref.size
        starts_there = bool(found) and found[0][0].base_offset == offset
        return found if starts_there else []

    def _replicate(
        self,
        progress: Progress,
        batches: tuple[BatchRef, ...],
        buffers: tuple[Buffer, ...],
        *,
        now_ms: int,
    ) -> Send:
        """Return a message with batches, the high watermark, or a request for an ack."""
        message = Replicate(
            self.epoch,
            progress.session,
            progress.next_offset,
            self.log.high_watermark,
            batches,
            progress.wants_ack,
            self.min_replica_offset,
        )
        progress.sent(batches, self.log.high_watermark)
        self._await_answer(progress, now_ms)
        return Send(progress.broker, message, buffers)

    def _await_answer(self, progress: Progress, now_ms: int, *, anew: bool = False) -> None:
        """Set the follower's timer if it owes an answer; ``anew`` if it has just sent one."""
        if not progress.is_outstanding:
            progress.resend_ms = None
        elif anew or progress.resend_ms is None:
            progress.resend_ms = now_ms + self._limits.resend_ms

    # Time

    def time_passed(self, now_ms: int) -> list[Effect]:
        """Ask followers for late answers, and propose ISR changes that are due."""
        for progress in self.followers.values():
            if progress.resend_ms is not None and now_ms >= progress.resend_ms:
                progress.wants_ack = True
                progress.is_reading = False
                progress.resend_ms = now_ms + self._limits.resend_ms
        if self.isr.hold_ms is not None and now_ms >= self.isr.hold_ms:
            self.isr.hold_ms = None
        return self._settle(now_ms)

    # The ISR

    def isr_changed(self, version: int, isr: tuple[BrokerId, ...], now_ms: int) -> list[Effect]:
        """Take over an ISR that metadata has decided."""
        return self._settle(now_ms) if self.isr.changed(version, isr) else []

    def isr_rejected(self, proposal: int, now_ms: int) -> list[Effect]:
        """Note that metadata rejected our proposal: a candidate is dead, or the version is old."""
        self.isr.rejected(proposal, hold_ms=now_ms + self._limits.resend_ms)
        return self._settle(now_ms)

    def depose(self) -> list[Effect]:
        """Stop leading, because another broker knows a newer epoch."""
        self._deposed = True
        return self._report_reject_reason()

    def resign(self, now_ms: int) -> list[Effect]:
        """Accept no more records, and hand over when all accepted ones are committed."""
        self._resigning = True
        return self._settle(now_ms)

    def start(self) -> list[Effect]:
        """Return the first effects: a leader alone in the ISR commits, and writes are allowed."""
        return [*self._commit(), *self._report_reject_reason()]

    def _settle(self, now_ms: int) -> list[Effect]:
        """Return the effects of a change, in this order: ISR, commit, write state, hand-over."""
        if self._deposed:
            return []
        effects: list[Effect] = []
        self._adjust_isr(effects, now_ms)
        effects += [*self._commit(), *self._report_reject_reason()]
        self._hand_over(effects)
        return effects

    def _commit(self) -> list[Effect]:
        """Advance the high watermark, if more is committed than before."""
        offset = self._committed()
        return [Committed(offset)] if self.log.advance(offset) else []

    def _committed(self) -> Offset:
        """Return the offset that all possible ISR members have synced, if they are enough."""
        if len(self.isr.members) < self.min_isr:
            return self.log.high_watermark
        durable = [
            self.log.durable_offset if b == self.me else self.followers[b].durable_offset
            for b in self.isr.counted
        ]
        return max(min(durable), self.log.high_watermark)

    def _adjust_isr(self, effects: list[Effect], now_ms: int) -> None:
        """Propose all joins and leaves in one change."""
        isr = self.isr
        if isr.proposed is not None or isr.hold_ms is not None:
            return
        wanted = {self.me}
        for broker, progress in self.followers.items():
            if self._belongs(progress, now_ms) and (
                broker in isr.members
                or may_join(progress, self.log.high_watermark, epoch_start=self.epoch_start)
            ):
                wanted.add(broker)
        if wanted != set(isr.members):
            new = sorted(wanted - set(isr.members))
            joining = tuple((b, self.followers[b].incarnation) for b in new)
            effects.append(isr.propose(wanted, joining))

    def _belongs(self, progress: Progress, now_ms: int) -> bool:
        """Whether a follower would stay in the ISR, and not leave again at once."""
        return not must_leave(
            progress,
            self.log.high_watermark,
            log_end_offset=self.log.log_end_offset,
            limits=self._limits,
            now_ms=now_ms,
        )

    def _report_reject_reason(self) -> list[Effect]:
        """Report whether records are accepted, if that changed."""
        if self.reject_reason is self._reported_reason:
            return []
        self._reported_reason = self.reject_reason
        return [RejectWrites(self.reject_reason)]

    def _hand_over(self, effects: list[Effect]) -> None:
        """Name the successors, once, as soon as they have all records."""
        if not self._resigning or self._handed_over:
            return
        others = tuple(b for b in self.isr.members if b != self.me)
        if self.log.high_watermark == self.log.log_end_offset or not others:
            self._handed_over = True
            ranked = sorted(others, key=lambda b: (-self.followers[b].durable_offset, b))
            effects.append(TransferLeadership(tuple(ranked)))

    def holds_range(self, broker: BrokerId, next_offset: Offset) -> bool:
        """Whether ``broker`` is known to have the same batches below ``next_offset``."""
        progress = self.followers.get(broker)
        return progress is not None and progress.durable_offset >= next_offset

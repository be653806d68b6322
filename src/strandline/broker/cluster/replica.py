"""Carries out what one replica of a partition wants: log, turn, links and waiting publishers.

Rules:
- copies go through the turn; a cut or a restart of the log waits for the copies before it, and a
  new assignment waits for both, so that a role begins with a log that is as the replica believes;
- a sync counts for as much of the log as was not cut since it began, and for nothing after a reset;
- whoever published is answered once: when its record is as safe as it asked, or when this broker
  ceases to lead, or too few replicas are left; then nobody knows whether the record is committed.

Invariant: ``_cut_at`` is None unless the log was cut while a turn was between write and answer.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from strandline.broker.cluster.move_rate import MoveRate
from strandline.broker.cluster.reading import read_batches, read_range, split
from strandline.broker.partition import Partition
from strandline.broker.pending import Chunk, Waiting
from strandline.broker.raw_writes import RawWrite
from strandline.broker.turn import Turn
from strandline.errors import (
    CorruptBatchError,
    LogPoisonedError,
    NotLeaderError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.batch import header_of
from strandline.replication import effects as fx
from strandline.replication import events as ev
from strandline.replication.effects import Effect, Refusal
from strandline.replication.events import Event
from strandline.replication.messages import BatchRef, Buffer
from strandline.replication.replica import Replica
from strandline.storage.log import Log
from strandline.storage.mending import mend
from strandline.telemetry import Telemetry
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset

logger = logging.getLogger(__name__)

UNKNOWN = "retry with the same Nats-Msg-Id: whether the record is kept is not known"
_Change = fx.Append | fx.TruncateTo | fx.ResetTo


class Surroundings(Protocol):
    """What a replica needs of its broker."""

    turn: Turn
    telemetry: Telemetry

    def now_ms(self) -> int:
        """The time."""
        ...

    def precise_ms(self) -> float:
        """The time, to measure with."""
        ...

    def send(self, log_id: LogId, effect: fx.Send) -> None:
        """Send a message; it may be lost with the link."""
        ...

    def touched(self, driver: "ReplicaDriver") -> None:
        """The replica may have something to say, or a deadline."""
        ...

    def cut(self, driver: "ReplicaDriver") -> None:
        """The log was cut while a turn is between write and answer."""
        ...

    def propose_isr(self, driver: "ReplicaDriver", proposal: fx.ProposeIsr) -> None:
        """Let metadata decide."""
        ...

    def answer(self, partition: Partition, waiting: list[Waiting]) -> None:
        """Tell publishers that their records are as safe as they asked."""
        ...

    def in_thread(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run something that reads files beside the loop, then ``done`` on it."""
        ...

    def move_rate(self, log_id: LogId, follower: BrokerId) -> MoveRate | None:
        """What slows down reading for a follower; None: nothing does."""
        ...

    def not_leader(self, partition: Partition) -> NotLeaderError:
        """Names who leads."""
        ...


class ReplicaDriver:
    """One partition's replica on this broker, and its seat.

    Args:
        partition: whose log it keeps.
        replica: its state machine, made from the log as it is.
        around: the broker.
    """

    def __init__(self, partition: Partition, replica: Replica, around: Surroundings) -> None:
        self.partition = partition
        self.replica = replica
        self._around = around
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._writes = 0
        self._deferred: deque[_Change] = deque()
        self._parked: ev.Assigned | None = None
        self._early: dict[BrokerId, ev.Received] = {}
        self._epoch_led: LeaderEpoch | None = None
        self._uncommitted: deque[tuple[Offset, list[Waiting]]] = deque()
        self._journaled: deque[tuple[Offset, float]] = deque()
        self._refusal: Refusal | None = None
        self._is_cut_off = False
        self._cut_at: Offset | None = None
        self._is_reset = False
        self._dropped: StrandlineError | None = None
        self.may_hand_over = False
        """Whether all that was taken is committed, after ``Resign``."""
        partition.take_seat(self, replica.log.high_watermark)
        self._note_refusal()

    @property
    def log_id(self) -> LogId:
        """Of the log it keeps."""
        return self.partition.log_id

    @property
    def log(self) -> Log:
        """The log it keeps."""
        return self.partition.log

    @property
    def has_waiting(self) -> bool:
        """Whether anybody waits for records to be committed."""
        return bool(self._uncommitted)

    def step(self, event: Event) -> None:
        """Take an event in and do what follows, in order; events met on the way come after it."""
        if self._dropped is not None:
            return
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events and self._dropped is None:
                self._take(self._events.popleft())
        finally:
            self._is_stepping = False
        self._around.touched(self)

    def _take(self, event: Event) -> None:
        if isinstance(event, ev.Assigned) and self._writes:
            self._parked = event
            return
        if isinstance(event, ev.Received) and event.message.epoch > self.replica.epoch:
            # Its sender has heard of a new leader a moment before us, and asks once in a while.
            self._early[event.sender] = event
        for effect in self.replica.step(event, self._around.now_ms()):
            self._carry_out(effect)
        self._note_role()
        self._note_refusal()
        if isinstance(event, ev.Assigned):
            early, self._early = self._early, {}
            self._events.extend(early.values())

    def flush(self) -> None:
        """Let the replica say what has gathered."""
        if self._dropped is None and not self._is_stepping:
            for effect in self.replica.step(ev.Flush(), self._around.now_ms()):
                self._carry_out(effect)

    def drop(self, error: StrandlineError) -> None:
        """Step nothing more: storage failed, the partition went away or the broker stops."""
        self._dropped = error
        self.partition.refuse(error)
        self.partition.reject_from((), error)
        self._give_up(UnavailableError(f"{error.message}; {UNKNOWN}"))

    # Effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case fx.Send():
                self._around.send(self.log_id, effect)
            case fx.Append() | fx.TruncateTo() | fx.ResetTo():
                self._change(effect)
            case fx.Committed():
                self._expose(effect.offset)
            case fx.ReadLog():
                self._read_log(effect)
            case fx.ReadRange():
                self._read_range(effect)
            case fx.ProposeIsr():
                self._around.propose_isr(self, effect)
            case fx.HandOver():
                self.may_hand_over = True
            case fx.Stuck():
                logger.error(
                    "the copy of %s here cannot go on: %s", self.partition.name, effect.trouble
                )
            case fx.Refusing() | fx.AskMetadata():
                pass  # the refusal is looked at after each step; metadata comes by itself
            case fx.Repair():
                self._mend(effect)
            case _:
                assert_never(effect)

    # The log

    def _change(self, change: _Change) -> None:
        """Change the log after what was to change before."""
        if self._deferred or (self._writes and not isinstance(change, fx.Append)):
            self._deferred.append(change)
        else:
            self._change_now(change)

    def _change_now(self, change: _Change) -> None:
        match change:
            case fx.Append():
                self._writes += 1
                end = change.batches[-1].next_offset
                copies = change.buffers
                write = RawWrite(
                    self.log_id, self.log, copies, lambda error: self._copied(copies, end, error)
                )
                self._around.turn.submit(write)
            case fx.TruncateTo():
                end = self.log.truncate_to(change.offset)
                assert end == change.offset, "leaders change between batches, never inside one"
                self._cut_at = end if self._cut_at is None else min(end, self._cut_at)
                self._forget_cut_if_idle()
                self.partition.move(min(self.partition.high_watermark, end))
            case fx.ResetTo():
                self._reset(change.offset)

    def _reset(self, offset: Offset) -> None:
        """Empty the log and go on at ``offset``; durable at once."""
        log = self.log
        if offset < log.log_start_offset:
            logger.error("%s would have to go back to %d", self.partition.name, offset)
            return
        end = log.truncate_to(offset)
        if end < offset:
            log.restart_at(offset)
        else:
            log.truncate_before(offset)
        self._is_reset = True
        self._forget_cut_if_idle()
        self.partition.move(offset)
        self.step(ev.Synced(offset))

    def _forget_cut_if_idle(self) -> None:
        if self._around.turn.is_busy:
            self._around.cut(self)
        else:
            self.turn_ended()

    def turn_ended(self) -> None:
        """No sync is under way that began before the last cut."""
        self._cut_at, self._is_reset = None, False

    def _copied(self, copies: Sequence[Buffer], end: Offset, error: StrandlineError | None) -> None:
        """The turn has written copies, or has not."""
        if error is None and self._dropped is None:
            self.partition.copied(copies)
        self._written(end, error)

    def _written(self, end: Offset, error: StrandlineError | None) -> None:
        """Copies are on disk, or are not."""
        self._writes -= 1
        if self._dropped is not None:
            return
        if error is None:
            self._tell_synced(end)
        else:
            self._undone(error)
        self._change_deferred()
        if not self._writes and self._parked is not None:
            parked, self._parked = self._parked, None
            self.step(parked)

    def _tell_synced(self, end: Offset) -> None:
        if not self._is_reset:
            self.step(ev.Synced(end if self._cut_at is None else min(end, self._cut_at)))

    def _undone(self, error: StrandlineError) -> None:
        """There was no room. What was to follow is void, unless it starts the log anew anyway."""
        logger.warning("%s could not be copied, will try again: %s", self.partition.name, error)
        while self._deferred and isinstance(self._deferred[0], fx.Append):
            self._deferred.popleft()
        end = self.log.log_end_offset
        if self._deferred and isinstance(self._deferred[0], fx.TruncateTo):
            if self._deferred[0].offset <= end:
                return
            self._deferred.clear()
        if not self._deferred:
            self.step(ev.Undone(end))

    def _change_deferred(self) -> None:
        while self._deferred:
            if self._writes and not isinstance(self._deferred[0], fx.Append):
                return
            self._change_now(self._deferred.popleft())

    def _read_log(self, effect: fx.ReadLog) -> None:
        """Read for a follower that is behind; for one that a move brings in, in its own time."""
        rate = self._around.move_rate(self.log_id, effect.follower)
        if rate is None:
            self._read_for(effect, effect.bytes_max, None)
            return
        size = min(effect.bytes_max, rate.slice_bytes)
        rate.ask((self.log_id, effect.follower), lambda: self._read_for(effect, size, rate))

    def _read_for(self, effect: fx.ReadLog, bytes_max: int, rate: MoveRate | None) -> None:
        """Read beside the loop."""
        if self._dropped is not None:
            return
        found: list[tuple[BatchRef, Buffer]] = []
        log, asked = self.log, effect.from_offset
        end = self.replica.log.log_end_offset  # what is behind it the journal has not taken yet

        def read() -> None:
            try:
                found.extend(read_batches(log, asked, bytes_max, below=end))
            except CorruptBatchError as damage:
                self.partition.met_damage(damage)
            except StrandlineError as error:
                logger.error("%s: no batches for a follower: %s", self.partition.name, error)  # noqa: TRY400  no trace

        def done() -> None:
            refs, buffers = split(found)
            if rate is not None:
                rate.spent(sum(ref.size for ref in refs))
            self.step(ev.BatchesRead(effect.follower, effect.session, asked, refs, buffers))

        self._around.in_thread(read, done)

    # Damage

    def damaged(self, first_offset: Offset, next_offset: Offset) -> None:
        """Batches here cannot be read: get them from another replica."""
        self.step(ev.Damaged(first_offset, next_offset))

    def _read_range(self, effect: fx.ReadRange) -> None:
        """Read, beside the loop, for a replica that has lost a few batches; if they are here."""
        found: list[tuple[BatchRef, Buffer]] = []
        log, first, after = self.log, effect.first_offset, effect.next_offset

        def read() -> None:
            try:
                found.extend(read_range(log, first, after))
            except CorruptBatchError as damage:
                self.partition.met_damage(damage)
            except StrandlineError as error:
                logger.error("%s: no batches to lend: %s", self.partition.name, error)  # noqa: TRY400  no trace

        def done() -> None:
            if found:
                refs, buffers = split(found)
                self.step(ev.RangeRead(effect.to, first, refs, buffers))

        self._around.in_thread(read, done)

    def _mend(self, effect: fx.Repair) -> None:
        """Put back what another replica has sent.

        At once, on the loop, its sync included: it is as rare as damage, and nothing may change the
        log meanwhile.
        """
        first, after = effect.batches[0].base_offset, effect.batches[-1].next_offset
        name, telemetry = self.partition.name, self._around.telemetry
        try:
            is_mended = mend(self.log, [bytes(buffer) for buffer in effect.buffers])
        except LogPoisonedError as error:
            self._around.turn.poison(error)
        except StrandlineError as error:
            telemetry.failed_repairs += 1
            logger.error("records %d to %d of %s are not mended: %s", first, after - 1, name, error)  # noqa: TRY400  no trace
        else:
            if is_mended:
                telemetry.repaired_batches += len(effect.batches)
                logger.warning("records %d to %d of %s were mended", first, after - 1, name)

    # Publishers

    def journaled(self, chunk: Chunk, batch: bytearray) -> None:
        """The turn wrote a chunk: followers may have it while our own sync runs."""
        is_early = self.partition.config.acks_in_force == "memory" and not chunk.is_transactional
        if is_early and chunk.waiting:
            self._around.answer(self.partition, chunk.waiting)
        header = header_of(batch)
        ref = BatchRef(header.base_offset, header.next_offset, header.leader_epoch, len(batch))
        self._journaled.append((header.next_offset, self._around.precise_ms()))
        self.step(ev.Appended((ref,), (batch,)))

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """The turn has synced a chunk."""
        if chunk.on_disk:
            self._around.answer(self.partition, chunk.on_disk)
        if chunk.waiting:
            waiting = list(chunk.waiting)
            chunk.waiting.clear()
            acks = self.partition.config.acks_in_force
            if acks != "replicated" and not chunk.is_transactional:
                self._around.answer(self.partition, waiting)
            elif self._refusal in (None, Refusal.RESIGNING):
                self._uncommitted.append((next_offset, waiting))
            else:
                _reject(waiting, self._unknown())
        self._tell_synced(next_offset)

    def log_start_moved(self) -> None:
        """Retention has removed records."""
        self.step(ev.LogStartMoved(self.log.log_start_offset))

    def _expose(self, offset: Offset) -> None:
        """Records below ``offset`` are committed."""
        if offset <= self.partition.high_watermark or self._deferred:
            return  # known, or of a log that is being restarted: that tells by itself
        self.partition.commit(offset)
        self._measure(offset)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= offset:
            self._around.answer(self.partition, uncommitted.popleft()[1])

    def _measure(self, offset: Offset) -> None:
        """Note how long what is committed now took."""
        journaled = self._journaled
        if journaled and journaled[0][0] <= offset:
            now_ms = self._around.precise_ms()
            while journaled and journaled[0][0] <= offset:
                seconds = (now_ms - journaled.popleft()[1]) / 1e3
                self._around.telemetry.commit_seconds.observe(seconds)

    def _note_role(self) -> None:
        """A leadership has begun: number what comes after the log by its epoch."""
        replica, partition = self.replica, self.partition
        if replica.leader is not None and self._epoch_led != replica.epoch:
            self._epoch_led = partition.leader_epoch = replica.epoch
            self._journaled.clear()
            self._around.telemetry.leader_elections += 1
            if self._refusal is Refusal.NOT_LEADER:
                partition.lead(replica.epoch)

    def _note_refusal(self) -> None:
        """Accept records, or refuse them, as the replica does."""
        refusal = self.replica.refusal
        if refusal is None and self._is_cut_off:
            refusal = Refusal.CUT_OFF
        if refusal is self._refusal:
            return
        self._refusal = refusal
        if refusal is None:
            self.partition.refuse(None)
            return
        error = self.refusal_error()
        self.partition.refuse(error)
        if refusal is not Refusal.RESIGNING:
            self.partition.reject_from((), error)
            self._give_up(self._unknown())

    def cut_off(self, *, is_cut_off: bool) -> None:
        """Whether nothing can be committed, for nobody who could decide anything is reached."""
        self._is_cut_off = is_cut_off
        if self._dropped is None:
            self._note_refusal()

    def refusal_error(self) -> StrandlineError:
        """Why records are refused now."""
        name = self.partition.name
        if self._refusal is Refusal.NOT_ENOUGH_REPLICAS:
            few = self.partition.config.min_isr
            return UnavailableError(f"fewer than {few} replicas of {name} are in sync; retry later")
        if self._refusal is Refusal.RESIGNING:
            return NotLeaderError(f"this broker is handing over {name}; retry at another")
        if self._refusal is Refusal.CUT_OFF:
            return UnavailableError(
                f"this broker reaches neither all replicas of {name} nor most of the cluster; "
                "retry at another broker"
            )
        return self._around.not_leader(self.partition)

    def describe_leader(self) -> None:
        """Metadata changed: the refusal may name another leader now."""
        if self._refusal is not None and self._dropped is None:
            self.partition.refuse(self.refusal_error())

    def _unknown(self) -> UnavailableError:
        name = self.partition.name
        if self._refusal is Refusal.NOT_ENOUGH_REPLICAS:
            return UnavailableError(f"too few replicas of {name} are left; {UNKNOWN}")
        if self._refusal is Refusal.CUT_OFF:
            return UnavailableError(f"this broker is cut off from the others; {UNKNOWN}")
        return UnavailableError(f"the leader of {name} has changed; {UNKNOWN}")

    def _give_up(self, error: StrandlineError) -> None:
        """Tell everybody who waits for a commit that it is not known whether there will be one."""
        uncommitted, self._uncommitted = self._uncommitted, deque()
        for _, waiting in uncommitted:
            _reject(waiting, error)


def _reject(waiting: list[Waiting], error: StrandlineError) -> None:
    for each in waiting:
        each.responder.rejected(each.token, error)

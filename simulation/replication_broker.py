"""A simulated broker: group commit around real replicas, on a simulated disk.

Rules: one group commit at a time, as in the broker: take the inbox, step the replicas, write,
flush, sync, and when the sync has ended step the replicas, flush and ack. A crash loses everything
except the disk. Each start is a new incarnation; calls for an earlier one are ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Protocol

from simulation.replication_check import ReplicationChecker
from simulation.replication_clock import BrokerClock
from simulation.replication_disk import Reach, SimLog
from simulation.replication_keys import StoredKey
from simulation.world import World
from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.effects import Effect, RejectReason
from strandline.core.replication.events import Event
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import BatchRef, Buffer, Session
from strandline.core.replication.replica import Replica
from strandline.core.replication.state import LogState
from strandline.core.replication.trace import Trace, TracedReplica
from strandline.types import BrokerId, Offset


class SimBrokerHost(Protocol):
    """The surroundings of a simulated broker."""

    world: World
    limits: ReplicationLimits
    checkers: list[ReplicationChecker]
    sync_ms: dict[BrokerId, float]
    full_disk: float

    def carry(self, sender: BrokerId, number: int, send: fx.Send) -> None:
        """Send a message to another broker."""

    def propose(self, broker: "SimBroker", number: int, proposal: fx.ProposeIsr) -> None:
        """Propose an ISR change to the metadata, which may take long."""

    def hand_over(self, broker: BrokerId, number: int, effect: fx.TransferLeadership) -> None:
        """Name successors to the metadata."""

    def isr(self, number: int) -> tuple[BrokerId, ...]:
        """Return the ISR in the metadata now."""


class NoOffset(Enum):
    """The reason for which a publisher gets no offset."""

    REFUSED = auto()
    """Nothing was written, and nothing will be."""
    UNKNOWN = auto()
    """The record was written, or may have been."""


Answer = int | NoOffset


@dataclass(slots=True)
class SimPublish:
    """A record in flight; ``answer`` receives its outcome."""

    value: bytes
    floor: int
    answer: Callable[[Answer], None]
    is_taken: bool = False


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """The event that a sync has ended; the covered offset is computed when this is handled."""


@dataclass(slots=True)
class Hosted:
    """A partition's replica on this broker."""

    replica: Replica
    log: SimLog
    accepted: list[SimPublish] = field(default_factory=list)
    waiting: list[tuple[int, SimPublish]] = field(default_factory=list)
    exposed: int = 0


class SimBroker:
    """A broker through all its incarnations.

    Args:
        number: its id.
        around: the cluster.
        logs: one per partition, kept when it restarts.
    """

    def __init__(self, number: BrokerId, host: SimBrokerHost, logs: list[SimLog]) -> None:
        self.id = number
        self.logs = logs
        self.incarnation = 0
        self.alive = False
        self.paused_until = 0.0
        self.hosted: list[Hosted] = []
        self._host = host
        self._world = host.world
        self.clock = BrokerClock(host.world)
        self._inbox: list[tuple[int, Event | SimPublish | SyncEnded]] = []
        self._scheduled = False
        self._syncing = False
        self._wake_ms = 0.0

    # Starts and crashes

    def start(self) -> None:
        """Recover the logs and start."""
        self.incarnation += 1
        self.alive = True
        self.paused_until = self._wake_ms = 0.0
        self._scheduled = self._syncing = False
        trace = self._world.begin_trace(self.id, f"broker-{self.id}.{self.incarnation}")
        self.hosted = [
            Hosted(self._replica(log, number, trace), log) for number, log in enumerate(self.logs)
        ]
        for number, hosted in enumerate(self.hosted):
            hosted.exposed = hosted.replica.log.high_watermark
            for base in sorted(hosted.log.corrupt):
                after = hosted.log.seen.batches[base].ref.next_offset
                self.take(number, ev.CorruptionFound(Offset(base), after))

    def _replica(self, log: SimLog, number: int, trace: Trace | None) -> Replica:
        state = LogState(
            Offset(log.seen.start),
            Offset(log.seen.end),
            high_watermark=Offset(log.high_watermark),
            epochs=log.epochs(),
        )
        session = Session(self.incarnation << 32)
        kind: Callable[..., Replica] = Replica
        if trace is not None:
            kind = partial(TracedReplica, name=f"s/{number}", trace=trace)
        return kind(
            self.id,
            state,
            limits=self._host.limits,
            session=session,
            incarnation=str(self.incarnation),
        )

    def crash(self) -> None:
        """Crash; the disk keeps synced writes, and a prefix of the others."""
        self.alive = False
        for log in self.logs:
            self._world.counts["changes lost"] += log.crash(self._world.rng)
        self._drop_publishers()
        self._inbox.clear()

    def _drop_publishers(self) -> None:
        for _, item in self._inbox:
            if isinstance(item, SimPublish):
                item.answer(NoOffset.UNKNOWN)
        for hosted in self.hosted:
            for publish in hosted.accepted:
                publish.answer(NoOffset.UNKNOWN)
            self._give_up(hosted)
            hosted.accepted.clear()

    def _give_up(self, hosted: Hosted) -> None:
        """Answer all waiting publishers that the outcome is unknown.

        Their records may be committed nevertheless.
        """
        waiting, hosted.waiting = hosted.waiting, []
        for _, publish in waiting:
            publish.answer(NoOffset.UNKNOWN)

    # The group commit

    def take(self, number: int, item: Event | SimPublish | SyncEnded) -> None:
        """Put an item into the inbox of a partition."""
        if self.alive:
            self._inbox.append((number, item))
            if not self._scheduled:
                self._scheduled = True
                self._world.after(0.05, self._turn, self.incarnation)

    def _turn(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.alive:
            return
        if self._world.now_ms < self.paused_until:
            self._world.after(self.paused_until - self._world.now_ms, self._turn, incarnation)
            return
        self._scheduled = False
        inbox, self._inbox = self._inbox, []
        touched = sorted({number for number, _ in inbox})
        for number, item in inbox:
            if isinstance(item, SimPublish):
                self._accept(self.hosted[number], item)
            elif isinstance(item, SyncEnded):
                self._learn(number)
            else:
                self._step(number, item)
        for number in touched:
            self._write(number)
            self._step(number, ev.Flush())
        self._sync()
        self._plan_wake(touched)

    def _step(self, number: int, event: Event) -> None:
        hosted = self.hosted[number]
        for effect in hosted.replica.step(event, int(self.clock.now_ms)):
            self._carry_out(number, hosted, effect)

    def _accept(self, hosted: Hosted, publish: SimPublish) -> None:
        if hosted.replica.reject_reason is None:
            hosted.accepted.append(publish)
        else:
            self._world.counts[f"refused {hosted.replica.reject_reason}"] += 1
            publish.answer(NoOffset.REFUSED)

    def _write(self, number: int) -> None:
        """Write all records of a group commit as one batch."""
        hosted = self.hosted[number]
        accepted, hosted.accepted = hosted.accepted, []
        if not accepted:
            return
        if hosted.replica.reject_reason is not None:
            for publish in accepted:
                publish.answer(NoOffset.REFUSED)
            return
        base = hosted.log.seen.end
        payload = b",".join(publish.value for publish in accepted)
        ref = BatchRef(
            Offset(base), Offset(base + len(accepted)), hosted.replica.epoch, len(payload)
        )
        hosted.log.append(StoredKey(ref, payload))
        hosted.waiting += [(base + i, publish) for i, publish in enumerate(accepted)]
        self._step(number, ev.Appended((ref,), (payload,)))

    def _sync(self) -> None:
        """Sync all partitions by one sync; later records wait for the next."""
        if self._syncing or not any(log.is_dirty for log in self.logs):
            return
        self._syncing = True
        for log in self.logs:
            log.begin_sync()
        took_ms = self._host.sync_ms[self.id] * self._world.rng.uniform(0.5, 2.0)
        self._world.after(took_ms, self._synced, self.incarnation)

    def _synced(self, incarnation: int) -> None:
        """End a sync of the disk; the process handles that in its next group commit, if it runs."""
        if incarnation != self.incarnation or not self.alive:
            return
        self._syncing = False
        for number, log in enumerate(self.logs):
            log.end_sync()
            self.take(number, SyncEnded())
            if self._world.rng.random() < 0.1:
                # As a checkpoint has it: at most what was exposed, and durable.
                log.high_watermark = min(self.hosted[number].exposed, log.disk.end)

    def _learn(self, number: int) -> None:
        """Step a replica with the durable end of its log."""
        end = self.logs[number].take_synced()
        if end is not None:
            self._step(number, ev.Synced(end))

    def _plan_wake(self, touched: list[int]) -> None:
        """Schedule a call for the next timer, unless there is one."""
        times = [self.hosted[number].replica.deadline_ms for number in touched]
        due = min((time for time in times if time is not None), default=None)
        if due is None:
            return
        now_ms, due_ms = self._world.now_ms, self.clock.true_ms(due)
        if self._wake_ms <= now_ms or due_ms < self._wake_ms:
            self._wake_ms = max(due_ms, now_ms + 1)
            self._world.after(self._wake_ms - now_ms, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.alive:
            return
        self._wake_ms = 0.0
        now_ms = self.clock.now_ms
        for number, hosted in enumerate(self.hosted):
            due = hosted.replica.deadline_ms
            if due is not None and due <= now_ms:
                self.take(number, ev.TimePassed())
        self._plan_wake([n for n, h in enumerate(self.hosted) if _is_later(h, now_ms)])

    # Effects

    def _carry_out(self, number: int, hosted: Hosted, effect: Effect) -> None:
        log, host = hosted.log, self._host
        match effect:
            case fx.Send():
                host.carry(self.id, number, effect)
            case fx.Append():
                self._append(number, hosted, effect)
            case fx.Committed():
                self._expose(number, hosted, effect.offset)
            case fx.ReadLog():
                self._read_log(number, hosted, effect)
            case fx.TruncateTo():
                self._world.counts["truncated"] += 1
                log.truncate_to(effect.offset)
            case fx.ResetTo():
                self._world.counts["reset"] += 1
                log.reset_to(effect.offset)
                if effect.offset < hosted.exposed:
                    self._world.counts["started over"] += 1
                    host.checkers[number].started_over(self.id, isr=host.isr(number))
                    hosted.exposed = effect.offset
            case fx.ProposeIsr():
                host.propose(self, number, effect)
            case fx.RejectWrites():
                if effect.reason in (RejectReason.NOT_LEADER, RejectReason.NOT_ENOUGH_REPLICAS):
                    self._give_up(hosted)
            case fx.TransferLeadership():
                host.hand_over(self.id, number, effect)
            case fx.ReadRange():
                self._read_range(number, log, effect)
            case fx.Repair():
                self._repair(log, effect)
            case fx.Halted():
                host.checkers[number].fail(f"broker {self.id} is halted: {effect.trouble}")
            case fx.AskMetadata():
                self._world.counts["asked"] += 1

    def _append(self, number: int, hosted: Hosted, effect: fx.Append) -> None:
        if self._host.full_disk and self._world.rng.random() < self._host.full_disk:
            self._world.counts["disk full"] += 1
            self._step(number, ev.Undone(Offset(hosted.log.seen.end)))
            return
        for ref, buffer in zip(effect.batches, effect.buffers, strict=True):
            hosted.log.append(StoredKey(ref, bytes(buffer)))

    def _expose(self, number: int, hosted: Hosted, offset: int) -> None:
        """Report committed records to the checker, and answer publishers."""
        checker = self._host.checkers[number]
        checker.exposed(self.id, hosted.exposed, offset, isr=self._host.isr(number))
        hosted.exposed = offset
        self._world.note(f"{self.id} {number} {offset}")
        while hosted.waiting and hosted.waiting[0][0] < offset:
            at, publish = hosted.waiting.pop(0)
            checker.ack(publish.value, at, floor=publish.floor)
            publish.answer(at)

    def _read_log(self, number: int, hosted: Hosted, effect: fx.ReadLog) -> None:
        """Read whole batches up to a size, at least one, and stop before a corrupt one."""
        log = hosted.log
        found: list[StoredKey] = []
        size, offset = 0, int(effect.from_offset)
        while offset < log.seen.end and offset not in log.corrupt and size < effect.bytes_max:
            stored = log.seen.at(offset)
            if stored is None:
                break
            found.append(stored)
            size += stored.ref.size
            offset = stored.ref.next_offset
        if offset in log.corrupt and not found:
            after = log.seen.batches[offset].ref.next_offset
            self.take(number, ev.CorruptionFound(Offset(offset), after))
        refs, payloads = _split(found)
        self.take(
            number,
            ev.BatchesRead(effect.follower, effect.session, effect.from_offset, refs, payloads),
        )

    def _read_range(self, number: int, log: SimLog, effect: fx.ReadRange) -> None:
        if effect.first_offset < log.seen.start:
            return  # retention removed records before the replica was notified: nothing to read
        found = log.seen.between(effect.first_offset, effect.next_offset)
        if not any(stored.ref.base_offset in log.corrupt for stored in found):
            refs, payloads = _split(found)
            self.take(number, ev.RangeRead(effect.to, effect.first_offset, refs, payloads))

    def compact(self, number: int, share: float) -> None:
        """Compact part of the committed records here."""
        hosted = self.hosted[number]
        below = compaction_end(hosted)
        reach = Reach(int(below * share), below, hosted.replica.min_replica_offset)
        hosted.log.compact(reach)
        self._world.counts["compacted"] += 1

    def _repair(self, log: SimLog, effect: fx.Repair) -> None:
        self._world.counts["repaired"] += 1
        for ref, buffer in zip(effect.batches, effect.buffers, strict=True):
            log.repair(StoredKey(ref, bytes(buffer)))


def compaction_end(hosted: Hosted) -> int:
    """Return the offset from which on records may still be undone."""
    return hosted.exposed


def _split(found: list[StoredKey]) -> tuple[tuple[BatchRef, ...], tuple[Buffer, ...]]:
    return tuple(s.ref for s in found), tuple(s.payload for s in found)


def _is_later(hosted: Hosted, now_ms: float) -> bool:
    due = hosted.replica.deadline_ms
    return due is not None and due > now_ms

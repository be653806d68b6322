"""The driver of one replica: executes its effects on the log, the group committer and the links.

Rules:
- replicated batches go through the group committer. A truncation or restart of the log waits for
  the batches before it and runs on a thread; later batches wait for it. A new assignment waits for
  all of them, so that a role begins with the log that the replica expects;
- a sync counts only for the part of the log that is not about to be truncated, and not at all
  before a reset.

``replica_publishers`` handles publishers, ``range_server`` the reads of other brokers.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol, assert_never

from strandline.broker.cluster import range_server, replica_publishers
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import Chunk
from strandline.broker.write_path.replica_writes import ReplicaWrite
from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.effects import Effect
from strandline.core.replication.events import Event
from strandline.core.replication.messages import BatchRef, Buffer
from strandline.core.replication.replica import Replica
from strandline.errors import DiskFullError, LogPoisonedError, StrandlineError
from strandline.record.batch import header_of
from strandline.storage.log import Log
from strandline.types import BrokerId, LogId, Offset

logger = logging.getLogger(__name__)

_Truncation = fx.TruncateTo | fx.ResetTo
_Change = fx.Append | _Truncation


class ReplicaHost(range_server.RangeServerHost, replica_publishers.ReplicaPublisherHost, Protocol):
    """The parts of a broker that a replica needs."""

    def now_ms(self) -> int:
        """The time in ms, monotonic."""
        ...

    def send(self, log_id: LogId, effect: fx.Send) -> None:
        """Send a message; it may be lost with the link."""
        ...

    def touched(self, driver: "ReplicaDriver") -> None:
        """Schedule a flush and a check of the deadline: the replica has changed."""
        ...

    def propose_isr(self, driver: "ReplicaDriver", proposal: fx.ProposeIsr) -> None:
        """Propose an ISR to the metadata."""
        ...


class ReplicaDriver:
    """One partition's replica on this broker: drives its core.

    Args:
        partition: the replicated partition.
        replica: the partition's state machine, created from the current log.
        host: the broker.
    """

    def __init__(self, partition: Partition, replica: Replica, host: ReplicaHost) -> None:
        self.partition = partition
        self.replica = replica
        self._host = host
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._writes = 0
        self._deferred: deque[_Change] = deque()
        self._parked: ev.Assigned | None = None
        self._early: dict[BrokerId, ev.Received] = {}
        self._truncation: _Truncation | None = None
        """The truncation in progress on a thread."""
        self._synced_meanwhile = Offset(0)
        """The end of the batches that were synced while truncations were pending."""
        self._dropped: StrandlineError | None = None
        self.may_hand_over = False
        """Whether all accepted records are committed after ``Resign``."""
        self.publishers = replica_publishers.ReplicaPublishers(partition, replica, host)
        self._range_server = range_server.RangeServer(partition, replica.log, host, step=self.step)
        partition.attach_replica(self, replica.log.high_watermark)
        self.publishers.update_reject_reason()

    @property
    def log_id(self) -> LogId:
        """The id of the replica's log."""
        return self.partition.log_id

    @property
    def log(self) -> Log:
        """The replica's log."""
        return self.partition.log

    def step(self, event: Event) -> None:
        """Handle an event and execute its effects in order; nested events are handled after it."""
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
        self._host.touched(self)

    def _take(self, event: Event) -> None:
        if isinstance(event, ev.Assigned) and (self._writes or self._truncation is not None):
            self._parked = event
            return
        if isinstance(event, ev.Received) and event.message.epoch > self.replica.epoch:
            # The sender knows of a new leader a moment before this broker, and repeats it seldom.
            self._early[event.sender] = event
        for effect in self.replica.step(event, self._host.now_ms()):
            self._carry_out(effect)
        self.publishers.note_role()
        self.publishers.update_reject_reason()
        if isinstance(event, ev.Assigned):
            early, self._early = self._early, {}
            self._events.extend(early.values())

    def flush(self) -> None:
        """Let the replica send the messages that it has gathered."""
        if self._dropped is None and not self._is_stepping:
            for effect in self.replica.step(ev.Flush(), self._host.now_ms()):
                self._carry_out(effect)

    def drop(self, error: StrandlineError) -> None:
        """End the replica: storage failed, the partition moved away or the broker stops."""
        self._dropped = error
        self._range_server.is_over = True
        self.publishers.end(error)

    # Effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case fx.Send():
                self._host.send(self.log_id, effect)
            case fx.Append() | fx.TruncateTo() | fx.ResetTo():
                self._change(effect)
            case fx.Committed():
                self._expose(effect.offset)
            case fx.ReadLog():
                self._range_server.read_log(effect)
            case fx.ReadRange():
                self._range_server.read_range(effect)
            case fx.ProposeIsr():
                self._host.propose_isr(self, effect)
            case fx.TransferLeadership():
                self.may_hand_over = True
            case fx.Halted():
                logger.error(
                    "replica of %s cannot continue here: %s", self.partition.name, effect.trouble
                )
            case fx.RejectWrites() | fx.AskMetadata():
                pass  # the reject reason is checked after each step; new metadata arrives by itself
            case fx.Repair():
                self._range_server.repair(effect)
            case _:
                assert_never(effect)

    # The log

    def _change(self, change: _Change) -> None:
        """Change the log, after all changes before."""
        is_truncation = not isinstance(change, fx.Append)
        if self._deferred or self._truncation is not None or (self._writes and is_truncation):
            self._deferred.append(change)
        else:
            self._change_now(change)

    def _change_now(self, change: _Change) -> None:
        if not isinstance(change, fx.Append):
            self._begin_truncation(change)
            return
        self._writes += 1
        end = change.batches[-1].next_offset
        copies = change.buffers
        write = ReplicaWrite(
            self.log_id, self.log, copies, lambda error: self._copied(copies, end, error)
        )
        self._host.committer.catch_up.submit(write)

    def _begin_truncation(self, change: _Truncation) -> None:
        """Start a truncation on a thread: large files and directory syncs take long."""
        log, partition = self.log, self.partition
        if isinstance(change, fx.ResetTo) and change.offset < log.log_start_offset:
            logger.error("%s cannot be truncated to %d", partition.name, change.offset)
            return
        is_loss = change.offset < partition.high_watermark
        is_compacted = partition.config.has_gaps
        self._truncation = change
        ends: list[Offset] = []

        def work(synced_sequence: int) -> None:
            if isinstance(change, fx.ResetTo):
                ends.append(_reset(log, change.offset, synced_sequence))
                return
            end = log.truncate_to(change.offset, synced_sequence=synced_sequence)
            # An unclean election may truncate committed records that compaction has used to remove
            # older ones here. Only the leader has those, so a compacted replica starts over.
            if is_compacted and (is_loss or end < change.offset):
                start = log.log_start_offset
                end = log.truncate_to(start, synced_sequence=synced_sequence)
            ends.append(end)

        self._host.committer.catch_up.change(
            log, work, lambda error: self._truncated(change, ends, error)
        )

    def _truncated(
        self, change: _Truncation, ends: list[Offset], error: StrandlineError | None
    ) -> None:
        """Continue after a truncation; if it failed, have the storage reopened."""
        self._truncation = None
        if self._dropped is not None:
            return
        if error is not None:
            if isinstance(error, (DiskFullError, LogPoisonedError)):
                self._host.committer.poison(LogPoisonedError(error.message))
            return  # other errors mean that the broker is stopping
        [end] = ends
        if isinstance(change, fx.ResetTo):
            self._synced_meanwhile = Offset(0)
            self.partition.move(end)
            self.step(ev.Synced(end))
        else:
            assert end == change.offset or self.partition.config.has_gaps, (
                "leaders change at batches"
            )
            self._synced_meanwhile = min(self._synced_meanwhile, end)
            # The high watermark may have risen during the truncation without being exposed.
            known = max(self.partition.high_watermark, self.replica.log.high_watermark)
            self.partition.move(min(known, end))
            if end < change.offset:
                self.step(ev.Undone(end))
        if self._synced_meanwhile and not self._is_truncating:
            synced, self._synced_meanwhile = self._synced_meanwhile, Offset(0)
            self.step(ev.Synced(synced))
        self._go_on()

    @property
    def _is_truncating(self) -> bool:
        """Whether truncations are pending; the log is then longer than the replica's state."""
        return self._truncation is not None or any(
            not isinstance(c, fx.Append) for c in self._deferred
        )

    def _copied(self, copies: Sequence[Buffer], end: Offset, error: StrandlineError | None) -> None:
        """Handle the result of a group commit of replicated batches."""
        if error is None and self._dropped is None:
            self.partition.copied(copies)
        self._written(end, error)

    def _written(self, end: Offset, error: StrandlineError | None) -> None:
        """Handle the result of a write of replicated batches."""
        self._writes -= 1
        if self._dropped is not None:
            return
        if error is None:
            self._notify_synced(end)
        else:
            self._undone(error)
        self._go_on()

    def _go_on(self) -> None:
        """Execute the changes that waited for the log."""
        self._change_deferred()
        if not self._writes and self._truncation is None and self._parked is not None:
            parked, self._parked = self._parked, None
            self.step(parked)

    def _notify_synced(self, end: Offset) -> None:
        if self._is_truncating:
            self._synced_meanwhile = max(self._synced_meanwhile, end)
        else:
            self.step(ev.Synced(end))

    def _undone(self, error: StrandlineError) -> None:
        """Report batches that could not be written as undone, up to the next truncation."""
        logger.warning("%s could not be replicated, will retry: %s", self.partition.name, error)
        if isinstance(error, DiskFullError):
            self._host.telemetry.count_full_disk()
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
        while self._deferred and self._truncation is None:
            if self._writes and not isinstance(self._deferred[0], fx.Append):
                return
            self._change_now(self._deferred.popleft())

    # Corruption

    def corruption_found(self, first_offset: Offset, next_offset: Offset) -> None:
        """Have corrupt batches replaced by those of another replica."""
        self.step(ev.CorruptionFound(first_offset, next_offset))

    def _expose(self, offset: Offset) -> None:
        """Expose the committed records below ``offset``."""
        if not self._is_truncating and offset <= self.log.log_end_offset:
            self.publishers.expose(offset)  # otherwise exposed by the end of the truncation

    # Group commit

    def journaled(self, chunk: Chunk, batch: Buffer) -> None:
        """Pass a journaled batch to followers, while this broker's sync runs."""
        header = header_of(batch)
        self.publishers.journaled(chunk, header.next_offset)
        ref = BatchRef(header.base_offset, header.next_offset, header.leader_epoch, len(batch))
        self.step(ev.Appended((ref,), (batch,)))

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """Note that a batch is synced on this broker."""
        self.publishers.synced(chunk, next_offset)
        self._notify_synced(next_offset)

    def log_start_moved(self) -> None:
        """Note that retention has deleted records."""
        self.step(ev.LogStartMoved(self.log.log_start_offset))

    @property
    def is_gathering(self) -> bool:
        """Whether new records should be gathered instead of being sent at once."""
        return self.publishers.is_gathering

    @property
    def min_replica_offset(self) -> Offset:
        """The offset below which records are committed and every replica has them."""
        return self.replica.min_replica_offset


def _reset(log: Log, offset: Offset, synced_sequence: int) -> Offset:
    """Empty a log and continue it at ``offset``; durable on return."""
    if log.truncate_to(offset, synced_sequence=synced_sequence) < offset:
        log.restart_at(offset)
    else:
        log.delete_before(offset)
    return offset

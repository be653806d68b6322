"""The driver of one replica: carries its effects out on the log, the group committer and links.

Rules:
- replicated batches go through the group committer. A truncation or restart of the log waits for
  the batches before it and runs beside the loop; later batches wait for it, and a new assignment
  waits for all of them, so that a role begins with the log that the replica expects;
- a sync counts only for the part of the log that is not about to be truncated, and for nothing
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

_Cut = fx.TruncateTo | fx.ResetTo
_Change = fx.Append | _Cut


class ReplicaHost(range_server.RangeServerHost, replica_publishers.ReplicaPublisherHost, Protocol):
    """The parts of a broker that a replica needs."""

    def now_ms(self) -> int:
        """The time."""
        ...

    def send(self, log_id: LogId, effect: fx.Send) -> None:
        """Send a message; it may be lost with the link."""
        ...

    def touched(self, driver: "ReplicaDriver") -> None:
        """Schedule a flush or timer: the replica may have messages to send or a new deadline."""
        ...

    def propose_isr(self, driver: "ReplicaDriver", proposal: fx.ProposeIsr) -> None:
        """Let metadata decide."""
        ...


class ReplicaDriver:
    """One partition's replica on this broker: drives its core.

    Args:
        partition: whose log it keeps.
        replica: its state machine, made from the log as it is.
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
        self._cut: _Cut | None = None
        """What is being cut from the log, on a thread."""
        self._synced_meanwhile = Offset(0)
        """As far as syncs reached while cuts were still to be made."""
        self._dropped: StrandlineError | None = None
        self.may_hand_over = False
        """Whether all that was taken is committed, after ``Resign``."""
        self.publishers = replica_publishers.ReplicaPublishers(partition, replica, host)
        self._range_server = range_server.RangeServer(partition, replica.log, host, step=self.step)
        partition.attach_replica(self, replica.log.high_watermark)
        self.publishers.update_reject_reason()

    @property
    def log_id(self) -> LogId:
        """Of the log it keeps."""
        return self.partition.log_id

    @property
    def log(self) -> Log:
        """The log it keeps."""
        return self.partition.log

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
        self._host.touched(self)

    def _take(self, event: Event) -> None:
        if isinstance(event, ev.Assigned) and (self._writes or self._cut is not None):
            self._parked = event
            return
        if isinstance(event, ev.Received) and event.message.epoch > self.replica.epoch:
            # Its sender has heard of a new leader a moment before us, and asks once in a while.
            self._early[event.sender] = event
        for effect in self.replica.step(event, self._host.now_ms()):
            self._carry_out(effect)
        self.publishers.note_role()
        self.publishers.update_reject_reason()
        if isinstance(event, ev.Assigned):
            early, self._early = self._early, {}
            self._events.extend(early.values())

    def flush(self) -> None:
        """Let the replica say what has gathered."""
        if self._dropped is None and not self._is_stepping:
            for effect in self.replica.step(ev.Flush(), self._host.now_ms()):
                self._carry_out(effect)

    def drop(self, error: StrandlineError) -> None:
        """Step nothing more: storage failed, the partition went away or the broker stops."""
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
                    "the copy of %s here cannot go on: %s", self.partition.name, effect.trouble
                )
            case fx.RejectWrites() | fx.AskMetadata():
                pass  # the rejection is looked at after each step; metadata comes by itself
            case fx.Repair():
                self._range_server.repair(effect)
            case _:
                assert_never(effect)

    # The log

    def _change(self, change: _Change) -> None:
        """Change the log after what was to change before."""
        is_cut = not isinstance(change, fx.Append)
        if self._deferred or self._cut is not None or (self._writes and is_cut):
            self._deferred.append(change)
        else:
            self._change_now(change)

    def _change_now(self, change: _Change) -> None:
        if not isinstance(change, fx.Append):
            self._begin_cut(change)
            return
        self._writes += 1
        end = change.batches[-1].next_offset
        copies = change.buffers
        write = ReplicaWrite(
            self.log_id, self.log, copies, lambda error: self._copied(copies, end, error)
        )
        self._host.committer.catch_up.submit(write)

    def _begin_cut(self, cut: _Cut) -> None:
        """Cut the log beside the loop: large files and directory syncs take long."""
        log, partition = self.log, self.partition
        if isinstance(cut, fx.ResetTo) and cut.offset < log.log_start_offset:
            logger.error("%s would have to go back to %d", partition.name, cut.offset)
            return
        is_loss = cut.offset < partition.high_watermark
        is_compacted = partition.config.compact
        self._cut = cut
        ends: list[Offset] = []

        def work(synced_sequence: int) -> None:
            if isinstance(cut, fx.ResetTo):
                ends.append(_reset(log, cut.offset, synced_sequence))
                return
            end = log.truncate_to(cut.offset, synced_sequence=synced_sequence)
            # An unclean election may cut committed records, for which compaction has removed older
            # ones here: only the leader has those, so that a copy that was compacted begins anew.
            if is_compacted and (is_loss or end < cut.offset):
                start = log.log_start_offset
                end = log.truncate_to(start, synced_sequence=synced_sequence)
            ends.append(end)

        self._host.committer.catch_up.change(
            log, work, lambda error: self._was_cut(cut, ends, error)
        )

    def _was_cut(self, cut: _Cut, ends: list[Offset], error: StrandlineError | None) -> None:
        """The log was cut, or was not: then all is reopened, as the replica has gone on already."""
        self._cut = None
        if self._dropped is not None:
            return
        if error is not None:
            if isinstance(error, (DiskFullError, LogPoisonedError)):
                self._host.committer.poison(LogPoisonedError(error.message))
            return  # else the broker stops
        [end] = ends
        if isinstance(cut, fx.ResetTo):
            self._synced_meanwhile = Offset(0)
            self.partition.move(end)
            self.step(ev.Synced(end))
        else:
            assert end == cut.offset or self.partition.config.compact, "leaders change at batches"
            self._synced_meanwhile = min(self._synced_meanwhile, end)
            # The replica may have heard more meanwhile, which was not exposed.
            known = max(self.partition.high_watermark, self.replica.log.high_watermark)
            self.partition.move(min(known, end))
            if end < cut.offset:
                self.step(ev.Undone(end))
        if self._synced_meanwhile and not self._has_cuts:
            synced, self._synced_meanwhile = self._synced_meanwhile, Offset(0)
            self.step(ev.Synced(synced))
        self._go_on()

    @property
    def _has_cuts(self) -> bool:
        """Whether the log is longer than the replica believes."""
        return self._cut is not None or any(not isinstance(c, fx.Append) for c in self._deferred)

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
            self._notify_synced(end)
        else:
            self._undone(error)
        self._go_on()

    def _go_on(self) -> None:
        """Do what waited for the log."""
        self._change_deferred()
        if not self._writes and self._cut is None and self._parked is not None:
            parked, self._parked = self._parked, None
            self.step(parked)

    def _notify_synced(self, end: Offset) -> None:
        if self._has_cuts:
            self._synced_meanwhile = max(self._synced_meanwhile, end)
        else:
            self.step(ev.Synced(end))

    def _undone(self, error: StrandlineError) -> None:
        """There was no room. What was to follow is void, unless it starts the log anew anyway."""
        logger.warning("%s could not be copied, will try again: %s", self.partition.name, error)
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
        while self._deferred and self._cut is None:
            if self._writes and not isinstance(self._deferred[0], fx.Append):
                return
            self._change_now(self._deferred.popleft())

    # Corruption

    def corruption_found(self, first_offset: Offset, next_offset: Offset) -> None:
        """Batches here cannot be read: get them from another replica."""
        self.step(ev.CorruptionFound(first_offset, next_offset))

    def _expose(self, offset: Offset) -> None:
        """Records below ``offset`` are committed."""
        if not self._has_cuts and offset <= self.log.log_end_offset:
            self.publishers.expose(offset)  # else the log is being cut: that tells by itself

    # The turn

    def journaled(self, chunk: Chunk, batch: bytearray) -> None:
        """The turn wrote a chunk: followers may have it while our own sync runs."""
        header = header_of(batch)
        self.publishers.journaled(chunk, header.next_offset)
        ref = BatchRef(header.base_offset, header.next_offset, header.leader_epoch, len(batch))
        self.step(ev.Appended((ref,), (batch,)))

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """The turn has synced a chunk."""
        self.publishers.synced(chunk, next_offset)
        self._notify_synced(next_offset)

    def log_start_moved(self) -> None:
        """Retention has removed records."""
        self.step(ev.LogStartMoved(self.log.log_start_offset))

    @property
    def is_gathering(self) -> bool:
        """Whether what comes now is better gathered."""
        return self.publishers.is_gathering

    @property
    def min_replica_offset(self) -> Offset:
        """Records below are committed, and every replica has them."""
        return self.replica.min_replica_offset


def _reset(log: Log, offset: Offset, synced_sequence: int) -> Offset:
    """Empty a log and go on at ``offset``; durable on return."""
    if log.truncate_to(offset, synced_sequence=synced_sequence) < offset:
        log.restart_at(offset)
    else:
        log.truncate_before(offset)
    return offset

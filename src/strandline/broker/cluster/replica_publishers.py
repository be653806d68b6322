"""The publishers that wait for a replicated partition: each gets one answer.

Rules: a publisher is acknowledged when its record is as safe as it asked for. If this broker stops
leading, or too few replicas are left, the answer is an error that says that the outcome is unknown.
Records are rejected while the replica rejects them, and while this broker is cut off from all
brokers that could commit them. Must not know how a log is replicated.
"""

from collections import deque
from typing import Protocol

from strandline.broker.write_path.append_queue import GATHERING_MS_MAX
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import Chunk, Waiting
from strandline.core.replication.effects import RejectReason
from strandline.core.replication.replica import Replica
from strandline.errors import (
    NotEnoughReplicasError,
    NotLeaderError,
    StrandlineError,
    UnavailableError,
)
from strandline.telemetry import Telemetry
from strandline.types import LeaderEpoch, Offset

CHUNKS_UNDER_WAY = 2
"""The batches in flight: one is synced, one is sent; with more, group commits are smaller."""
UNKNOWN = "retry with the same Nats-Msg-Id: whether the record is kept is not known"


class ReplicaPublisherHost(Protocol):
    """The parts of a broker that publishers need."""

    telemetry: Telemetry

    def precise_ms(self) -> float:
        """Return the time, for measurements."""
        ...

    def answer(self, partition: Partition, waiting: list[Waiting]) -> None:
        """Acknowledge records that are as safe as their publishers asked for."""
        ...

    def committed(self, partition: Partition) -> None:
        """Handle that more records of the partition are committed."""
        ...

    def not_leader(self, partition: Partition) -> NotLeaderError:
        """Return the error that names the leader."""
        ...


class ReplicaPublishers:
    """The publishers that wait for one replica.

    Args:
        partition: the replicated partition.
        replica: commits or rejects records.
        host: the broker.
    """

    def __init__(self, partition: Partition, replica: Replica, host: ReplicaPublisherHost) -> None:
        self._partition = partition
        self._replica = replica
        self._host = host
        self._epoch_led: LeaderEpoch | None = None
        self._uncommitted: deque[tuple[Offset, list[Waiting]]] = deque()
        self._journaled: deque[tuple[Offset, float]] = deque()
        self._reject_reason: RejectReason | None = None
        self._is_cut_off = False
        self._ending: StrandlineError | None = None
        """The error for waiting publishers after the replica was dropped; before, None."""

    @property
    def has_waiting(self) -> bool:
        """Whether any publisher waits for a commit."""
        return bool(self._uncommitted)

    @property
    def is_gathering(self) -> bool:
        """Whether enough batches are in flight to other replicas, and not for too long."""
        journaled = self._journaled
        if len(journaled) < CHUNKS_UNDER_WAY:
            return False
        return self._host.precise_ms() - journaled[0][1] < GATHERING_MS_MAX

    def end(self, error: StrandlineError) -> None:
        """Reject new records and all waiting publishers, because the replica is dropped."""
        self._ending = UnavailableError(f"{error.message}; {UNKNOWN}")
        self._partition.set_write_error(error)
        self._partition.reject_from((), error)
        self.reject_all(self._ending)

    def journaled(self, chunk: Chunk, next_offset: Offset) -> None:
        """Acknowledge records that need only the journal, after a batch was written to it."""
        is_early = self._partition.config.acks_in_force == "memory" and not chunk.is_transactional
        if is_early and chunk.waiting:
            self._host.answer(self._partition, chunk.waiting)
            chunk.waiting = []
        self._journaled.append((next_offset, self._host.precise_ms()))

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """Acknowledge records that need only this disk, after a batch was synced."""
        if chunk.on_disk:
            self._host.answer(self._partition, chunk.on_disk)
            chunk.on_disk = None
        if chunk.waiting:
            waiting, chunk.waiting = chunk.waiting, []
            acks = self._partition.config.acks_in_force
            if acks != "replicated" and not chunk.is_transactional:
                self._host.answer(self._partition, waiting)
            elif self._ending is not None:  # the replica was dropped while the batch was synced
                _reject(waiting, self._ending)
            elif self._reject_reason in (None, RejectReason.RESIGNING):
                self._uncommitted.append((next_offset, waiting))
            else:
                _reject(waiting, self._unknown())

    def expose(self, offset: Offset) -> None:
        """Acknowledge the committed records below ``offset``, and move the high watermark there."""
        if offset <= self._partition.high_watermark:
            return
        assert offset <= self._partition.log_end_offset, "only what is written"
        self._partition.commit(offset)
        self._measure(offset)
        self._host.committed(self._partition)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= offset:
            self._host.answer(self._partition, uncommitted.popleft()[1])

    def _measure(self, offset: Offset) -> None:
        """Measure how long the commits below ``offset`` took."""
        journaled = self._journaled
        if journaled and journaled[0][0] <= offset:
            now_ms = self._host.precise_ms()
            while journaled and journaled[0][0] <= offset:
                seconds = (now_ms - journaled.popleft()[1]) / 1e3
                self._host.telemetry.commit_seconds.observe(seconds)

    def note_role(self) -> None:
        """Take over the replica's role; a new leader numbers its batches by its epoch."""
        replica, partition = self._replica, self._partition
        if replica.leader is None:
            partition.follow()
        elif self._epoch_led != replica.epoch:
            self._epoch_led = replica.epoch
            self._journaled.clear()
            self._host.telemetry.leader_elections += 1
            if self._reject_reason is RejectReason.NOT_LEADER:
                partition.lead(replica.epoch)
            else:
                partition.change_leader_epoch(replica.epoch)

    def update_reject_reason(self) -> None:
        """Accept or reject records as the replica does."""
        reason = self._replica.reject_reason
        if reason is None and self._is_cut_off:
            reason = RejectReason.CUT_OFF
        if reason is self._reject_reason:
            return
        self._reject_reason = reason
        if reason is None:
            self._partition.set_write_error(None)
            return
        error = self.write_error()
        self._partition.set_write_error(error)
        if reason is not RejectReason.RESIGNING:
            self._partition.reject_from((), error)
            self.reject_all(self._unknown())

    @property
    def is_cut_off(self) -> bool:
        """Whether records are rejected because no broker can be reached that could commit them."""
        return self._is_cut_off

    def cut_off(self, *, is_cut_off: bool) -> None:
        """Set whether this broker is cut off from all brokers that could commit records."""
        self._is_cut_off = is_cut_off
        if self._ending is None:
            self.update_reject_reason()

    def write_error(self) -> StrandlineError:
        """Return the error that rejects records now; call it only while they are rejected."""
        name = self._partition.name
        if self._reject_reason is RejectReason.NOT_ENOUGH_REPLICAS:
            few = self._partition.config.min_isr
            return NotEnoughReplicasError(
                f"fewer than {few} replicas of {name} are in sync; retry later"
            )
        if self._reject_reason is RejectReason.RESIGNING:
            return NotLeaderError(f"this broker is handing over {name}; retry at another")
        if self._reject_reason is RejectReason.CUT_OFF:
            return UnavailableError(
                f"this broker reaches neither all replicas of {name} nor most of the cluster; "
                "retry at another broker"
            )
        return self._host.not_leader(self._partition)

    def describe_leader(self) -> None:
        """Update the error after a metadata change, which may name another leader."""
        if self._reject_reason is not None and self._ending is None:
            self._partition.set_write_error(self.write_error())

    def _unknown(self) -> UnavailableError:
        name = self._partition.name
        if self._reject_reason is RejectReason.NOT_ENOUGH_REPLICAS:
            return UnavailableError(f"too few replicas of {name} are left; {UNKNOWN}")
        if self._reject_reason is RejectReason.CUT_OFF:
            return UnavailableError(f"this broker is cut off from the others; {UNKNOWN}")
        return UnavailableError(f"the leader of {name} has changed; {UNKNOWN}")

    def reject_all(self, error: StrandlineError) -> None:
        """Reject all publishers that wait for a commit; the outcome of their records is unknown."""
        uncommitted, self._uncommitted = self._uncommitted, deque()
        for _, waiting in uncommitted:
            _reject(waiting, error)


def _reject(waiting: list[Waiting], error: StrandlineError) -> None:
    for each in waiting:
        each.rejected(error)

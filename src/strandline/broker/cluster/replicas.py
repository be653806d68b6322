"""The replicas of this broker: created from the image; driven by frames, commits and time.

Rules: an idle partition costs nothing: only replicas that were touched are flushed, and only those
with a deadline are checked as time passes. Assignments are passed on only from an image that has
the registration of this start (``replication.events.Assigned``).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from strandline.broker.cluster.alter_partition import IsrProposals
from strandline.broker.cluster.assignment import assignment, not_leader
from strandline.broker.cluster.channels import REPLICATION, decode_replication, encode_replication
from strandline.broker.cluster.epochs import leader_epochs
from strandline.broker.cluster.replica import ReplicaDriver
from strandline.broker.cluster.replication_throttle import ReplicationThrottle
from strandline.broker.cluster.requests import Session
from strandline.broker.peers.frame import Frame
from strandline.broker.peers.link import PeerLinks
from strandline.broker.write_path.group_commit import GroupCommitter
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import Waiting
from strandline.clock import Clock
from strandline.core.metadata.commands import BrokerRun
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.core.replication import events as ev
from strandline.core.replication.effects import ProposeIsr, Send
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import Session as StreamSession
from strandline.core.replication.replica import Replica
from strandline.core.replication.state import LogState
from strandline.core.replication.trace import Trace, TracedReplica
from strandline.errors import NotLeaderError, StrandlineError
from strandline.telemetry import Telemetry
from strandline.types import BrokerId, LogId, Offset

TIMER_S = 0.05
WATERMARK_DELAY_S = 0.005
"""The time that a high watermark waits for a batch to carry it; alone it wakes every follower."""


class Incarnation(NamedTuple):
    """The identity that all replicas share in one run of the broker.

    Attributes:
        me: this broker.
        incarnation: the incarnation that is registered.
        session: larger than any session of an earlier run.
    """

    me: BrokerId
    incarnation: str
    session: StreamSession


class Replicas:
    """All replicas of this broker.

    Args:
        links: the links to the other brokers.
        committer: writes replicated batches.
        clock: measures the replicas' timeouts.
        telemetry: counters.
        session: proposes ISR changes.
        limits: the replicas' timeouts.
        move_rate: limits the copying to replicas that a move adds; None: unlimited.
        trace: the trace of the replicas' events; None: none is written.
    """

    def __init__(
        self,
        links: PeerLinks,
        committer: GroupCommitter,
        *,
        clock: Clock,
        telemetry: Telemetry,
        session: Session,
        limits: ReplicationLimits | None = None,
        move_rate: ReplicationThrottle | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.committer = committer
        self.drivers: dict[LogId, ReplicaDriver] = {}
        self.image = MetadataImage()
        self._links = links
        self._clock = clock
        self.telemetry = telemetry
        self.isrs = IsrProposals(session, lambda: self.image)
        self._limits = limits or ReplicationLimits()
        self._move_rate = move_rate
        self._has_controller = True
        self._incarnation: Incarnation | None = None
        self._assigned: dict[LogId, PartitionImage] = {}
        self._touched: set[ReplicaDriver] = set()
        self._timed: set[ReplicaDriver] = set()
        self._awaiting_flush: set[ReplicaDriver] = set()
        self._is_watermark_due = False
        self._is_scheduled = False
        self._has_sent = False
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._send_queue = committer.send_queue
        self._send_queue.add_frames(self.flush)

    # Creation and assignment

    def begin(self, incarnation: Incarnation) -> None:
        """Create replicas for this incarnation from now on."""
        assert not self.drivers, "replicas of an earlier incarnation were dropped"
        self._incarnation = incarnation
        self.isrs.me = BrokerRun(incarnation.me, incarnation.incarnation)

    def drop_all(self, error: StrandlineError) -> None:
        """End every replica: storage failed or the broker stops."""
        drivers, self.drivers = self.drivers, {}
        self._assigned.clear()
        for driver in drivers.values():
            driver.drop(error)

    def add(self, partition: Partition, high_watermark: Offset) -> None:
        """Create a partition's replica from its current log.

        Raises:
            UnavailableError: the log cannot be read.
        """
        assert self._incarnation is not None, "begun before"
        log = partition.log
        state = LogState(
            log.log_start_offset,
            log.log_end_offset,
            high_watermark=high_watermark,
            epochs=leader_epochs(log),
        )
        me, incarnation, session = self._incarnation
        kind: Callable[..., Replica] = Replica
        if self._trace is not None:
            kind = partial(TracedReplica, name=str(partition.name), trace=self._trace)
        replica = kind(me, state, limits=self._limits, session=session, incarnation=incarnation)
        self.drivers[partition.log_id] = ReplicaDriver(partition, replica, self)

    def drop(self, log_id: LogId, error: StrandlineError) -> None:
        """Drop the replica of a partition that was deleted or moved away."""
        self._assigned.pop(log_id, None)
        driver = self.drivers.pop(log_id, None)
        if driver is not None:
            driver.drop(error)

    def assign(self, image: MetadataImage, names: Iterable[str]) -> None:
        """Pass the image's assignments to the replicas that do not have them yet."""
        self.image = image
        for name, partition in image.partitions(names):
            driver = self.drivers.get(partition.log_id)
            known = self._assigned.get(partition.log_id)
            if driver is None or known is partition:
                continue
            self._assigned[partition.log_id] = partition
            if known is not None:
                self._count_isr(known, partition)
            is_older = max(driver.replica.log.last_epoch, 0) < partition.unclean_epoch
            driver.step(assignment(partition, image, name, is_older=is_older))
            driver.publishers.describe_leader()

    def _count_isr(self, before: PartitionImage, after: PartitionImage) -> None:
        """Count brokers that joined or left an ISR; only the leader counts."""
        if after.leader is not None and after.leader == self.me:
            self.telemetry.isr_shrinks += len(set(before.isr) - set(after.isr))
            self.telemetry.isr_expands += len(set(after.isr) - set(before.isr))

    def assigned(self, log_id: LogId) -> PartitionImage | None:
        """Return the metadata that a log's replica was last assigned."""
        return self._assigned.get(log_id)

    @property
    def me(self) -> BrokerId | None:
        """The id of this broker while it has replicas, else None."""
        return self._incarnation.me if self._incarnation is not None else None

    @property
    def has_waiting(self) -> bool:
        """Whether any publisher waits for a commit."""
        return any(driver.publishers.has_waiting for driver in self.drivers.values())

    def resign(self) -> None:
        """Let all leaders on this broker reject new records, before a handover."""
        for driver in self.drivers.values():
            driver.step(ev.Resign())

    @property
    def leads(self) -> bool:
        """Whether this broker leads any partition."""
        return any(driver.replica.leader is not None for driver in self.drivers.values())

    @property
    def may_hand_over(self) -> bool:
        """Whether all records that resigning leaders have accepted are committed."""
        leading = (d for d in self.drivers.values() if d.replica.leader is not None)
        return all(driver.may_hand_over for driver in leading)

    def note_cut_off(self, *, has_controller: bool) -> None:
        """Reject records that cannot be committed while other brokers cannot be reached.

        A leader that cannot reach all of the ISR needs the metadata to shrink the ISR. Without a
        controller either, publishers would wait in vain.
        """
        if has_controller and self._has_controller:
            return  # the usual case: nothing has changed
        self._has_controller = has_controller
        for driver in self.drivers.values():
            assigned = self._assigned.get(driver.log_id)
            if assigned is None or driver.replica.leader is None:
                driver.publishers.cut_off(is_cut_off=False)
                continue
            others = [broker for broker in assigned.isr if broker != driver.replica.me]
            reaches_all = all(map(self._links.is_up, others))
            is_cut_off = not (has_controller or reaches_all)
            driver.publishers.cut_off(is_cut_off=is_cut_off)

    def can_commit(self, log_id: LogId) -> bool:
        """Whether records of a partition can be committed now, as far as this broker knows."""
        driver, assigned = self.drivers[log_id], self._assigned.get(log_id)
        if self._has_controller or assigned is None:
            return True
        if driver.replica.leader is not None:
            return not driver.publishers.is_cut_off
        return assigned.leader is not None and self._links.is_up(assigned.leader)

    def high_watermarks(self) -> Mapping[LogId, Offset]:
        """Return the high watermarks known to this broker."""
        return {log_id: d.partition.high_watermark for log_id, d in self.drivers.items()}

    # Frames and links

    def received(self, sender: BrokerId, frame: Frame) -> None:
        """Pass a message of another broker to its replica.

        Raises:
            InvalidRecordError, CorruptBatchError: the frame is malformed.
        """
        log_id, event = decode_replication(frame, sender)
        driver = self.drivers.get(log_id)
        if driver is not None:
            driver.step(event)

    def peer_connected(self, broker: BrokerId) -> None:
        """Notify the replicas that the link to a broker is up."""
        for driver in list(self.drivers.values()):
            driver.step(ev.PeerConnected(broker))

    def peer_disconnected(self, broker: BrokerId) -> None:
        """Notify all replicas that the link to a broker is down, so that frames may be lost."""
        for driver in list(self.drivers.values()):
            driver.step(ev.PeerDisconnected(broker))

    # Called by replicas

    def now_ms(self) -> int:
        """The time in ms, monotonic."""
        return int(self._clock.monotonic_ms())

    def precise_ms(self) -> float:
        """Return the time, for measurements."""
        return self._clock.monotonic_ms()

    def send(self, log_id: LogId, effect: Send) -> None:
        """Send a message; it may be lost with the link, of which the replica is notified."""
        header = encode_replication(log_id, effect.message)
        if self._links.send(effect.to, REPLICATION, header, attachments=effect.buffers):
            self._has_sent = True

    def touched(self, driver: ReplicaDriver) -> None:
        """Flush the replica in the next round of the loop, or before."""
        self._touched.add(driver)
        self._timed.add(driver)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_scheduled = False
        self.flush()

    def flush(self) -> bool:
        """Let touched replicas send; return whether frames leave in the loop's next round."""
        while self._touched:
            touched, self._touched = self._touched, set()
            for driver in touched:
                if driver.replica.can_defer_flush:
                    self._awaiting_flush.add(driver)
                else:
                    driver.flush()
        if self._awaiting_flush and not self._is_watermark_due:
            self._is_watermark_due = True
            self._loop.call_later(WATERMARK_DELAY_S, self._notify_high_watermarks)
        return self._send_out()

    def _notify_high_watermarks(self) -> None:
        """Send the high watermarks that no batch has carried meanwhile."""
        self._is_watermark_due = False
        awaiting, self._awaiting_flush = self._awaiting_flush, set()
        for driver in awaiting:
            driver.flush()
        self._send_out()

    def _send_out(self) -> bool:
        has_sent, self._has_sent = self._has_sent, False
        if has_sent:
            self._links.flush()
        return has_sent

    def answer(self, partition: Partition, waiting: list[Waiting]) -> None:
        """Queue acks for publishers; the front ends send them."""
        self._send_queue.acknowledge(partition.name, waiting)

    def committed(self, partition: Partition) -> None:
        """Let the partition's gathered records go, since earlier ones are committed."""
        self.committer.append_queue.go_on_with(partition)

    def propose_isr(self, driver: ReplicaDriver, proposal: ProposeIsr) -> None:
        """Propose an ISR, and repeat it until it is decided."""
        self.isrs.propose(driver, proposal)

    def in_thread(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run a function that reads files on a thread, then ``done`` on the loop."""

        def read(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                future.result()  # a bug: the loop reports it
                done()

        self._loop.run_in_executor(None, work).add_done_callback(read)

    def move_rate(self, log_id: LogId, follower: BrokerId) -> ReplicationThrottle | None:
        """Return the throttle for a follower that a move adds and that was never in sync."""
        assigned = self._assigned.get(log_id)
        is_new = (
            assigned is not None and follower in assigned.adding and follower not in assigned.isr
        )
        return self._move_rate if is_new else None

    def not_leader(self, partition: Partition) -> NotLeaderError:
        """Return the error that names the leader and its address."""
        assigned = self._assigned.get(partition.log_id)
        return not_leader(self.image, partition.name, assigned)

    # Time

    async def run_timers(self) -> None:
        """Step the replicas whose deadline has passed, until cancelled."""
        while True:
            await asyncio.sleep(TIMER_S)
            now_ms = self.now_ms()
            timed, self._timed = self._timed, set()
            for driver in timed:
                deadline_ms = driver.replica.deadline_ms
                if deadline_ms is not None and deadline_ms <= now_ms:
                    driver.step(ev.TimePassed())
                elif deadline_ms is not None:
                    self._timed.add(driver)

"""A member of the simulated consensus group: a real ``Raft`` core, its process and its disk.

Rules: a crash loses any part of the unsynced writes. While a sync runs, the core is stepped, but
its output is not processed. Ticks come at the member's own speed. Answers to clients go to the
group's checker. ``consensus`` decides when anything happens.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from simulation.consensus_watch import QuorumWatch
from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.messages import (
    Envelope,
    HardState,
    Index,
    Members,
    RaftEntry,
    Snapshot,
    Term,
)
from strandline.core.raft.raft import Raft
from strandline.core.raft.ready import Ready
from strandline.errors import InvalidRequestError, UnavailableError
from strandline.testing.history import ViolationError
from strandline.types import BrokerId

if TYPE_CHECKING:
    from simulation.consensus import ConsensusGroup

TICK_MS = 10.0


@dataclass(slots=True)
class MemberDisk:
    """A member's disk: its synced state, and the writes that are not synced.

    ``pending`` has hard states and entries in the order in which they were written.
    """

    hard: HardState
    snapshot: Snapshot
    base: tuple[Index, Term]
    entries: list[RaftEntry] = field(default_factory=list)
    pending: list[HardState | RaftEntry] = field(default_factory=list)

    def write(self, ready: Ready) -> None:
        """Write without a sync; but a snapshot is synced and renamed at once, as a file is."""
        if ready.snapshot is not None:
            self.install(ready.snapshot)
        if ready.hard_state is not None:
            self.pending.append(ready.hard_state)
        self.pending.extend(ready.entries)

    def sync(self, count: int | None = None) -> None:
        """Make writes durable: all of them, or the first ``count`` pieces."""
        done, self.pending = self.pending[:count], []
        for piece in done:
            if isinstance(piece, HardState):
                self.hard = piece
            else:
                del self.entries[piece.index - self.base[0] - 1 :]
                self.entries.append(piece)
                assert piece.index == self.base[0] + len(self.entries), "no gap on disk"

    def install(self, snapshot: Snapshot) -> None:
        """Store a leader's snapshot; entries that do not continue it are dropped."""
        self.sync()
        position = snapshot.index - self.base[0]
        kept = self.entries[position - 1 : position]
        goes_on = bool(kept) and kept[0].term == snapshot.term
        self.entries = self.entries[position:] if goes_on else []
        self.snapshot, self.base = snapshot, (snapshot.index, snapshot.term)

    def compact(self, snapshot: Snapshot, base: tuple[Index, Term]) -> None:
        """Drop entries that a snapshot of our own covers."""
        del self.entries[: base[0] - self.base[0]]
        self.snapshot, self.base = snapshot, base


class SimMember:
    """A member's process, which may crash, and its disk, which stays."""

    def __init__(self, group: "ConsensusGroup", me: BrokerId, members: Members) -> None:
        self.group, self.me = group, me
        snapshot = Snapshot(members=members)
        self.disk = MemberDisk(HardState(), snapshot, (Index(0), Term(0)))
        self.incarnation = 0
        self.is_up = False
        self.paused_until_ms = 0.0
        self.stored_index = Index(0)
        self.start()

    def start(self) -> None:
        """Start the process from the disk."""
        world, disk = self.group.world, self.disk
        self.is_up, self.is_syncing, self.is_called = True, False, False
        self.incarnation += 1
        self.proposed: dict[tuple[Index, Term], bytes] = {}
        self.asked: dict[int, Index] = {}
        self.allowed: list[tuple[int, Index]] = []
        self.tick_ms = TICK_MS * world.rng.uniform(0.7, 1.4)
        self.watch = QuorumWatch()
        self.raft = Raft(
            self.me,
            world.rng.randrange,
            snapshot=disk.snapshot,
            hard=disk.hard,
            base=disk.base,
            entries=disk.entries,
            settings=self.group.settings,
        )
        if self.raft.state.log.last_index < self.stored_index:
            # The metadata would reject it as an older copy: see ``core.metadata.brokers``.
            raise ViolationError(f"{self.me} has lost the committed entry {self.stored_index}")
        self.restore(disk.snapshot)
        self.group.checker.observe(self.me, self.raft)
        world.after(world.rng.uniform(0, TICK_MS), self.tick, self.incarnation)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot: its data is the checksum of all commands before it."""
        self.applied = snapshot.index
        self.chain = int(snapshot.data or b"0")
        self.group.checker.restored(self.applied, self.chain)
        self.group.checker.restored_members(self.applied, snapshot.members)

    @property
    def pause_ms(self) -> float:
        """The time for which the member is still paused, in ms."""
        return max(0.0, self.paused_until_ms - self.group.world.now_ms)

    def pause(self, pause_ms: float) -> None:
        """Pause, as by SIGSTOP; clients that waited ask right after it."""
        world = self.group.world
        world.counts["pauses"] += 1
        self.paused_until_ms = world.now_ms + pause_ms
        world.after(pause_ms, self.group.ask, self)

    def crash(self) -> None:
        """Crash; any prefix of the unsynced writes may be on disk."""
        if self.is_up:
            self.is_up = False
            self.group.world.counts["crashes"] += 1
            self.stored_index = max(self.stored_index, self.raft.state.log.stored_index)
            self.disk.sync(self.group.world.rng.randrange(len(self.disk.pending) + 1))

    # Events

    def tick(self, incarnation: int) -> None:
        """Pass a tick to the core, and schedule the next at this member's own speed."""
        if self.is_up and incarnation == self.incarnation:
            self.group.world.after(self.tick_ms + self.pause_ms, self.tick, incarnation)
            if not self.pause_ms:
                self.take(None)

    def receive(self, envelope: Envelope) -> None:
        """Receive a message."""
        if self.pause_ms:
            self.group.world.after(self.pause_ms, self.receive, envelope)
        elif self.is_up:
            self.take(envelope)

    def take(self, envelope: Envelope | None) -> None:
        """Pass a message or a tick to the core at once, even while a sync runs."""
        was_leader = isinstance(self.raft.role, RaftLeader)
        if envelope is None:
            self.raft.tick()
        else:
            self.raft.step(envelope)
        self.watch.note(self.raft, envelope)
        self.group.checker.observe(self.me, self.raft)
        if isinstance(self.raft.role, RaftLeader) and not was_leader:
            self.group.elected(self)
        self.call()

    def call(self) -> None:
        """Process the core's output, now or a little later, like a busy process."""
        if self.is_called:
            return
        if self.group.world.rng.random() < self.group.laziness:
            self.is_called = True
            delay_ms = self.group.world.rng.uniform(0, 3)
            self.group.world.after(delay_ms, self.called, self.incarnation)
        else:
            self.work()

    def called(self, incarnation: int) -> None:
        """Process the core's output, as planned by ``call``."""
        if incarnation == self.incarnation:
            self.is_called = False
            self.work()

    def work(self) -> None:
        """Process the core's output, unless a sync is running."""
        if self.is_syncing or not self.is_up or self.pause_ms:
            return
        ready = self.raft.ready()
        if not ready:
            return
        self.group.send(ready.early)
        if ready.hard_state is None and ready.snapshot is None and not ready.entries:
            self.finish(ready)
            return
        self.disk.write(ready)
        if ready.snapshot is not None:
            self.disk.sync()
            self.finish(ready)
        else:
            self.is_syncing = True
            delay_ms = self.group.world.rng.choice(self.group.sync_ms)
            self.group.world.after(delay_ms, self.synced, ready, self.incarnation)

    def synced(self, ready: Ready, incarnation: int) -> None:
        """End a sync, unless the process has crashed since."""
        if self.pause_ms:
            self.group.world.after(self.pause_ms, self.synced, ready, incarnation)
        elif self.is_up and incarnation == self.incarnation:
            self.disk.sync()
            self.is_syncing = False
            self.finish(ready)

    def finish(self, ready: Ready) -> None:
        """Execute what a ``Ready`` allows once it is on disk."""
        self.raft.persisted(ready)
        self.group.send(ready.late)
        if ready.snapshot is not None:
            self.restore(ready.snapshot)
        for entry in ready.committed:
            self.apply(entry)
        self.allowed += [(int(str(read.context)), read.after) for read in ready.reads]
        for context in ready.lost_reads:
            self.asked.pop(int(str(context)), None)
        self.answer_reads()
        self.compact_maybe()
        self.group.world.after(0, self.work)

    def apply(self, entry: RaftEntry) -> None:
        """Apply a committed entry, and notify its client."""
        checker = self.group.checker
        if entry.index != self.applied + 1:
            raise ViolationError(f"entry {entry.index} applied after {self.applied}")
        self.applied = entry.index
        self.chain = crc32(entry.data, self.chain)
        checker.applied(entry, self.chain)
        self.group.applied(self, entry)
        command = self.proposed.pop((entry.index, entry.term), None)
        if command is not None:
            if command != entry.data:
                raise ViolationError(f"the client of {command!r} would be acked for {entry.data!r}")
            checker.acked(command, entry.index)
            self.group.world.counts["acked"] += 1

    def answer_reads(self) -> None:
        """Answer the reads whose entry is applied."""
        waiting = self.allowed
        self.allowed = [read for read in waiting if read[1] > self.applied]
        for number, index in waiting:
            if index <= self.applied and number in self.asked:
                self.group.world.counts["reads"] += 1
                self.group.checker.read(self.applied, must_see=self.asked.pop(number))

    def compact_maybe(self) -> None:
        """Take a snapshot from time to time, keeping a few entries or none."""
        log = self.raft.state.log
        if self.applied - log.snapshot.index > self.group.snapshot_every:
            keep = self.group.world.rng.choice((0, 5))
            if self.applied == log.applied_index:
                snapshot = self.raft.compact(self.applied, b"%d" % self.chain, keep=keep)
                self.disk.compact(snapshot, (log.base_index, log.base_term))

    # Clients

    def propose(self, command: bytes) -> None:
        """Propose a client's command; the client is notified when it is applied."""
        try:
            self.proposed[self.raft.propose(command)] = command
        except UnavailableError:
            self.group.world.counts["refused"] += 1
        self.call()

    def read(self, number: int, must_see: Index) -> None:
        """Request a client's read, which must see the entry ``must_see``."""
        try:
            self.raft.read(number)
            self.asked[number] = must_see
        except UnavailableError:
            self.group.world.counts["refused"] += 1
        self.call()

    def change_members(self, members: Members) -> None:
        """Propose another membership, as an operator does."""
        if self.pause_ms:
            return
        try:
            self.raft.change_members(members)
            self.group.world.counts["membership changes"] += 1
        except (UnavailableError, InvalidRequestError):
            self.group.world.counts["refused changes"] += 1
        self.call()

    def hand_over(self, successor: BrokerId) -> None:
        """Transfer the leadership, as an operator does."""
        if self.pause_ms:
            return
        try:
            self.raft.hand_over(successor)
            self.group.world.counts["hand-overs"] += 1
        except (UnavailableError, InvalidRequestError):
            self.group.world.counts["refused changes"] += 1
        self.call()

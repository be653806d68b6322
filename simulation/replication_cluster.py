"""A simulated cluster of replicas: brokers, the network between them, and metadata.

Publishers and readers are in ``replication_clients``, faults in ``replication_faults``, and whole
histories in ``replication``.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from simulation.replication_broker import SimBroker
from simulation.replication_check import ReplicationChecker
from simulation.replication_disk import SimLog
from simulation.replication_oracle import METADATA, Oracle, OraclePartition
from simulation.world import World
from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import decode, encode
from strandline.types import BrokerId, Offset

BEAT_MS = 150
RETRY_MS = 200


class Cluster:
    """Brokers, the network between them, and metadata.

    Args:
        seed: determines everything.
    """

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        rng = world.rng
        self.limits = ReplicationLimits(
            replica_lag_ms_max=rng.choice((300, 800)),
            resend_ms=100,
            window_bytes=rng.choice((40, 200, 100_000)),
            read_bytes=rng.choice((10, 100, 10_000)),
        )
        self.ids = [BrokerId(n) for n in range(1, rng.choice((3, 3, 5)) + 1)]
        self.full_disk = rng.choice((0.0, 0.0, 0.02))
        self.is_encoding = seed % 8 == 1
        self.is_ordered = rng.random() < 0.6
        self.lazy = self.ids[-1] if seed % 8 == 0 else None
        """In some seeds, a broker that never compacts, so that it has records that the others have
        removed; it keeps its disk while the others lose theirs, one after the other."""
        if self.lazy is not None:  # so that filling a new disk takes several messages
            self.limits = msgspec.structs.replace(self.limits, window_bytes=200, read_bytes=10)
        self._arrivals_ms: dict[tuple[int, int], float] = {}
        self.sync_ms = dict.fromkeys(self.ids, 0.5)
        partitions, self.checkers = [], []
        for number in range(rng.randint(1, 3)):
            min_isr = rng.choice((1, 2, 2))
            is_compacted = self.lazy is not None or (seed + number) % 3 == 0
            everybody = tuple(self.ids)
            partitions.append(OraclePartition(everybody, min_isr, everybody, is_compacted))
            checker = ReplicationChecker(number, world, min_isr=min_isr, is_compacted=is_compacted)
            self.checkers.append(checker)
        self.oracle = Oracle(world, partitions)
        self.brokers = {b: SimBroker(b, self, [SimLog() for _ in partitions]) for b in self.ids}
        for number, checker in enumerate(self.checkers):
            checker.logs = {b: broker.logs[number] for b, broker in self.brokers.items()}
        self.is_calm = False
        self.is_drifting = seed // 8 % 2 == 1
        """Whether clocks differ: in every other group of eight seeds."""
        self.clocks = random.Random(seed)
        """A generator of its own, so that clocks do not change histories without drift."""
        if self.is_drifting:
            for broker in self.brokers.values():
                broker.clock.drift(self.clocks)

    # Starts

    def begin(self) -> None:
        """Start every broker, and begin to check heartbeats."""
        for broker in self.brokers.values():
            self.start(broker)
        self.world.after(BEAT_MS, self._watch)

    def start(self, broker: SimBroker) -> None:
        """Start a broker; the others notice sooner or later."""
        broker.start()
        self.beat(broker, broker.incarnation)
        for other in self.ids:
            if other != broker.id:
                delay_ms = self.world.rng.uniform(1, 60)
                self.world.after(delay_ms, self.tell, other, ev.PeerConnected(broker.id))
                self.world.after(delay_ms, self.tell, broker.id, ev.PeerConnected(other))

    # The network

    def carry(self, sender: BrokerId, number: int, send: fx.Send) -> None:
        """Send a message between brokers, over a link that keeps the order or one that does not."""
        world, link = self.world, (sender, send.to)
        if not self.is_ordered:
            world.send(link, self._deliver, sender, number, send)
            return
        if world.faults.loss and world.rng.random() < world.faults.loss:
            world.counts["lost"] += 1
            return
        delay_ms = world.rng.uniform(0.1, world.faults.delay_ms_max)
        arrival_ms = max(world.now_ms + delay_ms, self._arrivals_ms.get(link, 0.0))
        self._arrivals_ms[link] = arrival_ms
        deliver = world.stamped(link, self._deliver)
        arrives_ms = arrival_ms - world.now_ms
        world.after(arrives_ms, self._arrive, link, deliver, (sender, number, send))

    def _arrive(
        self,
        link: tuple[BrokerId, BrokerId],
        deliver: Callable[..., None],
        message: tuple[object, ...],
    ) -> None:
        if self.world.is_cut(link):
            self.world.counts["cut"] += 1
        else:
            self.world.counts["delivered"] += 1
            deliver(*message)

    def _deliver(self, sender: BrokerId, number: int, send: fx.Send) -> None:
        message = send.message
        if self.is_encoding:  # in some seeds only, since it takes time
            message = decode(encode(message), list(send.buffers))
        self.brokers[send.to].take(number, ev.Received(sender, message, send.buffers))

    def tell(self, broker: BrokerId, event: ev.PeerDisconnected | ev.PeerConnected) -> None:
        """Notify all replicas of a broker of a link's change."""
        for number in range(len(self.checkers)):
            self.brokers[broker].take(number, event)

    # Metadata

    def isr(self, number: int) -> tuple[BrokerId, ...]:
        """Return the ISR in the metadata now."""
        return self.oracle.partitions[number].isr

    def beat(self, broker: SimBroker, incarnation: int) -> None:
        """Send a broker's heartbeat, and schedule the next."""
        if broker.incarnation != incarnation or not broker.alive:
            return
        if self.world.now_ms >= broker.paused_until:
            link = (broker.id, METADATA)
            self.world.send(link, self.receive_heartbeat, broker, incarnation)
        self.world.after(BEAT_MS / broker.clock.rate, self.beat, broker, incarnation)

    def receive_heartbeat(self, broker: SimBroker, incarnation: int) -> None:
        """Handle a heartbeat at the metadata: answer with all assignments."""
        if self.oracle.beat(broker.id, incarnation):
            link = (METADATA, broker.id)
            states = [partition.assignment() for partition in self.oracle.partitions]
            self.world.send(link, self._receive_assignments, broker, incarnation, states)

    def _receive_assignments(
        self, broker: SimBroker, incarnation: int, states: list[ev.Assigned]
    ) -> None:
        if broker.incarnation == incarnation:
            for number, state in enumerate(states):
                broker.take(number, state)

    def _watch(self) -> None:
        """Fence brokers without heartbeats, periodically."""
        self.oracle.fence_silent()
        self.world.after(BEAT_MS, self._watch)

    def propose(self, broker: SimBroker, number: int, proposal: fx.ProposeIsr) -> None:
        """Repeat a proposal until it is decided or its leadership has ended."""
        self._submit(_Ballot(broker, broker.incarnation, number, proposal))

    def _submit(self, ballot: "_Ballot") -> None:
        if not ballot.is_answered and not ballot.is_over:
            link = (ballot.broker.id, METADATA)
            self.world.send(link, self._decide, ballot)
            self.world.after(RETRY_MS, self._submit, ballot)

    def _decide(self, ballot: "_Ballot") -> None:
        outcome = self.oracle.propose(ballot.number, ballot.proposal)
        self.checkers[ballot.number].joined(self.isr(ballot.number))
        self.world.send((METADATA, ballot.broker.id), self._decided, ballot, outcome)

    def _decided(self, ballot: "_Ballot", outcome: ev.IsrChanged | ev.IsrRejected) -> None:
        ballot.is_answered = True
        if not ballot.is_over:
            ballot.broker.take(ballot.number, outcome)

    def hand_over(self, broker: BrokerId, number: int, effect: fx.TransferLeadership) -> None:
        """Name successors to the metadata."""
        epoch = self.brokers[broker].hosted[number].replica.epoch
        link = (broker, METADATA)
        self.world.send(link, self.oracle.hand_over, number, epoch, effect.candidates)

    # The end

    def calm(self) -> None:
        """End all faults, and restart everything."""
        self.is_calm = True
        self.world.calm()
        self.is_ordered = True
        self.full_disk = 0.0
        for broker in self.brokers.values():
            self.sync_ms[broker.id] = 0.5
            broker.paused_until = 0.0
            if not broker.alive:
                self.start(broker)

    def scrub(self) -> None:
        """Read every log, to find corruption that no reader has found."""
        for broker in self.brokers.values():
            for number, hosted in enumerate(broker.hosted):
                for base in sorted(hosted.log.corrupt):
                    after = hosted.log.seen.batches[base].ref.next_offset
                    broker.take(number, ev.CorruptionFound(Offset(base), after))

    def check_settled(self) -> None:
        """Check what must be true after all faults have healed."""
        for number, checker in enumerate(self.checkers):
            partition = self.oracle.partitions[number]
            if set(partition.isr) != set(partition.replicas):
                checker.fail(f"the ISR did not heal: {partition.isr}")
            if not any(
                b.hosted[number].replica.reject_reason is None for b in self.brokers.values()
            ):
                checker.fail("nobody takes records")
            checker.settled({b.id: b.hosted[number].exposed for b in self.brokers.values()})


@dataclass(slots=True)
class _Ballot:
    """An undecided proposal."""

    broker: SimBroker
    incarnation: int
    number: int
    proposal: fx.ProposeIsr
    is_answered: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the leadership that proposed it has ended."""
        if self.broker.incarnation != self.incarnation or not self.broker.alive:
            return True
        return self.broker.hosted[self.number].replica.epoch != self.proposal.epoch

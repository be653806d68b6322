"""Whole clusters of replicas in one process, with every fault, told by one seed.

``run(seed)`` builds a cluster of three or five brokers with a few partitions, lets publishers and
readers work while things break, heals everything, and asks for what must then be true. It raises
``ViolationError`` at the first broken promise; the same seed gives the same history.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from strandline.errors import StrandlineError
from strandline.replication import effects as fx
from strandline.replication import events as ev
from strandline.replication.limits import ReplicationLimits
from strandline.replication.messages import decode, encode
from strandline.testing.sim.replication_broker import Answer, NoOffset, Publish, SimBroker
from strandline.testing.sim.replication_check import Checker
from strandline.testing.sim.replication_clock import JUMPS_MS
from strandline.testing.sim.replication_disk import SimLog
from strandline.testing.sim.replication_oracle import METADATA, Oracle, Partition
from strandline.testing.sim.world import NetworkFaults, ViolationError, World
from strandline.types import BrokerId, Offset

CLIENTS = BrokerId(99)
BEAT_MS = 150
RETRY_MS = 200
PATIENCE_MS = 900
LOSSES_FROM_MS = 1_200


@dataclass(frozen=True, slots=True)
class Result:
    """What a run was."""

    fingerprint: str
    events: int
    counts: Counter[str]


class Cluster:
    """Brokers, metadata, publishers and readers.

    Args:
        seed: decides everything.
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
        """Never compacts, so that it still has what others have done with, and keeps its disk while
        the others lose theirs one after the other."""
        if self.lazy is not None:  # a new disk is not filled in one go
            self.limits = replace(self.limits, window_bytes=200, read_bytes=10)
        self._arrivals_ms: dict[tuple[int, int], float] = {}
        self.sync_ms = dict.fromkeys(self.ids, 0.5)
        partitions, self.checkers = [], []
        for number in range(rng.randint(1, 3)):
            min_isr = rng.choice((1, 2, 2))
            is_compacted = self.lazy is not None or (seed + number) % 3 == 0
            everybody = tuple(self.ids)
            partitions.append(Partition(everybody, min_isr, everybody, is_compacted))
            checker = Checker(number, world, min_isr=min_isr, is_compacted=is_compacted)
            self.checkers.append(checker)
        self.oracle = Oracle(world, partitions)
        self.brokers = {b: SimBroker(b, self, [SimLog() for _ in partitions]) for b in self.ids}
        for number, checker in enumerate(self.checkers):
            checker.logs = {b: broker.logs[number] for b, broker in self.brokers.items()}
        self.published = 0
        self.is_calm = False
        self.is_over = False
        self._reads = [0] * len(partitions)
        self._compaction = random.Random(seed)
        """Of its own, so that histories without compaction are as they were without it."""
        self._clocks = random.Random(seed)
        """Of its own, too, for the same reason."""
        self.is_drifting = seed // 8 % 2 == 1
        """Whether clocks differ: in every second eight seeds, each of which has ways of its own."""
        if self.is_drifting:
            for broker in self.brokers.values():
                broker.clock.drift(self._clocks)

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
        if self.is_encoding:  # in some seeds: it takes time
            message = decode(encode(message), list(send.buffers))
        self.brokers[send.to].take(number, ev.Received(sender, message, send.buffers))

    def flap(self, a: BrokerId, b: BrokerId, *, down_ms: float) -> None:
        """A link breaks; both sides notice, and notice when it is back."""
        for one, other in ((a, b), (b, a)):
            self._tell(one, ev.PeerLost(other))
            self.world.after(down_ms, self._tell, one, ev.PeerBack(other))

    def _tell(self, broker: BrokerId, event: ev.PeerLost | ev.PeerBack) -> None:
        """What a broker notices of a link, it tells all its replicas."""
        for number in range(len(self.checkers)):
            self.brokers[broker].take(number, event)

    # Metadata

    def isr(self, number: int) -> tuple[BrokerId, ...]:
        """As metadata has it now."""
        return self.oracle.partitions[number].isr

    def beat(self, broker: SimBroker, life: int) -> None:
        """A broker reports, and will again."""
        if broker.life != life or not broker.alive:
            return
        if self.world.now_ms >= broker.paused_until:
            link = (broker.id, METADATA)
            self.world.send(link, self._heard, broker, life)
        self.world.after(BEAT_MS / broker.clock.rate, self.beat, broker, life)

    def _heard(self, broker: SimBroker, life: int) -> None:
        if self.oracle.beat(broker.id, life):
            link = (METADATA, broker.id)
            states = [partition.assignment() for partition in self.oracle.partitions]
            self.world.send(link, self._told, broker, life, states)

    def _told(self, broker: SimBroker, life: int, states: list[ev.Assigned]) -> None:
        if broker.life == life:
            for number, state in enumerate(states):
                broker.take(number, state)

    def watch(self) -> None:
        """Metadata looks who is silent, and will again."""
        self.oracle.fence_silent()
        self.world.after(BEAT_MS, self.watch)

    def propose(self, broker: SimBroker, number: int, proposal: fx.ProposeIsr) -> None:
        """Repeat a proposal until it is decided or its leadership is over."""
        self._submit(_Ballot(broker, broker.life, number, proposal))

    def _submit(self, ballot: "_Ballot") -> None:
        if not ballot.is_answered and not ballot.is_over:
            link = (ballot.broker.id, METADATA)
            self.world.send(link, self._decide, ballot)
            self.world.after(RETRY_MS, self._submit, ballot)

    def _decide(self, ballot: "_Ballot") -> None:
        outcome = self.oracle.propose(ballot.number, ballot.proposal)
        self.checkers[ballot.number].joined(self.isr(ballot.number))
        self.world.send((METADATA, ballot.broker.id), self._decided, ballot, outcome)

    def _decided(self, ballot: "_Ballot", outcome: ev.IsrChanged | ev.IsrRefused) -> None:
        ballot.is_answered = True
        if not ballot.is_over:
            ballot.broker.take(ballot.number, outcome)

    def hand_over(self, broker: BrokerId, number: int, effect: fx.HandOver) -> None:
        """Name successors to metadata."""
        epoch = self.brokers[broker].hosted[number].replica.epoch
        link = (broker, METADATA)
        self.world.send(link, self.oracle.hand_over, number, epoch, effect.candidates)

    # Publishers and readers

    def publisher(self, number: int, value: int) -> None:
        """One record after the other, to whoever seems to lead."""
        rng = self.world.rng
        leader = self.oracle.partitions[number].leader
        if leader is None or rng.random() < 0.05:
            leader = rng.choice(self.ids)
        done = [False]

        def answer(outcome: Answer) -> None:
            if outcome is NoOffset.REFUSED:  # even if that comes too late for whoever waited
                checker.history.refused(publish.value)
            if not done[0]:
                done[0] = True
                pause_ms = 30.0 if isinstance(outcome, NoOffset) else self._pause_ms
                self.world.after(rng.uniform(0.2, 2.0) * pause_ms, again)

        def again() -> None:
            if self.is_over:
                return
            self.published += 1
            self.publisher(number, self.published)

        checker = self.checkers[number]
        publish = Publish(b"%d" % value, checker.history.acked_end, answer)
        self.world.send((CLIENTS, leader), self._publish, leader, number, publish)
        self.world.after(PATIENCE_MS, answer, NoOffset.UNKNOWN)

    def _publish(self, leader: BrokerId, number: int, publish: Publish) -> None:
        """What the network repeats is taken once: idempotence is not the replicas' business."""
        if not publish.is_taken:
            publish.is_taken = True
            self.brokers[leader].take(number, publish)

    @property
    def _pause_ms(self) -> float:
        """Between records of a publisher; longer if disks are lost, for keys to be left alone."""
        is_slow = self.lazy is not None and self.world.now_ms >= LOSSES_FROM_MS
        return 200.0 if is_slow else 1.0

    def reader(self, number: int) -> None:
        """Read on, each time from any replica."""
        broker = self.brokers[self.world.rng.choice(self.ids)]
        if broker.alive:
            replica = broker.hosted[number].replica
            first, checker = self._reads[number], self.checkers[number]
            self._reads[number] = max(
                first, checker.read(broker.id, first, broker.hosted[number].exposed)
            )
            assert replica.log.high_watermark == broker.hosted[number].exposed, "told of each step"
        self.world.after(self.world.rng.uniform(5, 40), self.reader, number)

    # Faults

    def start(self, broker: SimBroker) -> None:
        """Begin a life; the others notice, sooner or later."""
        broker.start()
        self.beat(broker, broker.life)
        for other in self.ids:
            if other != broker.id:
                delay_ms = self.world.rng.uniform(1, 60)
                self.world.after(delay_ms, self._tell, other, ev.PeerBack(broker.id))
                self.world.after(delay_ms, self._tell, broker.id, ev.PeerBack(other))

    def crash(self, broker: SimBroker, *, down_ms: float, is_wiped: bool = False) -> None:
        """A broker dies and comes back."""
        if not broker.alive:
            return
        world = self.world
        world.counts["crashes"] += 1
        world.note(f"crash {broker.id}")
        broker.crash()
        for other in self.ids:
            if other != broker.id and world.rng.random() < 0.7:
                self._tell(other, ev.PeerLost(broker.id))
        if is_wiped:
            self._wipe(broker)
        world.after(down_ms, self._restart, broker, broker.life)

    def _restart(self, broker: SimBroker, life: int) -> None:
        if broker.life == life and not broker.alive:
            self.start(broker)

    def _wipe(self, broker: SimBroker) -> None:
        """Replace the disk, unless it is the last that has everything, or something, whole."""
        if any(partition.isr == (broker.id,) for partition in self.oracle.partitions):
            return
        if any(log.damaged for checker in self.checkers for log in checker.logs.values()):
            return
        self.world.counts["wiped"] += 1
        self.oracle.wipe(broker.id)
        for number, log in enumerate(broker.logs):
            self.checkers[number].wiped.add(broker.id)
            log.wipe()

    def damage(self, number: int) -> None:
        """Flip bits in one batch on one disk, if another in-sync replica has it whole."""
        if self.checkers[number].is_compacted:
            return  # a copy fits to the byte, or it is not put in place: unit tests show that
        rng = self.world.rng
        isr = self.isr(number)
        broker = rng.choice(self.ids)
        log = self.brokers[broker].logs[number]
        whole = [b for b in isr if b != broker and not self.brokers[b].logs[number].damaged]
        bases = [base for base in log.disk.batches if base in log.seen.batches]
        if not whole or not bases or broker in (b for b in isr if len(isr) == 1):
            return
        base = rng.choice(bases)
        holders = [self.brokers[b].logs[number].disk.batches.get(base) for b in whole]
        if (
            log.disk.batches[base] != log.seen.batches[base]
            or log.disk.batches[base] not in holders
        ):
            return
        log.damaged.add(base)
        self.world.counts["damaged"] += 1
        after = log.seen.batches[base].ref.next_offset
        if rng.random() < 0.5:
            self.brokers[broker].take(number, ev.Damaged(Offset(base), after))

    def retain(self, number: int) -> None:
        """Retention on one replica: move its log start to a batch that is committed.

        Not over what is damaged elsewhere: this may be the last whole copy of it.
        """
        broker = self.brokers[self.world.rng.choice(self.ids)]
        if not broker.alive:
            return
        hosted = broker.hosted[number]
        damaged = set().union(*(log.damaged for log in self.checkers[number].logs.values()))
        limit = min([hosted.exposed, *damaged])
        bases = [base for base in hosted.log.seen.batches if base <= limit]
        if bases:
            everything = [limit] * 3 if limit == hosted.exposed else []
            start = self.world.rng.choice([*bases, *everything])
            hosted.log.truncate_before(start)
            broker.take(number, ev.LogStartMoved(Offset(start)))

    def compact(self, number: int) -> None:
        """Compaction on one replica, and on another a little later."""
        rng = self._compaction
        broker = self.brokers[rng.choice(self.ids)]
        is_ready = broker.alive and self.world.now_ms >= broker.paused_until
        if is_ready and broker.id != self.lazy:
            broker.compact(number, rng.choice((0.5, 1.0)))
            if broker.id in self.isr(number):
                self.checkers[number].same_state(broker.id, broker.hosted[number].exposed)
        self.world.after(rng.uniform(20, 200), self.compact, number)

    def replace_disk(self, number: int) -> None:
        """A disk is lost, and another leads while the new one is filled; again a little later."""
        if self.is_calm:
            return
        rng = self._compaction
        lost = self.brokers[rng.choice([b for b in self.ids if b != self.lazy])]
        self.crash(lost, down_ms=rng.choice((20, 200)), is_wiped=True)
        self._interrupt(lost, number, rng.uniform(0.1, 0.9))
        self.world.after(rng.uniform(600, 1200), self.replace_disk, number)

    def _interrupt(self, filled: SimBroker, number: int, share: float) -> None:
        """Let the lazy one lead until a new disk has a share of what there is, and another then."""
        partition = self.oracle.partitions[number]
        if self.is_calm or filled.id not in partition.filling:
            return
        has_share = filled.logs[number].seen.end > share * self.checkers[number].committed
        if has_share == (partition.leader == self.lazy):
            self._elect(number)
        if not has_share:
            self.world.after(20, self._interrupt, filled, number, share)

    def elect_fast(self, number: int) -> None:
        """Leaders change faster than they can replicate, as one of them is cut off."""
        world = self.world
        world.partition([world.rng.choice(self.ids)], self.ids, one_way=0.0)
        for _ in range(3):
            world.after(world.rng.uniform(1, 250), self._elect, number)
        world.after(300, world.heal)

    def _elect(self, number: int) -> None:
        """Another leader, and everybody hears of it soon."""
        self.oracle.elect_another(number)
        for broker in self.brokers.values():
            if broker.alive:
                self._heard(broker, broker.life)

    def jump(self) -> None:
        """A clock jumps, and another a little later."""
        if not self.is_calm:
            rng = self._clocks
            self.brokers[rng.choice(self.ids)].clock.jump(rng.choice(JUMPS_MS))
            self.world.counts["clock jumps"] += 1
            self.world.after(rng.uniform(50, 800), self.jump)

    def resign(self, broker: SimBroker) -> None:
        """A broker is asked to stop: it hands over, and is gone a little later."""
        for number in range(len(self.checkers)):
            broker.take(number, ev.Resign())
        self.world.after(self.world.rng.uniform(20, 300), self._stop, broker, broker.life)

    def _stop(self, broker: SimBroker, life: int) -> None:
        if broker.life == life:
            self.crash(broker, down_ms=200)

    def misbehave(self) -> None:
        """One fault, and another a little later."""
        if self.is_calm:
            return
        world, rng = self.world, self.world.rng
        number = rng.randrange(len(self.checkers))
        broker = self.brokers[rng.choice(self.ids)]
        down_ms = rng.choice((20, 300, 1200))
        fault = rng.choice(FAULTS)
        world.counts[f"fault {fault}"] += 1
        match fault:
            case "crash":
                self.crash(broker, down_ms=down_ms, is_wiped=rng.random() < 0.15)
            case "crash all":
                for each in self.brokers.values():
                    self.crash(each, down_ms=rng.uniform(10, 600))
            case "pause":
                broker.paused_until = world.now_ms + rng.choice((50, 400, 1500))
            case "partition":
                everybody = [METADATA, *self.ids] if rng.random() < 0.5 else self.ids
                side = rng.sample(self.ids, rng.randint(1, len(self.ids) - 1))
                world.partition(side, everybody, one_way=rng.choice((0.0, 0.0, 0.5)))
                world.after(rng.choice((100, 500, 1500)), world.heal)
            case "flap":
                a, b = rng.sample(self.ids, 2)
                self.flap(a, b, down_ms=rng.choice((5, 100)))
            case "network":
                world.faults = NetworkFaults(*rng.choice(NETWORKS))
            case "slow disk":
                self.sync_ms[broker.id] = rng.choice((0.5, 5, 60, 500))
            case "damage":
                self.damage(number)
            case "retention":
                self.retain(number)
            case "resign":
                self.resign(broker)
            case "elections":
                self.elect_fast(number)
        world.after(rng.expovariate(1 / 120), self.misbehave)

    # The end

    def calm(self) -> None:
        """Nothing breaks any more, and everything comes back."""
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
        """Read every log through: damage that nobody met is found."""
        for broker in self.brokers.values():
            for number, hosted in enumerate(broker.hosted):
                for base in sorted(hosted.log.damaged):
                    after = hosted.log.seen.batches[base].ref.next_offset
                    broker.take(number, ev.Damaged(Offset(base), after))

    def check_settled(self) -> None:
        """What must be true when all is well again."""
        for number, checker in enumerate(self.checkers):
            partition = self.oracle.partitions[number]
            if set(partition.isr) != set(partition.replicas):
                checker.fail(f"the ISR did not heal: {partition.isr}")
            if not any(b.hosted[number].replica.refusal is None for b in self.brokers.values()):
                checker.fail("nobody takes records")
            checker.settled({b.id: b.hosted[number].exposed for b in self.brokers.values()})


FAULTS = (
    *("crash", "crash", "crash", "crash all", "pause", "pause", "partition", "partition"),
    *("flap", "network", "network", "slow disk", "slow disk", "damage", "retention", "resign"),
    *("elections", "elections"),
)
NETWORKS = (
    *((0.0, 0.0, 2.0, 0.0), (0.0, 0.0, 2.0, 0.0), (0.02, 0.02, 5.0, 0.0)),
    *((0.1, 0.1, 10.0, 0.02), (0.0, 0.3, 30.0, 0.05)),
)


@dataclass(slots=True)
class _Ballot:
    """A proposal on its way."""

    broker: SimBroker
    life: int
    number: int
    proposal: fx.ProposeIsr
    is_answered: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the leadership that made it has ended."""
        if self.broker.life != self.life or not self.broker.alive:
            return True
        return self.broker.hosted[self.number].replica.epoch != self.proposal.epoch


def run(
    seed: int,
    *,
    chaos_ms: float = 4_000,
    write_trace: Callable[[str], object] | None = None,
) -> Result:
    """A whole history.

    Args:
        seed: decides it.
        chaos_ms: how long things break, in virtual time.
        write_trace: takes the lines of a trace of elections and writes.

    Raises:
        ViolationError: a promise was broken; the message names the seed.
    """
    cluster = Cluster(seed)
    cluster.world.write_trace = write_trace
    cluster.world.begin_trace(METADATA, "metadata")
    try:
        _live(cluster, chaos_ms)
    except (ViolationError, AssertionError, StrandlineError) as error:
        raise ViolationError(f"seed {seed}: {error!r}") from error
    return Result(cluster.world.fingerprint, cluster.world.events, cluster.world.counts)


def _live(cluster: Cluster, chaos_ms: float) -> None:
    """Start, break, heal, judge."""
    world = cluster.world
    for broker in cluster.brokers.values():
        cluster.start(broker)
    world.after(BEAT_MS, cluster.watch)
    for number in range(len(cluster.checkers)):
        cluster.reader(number)
        if cluster.checkers[number].is_compacted:
            cluster.compact(number)
            if cluster.lazy is not None and not number:
                world.after(LOSSES_FROM_MS, cluster.replace_disk, number)
        for _ in range(world.rng.randint(1, 4)):
            cluster.published += 1
            world.after(world.rng.uniform(1, 20), cluster.publisher, number, cluster.published)
    world.after(200 if cluster.lazy is None else LOSSES_FROM_MS, cluster.misbehave)
    if cluster.is_drifting:
        cluster.jump()
    world.run_until(chaos_ms)
    cluster.calm()
    world.run_until(chaos_ms + 4_000)
    cluster.is_over = True
    cluster.scrub()
    world.run_until(chaos_ms + 6_000)
    cluster.check_settled()

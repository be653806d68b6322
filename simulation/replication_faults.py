"""Faults of a simulated cluster of replicas: processes, disks, networks, clocks."""

import random

from simulation.replication_broker import SimBroker
from simulation.replication_clock import JUMPS_MS
from simulation.replication_cluster import Cluster
from simulation.replication_disk import Image
from simulation.replication_oracle import METADATA
from simulation.world import NetworkFaults
from strandline.core.replication import events as ev
from strandline.types import BrokerId, Offset

LOSSES_FROM_MS = 1_200
FAULTS = (
    *("crash", "crash", "crash", "crash all", "pause", "pause", "partition", "partition"),
    *("flap", "network", "network", "slow disk", "slow disk", "corruption", "retention", "resign"),
    *("elections", "elections"),
)
NETWORKS = (
    *((0.0, 0.0, 2.0, 0.0), (0.0, 0.0, 2.0, 0.0), (0.02, 0.02, 5.0, 0.0)),
    *((0.1, 0.1, 10.0, 0.02), (0.0, 0.3, 30.0, 0.05)),
)


class Faults:
    """Causes faults in a cluster, one after another, until the cluster is calm.

    Args:
        cluster: the cluster.
        seed: the history's seed. Compaction has a generator of its own, so that it does not
            change histories without it.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._brokers, self._ids = cluster.brokers, cluster.ids
        self._compaction = random.Random(seed)

    def begin_compaction(self, number: int) -> None:
        """Start compacting a partition, and later losing disks."""
        if self._cluster.checkers[number].is_compacted:
            self._compact(number)
            if self._cluster.lazy is not None and not number:
                self._world.after(LOSSES_FROM_MS, self._replace_disk, number)

    def begin(self) -> None:
        """Start all other faults, and jumps of clocks if they drift."""
        is_slow = self._cluster.lazy is not None
        self._world.after(LOSSES_FROM_MS if is_slow else 200, self._misbehave)
        if self._cluster.is_drifting:
            self._jump()

    def _flap(self, a: BrokerId, b: BrokerId, *, down_ms: float) -> None:
        """Break a link and restore it; both sides are notified."""
        for one, other in ((a, b), (b, a)):
            self._cluster.tell(one, ev.PeerDisconnected(other))
            self._world.after(down_ms, self._cluster.tell, one, ev.PeerConnected(other))

    def _crash(self, broker: SimBroker, *, down_ms: float, is_wiped: bool = False) -> None:
        """Crash a broker, and start it again later."""
        if not broker.alive:
            return
        world = self._world
        world.counts["crashes"] += 1
        world.note(f"crash {broker.id}")
        broker.crash()
        for other in self._ids:
            if other != broker.id and world.rng.random() < 0.7:
                self._cluster.tell(other, ev.PeerDisconnected(broker.id))
        if is_wiped:
            self._wipe(broker)
        world.after(down_ms, self._restart, broker, broker.incarnation)

    def _restart(self, broker: SimBroker, incarnation: int) -> None:
        if broker.incarnation == incarnation and not broker.alive:
            self._cluster.start(broker)

    def _wipe(self, broker: SimBroker) -> None:
        """Replace a broker's disk, unless it may be the last with all, or with intact, records."""
        if any(partition.isr == (broker.id,) for partition in self._cluster.oracle.partitions):
            return
        if any(log.corrupt for checker in self._cluster.checkers for log in checker.logs.values()):
            return
        self._world.counts["wiped"] += 1
        self._cluster.oracle.wipe(broker.id)
        for number, log in enumerate(broker.logs):
            self._cluster.checkers[number].wiped.add(broker.id)
            log.wipe()

    def _corrupt(self, number: int) -> None:
        """Corrupt one batch on one disk, if another in-sync replica has it intact."""
        if self._cluster.checkers[number].is_compacted:
            return  # whether a copy fits exactly is shown by unit tests
        rng = self._world.rng
        isr = self._cluster.isr(number)
        broker = rng.choice(self._ids)
        log = self._brokers[broker].logs[number]
        whole = [b for b in isr if b != broker and not self._brokers[b].logs[number].corrupt]
        bases = [b for b in log.disk.batches if b in log.seen.batches and b >= log.seen.start]
        if not whole or not bases or broker in (b for b in isr if len(isr) == 1):
            return
        base = rng.choice(bases)
        others = [self._brokers[b].logs[number] for b in whole]
        holders = [o.disk.batches.get(base) for o in others if o.seen.start <= base]
        if (
            log.disk.batches[base] != log.seen.batches[base]
            or log.disk.batches[base] not in holders
        ):
            return
        log.corrupt.add(base)
        self._world.counts["corrupt"] += 1
        after = log.seen.batches[base].ref.next_offset
        if rng.random() < 0.5:
            self._brokers[broker].take(number, ev.CorruptionFound(Offset(base), after))

    def _retain(self, number: int) -> None:
        """Move one replica's log start to a committed record, or to a batch.

        Batches that are corrupt elsewhere are kept: this may be their last intact copy.
        """
        broker = self._brokers[self._world.rng.choice(self._ids)]
        if not broker.alive:
            return
        hosted = broker.hosted[number]
        corrupt = set().union(
            *(log.corrupt for log in self._cluster.checkers[number].logs.values())
        )
        limit = min([hosted.exposed, *corrupt])
        bases = [base for base in hosted.log.seen.batches if base <= limit]
        if bases:
            everything = [limit] * 3 if limit == hosted.exposed else []
            start = self._world.rng.choice([*bases, *everything])
            if self._world.rng.random() < 0.7:
                start = self._within_a_batch(hosted.log.seen, start)
            hosted.log.delete_before(start)
            broker.take(number, ev.LogStartMoved(Offset(start)))

    def _within_a_batch(self, image: Image, limit: int) -> int:
        """Return a log start inside a batch, up to ``limit``; ``limit`` if there is none."""
        found = [
            offset
            for stored in image.batches.values()
            for offset in range(stored.ref.base_offset + 1, stored.ref.next_offset)
            if image.start < offset <= limit
        ]
        return self._world.rng.choice(found[-3:] or [limit])

    def _compact(self, number: int) -> None:
        """Compact one replica, and schedule the next."""
        rng = self._compaction
        broker = self._brokers[rng.choice(self._ids)]
        is_ready = broker.alive and self._world.now_ms >= broker.paused_until
        if is_ready and broker.id != self._cluster.lazy:
            broker.compact(number, rng.choice((0.5, 1.0)))
            if broker.id in self._cluster.isr(number):
                self._cluster.checkers[number].same_state(broker.id, broker.hosted[number].exposed)
        self._world.after(rng.uniform(20, 200), self._compact, number)

    def _replace_disk(self, number: int) -> None:
        """Lose a disk, and change the leader while the new disk is filled; schedule the next."""
        if self._cluster.is_calm:
            return
        rng = self._compaction
        lost = self._brokers[rng.choice([b for b in self._ids if b != self._cluster.lazy])]
        self._crash(lost, down_ms=rng.choice((20, 200)), is_wiped=True)
        self._interrupt(lost, number, rng.uniform(0.1, 0.9))
        self._world.after(rng.uniform(600, 1200), self._replace_disk, number)

    def _interrupt(self, filled: SimBroker, number: int, share: float) -> None:
        """Let a lazy leader fill part of a new disk, then another leader the rest."""
        partition = self._cluster.oracle.partitions[number]
        if self._cluster.is_calm or filled.id not in partition.filling:
            return
        has_share = filled.logs[number].seen.end > share * self._cluster.checkers[number].committed
        if has_share == (partition.leader == self._cluster.lazy):
            self._elect(number)
        if not has_share:
            self._world.after(20, self._interrupt, filled, number, share)

    def _elect_fast(self, number: int) -> None:
        """Change leaders faster than they can replicate, while one replica is isolated."""
        world = self._world
        world.partition([world.rng.choice(self._ids)], self._ids, one_way=0.0)
        for _ in range(3):
            world.after(world.rng.uniform(1, 250), self._elect, number)
        world.after(300, world.heal)

    def _elect(self, number: int) -> None:
        """Elect another leader, and notify everybody soon."""
        self._cluster.oracle.elect_another(number)
        for broker in self._brokers.values():
            if broker.alive:
                self._cluster.receive_heartbeat(broker, broker.incarnation)

    def _jump(self) -> None:
        """Let a clock jump, and schedule the next jump."""
        if not self._cluster.is_calm:
            rng = self._cluster.clocks
            self._brokers[rng.choice(self._ids)].clock.jump(rng.choice(JUMPS_MS))
            self._world.counts["clock jumps"] += 1
            self._world.after(rng.uniform(50, 800), self._jump)

    def _resign(self, broker: SimBroker) -> None:
        """Ask a broker to stop: it hands over, and stops a little later."""
        for number in range(len(self._cluster.checkers)):
            broker.take(number, ev.Resign())
        self._world.after(self._world.rng.uniform(20, 300), self._stop, broker, broker.incarnation)

    def _stop(self, broker: SimBroker, incarnation: int) -> None:
        if broker.incarnation == incarnation:
            self._crash(broker, down_ms=200)

    def _misbehave(self) -> None:
        """Cause one fault, and schedule the next."""
        if self._cluster.is_calm:
            return
        world, rng = self._world, self._world.rng
        number = rng.randrange(len(self._cluster.checkers))
        broker = self._brokers[rng.choice(self._ids)]
        down_ms = rng.choice((20, 300, 1200))
        fault = rng.choice(FAULTS)
        world.counts[f"fault {fault}"] += 1
        match fault:
            case "crash":
                self._crash(broker, down_ms=down_ms, is_wiped=rng.random() < 0.15)
            case "crash all":
                for each in self._brokers.values():
                    self._crash(each, down_ms=rng.uniform(10, 600))
            case "pause":
                broker.paused_until = world.now_ms + rng.choice((50, 400, 1500))
            case "partition":
                everybody = [METADATA, *self._ids] if rng.random() < 0.5 else self._ids
                side = rng.sample(self._ids, rng.randint(1, len(self._ids) - 1))
                world.partition(side, everybody, one_way=rng.choice((0.0, 0.0, 0.5)))
                world.after(rng.choice((100, 500, 1500)), world.heal)
            case "flap":
                a, b = rng.sample(self._ids, 2)
                self._flap(a, b, down_ms=rng.choice((5, 100)))
            case "network":
                world.faults = NetworkFaults(*rng.choice(NETWORKS))
            case "slow disk":
                self._cluster.sync_ms[broker.id] = rng.choice((0.5, 5, 60, 500))
            case "corruption":
                self._corrupt(number)
            case "retention":
                self._retain(number)
            case "resign":
                self._resign(broker)
            case "elections":
                self._elect_fast(number)
        world.after(rng.expovariate(1 / 120), self._misbehave)

"""The simulated metadata: one linearizable source of leaders, epochs and ISRs.

Rules, as in the real metadata: an epoch has one leader, of one incarnation of a broker. A leader is
a member of the ISR, and the ISR never becomes empty. An ISR change is a compare-and-set, is decided
once, and adds only live brokers. A broker that registers loses the leaderships of its earlier
incarnation. A replica whose disk was replaced is *filling* until it is in the ISR. Brokers reach
the metadata over the faulty network.
"""

from dataclasses import dataclass, field

from simulation.world import World
from strandline.core.replication.effects import ProposeIsr
from strandline.core.replication.events import Assigned, IsrChanged, IsrRejected
from strandline.types import BrokerId, LeaderEpoch

DEAD_MS = 700
METADATA = BrokerId(0)
"""The number of the metadata in the network."""


@dataclass(slots=True)
class OraclePartition:
    """A partition's metadata."""

    replicas: tuple[BrokerId, ...]
    min_isr: int
    isr: tuple[BrokerId, ...]
    is_compacted: bool = False
    leader: BrokerId | None = None
    epoch: int = 0
    version: int = 0
    filling: set[BrokerId] = field(default_factory=set)
    decided: dict[tuple[int, int], IsrChanged | IsrRejected] = field(default_factory=dict)

    def assignment(self) -> Assigned:
        """Return a partition's assignment as brokers receive it."""
        return Assigned(
            LeaderEpoch(self.epoch),
            self.leader,
            self.replicas,
            self.isr,
            self.version,
            self.min_isr,
            filling=tuple(sorted(self.filling)) if self.is_compacted else (),
        )


class Oracle:
    """The metadata of all partitions and brokers.

    Args:
        world: time and randomness.
        partitions: have replicas, ISR and ``min_isr``, but no leaders yet.
    """

    def __init__(self, world: World, partitions: list[OraclePartition]) -> None:
        self.partitions = partitions
        self._world = world
        self._incarnations: dict[BrokerId, int] = {}
        self._heartbeat_ms: dict[BrokerId, float] = {}
        self._fenced: set[BrokerId] = set()
        self._wiped: set[BrokerId] = set()

    def beat(self, broker: BrokerId, incarnation: int) -> bool:
        """Note a broker's heartbeat; False: it is of an earlier run."""
        known = self._incarnations.get(broker, -1)
        if incarnation < known:
            return False
        self._heartbeat_ms[broker] = self._world.now_ms
        if incarnation > known:
            self._incarnations[broker] = incarnation
            self._wiped.discard(broker)
            for partition in self.partitions:
                if partition.leader == broker:
                    self._elect(partition, avoid=None)
        if incarnation > known or broker in self._fenced:
            self._fenced.discard(broker)
            for partition in self.partitions:
                if partition.leader is None:
                    self._elect(partition, avoid=None)
        return True

    def fence_silent(self) -> None:
        """Remove brokers without heartbeats from leaderships and ISRs."""
        for broker in sorted(self._heartbeat_ms):
            if self._world.now_ms - self._heartbeat_ms[broker] > DEAD_MS:
                self._fence(broker)

    def _fence(self, broker: BrokerId) -> None:
        if broker in self._fenced:
            return
        self._fenced.add(broker)
        self._world.counts["fenced"] += 1
        for partition in self.partitions:
            self._remove(partition, broker)
            if partition.leader == broker:
                self._elect(partition, avoid=broker)

    def wipe(self, broker: BrokerId) -> None:
        """Note that an operator replaces a disk: its replicas no longer count."""
        self._wiped.add(broker)
        for partition in self.partitions:
            assert partition.isr != (broker,), "the last in-sync replica is not wiped"
            self._remove(partition, broker)
            partition.filling.add(broker)
            if partition.leader == broker:
                self._elect(partition, avoid=broker)

    def elect_another(self, number: int) -> None:
        """Move a leadership to another in-sync replica, as the controller does."""
        partition = self.partitions[number]
        if self._electable(partition) - {partition.leader}:
            self._elect(partition, avoid=partition.leader)

    def hand_over(self, number: int, epoch: int, candidates: tuple[BrokerId, ...]) -> None:
        """Elect one of the successors that a leader has named."""
        partition = self.partitions[number]
        if partition.epoch == epoch and set(candidates) & self._electable(partition):
            self._world.counts["handed over"] += 1
            self._elect(partition, avoid=partition.leader)

    def _remove(self, partition: OraclePartition, broker: BrokerId) -> None:
        """Remove a broker from the ISR, unless it is the last member."""
        rest = tuple(b for b in partition.isr if b != broker)
        if rest and rest != partition.isr:
            partition.isr = rest
            partition.version += 1

    def _electable(self, partition: OraclePartition) -> set[BrokerId]:
        return {b for b in partition.isr if b in self._incarnations and b not in self._fenced}

    def _elect(self, partition: OraclePartition, *, avoid: BrokerId | None) -> None:
        """Begin an epoch with any live in-sync replica as its leader, or without one."""
        candidates = sorted(self._electable(partition) - {avoid})
        partition.leader = self._world.rng.choice(candidates) if candidates else None
        partition.epoch += 1
        partition.version += 1
        self._world.counts["elections"] += 1
        self._world.note(f"elect {partition.leader} {partition.epoch}")
        number = next(n for n, each in enumerate(self.partitions) if each is partition)
        who = "nobody" if partition.leader is None else f"broker {partition.leader}"
        self._world.tell(METADATA, f"s/{number}: epoch {partition.epoch}: elects {who}")

    def propose(self, number: int, proposal: ProposeIsr) -> IsrChanged | IsrRejected:
        """Decide an ISR change, or repeat the earlier decision."""
        partition = self.partitions[number]
        key = (proposal.epoch, proposal.proposal)
        if key not in partition.decided:
            partition.decided[key] = self._decide(partition, proposal)
        return partition.decided[key]

    def _may_join(self, broker: BrokerId, incarnation: str) -> bool:
        """Whether the leader's knowledge of a joining replica is about its present disk."""
        if broker in self._fenced or broker in self._wiped:
            return False
        return incarnation == str(self._incarnations[broker])

    def _decide(self, partition: OraclePartition, proposal: ProposeIsr) -> IsrChanged | IsrRejected:
        added = set(proposal.isr) - set(partition.isr)
        is_current = proposal.epoch == partition.epoch and proposal.version == partition.version
        if not is_current or not all(self._may_join(*member) for member in proposal.joining):
            self._world.counts["isr refused"] += 1
            return IsrRejected(proposal.epoch, proposal.proposal)
        self._world.counts["isr grew" if added else "isr shrank"] += 1
        partition.isr = proposal.isr
        partition.filling -= set(proposal.isr)
        partition.version += 1
        self._world.note(f"isr {partition.isr} {partition.version}")
        return IsrChanged(proposal.epoch, partition.version, partition.isr)

"""Operators' and clients' commands to a simulated cluster, sensible or not.

Rules: everything random comes from the world's generator. It is a violation if a command is
accepted that must be rejected on any image.
"""

from collections.abc import Callable

from simulation.metadata_cluster import MetadataCluster, Process
from strandline.config import StreamConfig
from strandline.core.metadata.commands import (
    AddPartitions,
    AdmitBroker,
    AllocateProducerIds,
    CreateStream,
    DeleteStream,
    Drain,
    ElectionReason,
    ElectLeader,
    ForgetDirectory,
    LogStart,
    Move,
    MoveLogStarts,
    OpenSession,
    ReassignReplicas,
    RemoveBroker,
    ReportStorage,
)
from strandline.core.metadata.election import at, unclean_election
from strandline.core.metadata.placement import place, rebalance_plan
from strandline.security.producer_ids import owner_of, producer_id_of
from strandline.testing.history import ViolationError
from strandline.types import BrokerId, Offset

STREAMS_MAX = 4
BROKERS_MAX = 7


class Orders(MetadataCluster):
    """A cluster that receives commands; arguments as for ``MetadataCluster``."""

    def __init__(self, seed: int, *, brokers: int = 4) -> None:
        super().__init__(seed, brokers=brokers)
        self._late_starts: list[LogStart] = []

    def operate(self) -> None:
        """Propose one command of an operator or a client, sensible or not."""
        orders: tuple[Callable[[], None], ...] = (
            self._create,
            self._create,
            self._delete,
            self._grow,
            self._drain,
            self._drain,
            self._impair,
            self._remove,
            self._remove,
            self._admit,
            self._shorten,
            self._shorten,
            self._forget,
            self._move,
            self._move,
            self._spread,
            self._elect,
            self._elect,
            self._allocate,
            self._crowd,
        )
        self.rng.choice(orders)()

    def _create(self) -> None:
        if len(self.image.streams) >= STREAMS_MAX:
            return
        replicas = self.rng.randint(1, 3)
        config = StreamConfig(
            name=self.rng.choice("abcd"),
            subject="s",
            partitions=self.rng.randint(1, 3),
            replicas=replicas,
            min_isr=self.rng.randint(1, replicas),
        )
        assignment = tuple(self.some_brokers(replicas) for _ in range(config.partitions))
        open_ = sum(b.may_take_replicas for b in self.image.brokers.values())
        if open_ >= replicas and self.rng.random() < 0.7:
            assignment = place(self.image, partitions=config.partitions, replicas=replicas)
        self.propose(CreateStream(config, 1, assignment if self.image.brokers else ()))

    def _delete(self) -> None:
        if self.image.streams and self.rng.random() < 0.3:
            self.propose(DeleteStream(self.rng.choice(sorted(self.image.streams))))

    def _grow(self) -> None:
        if not self.image.streams:
            return
        stream = self.image.streams[self.rng.choice(sorted(self.image.streams))]
        if len(stream.partitions) < 5:
            replicas = self.some_brokers(stream.config.replicas)
            self.propose(AddPartitions(stream.config.name, 1, (replicas,)))

    def _drain(self) -> None:
        draining = [b.id for b in self.image.brokers.values() if b.is_draining]
        is_on = len(draining) < 1
        broker = self.rng.choice(self.processes).id if is_on else self.rng.choice(draining)
        self.propose(Drain(broker, is_on))

    def _impair(self) -> None:
        """Report that a broker's disk is full, or works again."""
        process = self.rng.choice(self.processes)
        known = self.image.brokers.get(process.id)
        is_on = known is None or not known.is_impaired
        self.propose(ReportStorage(process.run, is_on))

    def _remove(self) -> None:
        """Try to remove a broker, mostly without success; add another with a new id."""
        process = self.rng.choice(self.processes)
        if not self.propose(RemoveBroker(process.id)).is_applied:
            return
        process.is_removed, process.is_running = True, False
        self.records.wipe(process.id)
        self._admit()

    def _admit(self) -> None:
        """Admit a new broker, or one that must be rejected."""
        if self.rng.random() < 0.3:
            broker = self.rng.choice(self.processes).id
            known = self.image.brokers.get(broker)
            if (known is not None and known.directory_id) or broker in self.image.removed:
                if self.propose(AdmitBroker(broker, "host:1")).is_applied:
                    raise ViolationError(f"a second broker {broker} was admitted")
                return
        number = BrokerId(len(self.processes) + 1)
        if sum(not process.is_removed for process in self.processes) < BROKERS_MAX:
            self.propose(AdmitBroker(number, "host:1"))
            self.processes.append(Process(number, f"dir{number}.0"))

    def _shorten(self) -> None:
        """Delete committed records; the leader may change before that is decided."""
        found = self.some_partition()
        if found is not None and found[1].leader is not None:
            name, partition = found
            end = self.records.committed(partition)
            offset = self.rng.choice((end, end, self.rng.randint(0, end)))
            self._late_starts.append(LogStart(at(name, partition), Offset(offset)))
        if self._late_starts and self.rng.random() < 0.7:
            late = self._late_starts.pop(self.rng.randrange(len(self._late_starts)))
            self.propose(MoveLogStarts((late,)))

    def _forget(self) -> None:
        """Forget the directory of a broker whose disk is lost, or seldom of another."""
        for process in self.processes:
            known = self.image.brokers.get(process.id)
            if known is None or process.is_running:
                continue
            is_lost = known.directory_id != process.directory
            if not is_lost and self.rng.random() < 0.98:
                continue
            if self.propose(ForgetDirectory(process.id)).is_applied and not is_lost:
                self.lose_disk(process)

    def _move(self) -> None:
        found = self.some_partition()
        if found is not None:
            name, partition = found
            target = self.some_brokers(len(partition.target))
            self.propose(ReassignReplicas((Move(at(name, partition), target),)))

    def _spread(self) -> None:
        if moves := rebalance_plan(self.image, moves_max=2):
            self.propose(ReassignReplicas(moves))

    def _elect(self) -> None:
        found = self.some_partition()
        if found is None or not found[1].replicas:
            return
        name, partition = found
        reason: ElectionReason = "unclean" if self.rng.random() < 0.1 else "operator"
        leader = self.rng.choice(partition.replicas)
        self.propose(ElectLeader((unclean_election(self.image, name, leader),), reason))

    def _allocate(self) -> None:
        owner = self.rng.choice(("", "ann", "bob"))
        first = self.propose(AllocateProducerIds(self.rng.randint(1, 10), owner)).value
        if first + 10 < producer_id_of(self.image.next_producer_id, owner_of(first)):
            raise ViolationError(f"producer ids from {first} were allocated twice")

    def _crowd(self) -> None:
        """Open so many sessions that older ones are forgotten."""
        if self.rng.random() < 0.05:
            for _ in range(260):
                self._append(OpenSession())

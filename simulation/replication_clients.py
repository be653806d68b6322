"""Publishers and readers of a simulated cluster of replicas."""

from simulation.replication_broker import Answer, NoOffset, SimPublish
from simulation.replication_cluster import Cluster
from simulation.replication_faults import LOSSES_FROM_MS
from strandline.types import BrokerId

CLIENTS = BrokerId(99)
PATIENCE_MS = 900


class Clients:
    """Publishers and readers, which work until ``is_over``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._published = 0
        self._reads = [0] * len(cluster.checkers)
        self.is_over = False

    def begin(self, number: int) -> None:
        """Start a reader and the publishers of a partition."""
        self._reader(number)
        for _ in range(self._world.rng.randint(1, 4)):
            self._published += 1
            delay_ms = self._world.rng.uniform(1, 20)
            self._world.after(delay_ms, self._publisher, number, self._published)

    def _publisher(self, number: int, value: int) -> None:
        """Publish records one after another to the apparent leader."""
        rng = self._world.rng
        leader = self._cluster.oracle.partitions[number].leader
        if leader is None or rng.random() < 0.05:
            leader = rng.choice(self._cluster.ids)
        done = [False]

        def answer(outcome: Answer) -> None:
            if outcome is NoOffset.REFUSED:  # even after the publisher's timeout
                checker.history.refused(publish.value)
            if not done[0]:
                done[0] = True
                pause_ms = 30.0 if isinstance(outcome, NoOffset) else self._pause_ms
                self._world.after(rng.uniform(0.2, 2.0) * pause_ms, again)

        def again() -> None:
            if self.is_over:
                return
            self._published += 1
            self._publisher(number, self._published)

        checker = self._cluster.checkers[number]
        publish = SimPublish(b"%d" % value, checker.history.acked_end, answer)
        self._world.send((CLIENTS, leader), self._publish, leader, number, publish)
        self._world.after(PATIENCE_MS, answer, NoOffset.UNKNOWN)

    def _publish(self, leader: BrokerId, number: int, publish: SimPublish) -> None:
        """Publish, once even if the network repeats the message: replicas are not idempotent."""
        if not publish.is_taken:
            publish.is_taken = True
            self._cluster.brokers[leader].take(number, publish)

    @property
    def _pause_ms(self) -> float:
        """Return the pause between records; longer if disks are lost, so that keys rest."""
        is_slow = self._cluster.lazy is not None and self._world.now_ms >= LOSSES_FROM_MS
        return 200.0 if is_slow else 1.0

    def _reader(self, number: int) -> None:
        """Continue a read at any replica, and schedule the next."""
        broker = self._cluster.brokers[self._world.rng.choice(self._cluster.ids)]
        if broker.alive:
            replica = broker.hosted[number].replica
            first, checker = self._reads[number], self._cluster.checkers[number]
            self._reads[number] = max(
                first, checker.read(broker.id, first, broker.hosted[number].exposed)
            )
            assert replica.log.high_watermark == broker.hosted[number].exposed, "none is skipped"
        self._world.after(self._world.rng.uniform(5, 40), self._reader, number)

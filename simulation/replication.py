"""Simulated clusters of replicas in one process, with all faults, determined by one seed.

``run(seed)`` builds a cluster of three or five brokers with a few partitions, lets publishers and
readers work during faults, ends the faults, and checks the result. It raises ``ViolationError`` at
the first broken promise; the same seed gives the same history.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from simulation.replication_clients import Clients
from simulation.replication_cluster import Cluster
from simulation.replication_faults import Faults
from simulation.replication_oracle import METADATA
from strandline.errors import StrandlineError
from strandline.testing.history import ViolationError


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    fingerprint: str
    events: int
    counts: Counter[str]


def run(
    seed: int,
    *,
    chaos_ms: float = 4_000,
    write_trace: Callable[[str], object] | None = None,
) -> Result:
    """Run a history.

    Args:
        seed: determines it.
        chaos_ms: how long there are faults, in virtual time.
        write_trace: receives the lines of a trace of elections and writes.

    Raises:
        ViolationError: a promise was broken; the message names the seed.
    """
    cluster = Cluster(seed)
    cluster.world.write_trace = write_trace
    cluster.world.begin_trace(METADATA, "metadata")
    try:
        _live(cluster, Faults(cluster, seed), chaos_ms)
    except (ViolationError, AssertionError, StrandlineError) as error:
        raise ViolationError(f"seed {seed}: {error!r}") from error
    return Result(cluster.world.fingerprint, cluster.world.events, cluster.world.counts)


def _live(cluster: Cluster, faults: Faults, chaos_ms: float) -> None:
    """Start the cluster, break it, heal it, and check it."""
    world, clients = cluster.world, Clients(cluster)
    cluster.begin()
    for number in range(len(cluster.checkers)):
        faults.begin_compaction(number)
        clients.begin(number)
    faults.begin()
    world.run_until(chaos_ms)
    cluster.calm()
    world.run_until(chaos_ms + 4_000)
    clients.is_over = True
    cluster.scrub()
    world.run_until(chaos_ms + 6_000)
    cluster.check_settled()

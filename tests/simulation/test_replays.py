"""A seed is a history: the same one whenever and wherever it is run again."""

import os
import subprocess
import sys

import pytest

SIM = "from simulation"
HISTORIES = {
    "consensus": f"{SIM}.consensus import ConsensusGroup; "
    "tell = lambda s: ConsensusGroup(s).run().fingerprint",
    "consumers": f"{SIM}.consumers import run; tell = lambda s: run(s).fingerprint",
    "metadata": f"{SIM}.metadata import MetadataRun; "
    "tell = lambda s: MetadataRun(s).run_steps(200)",
    "recovery": f"{SIM}.recovery import run; tell = lambda s: run(s).fingerprint",
    "replication": f"{SIM}.replication import run; tell = lambda s: run(s).fingerprint",
    "transactions": f"{SIM}.transactions import run; "
    "tell = lambda s: (lambda world: (world.fingerprint, sorted(world.counts.items())))(run(s))",
}


def told(simulation, seeds, *, hash_seed):
    """Return the fingerprint of each seed's history, from a process with this hash seed."""
    done = subprocess.run(
        [sys.executable, "-c", f"{HISTORIES[simulation]}; print(*map(tell, {seeds}), sep='\\n')"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("simulation", HISTORIES)
def test_a_seed_replays_exactly(simulation):
    """Twice in one process, and in another with other string hashes; another seed is another."""
    first, again = told(simulation, (5, 5), hash_seed="1")
    elsewhere, other = told(simulation, (5, 6), hash_seed="2")
    assert first == again == elsewhere != other

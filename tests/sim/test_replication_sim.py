"""Clusters of replicas under every fault, judged from outside; and proof that the judges see.

A bounded slice: more seeds with ``python -m strandline.testing.sim.replication_seeds``.
"""

import os
import subprocess
import sys

import pytest

from strandline.testing.sim.replication import run
from strandline.testing.sim.replication_bugs import BUGS, hunt, planted

SEEDS = int(os.environ.get("SIM_SEEDS", "24"))
QUICK = {
    "a follower acks what it has not synced",
    "the leader commits on a majority of the ISR",
    "truncation to the high watermark",
    "gaps are overlooked",
    "anybody is elected",
}


@pytest.mark.parametrize("first", range(1, SEEDS + 1, 8))
def test_no_promise_is_broken(first):
    """Whatever breaks: nothing acked is lost, and when all is well again all replicas agree."""
    for seed in range(first, min(first + 8, SEEDS + 1)):
        result = run(seed)
        assert result.events > 1_000, "something happened"


def test_the_faults_happen():
    """Over some seeds every kind of fault, and every way out of one, is met."""
    counts = sum((run(seed).counts for seed in range(101, 113)), start=run(100).counts)
    for what in ("crashes", "partitions", "lost", "truncated", "isr grew", "isr shrank"):
        assert counts[what] > 0, what
    for what in ("elections", "fenced", "damaged", "repaired", "wiped", "changes lost"):
        assert counts[what] > 0, what


def test_the_same_seed_is_the_same_history():
    """Twice in one process, and in another with other string hashes."""
    here = run(5).fingerprint
    assert run(5).fingerprint == here
    assert run(6).fingerprint != here
    code = "from strandline.testing.sim.replication import run; print(run(5).fingerprint)"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        assert ran.stdout.strip() == here


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.name in QUICK], ids=lambda bug: bug.name.replace(" ", "-")
)
def test_a_seeded_bug_is_found(bug):
    """A bug that breaks a rule of the protocol is seen by some seed soon."""
    catch = hunt(bug, seeds_max=60)
    assert catch.what is not None, f"{bug.name} was not found in {catch.seeds} seeds"


def test_a_bug_is_gone_after_the_hunt():
    """Planting changes nothing for good."""
    bug = BUGS[0]
    right = vars(bug.owner)[bug.attribute]
    with planted(bug):
        assert vars(bug.owner)[bug.attribute] is not right
    assert vars(bug.owner)[bug.attribute] is right


def test_there_are_enough_bugs():
    """Each has a name of its own."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 12

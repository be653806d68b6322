"""Clusters of replicas under every fault, judged from outside; and proof that the judges see.

A bounded slice: more seeds with ``make sim``, every bug with ``make sim-mutants``.
"""

import os
import subprocess
import sys
from functools import cache

import pytest

from strandline.testing.sim.replication import run

SEEDS = int(os.environ.get("SIM_SEEDS", "16"))


@cache
def history(seed):
    """What came of a seed; judging it is part of it."""
    return run(seed)


@pytest.mark.parametrize("first", range(100, 100 + SEEDS, 8))
def test_no_promise_is_broken(first):
    """Whatever breaks: nothing acked is lost, and when all is well again all replicas agree."""
    for seed in range(first, min(first + 8, 100 + SEEDS)):
        result = history(seed)
        assert result.events > 1_000, "something happened"


def test_the_faults_happen():
    """Over some seeds every kind of fault, and every way out of one, is met."""
    counts = sum((history(seed).counts for seed in range(101, 113)), start=history(100).counts)
    for what in ("crashes", "partitions", "lost", "truncated", "isr grew", "isr shrank"):
        assert counts[what] > 0, what
    for what in ("elections", "fenced", "damaged", "repaired", "changes lost"):
        assert counts[what] > 0, what
    for what in ("wiped", "started over"):
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

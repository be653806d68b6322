"""Histories of transactions from seeds: every promise is kept, and a seed repeats itself."""

import os
import subprocess
import sys

import pytest

from strandline.testing.sim.transactions import run


@pytest.mark.parametrize("seed", [*range(6), 314])  # 314: an end that a new leader has found
def test_transactions_are_whole_whatever_fails(seed):
    """Coordinators, leaders, producers and markers are lost; outcomes stand, and nothing hangs."""
    world = run(seed)
    assert world.counts["committed"]
    assert world.counts["aborted"]
    assert world.counts["published"]


def test_a_seed_replays_its_history():
    """Two runs are the same, event by event."""
    first, second = run(11), run(11)
    assert first.fingerprint == second.fingerprint
    assert first.counts == second.counts


def test_a_seed_replays_under_any_hash_seed():
    """The same history in processes that hash differently."""
    here = run(12).fingerprint
    code = "from strandline.testing.sim.transactions import run; print(run(12).fingerprint)"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        assert ran.stdout.strip() == here

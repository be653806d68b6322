"""Histories of transactions from seeds: every promise is kept, and a seed repeats itself."""

import pytest

from simulation.transactions import run


@pytest.mark.parametrize("seed", [*range(6), 314])  # 314: an end that a new leader has found
def test_transactions_are_whole_whatever_fails(seed):
    """Coordinators, leaders, producers and markers are lost; outcomes stay, and nothing hangs."""
    world = run(seed)
    assert world.counts["committed"]
    assert world.counts["aborted"]
    assert world.counts["published"]

"""Histories of NATS consumers from seeds: every promise is kept, and a seed repeats itself."""

import pytest

from simulation.consumers import run


@pytest.mark.parametrize("seed", [*range(6), 35, 54])  # 35, 54: an answer by who leads no longer
def test_consumers_keep_their_promises_whatever_fails(seed):
    """Leaders, clients, messages and the coordinator are lost; nothing acknowledged comes again."""
    world = run(seed)
    assert world.counts["acked"]
    assert world.counts["leaders"]
    assert world.counts["deliveries"] > world.counts["leaders"]


def test_a_seed_repeats_a_history():
    """To the last delivery."""
    assert run(7).fingerprint == run(7).fingerprint

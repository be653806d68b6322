"""Clusters of replicas under every fault, judged from outside; and proof that the judges see.

A bounded slice: more seeds with ``make sim``, every bug with ``make sim-mutants``.
"""

import os
from functools import cache

import pytest

from simulation.replication import run
from simulation.replication_cluster import Cluster

SEEDS = int(os.environ.get("SIM_SEEDS", "16"))


@cache
def history(seed):
    """Return the judged outcome of a seed."""
    return run(seed)


@pytest.mark.parametrize("first", range(100, 100 + SEEDS, 8))
def test_no_promise_is_broken(first):
    """Whatever breaks: nothing acked is lost, and when all is well again all replicas agree."""
    for seed in range(first, min(first + 8, 100 + SEEDS)):
        result = history(seed)
        assert result.events > 1_000, "something happened"


def test_the_faults_happen():
    """Over some seeds every kind of fault, and every recovery from one, occurs."""
    counts = sum((history(seed).counts for seed in range(101, 113)), start=history(100).counts)
    for what in ("crashes", "partitions", "lost", "truncated", "isr grew", "isr shrank"):
        assert counts[what] > 0, what
    for what in ("elections", "fenced", "corrupt", "repaired", "changes lost"):
        assert counts[what] > 0, what
    for what in ("wiped", "started over", "clock jumps"):
        assert counts[what] > 0, what


def test_clocks_drift_apart():
    """Each broker has its own pace and start, in every second eight seeds; elsewhere all agree."""
    clocks = [broker.clock for broker in Cluster(8).brokers.values()]
    before_ms = [clock.now_ms for clock in clocks]
    assert len({(clock.rate, clock.now_ms) for clock in clocks}) > 1
    clocks[0].jump(400)
    assert clocks[0].now_ms == before_ms[0] + 400
    assert clocks[0].true_ms(clocks[0].now_ms + clocks[0].rate) == pytest.approx(1)
    assert {broker.clock.rate for broker in Cluster(7).brokers.values()} == {1}

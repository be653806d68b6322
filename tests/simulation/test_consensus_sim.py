"""The consensus simulator: clean histories, and seeds that replay."""

import os

import pytest

from simulation.consensus import ConsensusGroup
from simulation.consensus_aims import AIMS, Figure8, TwoChanges, group
from simulation.consensus_bugs import CONSENSUS_BUGS
from strandline.testing.history import ViolationError

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))


def test_histories_keep_every_promise():
    """Nothing acked is lost, one value per index, reads never stale, agreement after healing."""
    acked = reads = changes = 0
    for seed in range(SEEDS):
        counts = ConsensusGroup(seed).run().counts
        acked += counts["acked"]
        reads += counts["reads"]
        changes += counts["membership changes"]
    assert acked > SEEDS * 20, "histories in which nothing happens show nothing"
    assert reads > SEEDS * 10
    assert changes > SEEDS / 4


@pytest.mark.parametrize("aim", AIMS)
def test_aimed_histories_keep_every_promise(aim):
    """Directed scenarios that chance rarely produces keep every promise."""
    for seed in range(5):
        assert aim(seed).run().counts["partitions"] > 1


def run_all(aim, *, seeds):
    """Histories of an aim, until one breaks a promise."""
    for seed in range(seeds):
        aim(seed).run()


def test_some_seeds_aim():
    """Every fourth seed runs a directed scenario, in rotation; the others are unchanged."""
    kinds = [type(group(seed)) for seed in range(8)]
    assert kinds == [
        ConsensusGroup,
        ConsensusGroup,
        ConsensusGroup,
        AIMS[0],
        ConsensusGroup,
        ConsensusGroup,
        ConsensusGroup,
        AIMS[1],
    ]


@pytest.mark.parametrize(
    ("aim", "name"),
    [
        (Figure8, "entries of older terms are committed by counting (paper, figure 8)"),
        (TwoChanges, "a second membership change before the first is committed"),
    ],
)
def test_an_aim_meets_what_it_aims_at(aim, name):
    """The mistake breaks a promise in some of its histories, soon."""
    [bug] = [bug for bug in CONSENSUS_BUGS if bug.name == name]
    with bug.planted(), pytest.raises(ViolationError, match="two values"):
        run_all(aim, seeds=200)

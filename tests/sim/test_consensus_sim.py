"""The consensus simulator: clean histories, seeds that replay, seeded bugs that are found."""

import os
import subprocess
import sys

import pytest

from strandline.testing.sim.__main__ import SIMULATIONS, find_bug
from strandline.testing.sim.bugs import Bug, planted
from strandline.testing.sim.consensus import Group
from strandline.testing.sim.consensus_bugs import CONSENSUS_BUGS

SEEDS = int(os.environ.get("SIM_SEEDS", "150"))
QUICK = tuple(
    bug
    for bug in CONSENSUS_BUGS
    if bug.name.startswith(("term and vote", "a quorum of half", "a vote for", "a trial vote"))
)


def test_histories_keep_every_promise():
    """Nothing acked is lost, one value per index, reads never stale, agreement after healing."""
    acked = reads = changes = 0
    for seed in range(SEEDS):
        counts = Group(seed).run().counts
        acked += counts["acked"]
        reads += counts["reads"]
        changes += counts["membership changes"]
    assert acked > SEEDS * 20, "histories in which nothing happens show nothing"
    assert reads > SEEDS * 10
    assert changes > SEEDS / 4


def test_a_seed_replays_exactly_under_any_hash_seed():
    """The same history, event by event, in processes that hash differently."""
    program = (
        "from strandline.testing.sim.consensus import Group; print(Group(7).run().fingerprint)"
    )
    prints = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        prints.add(done.stdout)
    assert len(prints) == 1
    assert Group(8).run().fingerprint not in next(iter(prints))


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_seeded_bugs_are_found(bug):
    """A slice of `python -m strandline.testing.sim bugs`, which looks for all of them."""
    assert find_bug("consensus", bug, seconds=60)


@pytest.mark.parametrize(
    "bug", [bug for _, bugs in SIMULATIONS.values() for bug in bugs], ids=lambda bug: bug.name
)
def test_seeded_bugs_are_up_to_date(bug):
    """Each is where it says it is, and is gone afterwards."""
    with planted(bug):
        pass


def test_a_bug_whose_place_has_changed_is_an_error():
    """It would pass for found or not found at random."""
    bug = Bug("gone", "strandline.consensus.raft:Raft.tick", "no such text", "")
    with pytest.raises(ValueError, match="0 times"), planted(bug):
        raise AssertionError("not reached")

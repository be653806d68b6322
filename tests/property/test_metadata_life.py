"""Whole lives of a cluster's metadata: random, judged by what becomes of records, and repeatable.

``test_metadata_machine.py`` throws any command at any image; here commands come from brokers,
leaders, operators and the controller as they would, late, twice and on old images.
"""

import os
import subprocess
import sys

import pytest

from strandline.testing.sim.metadata import MetadataLife
from strandline.testing.sim.metadata_bugs import BUGS, seeds_that_find

SEEDS = int(os.environ.get("METADATA_SEEDS", "100"))
BUG_SEEDS = int(os.environ.get("METADATA_BUG_SEEDS", "400"))
STEPS = 300


def test_no_life_breaks_a_promise():
    """Images, steps, records, retries and the cluster's healing are right in every one."""
    for seed in range(SEEDS):
        try:
            MetadataLife(seed).live(STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed} broke a promise") from error


@pytest.mark.parametrize("brokers", [1, 2, 6])
def test_clusters_of_other_sizes_keep_them_too(brokers):
    """One broker, two, and more than a partition has replicas."""
    for seed in range(SEEDS // 10):
        MetadataLife(seed, brokers=brokers).live(STEPS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_every_seeded_bug_is_found(bug):
    """A wrong function is noticed in some seed; a check that is blind would fail here."""
    for seed in range(BUG_SEEDS):
        if seeds_that_find(bug, [seed], steps=STEPS):
            return
    pytest.fail(f"'{bug.name}' was not found in {BUG_SEEDS} seeds")


def test_a_seed_repeats_whatever_the_hash_seed():
    """The same history, byte for byte, in processes that hash strings differently."""
    program = (
        "from strandline.testing.sim.metadata import MetadataLife\n"
        "print([MetadataLife(seed).live(200) for seed in range(3)])"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1] != ""

"""Whole lives of a cluster's metadata: random, judged by what becomes of records, and repeatable.

``test_metadata_machine.py`` throws any command at any image; here commands come from brokers,
leaders, operators and the controller as they would, late, twice and on old images.
"""

import os
import subprocess
import sys

import pytest

from strandline.testing.sim.metadata import MetadataLife

SEEDS = int(os.environ.get("METADATA_SEEDS", "40"))
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

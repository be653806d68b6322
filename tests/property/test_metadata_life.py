"""Random histories of a cluster's metadata, checked by their effect on records.

``test_metadata_machine.py`` throws any command at any image; here commands come from brokers,
leaders, operators and the controller as they would, late, twice and on old images.
"""

import os

import pytest

from simulation.metadata import MetadataRun

SEEDS = int(os.environ.get("METADATA_SEEDS", "40"))
STEPS = 300


def test_no_life_breaks_a_promise():
    """Images, steps, records, retries and the cluster's healing are right in every one."""
    for seed in range(SEEDS):
        try:
            MetadataRun(seed).run_steps(STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed} broke a promise") from error


@pytest.mark.parametrize("brokers", [1, 2, 6])
def test_clusters_of_other_sizes_keep_them_too(brokers):
    """One broker, two, and more than a partition has replicas."""
    for seed in range(SEEDS // 10):
        MetadataRun(seed, brokers=brokers).run_steps(STEPS)

"""The consensus simulator: clean histories, and seeds that replay."""

import os
import subprocess
import sys

from strandline.testing.sim.consensus import Group

SEEDS = int(os.environ.get("SIM_SEEDS", "150"))


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

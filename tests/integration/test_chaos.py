"""A short slice of ``make chaos``: real brokers under load, broken and judged."""

import os
import signal

import pytest

from chaos.broker import JumpingClock, Knobs, SlowDisk
from chaos.cluster import ChaosCluster
from chaos.run import ChaosPlan, run_chaos
from strandline.testing.history import ViolationError

SEED = int(os.environ.get("CHAOS_SEED", "1"))
FAULTS = ("kill-leader", "pause", "mute", "flap", "slow-disk", "jump-clock")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def test_no_promise_is_broken(tmp_path):
    """Whatever is killed, paused, partitioned or slow, acked records are everywhere, once."""
    # The suite's other tests use the same machine: `make chaos` judges liveness more strictly.
    outcome = await run_chaos(ChaosPlan(3, 0.0, SEED, FAULTS, progress_s=60.0), tmp_path)
    assert outcome.faults == dict.fromkeys(FAULTS, 1)
    assert outcome.stored >= outcome.acked > outcome.own > 0
    assert outcome.read == 4 * outcome.stored, "three readers and one that roams"
    assert outcome.processed >= outcome.stored
    assert outcome.stays > 2, "both members, and one of them again"
    assert outcome.committed > 0


async def test_a_broker_that_ends_by_itself_is_noticed(tmp_path, kit):
    """A crash counts as a broken promise even if others cover it; a kill does not."""
    async with ChaosCluster(tmp_path, 1) as cluster:
        server = cluster.servers[1]
        cluster.check_ends()
        server.kill()
        cluster.check_ends()
        server.start()
        server.signal(signal.SIGSEGV)
        await kit.until(lambda: not server.is_running, seconds=60)
        with pytest.raises(ViolationError, match=f"ended with {-signal.SIGSEGV}"):
            cluster.check_ends()


def test_knobs_turn_another_process_clock_and_disk(tmp_path):
    """One process reads at once what another writes."""
    knobs, seen = Knobs(tmp_path / "knobs"), Knobs(tmp_path / "knobs")
    clock = JumpingClock(seen)
    knobs.turn(clock_ms=-86_400_000)
    behind = clock.now_ns()
    knobs.turn(clock_ms=0)
    assert clock.now_ns() - behind >= 86_400_000_000_000
    knobs.turn(sync_ms=5)
    assert (seen.clock_ms, seen.sync_ms) == (0, 5)
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    started_ms = clock.monotonic_ms()
    SlowDisk(seen).fdatasync(fd)
    os.close(fd)
    assert clock.monotonic_ms() - started_ms >= 5

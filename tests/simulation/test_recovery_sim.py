"""Random lives of the real storage on a disk that loses, tears, fails and lies.

A bounded slice: more seeds with ``make sim``, every bug with ``make sim-mutants``.
"""

import os
from functools import cache

import pytest

from simulation.recovery import run
from simulation.recovery_disk import PowerLossError, SimDisk
from simulation.world import World

SEEDS = int(os.environ.get("SIM_SEEDS", "40"))


@cache
def life(seed):
    """Return the judged outcome of a seed."""
    return run(seed)


@pytest.mark.parametrize("first", range(100, 100 + SEEDS, 10))
def test_no_promise_is_broken(first):
    """Whatever fails, synced batches are there after every recovery, once, byte for byte."""
    for seed in range(first, min(first + 10, 100 + SEEDS)):
        assert life(seed).events > 1_000, "something happened"


def test_the_faults_happen():
    """Over some seeds every kind of fault, and every way to remove records, occurs."""
    counts = sum((life(seed).counts for seed in range(101, 120)), start=life(100).counts)
    for what in ("failed write", "failed sync", "failed name", "lies"):
        assert counts[what] > 0, what
    for kept in ("nothing", "all", "torn"):
        assert counts[f"power losses, {kept} kept"] > 0, kept
    for what in ("recoveries", "checkpoints", "copies", "cut", "removed", "deleted"):
        assert counts[what] > 0, what


@pytest.fixture
def disk(tmp_path):
    """A simulated disk with a directory."""
    made = SimDisk(World(1))
    made.make_directory(tmp_path)
    return made


def write(disk, path, data):
    """A file with this in it, whose name is durable."""
    fd = disk.open(path, write=True, create=True)
    disk.pwrite(fd, data, 0)
    disk.sync_directory(path.parent)
    return fd


@pytest.mark.parametrize(("lies", "left"), [(False, b"data"), (True, b"")])
def test_a_synced_write_survives_unless_the_disk_lies(disk, tmp_path, lies, left):
    """A power loss takes writes that no sync has stored, or that a sync only claimed to store."""
    fd = write(disk, tmp_path / "file", b"data")
    disk.lies = lies
    disk.fdatasync(fd)
    disk.crash("nothing")
    assert disk.read_bytes(tmp_path / "file") == left


def test_a_failed_sync_is_not_made_good_by_the_next(disk, tmp_path):
    """As on Linux: the unwritten pages count as clean, and are lost when read again."""
    fd = write(disk, tmp_path / "file", bytes(512))
    disk.fdatasync(fd)
    for _ in range(20):
        disk.pwrite(fd, b"x" * 512, 0)
        disk.fail_after("sync", 0)
        with pytest.raises(Exception, match="Input/output"):
            disk.fdatasync(fd)
        disk.fdatasync(fd)
        assert disk.pread(fd, 1, 0) == b"x"
        disk.drop_cache(fd)
        if disk.pread(fd, 1, 0) == b"\0":
            return
    raise AssertionError("half of them are lost")


def test_a_power_loss_tears_at_sectors(disk, tmp_path):
    """Of a long write any sectors are left, each of them whole."""
    seen = set()
    for number in range(50):
        path = tmp_path / str(number)
        disk.fdatasync(write(disk, path, bytes(2048)))
        fd = disk.open(path, write=True)
        disk.pwrite(fd, b"x" * 2048, 0)
        disk.die_after(0)
        with pytest.raises(PowerLossError):
            disk.fdatasync(fd)
        disk.crash("torn")
        data = disk.read_bytes(path)
        sectors = [data[at : at + 512] for at in range(0, 2048, 512)]
        assert set(sectors) <= {bytes(512), b"x" * 512}
        seen.add(tuple(sector[0] for sector in sectors))
    assert len(seen) > 4

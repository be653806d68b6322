"""The storage can open its files whatever else takes descriptors in the process."""

import errno
import subprocess
import sys

import pytest

from strandline.storage.descriptors import PROCESS, StorageDescriptors, shares_of

FLOODED = """
import os, resource, socket, sys
from pathlib import Path
from strandline.storage.descriptors import STORAGE_DESCRIPTORS
from strandline.storage.disk import Disk, OpenFile

folder, disk = Path(sys.argv[1]), Disk()
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
shares = STORAGE_DESCRIPTORS.begin()
first = OpenFile(folder / "first", disk=disk, write=True, create=True)
strangers = []
try:
    while True:
        strangers.append(socket.socket())
except OSError:
    pass
assert len(strangers) <= shares.others, len(strangers)
files = []
for number in range(shares.partitions):
    file = OpenFile(folder / str(number), disk=disk, write=True, create=True)
    disk.pwrite(file.fd, bytes(4096), 0)
    files.append(file)
maps = [disk.map(files[0].fd, 4096) for _ in range(shares.maps)]
assert len(disk.listing(folder)) == shares.partitions + 1
disk.sync_directory(folder)
assert disk.read_bytes(folder / "1") == bytes(4096)
assert 0 < disk.descriptors_left() < 100
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert (soft - STORAGE_DESCRIPTORS.held, hard) == (shares.others, 512)
try:
    strangers.append(socket.socket())
except OSError:
    print("refused")
del file
files.clear(), maps.clear()
assert STORAGE_DESCRIPTORS.held == 1
"""


def test_no_stranger_takes_the_descriptors_of_the_storage(tmp_path):
    """The storage's files open while sockets use every descriptor that they can get."""
    command = (sys.executable, "-c", FLOODED, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("refused\n", "")


@pytest.mark.parametrize("limit", [256, 512, 1024, 20_000, 1 << 20])
def test_the_shares_add_up(limit):
    """No part can use another's share, and each has one."""
    shares = shares_of(limit)
    assert shares.others + shares.maps + shares.unsynced + shares.partitions < limit
    assert shares.connections == shares.others - PROCESS
    assert min(shares) > 0


@pytest.mark.parametrize(
    ("code", "reserves", "attempts"),
    [
        (errno.EMFILE, True, 2),
        (errno.EMFILE, False, 1),
        (errno.ENFILE, True, 1),
        (errno.ENOSPC, True, 1),
        (errno.ENOENT, False, 1),
    ],
)
def test_only_the_limit_of_descriptors_is_lifted(monkeypatch, code, reserves, attempts):
    """Where some are reserved; any other error is the caller's at once."""
    limits = []
    monkeypatch.setattr("resource.setrlimit", lambda _, limit: limits.append(limit))
    monkeypatch.setattr("resource.getrlimit", lambda _: (512, 4096))
    descriptors, calls = StorageDescriptors(), []
    if reserves:
        descriptors.begin()
    limits.clear()

    def action():
        calls.append(len(limits))
        raise OSError(code, "no")

    with pytest.raises(OSError, match="no"):
        descriptors.open(action)
    assert len(calls) == attempts
    lifted = [(4096, 4096), (descriptors.shares.others, 4096)] if attempts == 2 else []
    assert limits == lifted, "and restricted again"


@pytest.mark.parametrize(
    ("limit", "maps", "unsynced"),
    [
        (64, 8, 8),
        (128, 8, 8),
        (160, 10, 10),
        (4096, 256, 256),
        (16_000, 256, 1000),
        (1 << 20, 256, 1024),
    ],
)
def test_readers_and_unsynced_segments_have_bounded_shares(limit, maps, unsynced):
    """A sixteenth each, of which a few are always there and not all of many are needed."""
    shares = shares_of(limit)
    assert (shares.maps, shares.unsynced) == (maps, unsynced)
    assert shares.others == limit * 3 // 8

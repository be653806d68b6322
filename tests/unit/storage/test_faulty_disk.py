"""The disk that fails on purpose: a crash keeps synced writes and what the test chooses."""

import errno

import pytest

from strandline.errors import DiskFullError, LogPoisonedError
from strandline.storage.disk import OpenFile
from strandline.storage.faulty_disk import keep_all


@pytest.fixture
def file(tmp_path, disk):
    """A durable file of ten bytes."""
    opened = OpenFile(tmp_path / "f", disk=disk, write=True, create=True)
    disk.pwrite(opened.fd, b"0123456789", 0)
    disk.fdatasync(opened.fd)
    disk.sync_directory(tmp_path)
    return opened


def test_crash_undoes_unsynced_writes(tmp_path, disk, file):
    """Overwritten bytes come back and the file has its old length."""
    disk.pwrite(file.fd, b"abc", 2)
    disk.pwrite(file.fd, b"xyz", 9)
    disk.truncate(file.fd, 5)
    disk.crash()
    assert disk.read_bytes(tmp_path / "f") == b"0123456789"


def test_crash_keeps_synced_writes(tmp_path, disk, file):
    """Synced writes survive the crash."""
    disk.pwrite(file.fd, b"abc", 2)
    disk.fdatasync(file.fd)
    disk.crash()
    assert disk.read_bytes(tmp_path / "f") == b"01abc56789"


def test_crash_keeps_the_bytes_it_is_told_to(tmp_path, disk, file):
    """Ranges of unsynced writes may survive; a gap before them reads as zeros."""
    disk.pwrite(file.fd, b"abcdef", 12)
    disk.crash(lambda write: [(1, 3), (4, 5)])
    assert disk.read_bytes(tmp_path / "f") == b"0123456789\0\0\0bc\0e"


def test_crash_takes_names_back(tmp_path, disk, file):
    """A creation, a removal and a renaming are undone unless the directory was synced."""
    disk.write_whole(tmp_path / "new", b"n")
    disk.write_whole(tmp_path / "g", b"g")
    disk.sync_directory(tmp_path)
    disk.rename(tmp_path / "g", tmp_path / "f")
    disk.unlink(tmp_path / "new")
    disk.write_whole(tmp_path / "later", b"l")
    disk.crash(keep_all)
    assert sorted(disk.listing(tmp_path)) == ["f", "g", "new"]
    assert disk.read_bytes(tmp_path / "f") == b"0123456789"


def test_full_disk_lets_taken_space_be_used(disk, file):
    """Writing inside a file works on a full disk; growing one does not."""
    disk.full = True
    disk.pwrite(file.fd, b"ab", 0)
    with pytest.raises(DiskFullError):
        disk.pwrite(file.fd, b"abcd", 8)
    assert disk.pread(file.fd, 20, 0) == b"ab234567ab"


def test_failures_come_when_ordered(disk, file):
    """A call fails as often as asked, after as many successes as asked."""
    disk.fail("sync", code=errno.EIO, times=1, after=1)
    disk.fdatasync(file.fd)
    with pytest.raises(LogPoisonedError):
        disk.fdatasync(file.fd)
    disk.fdatasync(file.fd)
    disk.fail_write_after(2)
    with pytest.raises(DiskFullError):
        disk.pwrite(file.fd, b"wxyz", 0)
    assert disk.pread(file.fd, 4, 0) == b"wx23"

"""The door to the file system: whole writes, and one of our errors for each of the system's."""

import errno
import os
import resource
from pathlib import Path

import pytest

from strandline.errors import DiskFullError, LogPoisonedError, UnavailableError
from strandline.storage.disk import BUFFERS_MAX, Disk, OpenFile, translated


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EMFILE, UnavailableError),
        (errno.EIO, LogPoisonedError),
        (errno.EROFS, LogPoisonedError),
    ],
)
def test_system_errors_become_ours(code, kind):
    """Each error number maps to the class with the right remedy."""
    error = translated(OSError(code, os.strerror(code)), "writing")
    assert type(error) is kind
    assert "writing" in error.message


def test_too_many_open_files_names_the_limit():
    """The error has the limit and how to raise it."""
    error = translated(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "opening x")
    assert f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} are allowed" in error.message
    assert "ulimit -n" in error.message


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_no_failed_sync_may_be_tried_again(tmp_path, monkeypatch, code):
    """After a failed sync the data may be lost and a second sync succeed, so none is tried."""
    disk = Disk()
    file = OpenFile(tmp_path / "f", disk=disk, write=True, create=True)

    def fail(fd):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(LogPoisonedError, match="syncing"):
        disk.fdatasync(file.fd)


def test_a_file_that_could_not_be_synced_is_gone_and_another_may_be_tried(tmp_path, monkeypatch):
    """Nothing was lost with it, so the error is the lack of space."""
    disk, real = Disk(), os.fdatasync

    def fail(fd):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskFullError):
        disk.write_durably(tmp_path / "f", b"new")
    assert not (tmp_path / "f").exists()
    monkeypatch.setattr(os, "fdatasync", real)
    disk.write_durably(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


def test_gathered_write_beyond_the_systems_limit(tmp_path):
    """More buffers than the system takes at once are still written in order."""
    disk = Disk()
    file = OpenFile(tmp_path / "f", disk=disk, write=True, create=True)
    buffers = [b"%06d" % i for i in range(3 * BUFFERS_MAX)]
    disk.pwritev(file.fd, buffers, 8)
    assert disk.pread(file.fd, 1 << 20, 8) == b"".join(buffers)


def test_short_writes_are_completed(tmp_path, monkeypatch):
    """A write that the system shortens continues where it stopped."""
    disk = Disk()
    file = OpenFile(tmp_path / "f", disk=disk, write=True, create=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, bufs, at: real(fd, b"".join(bufs)[:5], at))
    disk.pwritev(file.fd, [b"abcd", b"efgh", b"ij"], 0)
    assert disk.read_bytes(tmp_path / "f") == b"abcdefghij"


def test_short_reads_are_completed(tmp_path, monkeypatch):
    """A read that the system shortens continues, up to the end of the file."""
    disk = Disk()
    disk.write_whole(tmp_path / "f", b"abcdefghij")
    file = OpenFile(tmp_path / "f", disk=disk)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 3), at))
    assert disk.pread(file.fd, 8, 1) == b"bcdefghi"
    assert disk.pread(file.fd, 8, 9) == b"j"


def test_writing_back_loses_nothing_and_needs_no_file_to_be_open(tmp_path):
    """Write-back keeps all data; an invalid descriptor is ignored."""
    disk, path = Disk(), tmp_path / "file"
    fd = disk.open(path, write=True, create=True)
    disk.pwrite(fd, b"abc" * 100_000, 0)
    disk.write_back(fd, 0, 100_000)
    disk.write_back(fd, 100_000, 1 << 40)
    assert path.read_bytes() == b"abc" * 100_000
    disk.fdatasync(fd)
    disk.close(fd)
    disk.write_back(fd, 0, 1)


def test_real_errors_are_translated_everywhere(tmp_path):
    """Every method translates the system's error."""
    disk = Disk()
    missing = tmp_path / "no" / "file"
    bad = 10**6
    for call in (
        lambda: disk.open(missing),
        lambda: disk.size(bad),
        lambda: disk.pread(bad, 1, 0),
        lambda: disk.pwrite(bad, b"x", 0),
        lambda: disk.pwritev(bad, [b"x"], 0),
        lambda: disk.truncate(bad, 0),
        lambda: disk.fdatasync(bad),
        lambda: disk.map(bad, 10),
        lambda: disk.rename(missing, tmp_path / "x"),
        lambda: disk.unlink(tmp_path),
        lambda: disk.listing(Path("/dev/null")),
        lambda: disk.read_bytes(tmp_path),
        lambda: disk.sync_directory(missing),
        lambda: disk.make_directory(Path("/dev/null/x")),
    ):
        with pytest.raises(LogPoisonedError):
            call()


def test_atomic_write_leaves_nothing_behind_when_it_fails(tmp_path, disk):
    """A small file that cannot be written keeps its old contents, and no half-made one stays."""
    disk.write_atomically(tmp_path / "f", b"old")
    disk.full = True
    with pytest.raises(DiskFullError):
        disk.write_atomically(tmp_path / "f", b"newer")
    disk.full = False
    assert disk.listing(tmp_path) == {"f": 3}
    assert disk.read_bytes(tmp_path / "f") == b"old"


def test_missing_things_are_not_errors(tmp_path):
    """Listing, reading and removing a missing file is no error."""
    disk = Disk()
    assert disk.listing(tmp_path / "none") == {}
    assert disk.read_bytes(tmp_path / "none") is None
    disk.unlink(tmp_path / "none")
    disk.remove_directory(tmp_path / "none")


def test_descriptor_closes_with_its_last_user(tmp_path):
    """An open file is closed when its last user releases it, and not before."""
    disk = Disk()
    file = OpenFile(tmp_path / "f", disk=disk, write=True, create=True)
    fd = file.fd
    disk.unlink(tmp_path / "f")
    disk.pwrite(fd, b"x", 0)
    del file
    with pytest.raises(LogPoisonedError):
        disk.pwrite(fd, b"x", 0)


def test_a_large_file_is_freed_piece_by_piece(tmp_path, monkeypatch):
    """One call that frees gigabytes would hold up the syncs of all other files."""
    monkeypatch.setattr("strandline.storage.disk.EMPTIED_BYTES_MIN", 1000)
    monkeypatch.setattr("strandline.storage.disk.PIECE_BYTES", 1000)
    disk, lengths = Disk(), []
    truncate = disk.truncate
    monkeypatch.setattr(
        disk, "truncate", lambda fd, length: lengths.append(length) or truncate(fd, length)
    )
    for size in (999, 2500):
        (tmp_path / "f").write_bytes(bytes(size))
        disk.remove_large(tmp_path / "f")
        assert not (tmp_path / "f").exists()
    assert lengths == [2000, 1000, 0]


def test_a_shorter_file_replaces_a_longer_one(tmp_path):
    """Nothing of the old contents is left."""
    disk = Disk()
    for data in (b"abcdefghij", b"xyz", b""):
        disk.write_whole(tmp_path / "f", data)
        assert disk.read_bytes(tmp_path / "f") == data


def test_the_page_cache_is_asked_without_waiting(tmp_path):
    """What was just written is cached; what was dropped is not, nor what is beyond the end."""
    disk, size = Disk(), 1 << 20
    fd = disk.open(tmp_path / "file", write=True, create=True)
    try:
        disk.pwrite(fd, bytes(size), 0)
        disk.fdatasync(fd)
        if not disk.is_cached(fd, size, 0):
            pytest.skip("the file system does not tell")
        assert not disk.is_cached(fd, 1, size)
        disk.drop_cache(fd)
        if disk.is_cached(fd, size, 0):
            pytest.skip("the file system is in memory")
        disk.pread(fd, size, 0)
        assert disk.is_cached(fd, size, 0)
    finally:
        disk.close(fd)


def test_a_system_that_does_not_tell_has_cached_nothing(tmp_path, monkeypatch):
    """Who asks reads beside the loop then, as always."""
    monkeypatch.setattr("strandline.storage.disk._NO_WAIT", None)
    fd = Disk().open(tmp_path / "file", write=True, create=True)
    try:
        Disk().pwrite(fd, b"x", 0)
        assert not Disk().is_cached(fd, 1, 0)
    finally:
        Disk().close(fd)


def test_what_an_earlier_attempt_left_is_not_in_a_new_file(tmp_path):
    """A crash may have left a longer one under the name that is not durable yet."""
    path = tmp_path / "file"
    path.write_bytes(b"an earlier, longer attempt")
    Disk().write_durably(path, b"short")
    assert path.read_bytes() == b"short"

"""The file system that loses what was not synced: what is lost by a cut, and what is kept.

Needs FUSE and the right to mount; skipped where there is none.
"""

import mmap
import os
import shutil
from contextlib import ExitStack

import pytest

from chaos.power_cut import power_cut_disk, unavailable_reason
from chaos.unsynced import Dropped, Names


@pytest.fixture
def disk_with(tmp_path):
    """Mounts one whose names become durable by a given rule."""
    probe = tmp_path / "probe"
    probe.mkdir()
    if reason := unavailable_reason(probe):
        pytest.skip(reason)
    with ExitStack() as mounted:
        yield lambda names: mounted.enter_context(power_cut_disk(tmp_path / "disk", names))


@pytest.fixture
def disk(disk_with):
    """One where any sync commits all names."""
    return disk_with(Names.EXT4)


def sync(path):
    """Sync a file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_synced_bytes_survive_a_cut_and_later_ones_do_not(disk):
    """Bytes appended and bytes overwritten after the last sync are lost, also of open files."""
    path = disk.path / "log"
    with path.open("w+b", 0) as file:
        file.write(b"a" * 10_000)
        os.fdatasync(file.fileno())
        file.write(b"b" * 10_000)
        os.pwrite(file.fileno(), b"c" * 5000, 100)
        assert path.read_bytes() == b"a" * 100 + b"c" * 5000 + b"a" * 4900 + b"b" * 10_000
        dropped = disk.cut()
        assert dropped.pages == 5  # two overwritten, the end, two appended
    assert path.read_bytes() == b"a" * 10_000


@pytest.mark.parametrize("flag", [os.O_DSYNC, os.O_SYNC])
def test_writes_of_a_file_opened_for_synced_writes_are_kept(disk, flag):
    """Each of them is a sync of its own."""
    path = disk.path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag)
    os.write(descriptor, b"kept")
    os.close(descriptor)
    disk.cut()
    assert path.read_bytes() == b"kept"


def test_a_truncation_and_an_extension_without_sync_are_undone(disk):
    """The size comes back with the bytes."""
    path = disk.path / "log"
    path.write_bytes(b"0123456789" * 1000)
    sync(path)
    os.truncate(path, 5)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    assert path.stat().st_size == 1 << 20
    disk.cut()
    assert path.read_bytes() == b"0123456789" * 1000


def test_a_sync_commits_all_names_as_on_ext4(disk):
    """Names outlive the content of files that were not synced themselves."""
    for name in ("synced", "unsynced", "removed"):
        (disk.path / name).write_bytes(b"content")
    (disk.path / "removed").unlink()
    sync(disk.path / "synced")
    (disk.path / "later").write_bytes(b"content")
    (disk.path / "synced").rename(disk.path / "renamed")
    assert disk.cut().names == 3
    assert {path.name: path.read_bytes() for path in disk.path.iterdir()} == {
        "synced": b"content",
        "unsynced": b"",
    }


def test_names_need_a_sync_of_their_directory_as_in_posix(disk_with):
    """A synced file without a synced name is lost; a removal or rename without one is undone."""
    disk = disk_with(Names.POSIX)
    (disk.path / "inner").mkdir()
    for name in ("old", "moved", "inner/file"):
        (disk.path / name).write_bytes(b"content")
        sync(disk.path / name)
    sync(disk.path)
    (disk.path / "old").unlink()
    (disk.path / "moved").rename(disk.path / "inner" / "moved")
    (disk.path / "new").write_bytes(b"content")
    sync(disk.path / "new")
    disk.cut()
    found = {str(path.relative_to(disk.path)) for path in disk.path.rglob("*")}
    assert found == {"inner", "old", "moved"}
    assert (disk.path / "old").read_bytes() == b"content"


def test_shared_mappings_work_and_msync_makes_them_durable(disk):
    """A mapping's bytes are read by others at once, and survive only when they were synced."""
    path = disk.path / "index"
    path.write_bytes(bytes(8192))
    sync(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[0:4] = b"kept"
        mapped.flush()
        mapped[4096:4100] = b"lost"
        assert path.read_bytes()[4096:4100] == b"lost"
        disk.cut()
    assert path.read_bytes() == b"kept" + bytes(8188)


def test_everything_can_be_synced_at_once(disk_with):
    """Contents and names, whatever else they need."""
    disk = disk_with(Names.POSIX)
    (disk.path / "inner").mkdir()
    (disk.path / "inner" / "file").write_bytes(b"content")
    disk.sync()
    assert disk.cut() == Dropped()
    assert (disk.path / "inner" / "file").read_bytes() == b"content"


def test_a_seeded_cut_keeps_some_unsynced_pages_and_repeats(disk):
    """A disk that was writing has some of the pages, and nothing but old or new ones."""
    path = disk.path / "log"
    seen = []
    for _ in range(2):
        path.write_bytes(b"o" * (64 << 10))
        sync(path)
        with path.open("r+b") as file:
            file.write(b"n" * (64 << 10))
        disk.cut(7)
        seen.append(path.read_bytes())
    pages = [seen[0][n : n + 4096] for n in range(0, 64 << 10, 4096)]
    assert seen[0] == seen[1]
    assert set(pages) == {b"o" * 4096, b"n" * 4096}


def test_files_removed_while_open_are_read_on(disk):
    """As on any file system of Linux; trees of many files are listed and removed."""
    folder = disk.path / "many"
    folder.mkdir()
    for number in range(500):
        (folder / f"file-{number}").write_bytes(b"%d" % number)
    with (folder / "file-7").open("rb") as file:
        assert len(list(folder.iterdir())) == 500
        shutil.rmtree(folder)
        assert file.read() == b"7"
    assert list(disk.path.iterdir()) == []

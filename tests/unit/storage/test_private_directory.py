"""Directories that survive a power cut, and that only their owner can enter."""

import os
import stat
from pathlib import Path

from strandline.storage import private_directory
from strandline.storage.private_directory import make_private_directory


def test_each_new_name_is_durable_and_private(tmp_path, monkeypatch):
    """Whatever the umask: the missing parents too, each synced in the directory above it."""
    synced, fsync = [], os.fsync

    def noted(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(private_directory.os, "fsync", noted)
    before = os.umask(0)
    try:
        make_private_directory(tmp_path / "a" / "b")
        assert synced == [tmp_path, tmp_path / "a"]
        make_private_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert len(synced) == 2, "nothing is new"
    for each in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700

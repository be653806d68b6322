"""The lock of a data directory."""

import os

import pytest

from strandline.broker.lock import FILE_NAME, DataDirLock
from strandline.errors import DataDirLockedError, UnavailableError


def test_a_second_holder_is_rejected_and_told_who_has_it(tmp_path):
    """The message has the directory, the other process's pid and a remedy."""
    lock = DataDirLock(tmp_path)
    with pytest.raises(DataDirLockedError, match=rf"pid {os.getpid()}\); stop it or choose"):
        DataDirLock(tmp_path)
    lock.release()
    DataDirLock(tmp_path).release()


def test_releasing_twice_harms_nobody(tmp_path):
    """A second release does not close a descriptor that was reused meanwhile."""
    lock = DataDirLock(tmp_path)
    lock.release()
    descriptor = os.open(tmp_path / FILE_NAME, os.O_RDONLY)
    lock.release()
    os.close(descriptor)


def test_the_directory_is_made(tmp_path):
    """A path that does not exist yet is fine."""
    DataDirLock(tmp_path / "a" / "b").release()
    assert (tmp_path / "a" / "b" / FILE_NAME).exists()


def test_an_impossible_directory_is_a_typed_error(tmp_path):
    """A file where the directory should be is reported with its path and the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"cannot use data directory .*choose another"):
        DataDirLock(tmp_path / "file")


def test_a_full_disk_does_not_keep_a_broker_from_its_lock(tmp_path, monkeypatch):
    """The pid in the file is optional: a broker must start so that space can be freed."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = DataDirLock(tmp_path)
    with pytest.raises(DataDirLockedError, match="pid unknown"):
        DataDirLock(tmp_path)
    lock.release()

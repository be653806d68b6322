"""A log's directory is removed as a whole, also after a crash in the middle."""

import pytest

from strandline.storage.log_directory import (
    DELETED_SUFFIX,
    UNFINISHED_SUFFIX,
    delete_log_directory,
    doom_log_directory,
    remove_doomed,
)


@pytest.fixture
def directory(tmp_path, disk):
    """The directory of a log, durable, and room for others beside it."""
    made = fill(tmp_path / "logs" / "7")
    disk.sync_directory(made)
    disk.sync_directory(made.parent)
    return made


def fill(directory):
    directory.mkdir(parents=True)
    for name in ("a.log", "b.log"):
        (directory / name).write_bytes(b"x")
    return directory


def beside(directory):
    return sorted(each.name for each in directory.parent.iterdir())


def test_nothing_is_left(directory, disk):
    """Neither of it nor of what was begun or deleted under its name before."""
    for suffix in (DELETED_SUFFIX, UNFINISHED_SUFFIX):
        fill(directory.with_name(directory.name + suffix))
    fill(directory.with_name("70"))
    delete_log_directory(directory, disk=disk)
    assert beside(directory) == ["70"]
    delete_log_directory(directory, disk=disk)


def test_a_removal_is_durable(directory, disk):
    """A power cut does not bring the log back under its name."""
    delete_log_directory(directory, disk=disk)
    disk.crash()
    assert directory.name not in beside(directory)


def test_a_doomed_directory_has_another_name(directory, disk):
    """What was doomed before under this name is removed for it."""
    earlier = fill(directory.with_name(directory.name + DELETED_SUFFIX))
    (earlier / "old").write_bytes(b"x")
    doomed = doom_log_directory(directory, disk=disk)
    assert doomed == earlier
    assert sorted(each.name for each in doomed.iterdir()) == ["a.log", "b.log"]
    assert not directory.exists()
    assert doom_log_directory(directory, disk=disk) == doomed, "without a log"
    assert not doomed.exists()
    remove_doomed(doomed, disk=disk)

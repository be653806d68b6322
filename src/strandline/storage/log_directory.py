"""The directory of a log, and how it goes away as a whole."""

from collections.abc import Collection
from pathlib import Path

from strandline.storage.disk import Disk

DELETED_SUFFIX = ".deleted"


def delete_log_directory(directory: Path, *, disk: Disk) -> None:
    """Remove a log's files and their directory; fine if it is not there.

    The directory loses its name first, so that a flush on another thread cannot add to it, and a
    crash in the middle leaves nothing that looks like a log.

    Raises:
        LogPoisonedError: a file could not be removed.
    """
    remove_doomed(doom_log_directory(directory, disk=disk), disk=disk)


def doom_log_directory(directory: Path, *, disk: Disk) -> Path:
    """Take a log's directory its name, durably; returns what ``remove_doomed`` is to remove.

    Raises:
        LogPoisonedError: a file of an earlier one could not be removed.
    """
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    remove_doomed(doomed, disk=disk)
    if disk.exists(directory):
        disk.rename(directory, doomed)
        disk.sync_directory(directory.parent)
    return doomed


def remove_doomed(directory: Path, *, disk: Disk, mapped: Collection[str] = ()) -> None:
    """Remove a doomed directory, if it is there.

    Args:
        directory: as ``doom_log_directory`` returned it.
        disk: the file system.
        mapped: names of files that this process has mapped.

    Raises:
        LogPoisonedError: a file could not be removed.
    """
    for name in disk.listing(directory):
        disk.remove_large(directory / name, may_empty=name not in mapped)
    disk.remove_directory(directory)

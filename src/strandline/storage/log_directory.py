"""The directory of a log, and its removal as a whole."""

from pathlib import Path

from strandline.storage.disk import Disk

DELETED_SUFFIX = ".deleted"
UNFINISHED_SUFFIX = ".unfinished"
"""The suffix of a directory that is being created."""


def delete_log_directory(directory: Path, *, disk: Disk) -> None:
    """Remove a log's files and their directory; no error if they do not exist.

    The directory is renamed first, so that a flush on another thread cannot add to it, and a
    crash in the middle leaves nothing that looks like a log.

    Raises:
        LogPoisonedError: a file could not be removed.
    """
    remove_doomed(directory.with_name(directory.name + UNFINISHED_SUFFIX), disk=disk)
    is_there = disk.exists(directory)
    doomed = doom_log_directory(directory, disk=disk)
    if is_there:
        disk.sync_directory(directory.parent)
    remove_doomed(doomed, disk=disk)


def doom_log_directory(directory: Path, *, disk: Disk) -> Path:
    """Mark a log's directory for ``remove_doomed`` by renaming it, not synced; return its new path.

    Raises:
        LogPoisonedError: a file of an earlier marked directory could not be removed.
    """
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    if disk.exists(doomed):
        remove_doomed(doomed, disk=disk)
    if disk.exists(directory):
        disk.rename(directory, doomed)
    return doomed


def remove_doomed(directory: Path, *, disk: Disk) -> None:
    """Remove a directory that ``doom_log_directory`` has renamed, if it exists.

    Raises:
        LogPoisonedError: a file could not be removed.
    """
    for name in disk.listing(directory):
        disk.remove_large(directory / name)
    disk.remove_directory(directory)

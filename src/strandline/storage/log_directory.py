"""The directory of a log, and how it goes away as a whole."""

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
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    _remove_directory(doomed, disk=disk)
    if disk.exists(directory):
        disk.rename(directory, doomed)
        disk.sync_directory(directory.parent)
    _remove_directory(doomed, disk=disk)


def _remove_directory(directory: Path, *, disk: Disk) -> None:
    for name in disk.listing(directory):
        disk.unlink(directory / name)
    disk.remove_directory(directory)

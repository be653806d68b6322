"""Small files that are stored twice, so that a flipped bit in one copy loses nothing.

Rules: the twin is written first, so it is never older than the file. An intact file is used, even
if its twin is newer: that write did not return. A corrupt file is rebuilt from its twin. The
caller's decoder detects corruption; must not know what the files mean.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from strandline.errors import CorruptBatchError, UnavailableError
from strandline.storage.disk import Bytes, Disk

logger = logging.getLogger(__name__)

TWIN_SUFFIX: Final = ".twin"
T = TypeVar("T")


def twin_of(path: Path) -> Path:
    """Return the path of a file's twin."""
    return path.with_name(path.name + TWIN_SUFFIX)


def write_with_twin(path: Path, data: Bytes, *, disk: Disk) -> None:
    """Replace a file and its twin; durable on return.

    Raises:
        UnavailableError: a file cannot be written; each is complete, either old or new.
    """
    disk.write_atomically(twin_of(path), data)
    disk.write_atomically(path, data)


def read_with_twin(path: Path, decode: Callable[[bytes], T], *, disk: Disk) -> T | None:
    """Return a file's contents, or its twin's if it is corrupt or missing; None if both miss.

    Args:
        path: the path of the file.
        decode: raises ``CorruptBatchError`` for corrupt contents.
        disk: the file system.

    Raises:
        CorruptBatchError: both are corrupt.
        LogPoisonedError: the files cannot be read.
    """
    data = disk.read_bytes(path)
    try:
        if data is not None:
            return decode(data)
    except CorruptBatchError as error:
        logger.warning("%s; it is rebuilt from its twin if that is intact", error)
        twin = disk.read_bytes(twin_of(path))
        if twin is None:
            raise
    else:
        twin = disk.read_bytes(twin_of(path))
        if twin is None:
            return None
    found = decode(twin)
    try:
        disk.write_atomically(path, twin)
    except UnavailableError as error:
        logger.warning("%s is not rebuilt yet, its twin is used: %s", path, error)
    return found


def remove_with_twin(path: Path, *, disk: Disk) -> None:
    """Remove a file and its twin; no error if they do not exist.

    Raises:
        LogPoisonedError: a file could not be removed.
    """
    for each in (path, twin_of(path)):
        if disk.exists(each):
            disk.unlink(each)
    disk.sync_directory(path.parent)

"""Directories that only their owner can enter, whatever the umask."""

import os
from pathlib import Path


def make_private_directory(directory: Path) -> None:
    """Create a directory and its missing parents, durably; no error if it exists.

    ``mkdir(parents=True)`` would leave the parents' mode to the umask, and a user who can write to
    a parent can replace our directory.

    Raises:
        OSError: it cannot be created.
    """
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)
            _sync(each.parent)  # records are only as durable as the directories above them


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

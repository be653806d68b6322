"""Directories that nobody but their owner can enter, whatever the umask."""

from pathlib import Path


def make_private_directory(directory: Path) -> None:
    """Make a directory and those above it that are missing; fine if it exists.

    ``mkdir(parents=True)`` would leave the mode of those above to the umask, and who may write to
    one of them may put another directory in the place of ours.

    Raises:
        OSError: it cannot be made.
    """
    for each in (*reversed(directory.parents), directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)

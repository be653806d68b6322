"""A file with a random text, by which a reader proves that it is on the broker's machine.

A process that may read it may read the segments beside it: they have the same permissions.
"""

import os
import secrets
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "local-reads.proof"


class LocalityToken(NamedTuple):
    """A file, and what it says; nothing if the disk had no room for it."""

    path: Path
    text: str


def write_proof(directory: Path) -> LocalityToken:
    """Put a new text into the file; readers that know an old one come through the broker."""
    path, text = directory / FILE_NAME, secrets.token_hex(16)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
    except OSError:
        text = ""
    return LocalityToken(path, text)

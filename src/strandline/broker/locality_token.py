"""A file with a random token; a client that knows the token runs on the broker's machine.

A process that can read the token can also read the segments: they have the same permissions.
"""

import os
import secrets
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "local-reads.proof"


class LocalityToken(NamedTuple):
    """The path of a token file and its text, which is empty if the file could not be written."""

    path: Path
    text: str


def write_proof(directory: Path) -> LocalityToken:
    """Write a new token to the file; clients with an older token read through the broker."""
    path, text = directory / FILE_NAME, secrets.token_hex(16)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
    except OSError:
        text = ""
    return LocalityToken(path, text)

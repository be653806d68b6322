"""One broker per data directory: an advisory lock that ends with its process."""

import contextlib
import fcntl
import os
from pathlib import Path

from strandline.errors import DataDirLockedError, UnavailableError
from strandline.storage.private_directory import make_private_directory

FILE_NAME = "broker.lock"


class DataDirLock:
    """Holds the directory's lock from construction to ``release``.

    Args:
        directory: created if it is missing.

    Raises:
        DataDirLockedError: another process holds it; the message names its pid.
        UnavailableError: the directory cannot be created or written to.
    """

    def __init__(self, directory: Path) -> None:
        try:
            make_private_directory(directory)
            self._fd = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnavailableError(
                f"cannot use data directory {directory}: {error.strerror}; check its permissions "
                "and space, or choose another --data-dir"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise DataDirLockedError(
                f"data directory {directory} is in use by another broker (pid {holder}); stop it "
                "or choose another --data-dir"
            ) from None
        with contextlib.suppress(OSError):  # the disk is full: the pid is only informative
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; may be repeated."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

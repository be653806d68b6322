"""One broker per data directory: an advisory lock that dies with its process."""

import fcntl
import os
from pathlib import Path

from strandline.errors import DataDirLockedError

FILE_NAME = "broker.lock"


class DataDirLock:
    """Holds the directory's lock from construction to ``release``.

    Raises:
        DataDirLockedError: another process holds it; the message names its pid.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / FILE_NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            raise DataDirLockedError(
                f"data directory {directory} is in use by another broker (pid {holder}); stop it "
                "or choose another --data-dir"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another broker have the directory."""
        os.close(self._fd)

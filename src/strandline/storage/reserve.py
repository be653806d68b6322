"""A file that reserves space, so that records can be deleted when the disk is full.

Rules: deleting records or streams first writes a few small files. If there is no space for them,
the reserve is spent, and renewed once there may be space again. A missing reserve is no error:
deletions then need free space.
"""

import logging
from pathlib import Path
from typing import Final

from strandline.errors import UnavailableError
from strandline.storage.disk import Disk

logger = logging.getLogger(__name__)

FILE_NAME: Final = "reserve"
BYTES_MIN: Final = 64 << 10


class Reserve:
    """Space of a data directory that is reserved for deletions."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE_NAME
        self._disk = disk
        self._size = BYTES_MIN

    def spend(self) -> None:
        """Free the reserved space; use it at once."""
        self._disk.unlink(self._path)

    def renew(self, size: int = 0) -> None:
        """Reserve at least ``size`` bytes, never fewer than before; log a warning if that fails."""
        self._size = max(self._size, size)
        try:
            if self._disk.listing(self._path.parent).get(FILE_NAME, 0) < self._size:
                self._disk.write_durably(self._path, bytes(self._size))
        except UnavailableError as error:
            logger.warning("no space is reserved for deletions: %s", error)

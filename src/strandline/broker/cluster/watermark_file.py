"""The high watermarks of all partitions, in one small file per broker.

Rules: an old value is safe, because leaders and followers determine it again. So the file is
written only at intervals, without a sync of its own, and a corrupt file counts as missing.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from strandline.checksum import crc32c
from strandline.errors import UNDECODABLE
from strandline.storage.disk import Disk
from strandline.types import LogId, Offset

logger = logging.getLogger(__name__)

FILE_NAME = "high-watermarks"


def save_watermarks(directory: Path, offsets: Mapping[LogId, Offset], *, disk: Disk) -> None:
    """Replace the file by one with these high watermarks.

    Raises:
        UnavailableError: the file cannot be written; the old one is unchanged.
    """
    body = msgspec.msgpack.encode(dict(offsets))
    disk.write_atomically(directory / FILE_NAME, b"%08x\n%b" % (crc32c(body), body))


def load_watermarks(directory: Path, *, disk: Disk) -> dict[LogId, Offset]:
    """Load the stored high watermarks; empty if there are none."""
    data = disk.read_bytes(directory / FILE_NAME)
    if data is None:
        return {}
    crc, _, body = data.partition(b"\n")
    try:
        if int(crc, 16) == crc32c(body):
            return msgspec.msgpack.decode(body, type=dict[LogId, Offset])
    except UNDECODABLE:
        pass  # counts as missing, as logged below
    logger.warning("%s is corrupt and ignored; high watermarks are determined again", FILE_NAME)
    return {}

"""The generation of a log: the journal sequence at which a log with a reused id began.

A replica that moved to another broker may return, with the same log id. The journal may still have
entries of the old log, and the checkpoint its durable end. So the new log's directory has a file
with the journal's sequence at its creation: journal entries and checkpoints up to it are the old
log's.
"""

from pathlib import Path

from strandline.checksum import crc32c
from strandline.errors import CorruptBatchError
from strandline.storage.disk import Disk
from strandline.storage.log_directory import UNFINISHED_SUFFIX

GENERATION_NAME = "log-generation"
UNUSED = -1
"""The generation of a log with a new id: below any sequence."""


def write_generation(directory: Path, synced_sequence: int, *, disk: Disk) -> None:
    """Create the directory of a new log, durably, with its generation.

    The directory gets its name only when the file is in it, because without the file it would
    count as the old log. An unfinished directory is removed like a deleted log.

    Args:
        directory: the directory of the log; must not exist yet.
        synced_sequence: the journal is durable up to this entry, and no later entry is the old
            log's. Not the last sequence: a power loss loses entries that are not synced, and
            the journal then reuses their sequences for the new log's.
        disk: the file system.

    Raises:
        DiskFullError: no space.
        LogPoisonedError: a write failed.
    """
    unfinished = directory.with_name(directory.name + UNFINISHED_SUFFIX)
    disk.make_directory(unfinished)
    number = b"%d" % synced_sequence
    disk.write_atomically(unfinished / GENERATION_NAME, b"%b %08x\n" % (number, crc32c(number)))
    disk.rename(unfinished, directory)
    disk.sync_directory(directory.parent)


def read_generation(directory: Path, *, disk: Disk) -> int:
    """Return a log's generation; ``UNUSED`` if its id was not used before.

    Raises:
        CorruptBatchError: the file is corrupt.
    """
    path = directory / GENERATION_NAME
    data = disk.read_bytes(path)
    if data is None:
        return UNUSED
    number, _, _ = data.partition(b" ")
    if not number.isdigit() or data != b"%b %08x\n" % (number, crc32c(number)):
        raise CorruptBatchError(
            "the log's generation is corrupt, so it may contain records of an older log; move this "
            "broker's replica to another broker and back",
            file=str(path),
        )
    return int(number)

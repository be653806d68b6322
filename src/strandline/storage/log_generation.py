"""Since when a log's directory is its own: a copy that moved away may move back, by the same id.

The journal may then still hold what the old copy wrote, and the checkpoint how far that was
durable. So who makes a directory under an id that was used before notes the journal's sequence in
it: what either says of the log up to there is another log's.
"""

from pathlib import Path

from crc32c import crc32c

from strandline.errors import CorruptBatchError
from strandline.storage.disk import Disk
from strandline.storage.log_directory import UNBORN_SUFFIX

BIRTH_NAME = "log-birth"
UNUSED = -1
"""Before any sequence."""


def note_birth(directory: Path, synced_sequence: int, *, disk: Disk) -> None:
    """Make a new log's directory, durably, and note where the journal was.

    It gets its name when the note is in it: one without would be taken for the old log's. What is
    left of one that got none goes as deleted logs do.

    Args:
        directory: of the log; there is none yet.
        synced_sequence: the journal is durable up to this entry, and no later one is of the old
            log. After a power loss it gives the sequences of entries that are lost to others.
        disk: the file system.

    Raises:
        DiskFullError: no space.
        LogPoisonedError: a write failed.
    """
    unborn = directory.with_name(directory.name + UNBORN_SUFFIX)
    disk.make_directory(unborn)
    number = b"%d" % synced_sequence
    disk.write_atomically(unborn / BIRTH_NAME, b"%b %08x\n" % (number, crc32c(number)))
    disk.rename(unborn, directory)
    disk.sync_directory(directory.parent)


def birth_of(directory: Path, *, disk: Disk) -> int:
    """The journal's sequence when the log was made; ``UNUSED`` if its id never was used before.

    Raises:
        CorruptBatchError: the file is corrupt.
    """
    path = directory / BIRTH_NAME
    data = disk.read_bytes(path)
    if data is None:
        return UNUSED
    number, _, _ = data.partition(b" ")
    if not number.isdigit() or data != b"%b %08x\n" % (number, crc32c(number)):
        raise CorruptBatchError(
            "the note of when a log was made is corrupt: records of an older copy may be in it; "
            "move this broker's copy away and back",
            file=str(path),
        )
    return int(number)

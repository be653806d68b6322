"""The owner of a data directory: one broker of one cluster, for all time.

The identity is a small file, stored twice and replaced at each start, with a checksum in its first
line. The directory's random id distinguishes two brokers that were started with the same id. The
number of starts makes each incarnation of its replicas distinct.
"""

import logging
from pathlib import Path

import msgspec

from strandline.checksum import crc32c
from strandline.errors import UNDECODABLE, CorruptBatchError, DiskFullError, InvalidConfigError
from strandline.storage.disk import Disk
from strandline.storage.twin_file import read_with_twin, write_with_twin
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

FILE_NAME = "broker.json"
UNREADABLE = (
    "the file that says whose data directory it is, and its twin, are corrupt; restore one of them "
    "from a backup, or give this broker an empty directory after 'strandline cluster replace-disk'"
)


class DirectoryIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity file of a data directory."""

    cluster: str
    broker: BrokerId
    directory_id: str
    starts: int = 0
    founders: tuple[BrokerId, ...] | None = None
    """The founders of the cluster; empty if the broker joined later; None if not noted yet.

    Noted once: if the settings were read again, an operator who adds a broker there would change
    who votes without the consent of the voters."""


def begin_incarnation(
    directory: Path,
    cluster: str,
    broker: BrokerId,
    *,
    disk: Disk,
    founders: tuple[BrokerId, ...] = (),
) -> DirectoryIdentity:
    """Count a start of the broker; a new directory becomes the broker's.

    Args:
        directory: the broker's data directory.
        cluster: the cluster's name.
        broker: the broker's id.
        disk: the file system.
        founders: the first voters, for a new directory; empty if the broker joins a cluster.

    Raises:
        InvalidConfigError: the directory belongs to another broker.
        CorruptBatchError: the file is corrupt.
        UnavailableError: the file cannot be written; on a full disk only in a new directory.
    """
    disk.make_directory(directory)
    known = load_identity(directory, disk=disk)
    if known is None:
        directory_id = disk.entropy(8).hex()
        known = DirectoryIdentity(cluster=cluster, broker=broker, directory_id=directory_id)
    if (known.cluster, known.broker) != (cluster, broker):
        raise InvalidConfigError(
            f"{directory} belongs to broker {known.broker} of cluster {known.cluster!r}, not to "
            f"broker {broker} of {cluster!r}; give each broker a data directory of its own"
        )
    noted = known.founders if known.founders is not None else founders
    identity = msgspec.structs.replace(known, starts=known.starts + 1, founders=noted)
    try:
        save_identity(directory, identity, disk=disk)
    except DiskFullError as error:
        if identity.starts == 1:
            raise
        # A broker must start on a full disk, or nothing could be deleted. The count is then used
        # twice, which is safe: new connections distinguish the two starts as well.
        logger.warning("this start of the broker could not be counted: %s", error)
    return identity


def load_identity(directory: Path, *, disk: Disk) -> DirectoryIdentity | None:
    """Load the identity of a data directory; None if no broker of a cluster has used it.

    Raises:
        CorruptBatchError: the file is corrupt.
    """
    path = directory / FILE_NAME

    def decoded(data: bytes) -> DirectoryIdentity:
        crc, _, body = data.rstrip(b"\n").partition(b"\n")
        try:
            if int(crc, 16) == crc32c(body):
                return msgspec.json.decode(body, type=DirectoryIdentity)
        except UNDECODABLE as error:
            raise CorruptBatchError(UNREADABLE, file=str(path)) from error
        raise CorruptBatchError(UNREADABLE, file=str(path))

    return read_with_twin(path, decoded, disk=disk)


def save_identity(directory: Path, identity: DirectoryIdentity, *, disk: Disk) -> None:
    """Store the identity of a data directory twice; durable on return.

    Raises:
        UnavailableError: a file cannot be written.
    """
    body = msgspec.json.encode(identity)
    write_with_twin(directory / FILE_NAME, b"%08x\n%b\n" % (crc32c(body), body), disk=disk)

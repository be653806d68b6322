"""The manifest of a backup: its time, its metadata, and its files with their checksums.

Rules: a backup is what its manifest names; other files in the directory do not belong to it. The
manifest begins with the CRC-32C of the rest, in eight hexadecimal digits, and a line end.
"""

import re
from typing import Annotated, Final

import msgspec

from strandline.checksum import crc32c
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_json
from strandline.errors import UNDECODABLE, CorruptBatchError, InvalidRecordError

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
_FILE_NAME: Final = re.compile(r"logs/[0-9]{8,}/([0-9]{20})-([0-9]{20})\.([0-9]{6})\.log")
"""The first offset, the end offset, and the number of the backup that copied the file."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive batches of one partition, as they are stored."""

    name: str
    """The path in the backup's directory."""
    start: _Count
    """The first offset."""
    end: _Count
    """The offset after the last record."""
    size: _Count
    sha256: str


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of one partition; ``end`` is exclusive."""

    stream: str
    partition: _Count
    log_id: _Count
    created_ns: int
    """The time of the stream's creation, which with the log id identifies the log."""
    log_start_offset: _Count
    """The records before it were deleted; the first file may still have some of them."""
    end: _Count
    last_crc: int = 0
    """The checksum in the header of the last batch; the next backup compares it with the log."""
    leader_epoch: int = 0
    """The leader epoch of the last batch."""
    files: tuple[BackupFile, ...] = ()

    @property
    def label(self) -> str:
        """The partition's name."""
        return f"{self.stream}/{self.partition}"

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(each.size for each in self.files)


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a backup."""

    version: int = MANIFEST_VERSION
    number: _Count
    """The number of this backup into the directory, from 1."""
    cluster: str
    """The cluster's name; empty for a single broker."""
    strandline: str
    """The version that took the backup."""
    started_ns: int
    """Everything committed before this time is in the backup."""
    finished_ns: int
    """Nothing stored after this time is in the backup."""
    metadata: msgspec.Raw
    """The metadata image."""
    partitions: tuple[PartitionBackup, ...]

    @property
    def image(self) -> MetadataImage:
        """The metadata image.

        Raises:
            InvalidRecordError: a later version wrote it.
        """
        return decode_json(bytes(self.metadata))

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.partitions)

    @property
    def files(self) -> dict[str, BackupFile]:
        """All files, by name."""
        return {file.name: file for each in self.partitions for file in each.files}


def file_name(log_id: int, start: int, end: int, *, number: int) -> str:
    """Return the name of a file; with the backup's number in it, no file replaces another."""
    return f"logs/{log_id:08d}/{start:020d}-{end:020d}.{number:06d}.log"


def parse_file_name(name: str) -> tuple[int, int, int] | None:
    """Return first offset, end offset and backup number; None if it is no file of a backup."""
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def encode_manifest(manifest: BackupManifest) -> bytes:
    """Encode a manifest with its checksum."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return b"%08x\n%b\n" % (crc32c(body), body)


def decode_manifest(data: bytes, *, file: str) -> BackupManifest:
    """Decode a manifest.

    Args:
        data: the bytes of the manifest.
        file: the path of the manifest, for messages.

    Raises:
        CorruptBatchError: the manifest is corrupt, or names impossible files.
        InvalidRecordError: a later version wrote the manifest.
    """
    crc, _, body = data.rstrip(b"\n").partition(b"\n")
    if not data.strip():
        raise damaged(file, "it is empty")
    if crc != b"%08x" % crc32c(body):
        raise damaged(file, "its first line is not the checksum of the rest")
    try:
        version = msgspec.json.decode(body, type=_ManifestVersion).version
        if version != MANIFEST_VERSION:
            raise InvalidRecordError(
                f"{file} has version {version} and this is version {MANIFEST_VERSION}: restore it "
                "with the version of Strandline that took the backup, or a later one"
            )
        manifest = msgspec.json.decode(body, type=BackupManifest)
    except UNDECODABLE as error:
        raise damaged(file, str(error)) from error
    for partition in manifest.partitions:
        _check(partition, file)
    return manifest


def damaged(
    file: object, why: str, *, remedy: str = "take a new backup into an empty directory"
) -> CorruptBatchError:
    """Return the error for a file of a backup that cannot be used."""
    return CorruptBatchError(
        f"{file} is damaged: {why}; {remedy}, take the file from another copy of the backup, or "
        "use another backup"
    )


class _ManifestVersion(msgspec.Struct):
    version: int


def _check(partition: PartitionBackup, file: str) -> None:
    """Check that a partition's files follow one another up to its end."""
    position: int | None = None
    for each in partition.files:
        if parse_file_name(each.name) is None or each.end <= each.start:
            raise damaged(file, f"it names {each.name!r}, offsets {each.start} to {each.end}")
        if position is not None and each.start != position:
            raise damaged(file, f"{partition.label} lacks records from {position} on")
        position = each.end
    first = partition.files[0].start if partition.files else partition.end
    end = partition.log_start_offset if position is None else position
    if first > partition.log_start_offset or end != partition.end:
        raise damaged(file, f"the files of {partition.label} do not cover its records")

"""Keeps the metadata image on disk: one small file, replaced whole at each command.

Rules: the file is written beside, synced and renamed, so that a crash leaves the old image or the
new one; its first line is the CRC-32C of the rest, because a flipped bit in here could cost a whole
stream. If that fails when the file has its name, the old image is put back, and until that is done
nobody may rely on either. A file that is damaged, or made by a later version, is refused, never
guessed at. A deletion is how an operator frees a full disk, so it must not need space: it may spend
the reserve.
"""

from pathlib import Path

from crc32c import crc32c

from strandline.errors import (
    CorruptBatchError,
    DiskFullError,
    InvalidRecordError,
    UnavailableError,
)
from strandline.metadata.apply import apply
from strandline.metadata.commands import Command, CreateStream, DeleteStream
from strandline.metadata.image import MetadataImage
from strandline.metadata.snapshot import decode_json, encode_json
from strandline.storage.disk import Disk
from strandline.storage.reserve import Reserve

FILE_NAME = "metadata.json"


class MetadataStore:
    """The current image and its file.

    Attributes:
        image: the current one.
        is_certain: whether it is what the next start will find.

    Raises:
        CorruptBatchError: the file is damaged; it names the file.
        LogPoisonedError: the file cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk, reserve: Reserve) -> None:
        self._path = directory / FILE_NAME
        self._disk = disk
        self._reserve = reserve
        self.image = load_metadata(directory, disk)
        self.is_certain = True
        self._reserve.renew(2 * len(_encoded(self.image)))

    def preview(self, command: Command) -> MetadataImage:
        """The image as the command would leave it; nothing changes.

        Raises:
            InvalidRequestError: the command does not apply.
        """
        return apply(self.image, command)

    def apply(self, command: Command) -> MetadataImage:
        """Make the command durable, then the new image the current one.

        Raises:
            InvalidRequestError: the command does not apply; nothing changed.
            UnavailableError: the image could not be stored; nothing changed, as far as that is
                certain.
        """
        image = self.preview(command)
        data = _encoded(image)
        try:
            self._write(data, is_deletion=isinstance(command, DeleteStream))
        except UnavailableError:
            self._take_back(data)
            raise
        self.image = image
        if isinstance(command, CreateStream):
            self._reserve.renew(2 * len(data))  # what there is to delete has grown
        return image

    def _write(self, data: bytes, *, is_deletion: bool) -> None:
        try:
            self._disk.write_atomically(self._path, data)
        except DiskFullError:
            if not is_deletion:
                raise
            self._reserve.spend()
            self._disk.write_atomically(self._path, data)

    def _take_back(self, data: bytes) -> None:
        """Put the current image back if ``data`` has taken its place, though not durably."""
        try:
            self.is_certain = self._disk.read_bytes(self._path) != data
            self.restore()
        except UnavailableError:
            self.is_certain = False

    def restore(self) -> None:
        """Make the file that of the current image again, unless it is.

        Raises:
            UnavailableError: it could not be stored.
        """
        if not self.is_certain:
            self._disk.write_atomically(self._path, _encoded(self.image))
            self.is_certain = True


def load_metadata(directory: Path, disk: Disk) -> MetadataImage:
    """The image of a data directory, empty if there is none; nothing is written.

    Raises:
        CorruptBatchError: the file is damaged; it names the file.
        LogPoisonedError: the file cannot be read.
    """
    path = directory / FILE_NAME
    data = disk.read_bytes(path)
    if data is None:
        return MetadataImage()
    try:
        crc, body = data.rstrip(b"\n").split(b"\n", 1)
        if int(crc, 16) == crc32c(body):
            return decode_json(body)
    except (ValueError, InvalidRecordError) as error:
        raise _damaged(path, str(error)) from error
    raise _damaged(path, "checksum mismatch")


def _damaged(path: Path, why: str) -> CorruptBatchError:
    return CorruptBatchError(
        f"the metadata is damaged ({why}); restore the file from a backup", file=str(path)
    )


def _encoded(image: MetadataImage) -> bytes:
    """The contents of the file."""
    body = encode_json(image)
    return b"%08x\n%b\n" % (crc32c(body), body)

"""Keeps the metadata image on disk: one small file, replaced whole at each command.

Rules: the file is written beside, synced and renamed, so that a crash leaves the old image or the
new one; its first line is the CRC-32C of the rest, because a flipped bit in here could cost a whole
stream. A file that is damaged, or made by a later version, is refused, never guessed at.
"""

from pathlib import Path

import msgspec
from crc32c import crc32c

from strandline.errors import CorruptBatchError
from strandline.metadata.apply import apply
from strandline.metadata.commands import Command
from strandline.metadata.image import MetadataImage
from strandline.storage.disk import Disk

FILE_NAME = "metadata.json"
VERSION = MetadataImage().version


class MetadataStore:
    """The current image and its file.

    Raises:
        CorruptBatchError: the file is damaged; it names the file.
        LogPoisonedError: the file cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE_NAME
        self._disk = disk
        self.image = self._load()

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
            UnavailableError: the image could not be stored; nothing changed.
        """
        image = self.preview(command)
        body = msgspec.json.format(msgspec.json.encode(image), indent=1)
        self._disk.write_atomically(self._path, b"%08x\n%b\n" % (crc32c(body), body))
        self.image = image
        return image

    def _load(self) -> MetadataImage:
        data = self._disk.read_bytes(self._path)
        if data is None:
            return MetadataImage()
        try:
            crc, body = data.rstrip(b"\n").split(b"\n", 1)
            if int(crc, 16) != crc32c(body):
                raise self._damaged("checksum mismatch")
            image = msgspec.json.decode(body, type=MetadataImage)
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._damaged(str(error)) from error
        if image.version != VERSION:
            raise self._damaged(f"version {image.version} is not known here")
        return image

    def _damaged(self, why: str) -> CorruptBatchError:
        return CorruptBatchError(
            f"the metadata is damaged ({why}); restore the file from a backup", file=str(self._path)
        )

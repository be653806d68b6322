"""Keeps the metadata image on disk: one small file, replaced whole at each command.

The file is written beside, synced and renamed, so that a crash leaves the old image or the new one.
"""

from pathlib import Path

import msgspec

from strandline.errors import CorruptBatchError
from strandline.metadata.apply import apply
from strandline.metadata.commands import Command
from strandline.metadata.image import MetadataImage
from strandline.storage.disk import Disk

FILE_NAME = "metadata.json"


class MetadataStore:
    """The current image and its file.

    Raises:
        CorruptBatchError: the file is not an image; it names the file.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE_NAME
        self._disk = disk
        self.image = self._load()

    def apply(self, command: Command) -> MetadataImage:
        """Make the command durable, then the new image the current one.

        Raises:
            InvalidRequestError: the command does not apply; nothing changed.
            DiskFullError, LogPoisonedError: the image could not be stored; nothing changed.
        """
        image = apply(self.image, command)
        encoded = msgspec.json.format(msgspec.json.encode(image), indent=1)
        self._disk.write_atomically(self._path, encoded)
        self.image = image
        return image

    def _load(self) -> MetadataImage:
        if not self._path.exists():
            return MetadataImage()
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=MetadataImage)
        except msgspec.DecodeError as error:
            raise CorruptBatchError(
                f"not a metadata image ({error}); restore it from a backup", file=str(self._path)
            ) from error

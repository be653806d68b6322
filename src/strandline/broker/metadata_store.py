"""Keeps the metadata image on disk: one small file, replaced whole at each command.

Rules: the file is written beside, synced and renamed, so that a crash leaves the old image or the
new one; its first line is the CRC-32C of the rest, because a flipped bit in here could cost a whole
stream. A file that is damaged, or made by a later version, is refused, never guessed at. A deletion
is how an operator frees a full disk, so it must not need space: a little is kept in reserve for it.
"""

import logging
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

logger = logging.getLogger(__name__)

FILE_NAME = "metadata.json"
RESERVE_NAME = "metadata.reserve"
RESERVE_BYTES_MIN = 64 << 10


class MetadataStore:
    """The current image and its file.

    Raises:
        CorruptBatchError: the file is damaged; it names the file.
        LogPoisonedError: the file cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE_NAME
        self._reserve = directory / RESERVE_NAME
        self._disk = disk
        self.image = self._load()
        self.renew_reserve()

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
        data = _encoded(image)
        try:
            self._disk.write_atomically(self._path, data)
        except DiskFullError:
            if not isinstance(command, DeleteStream):
                raise
            self._disk.unlink(self._reserve)
            self._disk.write_atomically(self._path, data)
        self.image = image
        if isinstance(command, CreateStream):
            self.renew_reserve()  # what there is to delete has grown
        return image

    def renew_reserve(self) -> None:
        """Put space aside for the next deletion; call it when there may be some again."""
        size = max(RESERVE_BYTES_MIN, 2 * len(_encoded(self.image)))
        try:
            known = self._disk.listing(self._reserve.parent).get(RESERVE_NAME, 0)
            if known < size:
                self._disk.write_durably(self._reserve, bytes(size))
        except UnavailableError as error:
            logger.warning("no space is kept for deletions now: %s", error)

    def _load(self) -> MetadataImage:
        data = self._disk.read_bytes(self._path)
        if data is None:
            return MetadataImage()
        try:
            crc, body = data.rstrip(b"\n").split(b"\n", 1)
            if int(crc, 16) != crc32c(body):
                raise self._damaged("checksum mismatch")
            return decode_json(body)
        except (ValueError, InvalidRecordError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> CorruptBatchError:
        return CorruptBatchError(
            f"the metadata is damaged ({why}); restore the file from a backup", file=str(self._path)
        )


def _encoded(image: MetadataImage) -> bytes:
    """The contents of the file."""
    body = encode_json(image)
    return b"%08x\n%b\n" % (crc32c(body), body)

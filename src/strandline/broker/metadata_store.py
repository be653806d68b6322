"""The metadata image on disk: a small file, and a log of the commands since it was written.

Rules: a command is one line at the end of ``metadata.log``, synced, so its cost does not depend on
the number of streams. Once the log is long, ``metadata.json`` is rewritten: to a new file, synced
and renamed. Each line has a CRC-32C, since a flipped bit could lose a whole stream, and the CRC of
the line before it; the first line has the CRC of ``metadata.json``. So a log that belongs to an
older ``metadata.json`` is recognized and ignored. A torn last line is discarded, since it was never
acknowledged. A file that is corrupt in another way, or written by a later version, is rejected.

If a write fails, the file is restored to the current image; until that succeeds, the contents of
the disk are uncertain. An operator deletes streams to free a full disk, so a deletion must not need
space: it may spend the reserve.
"""

import contextlib
import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from strandline.checksum import crc32c
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import Command, DeleteStream
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_json, encode_json
from strandline.errors import (
    UNDECODABLE,
    CorruptBatchError,
    DiskFullError,
    InvalidRecordError,
    StrandlineError,
    UnavailableError,
)
from strandline.storage.disk import Disk, OpenFile
from strandline.storage.reserve import Reserve

FILE_NAME = "metadata.json"
LOG_NAME = "metadata.log"
LOG_BYTES_MIN: Final = 256 << 10
"""A log shorter than this is not rewritten."""
_LINE: Final = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8}) ")
"""CRC-32C of the rest of the line, CRC of the line before, and length of the command."""
_HEAD_BYTES: Final = 27
_UNWRITTEN: Final = bytes(8)
"""A run of zeros that occurs only where a sector of the line was not written."""
_decode = msgspec.json.Decoder(Command).decode


class _LoadedMetadata(NamedTuple):
    """The contents of the metadata files."""

    image: MetadataImage
    is_new: bool
    """Whether ``metadata.json`` does not exist yet."""
    size: int
    """Bytes of ``metadata.json``."""
    mark: int
    """The CRC that the next line of the log has to name."""
    log_bytes: int
    """The valid bytes of the log."""


class MetadataStore:
    """The current image and its files.

    Attributes:
        image: the current image.
        is_certain: whether a start after a crash would find the current image.

    Raises:
        CorruptBatchError: a file is corrupt; the message names it.
        LogPoisonedError: a file cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk, reserve: Reserve) -> None:
        self._path = directory / FILE_NAME
        self._log_path = directory / LOG_NAME
        self._disk = disk
        self._reserve = reserve
        stored = _load(directory, disk)
        self.image, self._is_new, self._size, self._mark, self._log_bytes = stored
        self.is_certain = True
        self._log: OpenFile | None = None
        self._reserve.renew()

    def preview(self, command: Command) -> MetadataImage:
        """Return the image after a command, without applying it.

        Raises:
            InvalidRequestError: the command does not apply.
        """
        return apply(self.image, command)

    def apply(self, command: Command) -> MetadataImage:
        """Store a command, then make its image the current one.

        Raises:
            InvalidRequestError: the command does not apply; nothing changed.
            UnavailableError: the command could not be stored. Nothing changed, unless
                ``is_certain`` is now false.
        """
        image = self.preview(command)
        try:
            self._write(command, is_deletion=isinstance(command, DeleteStream))
        except UnavailableError:
            with contextlib.suppress(UnavailableError):  # then ``is_certain`` is false
                self.restore()
            raise
        self.image = image
        return image

    @property
    def is_long(self) -> bool:
        """Whether the log is long enough for ``rewrite``."""
        return self._log_bytes > max(LOG_BYTES_MIN, self._size)

    def rewrite(self) -> None:
        """Rewrite the file from the current image, and empty the log; not during ``apply``.

        Raises:
            UnavailableError: the file could not be stored. The files are unchanged, unless
                ``is_certain`` is now false.
        """
        data = _encoded(self.image)
        try:
            self._disk.write_atomically(self._path, data)
        except UnavailableError:
            # The new file may have its name already, but not durably: a power loss could undo that.
            self.is_certain = self.is_certain and self._is_not(data)
            raise
        self._is_new, self._size = False, len(data)
        self._mark, self._log_bytes = int(data[:8], 16), 0

    def _is_not(self, data: bytes) -> bool:
        try:
            return self._disk.read_bytes(self._path) != data
        except UnavailableError:
            return False

    def _write(self, command: Command, *, is_deletion: bool) -> None:
        try:
            self._append(command)
        except DiskFullError:
            if not is_deletion:
                raise
            self._reserve.spend()
            self._append(command)

    def _append(self, command: Command) -> None:
        if self._is_new:
            self.rewrite()
        body = msgspec.json.encode(command)
        rest = b"%08x %08x %b" % (self._mark, len(body), body)
        mark = crc32c(rest)
        if self._log is None:
            log = OpenFile(self._log_path, disk=self._disk, write=True, create=True)
            self._disk.sync_directory(self._log_path.parent)
            self._log = log
        fd, line = self._log.fd, b"%08x %b\n" % (mark, rest)
        if self._disk.size(fd) > self._log_bytes:
            self._disk.truncate(fd, self._log_bytes)
        try:
            self._disk.pwrite(fd, line, self._log_bytes)
        except DiskFullError:
            self._disk.truncate(fd, self._log_bytes)
            raise
        try:
            # On the event loop: one line, and as rare as an operator's commands.
            self._disk.fdatasync(fd)
        except UnavailableError:
            self.is_certain, self._log = False, None
            raise
        self._mark, self._log_bytes = mark, self._log_bytes + len(line)

    def restore(self) -> None:
        """Restore the files to the current image if they may differ.

        Raises:
            UnavailableError: the image could not be stored.
        """
        if not self.is_certain:
            self.rewrite()
            self.is_certain = True


def load_metadata(directory: Path, disk: Disk) -> MetadataImage:
    """Load the image of a data directory, empty if there is none; write nothing.

    Raises:
        CorruptBatchError: a file is corrupt; the message names it.
        LogPoisonedError: a file cannot be read.
    """
    return _load(directory, disk).image


def _load(directory: Path, disk: Disk) -> _LoadedMetadata:
    path = directory / FILE_NAME
    data = disk.read_bytes(path)
    lines = disk.read_bytes(directory / LOG_NAME) or b""
    if data is None and lines:
        raise _corrupt(path, f"it is missing, and {LOG_NAME} goes on after it")
    if data is None:
        return _LoadedMetadata(MetadataImage(), is_new=True, size=0, mark=0, log_bytes=0)
    crc, _, body = data.rstrip(b"\n").partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise _corrupt(path, "checksum mismatch" if data else "it is empty")
    try:
        image = decode_json(body)
    except (ValueError, InvalidRecordError) as error:
        raise _corrupt(path, str(error)) from error
    mark, position = int(crc, 16), 0
    while position < len(lines):
        found = _line_at(lines, position)
        if found is None and _is_torn(lines[position:]):
            break
        if found is None:
            raise _corrupt(directory / LOG_NAME, f"checksum mismatch at byte {position}")
        if found.after != mark and not position:
            break  # the log belongs to an older metadata.json
        image = _applied(image, found, directory / LOG_NAME)
        mark, position = found.mark, found.end
    return _LoadedMetadata(image, is_new=False, size=len(data), mark=mark, log_bytes=position)


class _Line(NamedTuple):
    """An intact line of the log."""

    mark: int
    after: int
    body: bytes
    end: int


def _line_at(lines: bytes, position: int) -> _Line | None:
    """Return the line at a position if it is intact, even without its line end; else None."""
    head = _LINE.match(lines, position)
    if head is None:
        return None
    mark, after, length = (int(each, 16) for each in head.groups())
    end = position + _HEAD_BYTES + length
    if end > len(lines) or crc32c(lines[position + 9 : end]) != mark:
        return None
    return _Line(mark, after, lines[position + _HEAD_BYTES : end], end + 1)


def _is_torn(rest: bytes) -> bool:
    """Whether these bytes are a line of which only a part reached the disk, as in a power loss."""
    return not rest.endswith(b"\n") or rest.startswith(b"\0") or _UNWRITTEN in rest


def _applied(image: MetadataImage, line: _Line, path: Path) -> MetadataImage:
    try:
        return apply(image, _decode(line.body))
    except (*UNDECODABLE, StrandlineError) as error:
        raise _corrupt(path, str(error)) from error


def _corrupt(path: Path, why: str) -> CorruptBatchError:
    return CorruptBatchError(
        f"the metadata is corrupt ({why}); restore the file from a backup", file=str(path)
    )


def _encoded(image: MetadataImage) -> bytes:
    """Return the contents of ``metadata.json``."""
    body = encode_json(image)
    return b"%08x\n%b\n" % (crc32c(body), body)

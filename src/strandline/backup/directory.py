"""The directory of a backup: its lock, its manifest, its files.

Rules: a file is written under another name, synced and renamed, and never changed again. So a copy
with hard links keeps a backup. The manifest is replaced last; then the files that it does not name
are removed. So an interrupted backup leaves the one before intact.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from strandline.backup.manifest import (
    MANIFEST_NAME,
    BackupFile,
    BackupManifest,
    damaged,
    decode_manifest,
    encode_manifest,
    file_name,
    parse_file_name,
)
from strandline.errors import (
    DataDirLockedError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.batch import BatchHeader, read_header
from strandline.storage.disk import Disk
from strandline.storage.private_directory import make_private_directory
from strandline.storage.scan import OFFSET_MAX, scan

LOCK_NAME: Final = "backup.lock"
LOGS_NAME: Final = "logs"
PART_NAME: Final = "copying.part"
COPY_AGAIN: Final = "run 'strandline backup --verify' if the brokers still have its records"
READ_BYTES: Final = 4 << 20
_NAMES: Final = frozenset(
    {MANIFEST_NAME, f"{MANIFEST_NAME}.new", LOCK_NAME, LOGS_NAME, "lost+found"}
)
"""The names that the directory may have; the last one belongs to the file system."""
Advance = Callable[[int], None]


class BackupDirectory:
    """A directory with a backup, or an empty one for the first backup.

    Args:
        path: the path of the directory.
        disk: the file system.
    """

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self.disk = disk or Disk()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory if missing, and hold its lock.

        Raises:
            DataDirLockedError: another process is writing a backup into it.
            InvalidRequestError: the directory is not empty, and has no backup.
            UnavailableError: the directory cannot be written to.
        """
        try:
            make_private_directory(self.path)
            others = {path.name for path in self.path.iterdir()} - _NAMES
            if others:
                raise InvalidRequestError(
                    f"{self.path} has other files than a backup's: {min(others)}; choose an empty "
                    "directory, or move what is not the backup's away"
                )
            fd = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnavailableError(
                f"cannot write to {self.path}: {error.strerror}; check its permissions and space"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise DataDirLockedError(f"another backup writes to {self.path}; wait for it") from None
        finally:
            os.close(fd)

    # The manifest

    def load(self) -> BackupManifest | None:
        """Load the manifest; None if there is no backup.

        Raises:
            CorruptBatchError: the manifest is damaged.
            InvalidRecordError: a later version wrote the manifest.
        """
        path = self.path / MANIFEST_NAME
        data = self.disk.read_bytes(path)
        return None if data is None else decode_manifest(data, file=str(path))

    def finish(self, manifest: BackupManifest) -> None:
        """Replace the manifest, then remove the files that it does not name.

        Raises:
            UnavailableError: the manifest cannot be written; the backup before is intact.
        """
        self.disk.write_atomically(self.path / MANIFEST_NAME, encode_manifest(manifest))
        kept = manifest.files
        for path in sorted((self.path / LOGS_NAME).rglob("*.*")):
            if str(path.relative_to(self.path)) not in kept:
                self.disk.unlink(path)
        for directory in (self.path / LOGS_NAME).glob("*"):
            if not any(directory.iterdir()):
                directory.rmdir()

    # Files

    def log_directory(self, log_id: int) -> Path:
        """Return the directory of a log's files; created if it is missing."""
        directory = self.path / LOGS_NAME / f"{log_id:08d}"
        self.disk.make_directory(directory)
        return directory

    def writer(self, log_id: int, start: int, *, number: int) -> "FileWriter":
        """Begin a file of a log at an offset."""
        return FileWriter(self, log_id, start, number=number)

    def has(self, file: BackupFile, *, verify: bool) -> bool:
        """Whether a file exists with the right size and, if ``verify``, the right checksum."""
        try:
            if verify:
                self.verify_file(file)
            return (self.path / file.name).stat().st_size == file.size
        except (OSError, StrandlineError):
            return False

    def unfinished(self, log_id: int, *, number: int) -> list[str]:
        """Return the names of a log's files that an interrupted backup has copied, in order."""
        directory = f"{LOGS_NAME}/{log_id:08d}"
        names = sorted(f"{directory}/{name}" for name in self.disk.listing(self.path / directory))
        parsed = {name: parse_file_name(name) for name in names}
        return [name for name, parts in parsed.items() if parts and parts[2] == number]

    def look_at(self, name: str) -> tuple[BackupFile, BatchHeader]:
        """Describe a file that no manifest names; return also the header of its last batch.

        Raises:
            CorruptBatchError: the file does not hold what its name says.
        """
        parsed = parse_file_name(name)
        assert parsed is not None, "one of ours"
        start, end, _ = parsed
        digest, size, position, last = hashlib.sha256(), 0, start, None
        for batches, header in self.batches(name):
            digest.update(batches)
            size, last = size + len(batches), header
            position = header.next_offset
        if last is None or position != end:
            raise damaged(self.path / name, f"it ends at offset {position}")
        file = BackupFile(name=name, start=start, end=end, size=size, sha256=digest.hexdigest())
        return file, last

    def batches(self, name: str) -> Iterator[tuple[memoryview, BatchHeader]]:
        """Yield the whole batches of a file piece by piece; with each piece its last header.

        Raises:
            CorruptBatchError: a batch is corrupt.
            UnavailableError: the file cannot be read.
        """
        path = self.path / name
        fd = self.disk.open(path)
        try:
            size, position, wanted = self.disk.size(fd), 0, READ_BYTES
            while position < size:
                piece = memoryview(self.disk.pread(fd, wanted, position))
                run = scan(piece, 0, len(piece), below=OFFSET_MAX)
                if run.last < 0:
                    if position + len(piece) >= size:
                        raise damaged(path, f"no intact batch at byte {position}")
                    wanted *= 2  # a batch is longer than the piece
                    continue
                yield piece[: run.end], read_header(piece, run.last)
                position, wanted = position + run.end, READ_BYTES
        finally:
            self.disk.close(fd)

    def verify(self, manifest: BackupManifest, advance: Advance = lambda _: None) -> None:
        """Read every file, and compare its checksum.

        Args:
            manifest: names the files.
            advance: called with the number of bytes read since its last call.

        Raises:
            CorruptBatchError: a file is missing or damaged; the message names the first such file.
        """
        for file in manifest.files.values():
            self.verify_file(file, advance)

    def verify_file(self, file: BackupFile, advance: Advance = lambda _: None) -> None:
        """Read a file, and compare its checksum.

        Raises:
            CorruptBatchError: the file is missing or damaged.
        """
        path = self.path / file.name
        if not path.exists():
            raise damaged(path, "it is missing", remedy=COPY_AGAIN)
        digest, fd = hashlib.sha256(), self.disk.open(path)
        try:
            size, position = self.disk.size(fd), 0
            if size != file.size:
                raise damaged(path, f"it has {size} bytes, not {file.size}", remedy=COPY_AGAIN)
            while position < size:
                piece = self.disk.pread(fd, READ_BYTES, position)
                digest.update(piece)
                position += len(piece)
                advance(len(piece))
        finally:
            self.disk.close(fd)
        if digest.hexdigest() != file.sha256:
            raise damaged(path, "its checksum is wrong", remedy=COPY_AGAIN)


class FileWriter:
    """A file that is being copied.

    Args:
        directory: the directory of the backup.
        log_id: the id of the log.
        start: the first offset.
        number: the number of the backup.
    """

    def __init__(self, directory: BackupDirectory, log_id: int, start: int, *, number: int) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._log_id = log_id
        self._number = number
        self._part = directory.log_directory(log_id) / PART_NAME
        self.start = start
        self.size = 0
        self._digest = hashlib.sha256()
        self._fd = self._disk.open(self._part, write=True, create=True)
        self._disk.truncate(self._fd, 0)

    def write(self, batches: bytes) -> None:
        """Append batches.

        Raises:
            UnavailableError: the batches cannot be written.
        """
        self._disk.pwrite(self._fd, batches, self.size)
        self._digest.update(batches)
        self.size += len(batches)

    def finish(self, end: int) -> BackupFile:
        """Make the file durable under its final name, with ``end``, the offset after its records.

        Raises:
            UnavailableError: the file cannot be written.
        """
        self._disk.sync_fresh(self._fd)
        self.close()
        name = file_name(self._log_id, self.start, end, number=self._number)
        path = self._directory.path / name
        self._disk.rename(self._part, path)
        self._disk.sync_directory(path.parent)
        return BackupFile(
            name=name,
            start=self.start,
            end=end,
            size=self.size,
            sha256=self._digest.hexdigest(),
        )

    def close(self) -> None:
        """Close the file; has no effect when repeated."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            self._disk.close(descriptor)

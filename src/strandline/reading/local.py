"""Records read straight from a broker's files, by a process on the same machine.

Like HDFS short-circuit reads (HDFS-2246): the broker lists the files and ranges with committed
records, and the reader reads them from the page cache itself, without gRPC. Batches are checked and
decoded by the same code as in the broker.

Rules: files are read, not mapped: a truncated or unreadable file must be an error here and not kill
the process. A file that differs from the broker's answer is an ``UnavailableError`` or a
``CorruptBatchError``, and the reader continues through the broker from its position.
"""

import os
import stat
from collections.abc import Iterator

import pyarrow as pa

from strandline.api.local import AbortedRange, LocalFile, LocalFiles, LocalPart
from strandline.api.tickets import ReadRequest
from strandline.errors import CorruptBatchError, UnavailableError
from strandline.reading.cursor import Cursor, PartitionRange
from strandline.record.batch import HEADER_BYTES
from strandline.record.visible import visible_stretches
from strandline.storage.scan import OFFSET_MAX, header_at, scan
from strandline.types import Offset, PartitionName

AHEAD_BYTES = 16 << 20
"""How many bytes of a file are read ahead."""
LARGE_BYTES = 64 << 10
"""Batches of this size or more are measured by their headers before they are read."""
PROOF_BYTES_MAX = 1 << 10


def is_here(files: LocalFiles) -> bool:
    """Whether the broker that lists the files runs on this machine, and we may read its files."""
    try:
        fd = os.open(files.proof_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(fd, PROOF_BYTES_MAX) == files.proof.encode()
    except OSError:
        return False
    finally:
        os.close(fd)


def local_cursor(
    request: ReadRequest, part: LocalPart, names: list[str]
) -> "Cursor[LocalPartition]":
    """Return a cursor over a partition's files, which end at the part's ``end``.

    Args:
        request: the read.
        part: its part of this partition.
        names: columns to deliver, in order.
    """
    partition = LocalPartition(PartitionName(request.stream, part.partition), part)
    stop = Offset(min(part.end, part.stop))
    extent = PartitionRange(partition, Offset(part.start), stop, part.may_move)
    return Cursor(request, extent, names=names)


def local_batches(cursor: "Cursor[LocalPartition]") -> Iterator[pa.RecordBatch]:
    """Yield the cursor's batches; the cursor is always just after the last one yielded.

    Raises:
        UnavailableError, CorruptBatchError, DataLossError: the rest cannot be read here.
    """
    while not cursor.is_done:
        for batch, _ in cursor.read():
            yield batch


class LocalPartition:
    """The part of a partition that is in the listed files, read from the beginning to the end.

    Args:
        name: the name of the partition.
        part: the list of the files and ranges.
    """

    def __init__(self, name: PartitionName, part: LocalPart) -> None:
        self.name = name
        self.log_start_offset = Offset(part.log_start_offset)
        self.last_stable_offset = Offset(part.end)
        self._has_hidden = part.has_hidden
        self._aborted: dict[int, list[AbortedRange]] = {}
        for each in part.aborted:
            self._aborted.setdefault(each.producer_id, []).append(each)
        self._files = iter(part.files)
        self._file: _LocalFile | None = None
        self._next_offset = 0
        """The offset at which the batches read so far end."""

    def read(
        self,
        offset: Offset,
        bytes_max: int,
        *,
        below: Offset | None = None,  # noqa: ARG002  the files end where the read does
    ) -> pa.Buffer:
        """Return the next whole batches, beginning with the one that contains ``offset``.

        Returns:
            Batches; empty if readers may see nothing from ``offset`` on.

        Raises:
            UnavailableError: a file was removed or replaced.
            CorruptBatchError: the next batch is corrupt.
        """
        while not (self._has_hidden and self._next_offset >= self.last_stable_offset):
            view = self._next_batches(offset, bytes_max)
            if not self._has_hidden:
                return pa.py_buffer(view)
            if pieces := visible_stretches(view, self._is_committed):
                return pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return pa.py_buffer(b"")

    def find_runs(self, _pattern: str) -> None:
        """Return None: files are read from the beginning to the end."""

    def _is_committed(self, producer_id: int, offset: int) -> bool:
        """Whether a transaction's batch is committed."""
        return not any(
            each.start <= offset < each.end for each in self._aborted.get(producer_id, ())
        )

    def _next_batches(self, offset: Offset, bytes_max: int) -> memoryview:
        file = self._file
        while file is None or file.is_at_end:
            listed = next(self._files, None)
            if listed is None:
                raise UnavailableError(f"the files of {self.name} end before offset {offset}")
            file = self._file = _LocalFile(listed)
        view, next_offset = file.next_batches(bytes_max)
        header = header_at(view, 0)
        assert header is not None, "only intact batches are returned"
        expected = max(offset, self._next_offset)
        if header.base_offset > expected:
            raise CorruptBatchError(f"records {expected} to {header.base_offset - 1} are missing")
        self._next_offset = next_offset
        return view


class _LocalFile:
    """One file, read from front to back."""

    def __init__(self, listed: LocalFile) -> None:
        self._path = listed.path
        self._position = listed.position
        self._size = listed.size
        self._asked = listed.position
        self._fd = -1
        try:
            self._fd = os.open(listed.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            found = os.fstat(self._fd)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        except OSError as error:
            raise UnavailableError(f"cannot read {listed.path}: {error.strerror}") from error
        if found.st_ino != listed.inode or not stat.S_ISREG(found.st_mode):
            raise UnavailableError(f"{listed.path} was replaced meanwhile; read again")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def is_at_end(self) -> bool:
        return self._position >= self._size

    def next_batches(self, bytes_max: int) -> tuple[memoryview, int]:
        """Return whole intact batches, about ``bytes_max`` but at least one, and their end."""
        self._ask_ahead()
        view = self._pread(self._position, self._length_ahead(bytes_max))
        run = scan(view, 0, len(view), below=OFFSET_MAX)
        if not run.end:
            raise CorruptBatchError(
                "no intact batch where one must be", file=self._path, position=self._position
            )
        self._position += run.end
        return view[: run.end], run.next_offset

    def _length_ahead(self, bytes_max: int) -> int:
        """Return how many bytes to read next: large batches whole, or ``bytes_max``."""
        length = 0
        left = self._size - self._position
        while length < bytes_max:
            header = header_at(self._pread(self._position + length, HEADER_BYTES), 0)
            if header is None or header.length > left - length:
                break
            if header.length < LARGE_BYTES:
                return length or max(header.length, bytes_max)
            if length and length + header.length > bytes_max:
                break
            length += header.length
        return length or bytes_max

    def _pread(self, position: int, length: int) -> memoryview:
        wanted = min(length, self._size - position)
        try:
            return memoryview(os.pread(self._fd, wanted, position))
        except OSError as error:
            raise UnavailableError(f"cannot read {self._path}: {error.strerror}") from error

    def _ask_ahead(self) -> None:
        """Ask the system to read ahead while earlier batches are decoded."""
        if self._position + AHEAD_BYTES // 2 >= self._asked:
            start, self._asked = self._asked, self._position + AHEAD_BYTES
            length = self._asked - start
            os.posix_fadvise(self._fd, start, length, os.POSIX_FADV_WILLNEED)

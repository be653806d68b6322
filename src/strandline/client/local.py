"""Reads that take their records from the files of a broker on the same machine.

Where the broker is here, its files can be read and the package is installed with its server, most
of a long read needs no gRPC: see ``strandline.reading.local``. Everything else, and what cannot be
read that way after all, comes through the broker as ever. The records are the same.

Rules: whoever asks notices nothing but the speed; no setting is needed.
"""

import contextlib
import importlib
import importlib.util
import socket
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from strandline.client.connection import Connection
from strandline.client.reading import BatchStream
from strandline.errors import (
    CorruptBatchError,
    DataLossError,
    DisconnectedError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from strandline.protocol.local import LOCAL_FILES, LocalFiles, LocalPart
from strandline.protocol.tickets import ReadRequest
from strandline.record.schema import project

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
RECORDS_FEW = 4096
"""A read of so few records is not worth the question."""


def begin_read(connection: Connection, request: ReadRequest) -> BatchStream:
    """A read at one broker, from its files as far as that is possible.

    Raises:
        StrandlineError: the broker refuses it, or cannot be reached.
    """
    if not (_is_long(request) and _is_here(connection.address) and _can_decode()):
        return BatchStream(connection, request)
    [files] = connection.action(LOCAL_FILES, request, LocalFiles)
    if not files.proof or not _reader().is_here(files):
        return BatchStream(connection, request)
    return LocalStream(connection, request, files)


def _is_long(request: ReadRequest) -> bool:
    """Whether it may be of many records, and is of those that are stored."""
    if request.follow or request.wait_ms_max or request.skip_damaged:
        return False
    if request.order == "descending":
        return False  # files are read forwards
    if isinstance(request.start, int) and -RECORDS_FEW <= request.start < 0:
        return False
    if request.records_max is not None:
        return False
    if isinstance(request.start, int) and isinstance(request.stop, int):
        return request.stop - request.start > RECORDS_FEW
    return True


def _is_here(address: str) -> bool:
    """Whether an address looks like this machine's; the broker's proof tells for certain."""
    host = address.rpartition(":")[0]
    return host in LOOPBACK or host == socket.gethostname()


@cache
def _can_decode() -> bool:
    """Whether what the server decodes batches with is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numpy", "crc32c"))


@cache
def _reader() -> Any:
    """The reader of files, which the client alone must not need."""
    return importlib.import_module("strandline.reading.local")


class LocalStream(BatchStream):
    """A read under way, partition after partition: first its files, then the rest.

    Args:
        connection: to the broker.
        request: what to read.
        files: where it lies.
    """

    def __init__(self, connection: Connection, request: ReadRequest, files: LocalFiles) -> None:
        self._connection = connection
        self._request = request
        self._parts = files.parts
        self._may_wait = False
        self._rest: BatchStream | None = None
        self._is_cancelled = threading.Event()
        self.schema: pa.Schema = project(request.columns, with_partition=files.has_partition_column)

    def cancel(self) -> None:
        """As ``BatchStream``."""
        self._is_cancelled.set()
        if self._rest is not None:
            self._rest.cancel()

    def direct(self) -> Iterator[pa.RecordBatch]:
        """As ``BatchStream``."""
        try:
            for part in self._parts:
                for batch in self._of_partition(part):
                    if self._is_cancelled.is_set():
                        raise DisconnectedError("the read was cancelled")
                    self._connection.check_open()
                    yield batch
        finally:
            self.cancel()

    def _of_partition(self, part: LocalPart) -> Iterator[pa.RecordBatch]:
        """From the files, and on through the broker from where they ended or failed."""
        reader = _reader()
        cursor = reader.local_cursor(self._request, part, self.schema.names)
        # What cannot be read here the broker knows more of: it goes on from where the cursor is.
        with contextlib.suppress(UnavailableError, CorruptBatchError, DataLossError):
            yield from reader.local_batches(cursor)
        if cursor.position >= part.stop:
            return
        self._rest = self._rest_of(part, cursor.position)
        yield from self._rest.direct()

    def _rest_of(self, part: LocalPart, position: int) -> BatchStream:
        """The read of a partition's part from a position on, through the broker.

        Raises:
            DataLossError: what comes next was deleted meanwhile.
        """
        is_moved = position > part.start or isinstance(self._request.start, int)
        is_moved = is_moved or not part.may_move
        rest = msgspec.structs.replace(
            self._request,
            partition=part.partition,
            starts=None,
            start=position if is_moved else self._request.start,
            stop=part.stop,
            columns=self.schema.names,
        )
        try:
            return BatchStream(self._connection, rest)
        except OffsetOutOfRangeError as error:
            raise DataLossError(
                f"records from {position} on of {self._request.stream}/{part.partition} were "
                f"deleted before they were read: {error.message}"
            ) from error

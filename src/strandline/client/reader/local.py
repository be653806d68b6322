"""Reads from the files of a broker on the same machine.

If this process may read the broker's files and the server's packages are installed, most of a long
read bypasses gRPC: see ``strandline.reading.local``. All other records, and those that cannot be
read from files, come through the broker. The records are the same.

Rule: callers notice only the speed; there is no setting for this.
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

from strandline.api.local import LOCAL_FILES, LocalFiles, LocalPart
from strandline.api.tickets import ReadRequest
from strandline.client.connection import BrokerConnection
from strandline.client.reader.reading import BatchStream
from strandline.errors import (
    CorruptBatchError,
    DataLossError,
    DisconnectedError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from strandline.record.schema import project

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
RECORDS_FEW = 4096
"""A read of fewer records is not worth the additional call."""


def begin_read(
    connection: BrokerConnection, request: ReadRequest, *, is_small: bool = False
) -> BatchStream:
    """Begin a read at one broker, from its files as far as possible.

    Args:
        connection: the connection to the broker.
        request: what to read.
        is_small: whether the partitions are known to be small, so that files do not pay.

    Raises:
        StrandlineError: the broker rejects the read, or cannot be reached.
    """
    if is_small or not (_is_long(request) and _is_here(connection.address) and _can_decode()):
        return BatchStream(connection, request)
    [files] = connection.action(LOCAL_FILES, request)
    if not files.proof or not _reader().is_here(files):
        return BatchStream(connection, request)
    return LocalStream(connection, request, files)


def _is_long(request: ReadRequest) -> bool:
    """Return whether a read of stored records may be long."""
    if request.follow or request.wait_ms_max or request.skip_corrupt:
        return False
    if request.order == "descending":
        return False  # files are read forwards only
    if isinstance(request.start, int) and -RECORDS_FEW <= request.start < 0:
        return False
    if request.records_max is not None:
        return False
    if isinstance(request.start, int) and isinstance(request.stop, int):
        return request.stop - request.start > RECORDS_FEW
    return True


def _is_here(address: str) -> bool:
    """Return whether an address looks local; the broker's locality token then proves it."""
    host = address.rpartition(":")[0]
    return host in LOOPBACK or host == socket.gethostname()


@cache
def _can_decode() -> bool:
    """Return whether the packages that decode batches are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numpy", "crc32c"))


@cache
def _reader() -> Any:
    """Return the module that reads files; imported here since it needs the server's packages."""
    return importlib.import_module("strandline.reading.local")


class LocalStream(BatchStream):
    """A read in progress, partition after partition: first from files, then through the broker.

    Args:
        connection: the connection to the broker.
        request: what to read.
        files: the files that hold the records.
    """

    def __init__(
        self, connection: BrokerConnection, request: ReadRequest, files: LocalFiles
    ) -> None:
        self._connection = connection
        self._request = request
        self._parts = files.parts
        self._may_wait = False
        self._rest: BatchStream | None = None
        self._is_cancelled = threading.Event()
        self.schema: pa.Schema = project(request.columns, with_partition=files.has_partition_column)

    def cancel(self) -> None:
        """End the read; see ``BatchStream``."""
        self._is_cancelled.set()
        if self._rest is not None:
            self._rest.cancel()

    def direct(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches; see ``BatchStream``."""
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
        """Yield a partition's batches from files, then through the broker."""
        reader = _reader()
        cursor = reader.local_cursor(self._request, part, self.schema.names)
        # After one of these errors the read continues through the broker, at the cursor's position.
        with contextlib.suppress(UnavailableError, CorruptBatchError, DataLossError):
            yield from reader.local_batches(cursor)
        if cursor.position >= part.stop:
            return
        self._rest = self._rest_of(part, cursor.position)
        yield from self._rest.direct()

    def _rest_of(self, part: LocalPart, position: int) -> BatchStream:
        """Begin the read of a partition's remaining records through the broker.

        Raises:
            DataLossError: the next record was deleted in the meantime.
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

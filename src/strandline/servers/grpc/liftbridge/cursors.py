"""Cursors: committed offsets of consumers, as records of ``__cursors``; the newest per key counts.

Invariant: a table has the newest cursor of each key below its offset. Before an answer, the leader
learns its end, and the table is read up to the last stable offset. So an answer is never older than
an acknowledged cursor, whichever broker leads.
"""

import asyncio
import zlib
from typing import Final

import pyarrow as pa
from google.protobuf.message import DecodeError

from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.write_path.partition import Partition
from strandline.errors import StrandlineError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.host import CURSORS, Host
from strandline.servers.grpc.liftbridge.internal import InternalStore
from strandline.servers.grpc.reading import GrpcReader
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import LogId

NO_CURSOR: Final = -1
STORE_TIMEOUT_S: Final = 5.0
"""The timeout of a call that has no deadline."""


def cursor_key(cursor_id: str, stream: str, partition: int) -> bytes:
    """Return the key of the records of a cursor."""
    return f"{cursor_id},{stream},{partition}".encode()


def cursor_partition(key: bytes, partitions: int) -> int:
    """Return the partition that stores a cursor; clients compute it in the same way."""
    return zlib.crc32(key) % partitions


class CursorTable:
    """The cursors of one partition of ``__cursors``.

    Args:
        partition: the partition.
        host: the broker and the settings of the API.
    """

    def __init__(self, partition: Partition, host: Host) -> None:
        self.partition = partition
        self._newest: dict[bytes, int] = {}
        self._lock = asyncio.Lock()
        self._reader = GrpcReader(
            partition,
            partition.log_start_offset,
            columns=("offset", "key", "value"),
            convert=self._absorb,
            pool=host.pool,
        )

    async def find(self, key: bytes) -> int:
        """Return the newest cursor of a key; -1 if there is none.

        Raises:
            StrandlineError: the records cannot be read.
        """
        async with self._lock:
            while self._reader.offset < self._reader.partition.last_stable_offset:
                await self._reader.next()
        return self._newest.get(key, NO_CURSOR)

    def _absorb(self, batches: list[pa.RecordBatch]) -> bytes:
        """Update the table from records; runs on a thread of the pool."""
        for batch in batches:
            keys, values = batch.column(1).to_pylist(), batch.column(2).to_pylist()
            for key, value in zip(keys, values, strict=True):
                cursor = pb.Cursor()
                try:
                    cursor.ParseFromString(value or b"")
                except DecodeError:
                    continue  # another application published to the subject
                if key is not None:
                    self._newest[key] = cursor.offset
        return b""


class CursorCalls:
    """The rpcs for cursors.

    Args:
        host: the broker and the settings of the API.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tables: dict[LogId, CursorTable] = {}

    async def set(self, request: pb.SetCursorRequest, call: Call) -> pb.SetCursorResponse:
        """Store a cursor; answer once every in-sync replica has it."""
        key, partition = self._place(request)
        cursor = pb.Cursor(
            stream=request.stream,
            partition=request.partition,
            cursorId=request.cursorId,
            offset=request.offset,
        )
        try:
            # If the call has a deadline, it ends the call.
            async with asyncio.timeout(STORE_TIMEOUT_S if call.timeout_s is None else None):
                await InternalStore().append(partition, cursor.SerializeToString(), key=key)
        except TimeoutError:
            raise RpcError(GrpcStatus.INTERNAL, "the cursor was not stored in time") from None
        except StrandlineError as error:
            raise RpcError(GrpcStatus.INTERNAL, error.message) from error
        return pb.SetCursorResponse()

    async def fetch(self, request: pb.FetchCursorRequest, _: Call) -> pb.FetchCursorResponse:
        """Return the cursor stored last."""
        key, partition = self._place(request)
        table = self._tables.get(partition.log_id)
        # After a replica has moved away and back, it has the same log id but is another object.
        if table is None or table.partition is not partition:
            table = self._tables[partition.log_id] = CursorTable(partition, self._host)
        await wait_until_caught_up(partition)
        try:
            found = await table.find(key)
        except StrandlineError as error:
            raise RpcError(GrpcStatus.INTERNAL, error.message) from error
        self._place(request)  # raises if another broker leads now: it may have a newer cursor
        return pb.FetchCursorResponse(offset=found)

    def _place(
        self, request: pb.SetCursorRequest | pb.FetchCursorRequest
    ) -> tuple[bytes, Partition]:
        """Return the key of a cursor and the partition that stores it.

        Raises:
            RpcError: there is no cursors stream, or another broker leads the partition.
        """
        if not request.stream:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "No stream provided")
        if not request.cursorId:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "No cursorId provided")
        stream = self._host.stream(CURSORS)
        if stream is None:
            raise RpcError(GrpcStatus.INTERNAL, "Cursors stream does not exist")
        key = cursor_key(request.cursorId, request.stream, request.partition)
        number = cursor_partition(key, len(stream.partitions))
        partition = stream.partitions[number]
        if self._host.leader(partition) != self._host.me:
            text = f"Server not leader for cursors partition {number}"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
        return key, partition

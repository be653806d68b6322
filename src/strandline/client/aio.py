"""The asynchronous client: the same names as ``Client``, awaited.

A thin shell: calls run on threads, and futures of producers become asyncio's. Nothing blocks the
event loop.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from strandline.api.admin import ServerInfo, StreamInfo
from strandline.api.transactions import StagedPublication, TransactionInfo
from strandline.client.aio_admin import AsyncAccessControl, AsyncGroups, AsyncQuotas
from strandline.client.aio_consumer import AsyncConsumer
from strandline.client.aio_reading import AsyncReader, AsyncSubscription
from strandline.client.aio_transaction import AsyncStage, AsyncTransaction
from strandline.client.arguments import check_options, options_of, wait
from strandline.client.client import TIMEOUT_S, Client, connect
from strandline.client.consumer.consumer import Options
from strandline.client.deadline import within
from strandline.client.producer.producer import APPEND_OPTIONS, Headers, Producer
from strandline.client.reader.read_calls import check_subscribe_options
from strandline.client.reader.reading import OffsetSpec
from strandline.client.reader.results import Ack, BatchAck
from strandline.client.transactions.transactional import STAGE_TIMEOUT_S
from strandline.client.transactions.transactional import TIMEOUT_S as TRANSACTION_TIMEOUT_S
from strandline.errors import RequestTimeoutError


async def connect_async(
    address: str,
    *,
    timeout_s: float = TIMEOUT_S,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    token: str | None = None,
) -> "AsyncClient":
    """Connect to a broker; as ``connect``.

    Raises:
        DisconnectedError: no broker answers there.
    """
    options: dict[str, Any] = {"ca": ca, "certificate": certificate, "key": key, "token": token}
    made = await asyncio.to_thread(connect, address, timeout_s=timeout_s, **options)
    return AsyncClient(made)


class AsyncClient:
    """A client of brokers for asyncio. Use it as an ``async with`` context, or ``close`` it.

    Args:
        client: the synchronous client to wrap.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._client.address

    async def create_stream(
        self, name: str, *, subject: str | None = None, partitions: int = 1, **config: Any
    ) -> StreamInfo:
        """Create a stream; as ``Client.create_stream``."""
        return await asyncio.to_thread(
            self._client.create_stream, name, subject=subject, partitions=partitions, **config
        )

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        """Add partitions to a stream; as ``Client.add_partitions``."""
        return await asyncio.to_thread(self._client.add_partitions, name, partitions)

    async def delete_stream(self, name: str) -> None:
        """Delete a stream; as ``Client.delete_stream``."""
        await asyncio.to_thread(self._client.delete_stream, name)

    async def stream_info(self, name: str, *, of_leaders: bool = True) -> StreamInfo:
        """Describe a stream; as ``Client.stream_info``."""
        return await asyncio.to_thread(self._client.stream_info, name, of_leaders=of_leaders)

    async def list_streams(self) -> list[StreamInfo]:
        """Return all streams; as ``Client.list_streams``."""
        return await asyncio.to_thread(self._client.list_streams)

    async def delete_records(self, stream: str, offset: int, *, partition: int = 0) -> StreamInfo:
        """Delete a partition's oldest records; as ``Client.delete_records``."""
        return await asyncio.to_thread(
            self._client.delete_records, stream, offset, partition=partition
        )

    async def offsets(self, stream: str, at: OffsetSpec = "latest") -> dict[int, int]:
        """Return the offset that ``at`` resolves to in each partition; as ``Client.offsets``."""
        return await asyncio.to_thread(self._client.offsets, stream, at)

    async def wait_for(
        self, stream: str, beyond: Mapping[int, int], *, timeout_s: float = 1.0
    ) -> dict[int, int]:
        """Wait for records; as ``Client.wait_for``."""
        return await asyncio.to_thread(self._client.wait_for, stream, beyond, timeout_s=timeout_s)

    async def server_info(self) -> ServerInfo:
        """Return the version and limits of the broker; as ``Client.server_info``."""
        return await asyncio.to_thread(self._client.server_info)

    async def append(
        self,
        stream: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        subject: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: str | None = None,
        timeout_s: float = 35.0,
    ) -> Ack:
        """Append one record; as ``Client.append``. Concurrent calls share batches."""
        with within(wait(timeout_s, "timeout_s")) as deadline_s:
            appender = await asyncio.to_thread(self._client.appender, stream)
            future = await asyncio.to_thread(
                appender.append,
                value,
                key=key,
                subject=subject,
                headers=headers,
                partition=partition,
                message_id=message_id,
            )
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no ack within {timeout_s:g} s; whether it was stored is unknown"
            ) from error

    async def append_batch(
        self, stream: str, data: Any, *, partition: int | None = None, timeout_s: float = 60.0
    ) -> BatchAck:
        """Append a table; as ``Client.append_batch``."""
        return await asyncio.to_thread(
            self._client.append_batch, stream, data, partition=partition, timeout_s=timeout_s
        )

    def producer(self, stream: str, **options: Any) -> "AsyncProducer":
        """Return a producer, opened by ``async with``; as ``Client.producer``."""
        check_options("producer", options, options_of(Client.producer))
        return AsyncProducer(self._client, stream, options)

    def transaction(
        self, transactional_id: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S
    ) -> AsyncTransaction:
        """Return a transaction, begun by ``async with``; as ``Client.transaction``."""
        return AsyncTransaction(self._client, transactional_id, timeout_s=timeout_s)

    async def commit_prepared(self, transactional_id: str, staged_id: str) -> None:
        """Commit a prepared transaction; as ``Client.commit_prepared``."""
        await asyncio.to_thread(self._client.commit_prepared, transactional_id, staged_id)

    async def abort_prepared(self, transactional_id: str, staged_id: str) -> None:
        """Abort a prepared transaction; as ``Client.abort_prepared``."""
        await asyncio.to_thread(self._client.abort_prepared, transactional_id, staged_id)

    def stage(
        self, transaction_id: str, batch_id: int, *, timeout_s: float = STAGE_TIMEOUT_S
    ) -> AsyncStage:
        """Return one part of a batch, begun by ``async with``; as ``Client.stage``."""
        return AsyncStage(self._client, transaction_id, batch_id, timeout_s=timeout_s)

    async def commit_staged(
        self, transaction_id: str, batch_id: int, refs: Iterable[str], **options: Any
    ) -> StagedPublication:
        """Commit the staged parts of a batch together; as ``Client.commit_staged``."""
        check_options("commit_staged", options, options_of(Client.commit_staged))
        publish = self._client.commit_staged
        return await asyncio.to_thread(publish, transaction_id, batch_id, refs, **options)

    async def last_published(self, transaction_id: str) -> StagedPublication | None:
        """Return the last batch committed under an id; as ``Client.last_published``."""
        return await asyncio.to_thread(self._client.last_published, transaction_id)

    async def transactions(self) -> list[TransactionInfo]:
        """Return the last transaction of each id; as ``Client.transactions``."""
        return await asyncio.to_thread(self._client.transactions)

    async def read(self, stream: str, **options: Any) -> "AsyncReader":
        """Read records as Arrow; as ``Client.read``, iterated with ``async for``."""
        return AsyncReader(await asyncio.to_thread(self._client.open_read, stream, **options))

    def subscribe(self, stream: str, **options: Any) -> "AsyncSubscription":
        """Iterate records as objects with ``async for``; as ``Client.subscribe``."""
        check_subscribe_options(options)
        return AsyncSubscription(self._client, stream, options)

    def consumer(self, group: str, streams: str | Iterable[str], **options: Any) -> "AsyncConsumer":
        """Return a member of a consumer group, joined by ``async with``; as ``Client.consumer``."""
        check_options("consumer", options, Options._fields)
        return AsyncConsumer(group, partial(self._client.consumer, group, streams, **options))

    @property
    def access(self) -> AsyncAccessControl:
        """Return the access rules and tokens; as ``Client.access``."""
        return AsyncAccessControl(self._client.access)

    @property
    def quotas(self) -> AsyncQuotas:
        """Return the quotas of principals; as ``Client.quotas``."""
        return AsyncQuotas(self._client.quotas)

    @property
    def groups(self) -> AsyncGroups:
        """Return the consumer groups; as ``Client.groups``."""
        return AsyncGroups(self._client.groups)

    async def close(self) -> None:
        """Close the connections and everything made from this client; as ``Client.close``."""
        await asyncio.to_thread(self._client.close)

    async def abandon(self) -> None:
        """Close at once and give up what is in flight; as ``Client.abandon``."""
        await asyncio.to_thread(self._client.abandon)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._client.__exit__, kind, error, trace)


class AsyncProducer:
    """A producer for asyncio; ``async with`` opens and flushes it."""

    def __init__(self, client: Client, stream: str, options: dict[str, Any]) -> None:
        self._client = client
        self._stream = stream
        self._options = options
        self._entry = asyncio.Lock()
        self._producer: Producer | None = None

    async def append(self, value: bytes | str | None, **record: Any) -> Ack:
        """Append a record and wait for its ack; as ``Producer.append``. Gather calls to batch."""
        check_options("append", record, APPEND_OPTIONS)
        producer = await self._ready()
        return await asyncio.wrap_future(producer.append(value, **record))

    async def append_batch(self, data: Any, *, partition: int | None = None) -> BatchAck:
        """Append a table and wait for its acks; as ``Producer.append_batch``."""
        producer = await self._ready()
        future = await asyncio.to_thread(producer.append_batch, data, partition=partition)
        return await asyncio.wrap_future(future)

    async def flush(self) -> None:
        """Wait until every record is acknowledged or failed; as ``Producer.flush``."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush)

    def abandon(self) -> None:
        """Stop taking records without waiting; as ``Producer.abandon``."""
        if self._producer is not None:
            self._producer.abandon()

    async def close(self) -> None:
        """Flush and close; as ``Producer.close``."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> Producer:
        def make() -> Producer:
            return self._client.producer(self._stream, **self._options)

        if self._producer is None:
            self._producer = await asyncio.to_thread(make)
        return self._producer

    async def _ready(self) -> Producer:
        """Return the producer once its buffer has room; callers are served in order."""
        producer = self._producer
        if producer is not None and producer.has_room and not self._entry.locked():
            return producer
        async with self._entry:
            producer = await self._open()
            if not producer.has_room:
                await asyncio.to_thread(producer.wait_for_room)
            return producer

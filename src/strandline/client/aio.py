"""The asynchronous client: the same names as in ``Client``, awaited.

Calls run on threads, as ``aio_forward`` arranges, and the futures of producers become asyncio's.
Nothing blocks the event loop.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, ParamSpec, Self, Unpack

from strandline.client.access import AccessControl
from strandline.client.aio_consumer import AsyncConsumer
from strandline.client.aio_forward import ContextOnThread, OnThread, awaited, opened_later
from strandline.client.aio_reading import AsyncReader, AsyncSubscription
from strandline.client.arguments import check_options, options_of, wait
from strandline.client.client import APPEND_TIMEOUT_S, Client, connect, no_ack
from strandline.client.consumer.consumer import Options
from strandline.client.consumer.groups import Groups
from strandline.client.consumer.offset_store import Offsets
from strandline.client.deadline import within
from strandline.client.producer.producer import (
    APPEND_OPTIONS,
    AppendOptions,
    Producer,
    RecordOptions,
)
from strandline.client.quotas import Quotas
from strandline.client.reader.read_calls import check_subscribe_options
from strandline.client.reader.results import Ack, BatchAck
from strandline.client.schemas import Schemas
from strandline.client.transactions.staged_write import StagedWrite
from strandline.client.transactions.transaction import Transaction

P = ParamSpec("P")
TRANSACTION_APPEND_OPTIONS = options_of(Transaction.append)


class AsyncGroups(OnThread[Groups]):
    """The consumer groups of a broker or cluster."""

    list = awaited(Groups.list)
    info = awaited(Groups.info)
    committed_offsets = awaited(Groups.committed_offsets)
    commit = awaited(Groups.commit)
    reset = awaited(Groups.reset)
    delete = awaited(Groups.delete)


class AsyncAccessControl(OnThread[AccessControl]):
    """The access rules and tokens."""

    rules = awaited(AccessControl.rules)
    grant = awaited(AccessControl.grant)
    revoke = awaited(AccessControl.revoke)
    tokens = awaited(AccessControl.tokens)
    create_token = awaited(AccessControl.create_token)
    revoke_token = awaited(AccessControl.revoke_token)


class AsyncQuotas(OnThread[Quotas]):
    """The quotas of principals."""

    list = awaited(Quotas.list)
    set = awaited(Quotas.set)
    remove = awaited(Quotas.remove)


class AsyncSchemas(OnThread[Schemas]):
    """The schemas of streams."""

    set = awaited(Schemas.set)
    list = awaited(Schemas.list)
    get = awaited(Schemas.get)
    delete = awaited(Schemas.delete)


class AsyncProducer:
    """A producer for asyncio; ``async with`` opens and flushes it.

    Args:
        open_producer: opens the synchronous producer; blocks.
    """

    def __init__(self, open_producer: Callable[[], Producer]) -> None:
        self._open_producer = open_producer
        self._entry = asyncio.Lock()
        self._producer: Producer | None = None

    async def append(self, value: bytes | str | None, **record: Unpack[AppendOptions]) -> Ack:
        """Append a record and wait for its ack; as ``Producer.append``. Parallel calls batch."""
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
        """Accept no more records, without waiting; as ``Producer.abandon``."""
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
        if self._producer is None:
            self._producer = await asyncio.to_thread(self._open_producer)
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


class AsyncTransaction(ContextOnThread[Transaction]):
    """A transaction; ``async with`` begins it and commits, or aborts after an exception."""

    flush = awaited(Transaction.flush)
    commit = awaited(Transaction.commit)
    prepare = awaited(Transaction.prepare)
    abort = awaited(Transaction.abort)

    @property
    def id(self) -> str:
        """Return the transactional id."""
        return self._opened.id

    @property
    def has_ended(self) -> bool:
        """Return whether it was committed, aborted or prepared."""
        return self._opened.has_ended

    @property
    def staged_id(self) -> str:
        """Return the id for ending it once it is prepared; as ``Transaction.staged_id``."""
        return self._opened.staged_id

    async def append(
        self, stream: str, value: bytes | str | None, **record: Unpack[RecordOptions]
    ) -> Ack:
        """Append a record and wait until it is stored; as ``Transaction.append``."""
        check_options("append", record, TRANSACTION_APPEND_OPTIONS)
        future = await self._call(lambda begun: begun.append(stream, value, **record))
        return await asyncio.wrap_future(future)

    async def append_batch(
        self, stream: str, data: Any, *, partition: int | None = None
    ) -> BatchAck:
        """Append a table and wait until it is stored; as ``Transaction.append_batch``."""
        future = await self._call(
            lambda begun: begun.append_batch(stream, data, partition=partition)
        )
        return await asyncio.wrap_future(future)

    async def commit_offsets(
        self, group: str | AsyncConsumer, offsets: Offsets | None = None
    ) -> None:
        """Commit consumed offsets with the transaction; as ``Transaction.commit_offsets``."""
        member = group if isinstance(group, str) else await group.member()
        await self._call(lambda begun: begun.commit_offsets(member, offsets))


class AsyncStage(ContextOnThread[StagedWrite]):
    """One part of a batch; ``async with`` begins the part, and discards it without ``finish``."""

    append = awaited(StagedWrite.append)
    append_batch = awaited(StagedWrite.append_batch)
    commit_offsets = awaited(StagedWrite.commit_offsets)
    finish = awaited(StagedWrite.finish)

    @property
    def is_published(self) -> bool:
        """Return whether the batch is committed already, so that nothing is stored."""
        return self._opened.is_published


class AsyncClient(OnThread[Client]):
    """A client of brokers for asyncio. Use it as an ``async with`` context, or ``close`` it."""

    create_stream = awaited(Client.create_stream)
    add_partitions = awaited(Client.add_partitions)
    update_stream = awaited(Client.update_stream)
    delete_stream = awaited(Client.delete_stream)
    stream_info = awaited(Client.stream_info)
    list_streams = awaited(Client.list_streams)
    delete_records = awaited(Client.delete_records)
    offsets = awaited(Client.offsets)
    wait_for = awaited(Client.wait_for)
    server_info = awaited(Client.server_info)
    append_batch = awaited(Client.append_batch)
    commit_prepared = awaited(Client.commit_prepared)
    abort_prepared = awaited(Client.abort_prepared)
    commit_staged = awaited(Client.commit_staged)
    last_published = awaited(Client.last_published)
    transactions = awaited(Client.transactions)
    close = awaited(Client.close)
    abandon = awaited(Client.abandon)

    # Opened by ``async with``, or by their first use.
    producer = opened_later(Client.producer, AsyncProducer)
    transaction = opened_later(Client.transaction, AsyncTransaction)
    stage = opened_later(Client.stage, AsyncStage)
    subscribe = opened_later(Client.subscribe, AsyncSubscription, check=check_subscribe_options)

    @property
    def address(self) -> str:
        """The ``host:port`` of the broker that answered last."""
        return self._target.address

    async def append(
        self,
        stream: str,
        value: bytes | str | None,
        *,
        timeout_s: float = APPEND_TIMEOUT_S,
        **record: Unpack[AppendOptions],
    ) -> Ack:
        """Append one record; as ``Client.append``. Concurrent calls share batches."""
        check_options("append", record, APPEND_OPTIONS)
        with within(wait(timeout_s, "timeout_s")) as deadline_s:
            future = await self._call(lambda sync: sync.appender(stream).append(value, **record))
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise no_ack(timeout_s) from error

    async def read(self, stream: str, **options: Any) -> AsyncReader:
        """Read records as Arrow; as ``Client.read``, iterated with ``async for``."""
        return AsyncReader(await self._call(lambda sync: sync.open_read(stream, **options)))

    def consumer(self, group: str, streams: str | Iterable[str], **options: Any) -> AsyncConsumer:
        """Return a member of a consumer group, joined by ``async with``; as ``Client.consumer``."""
        check_options("consumer", options, Options._fields)
        join = functools.partial(self._target.consumer, group, streams, **options)
        return AsyncConsumer(group, join)

    @property
    def access(self) -> AsyncAccessControl:
        """Return the access rules and tokens; as ``Client.access``."""
        return AsyncAccessControl(self._target.access)

    @property
    def quotas(self) -> AsyncQuotas:
        """Return the quotas of principals; as ``Client.quotas``."""
        return AsyncQuotas(self._target.quotas)

    @property
    def schemas(self) -> AsyncSchemas:
        """Return the schemas of streams; as ``Client.schemas``."""
        return AsyncSchemas(self._target.schemas)

    @property
    def groups(self) -> AsyncGroups:
        """Return the consumer groups; as ``Client.groups``."""
        return AsyncGroups(self._target.groups)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._target.__exit__, kind, error, trace)


def _awaited_connect(
    connect_sync: Callable[P, Client],
) -> Callable[P, Coroutine[Any, Any, AsyncClient]]:
    async def connect_async(*args: P.args, **kwargs: P.kwargs) -> AsyncClient:
        return AsyncClient(await asyncio.to_thread(connect_sync, *args, **kwargs))

    functools.update_wrapper(connect_async, connect_sync)
    connect_async.__name__ = connect_async.__qualname__ = "connect_async"
    return connect_async


connect_async = _awaited_connect(connect)

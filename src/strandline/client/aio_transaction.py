"""Transactions for asyncio: the same names as ``Transaction``, run on threads."""

import asyncio
from functools import partial
from types import TracebackType
from typing import Any, Self

from strandline.client.aio_consumer import AsyncConsumer
from strandline.client.aio_thread import start_on_thread
from strandline.client.arguments import check_options, options_of
from strandline.client.client import Client
from strandline.client.consumer.offset_store import Offsets
from strandline.client.reader.results import Ack, BatchAck
from strandline.client.transactions.staged_write import StagedPart, StagedWrite
from strandline.client.transactions.transaction import Transaction
from strandline.errors import InvalidRequestError, StrandlineError

_APPEND_OPTIONS = options_of(Transaction.append)


class AsyncTransaction:
    """A transaction; ``async with`` begins it and commits, or aborts after an exception.

    Args:
        client: the client to use.
        transactional_id: as ``Client.transaction``.
        timeout_s: as ``Client.transaction``.
    """

    def __init__(self, client: Client, transactional_id: str, *, timeout_s: float) -> None:
        self._client = client
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._transaction: Transaction | None = None

    @property
    def _opened(self) -> Transaction:
        if self._transaction is None:
            raise InvalidRequestError(f"transaction {self._id!r} has not begun; use 'async with'")
        return self._transaction

    @property
    def id(self) -> str:
        """Return the transactional id."""
        return self._id

    @property
    def has_ended(self) -> bool:
        """Return whether it was committed, aborted or prepared."""
        return self._opened.has_ended

    @property
    def staged_id(self) -> str:
        """Return the id that ends it once prepared; as ``Transaction.staged_id``."""
        return self._opened.staged_id

    async def append(self, stream: str, value: bytes | str | None, **record: Any) -> Ack:
        """Append a record and wait until it is stored; as ``Transaction.append``."""
        check_options("append", record, _APPEND_OPTIONS)
        append = self._opened.append
        return await asyncio.wrap_future(await asyncio.to_thread(append, stream, value, **record))

    async def append_batch(
        self, stream: str, data: Any, *, partition: int | None = None
    ) -> BatchAck:
        """Append a table and wait until it is stored; as ``Transaction.append_batch``."""
        append = self._opened.append_batch
        future = await asyncio.to_thread(append, stream, data, partition=partition)
        return await asyncio.wrap_future(future)

    async def commit_offsets(
        self, group: str | AsyncConsumer, offsets: Offsets | None = None
    ) -> None:
        """Commit consumed offsets with the transaction; as ``Transaction.commit_offsets``."""
        member = group if isinstance(group, str) else await group.member()
        await asyncio.to_thread(self._opened.commit_offsets, member, offsets)

    async def flush(self) -> None:
        """Wait until every record is stored; as ``Transaction.flush``."""
        await asyncio.to_thread(self._opened.flush)

    async def commit(self) -> None:
        """Commit; as ``Transaction.commit``."""
        await asyncio.to_thread(self._opened.commit)

    async def prepare(self) -> str:
        """Prepare, and return the staged id; as ``Transaction.prepare``."""
        return await asyncio.to_thread(self._opened.prepare)

    async def abort(self) -> None:
        """Abort; as ``Transaction.abort``."""
        await asyncio.to_thread(self._opened.abort)

    async def __aenter__(self) -> Self:
        begin = partial(self._client.transaction, self._id, timeout_s=self._timeout_s)
        self._transaction = await start_on_thread(begin, undo=Transaction.abort)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened.has_ended:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except StrandlineError as failure:
            error.add_note(
                f"the transaction could not be aborted and ends at its timeout: {failure.message}"
            )


class AsyncStage:
    """One part of a batch; ``async with`` begins it, and discards it without ``finish``.

    Args:
        client: the client to use.
        transaction_id: as ``Client.stage``.
        batch_id: as ``Client.stage``.
        timeout_s: as ``Client.stage``.
    """

    def __init__(
        self, client: Client, transaction_id: str, batch_id: int, *, timeout_s: float
    ) -> None:
        self._client = client
        self._batch = (transaction_id, batch_id)
        self._timeout_s = timeout_s
        self._stage: StagedWrite | None = None

    @property
    def _opened(self) -> StagedWrite:
        if self._stage is None:
            raise InvalidRequestError("the stage has not begun; use 'async with'")
        return self._stage

    @property
    def is_published(self) -> bool:
        """Return whether the batch is committed already, so that nothing is stored."""
        return self._opened.is_published

    async def append(self, stream: str, value: bytes | str | None, **record: Any) -> None:
        """Append a record; as ``StagedWrite.append``."""
        await asyncio.to_thread(self._opened.append, stream, value, **record)

    async def append_batch(self, stream: str, data: Any, *, partition: int | None = None) -> None:
        """Append a table; as ``StagedWrite.append_batch``."""
        await asyncio.to_thread(self._opened.append_batch, stream, data, partition=partition)

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit consumed offsets with the part; as ``StagedWrite.commit_offsets``."""
        await asyncio.to_thread(self._opened.commit_offsets, group, offsets)

    async def finish(self) -> StagedPart:
        """Wait until everything is stored, and finish the part; as ``StagedWrite.finish``."""
        return await asyncio.to_thread(self._opened.finish)

    async def __aenter__(self) -> Self:
        begin = partial(self._client.stage, *self._batch, timeout_s=self._timeout_s)
        self._stage = await start_on_thread(
            begin, undo=lambda stage: stage.__exit__(None, None, None)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._opened.__exit__, kind, error, trace)


def _discard(stage: StagedWrite) -> None:
    stage.__exit__(None, None, None)

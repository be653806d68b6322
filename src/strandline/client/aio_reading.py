"""Reads and subscriptions for asyncio: each runs a synchronous one on a thread of its own."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Self

import pyarrow as pa

from strandline.client.aio_thread import DedicatedThread, Results
from strandline.client.reader.cluster_reader import ClusterReader
from strandline.client.reader.reading import BatchStream
from strandline.client.reader.results import Record
from strandline.client.reader.subscription import Subscription


class AsyncReader:
    """The record batches of a read, for ``async for``; a cancelled wait loses no batch.

    Args:
        stream: the synchronous read.
    """

    def __init__(self, stream: BatchStream | ClusterReader) -> None:
        self._stream = stream
        batches = stream.batches()
        self._thread = DedicatedThread("strandline-reader")
        self._batches = Results(self._thread, lambda: next(batches, None))
        self._is_closed = False
        self.schema = stream.schema

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises:
            StrandlineError: the read failed.
        """
        if self._is_closed:
            raise StopAsyncIteration
        batch = await self._batches.next()
        if batch is None:
            await self.close()
            raise StopAsyncIteration
        return batch

    async def read_all(self) -> pa.Table:
        """Return the remaining batches as a table."""
        batches = [batch async for batch in self]
        return pa.Table.from_batches(batches, self.schema)

    async def close(self) -> None:
        """End the read; has no effect when repeated."""
        self._is_closed = True
        self._stream.cancel()
        self._thread.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSubscription:
    """Records as they are stored, for ``async for``; the first iteration opens the subscription.

    A cancelled wait loses no record.

    Args:
        subscribe: opens the synchronous subscription; blocks.
    """

    def __init__(self, subscribe: Callable[[], Subscription]) -> None:
        self._subscribe = subscribe
        self._thread = DedicatedThread("strandline-subscription")
        self._subscription: Subscription | None = None
        self._records: Results[Record | None] | None = None
        self._is_closed = False
        self._positions: dict[int, int] = {}

    @property
    def added(self) -> Mapping[int, int]:
        """Return the partitions added since the start; as ``Subscription.added``."""
        return {} if self._subscription is None else self._subscription.added

    @property
    def positions(self) -> dict[int, int]:
        """Return the next offset of each partition; as ``Subscription.positions``."""
        # Not the subscription's own positions: they are beyond records that wait in this class.
        return {**self.added, **self._positions}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Wait for the next record and return it.

        Raises:
            StrandlineError: the subscription failed.
        """
        records = await self._open()
        record = None if self._is_closed else await records.next()
        if record is None:
            raise StopAsyncIteration
        self._positions[record.partition] = record.offset + 1
        return record

    async def close(self) -> None:
        """End the subscription; has no effect when repeated."""
        self._is_closed = True
        self._end()  # wakes a thread that waits for a record
        self._thread.submit(self._end)  # also ends a subscription that is being opened
        self._thread.end()

    def _end(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except asyncio.CancelledError:
            await self.close()  # ``async with`` does not call ``__aexit__`` here
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> Results[Record | None]:
        def subscribe() -> Results[Record | None]:
            # On the thread, since several tasks may be first, and a cancelled one may have opened
            # it.
            if self._records is None:
                subscription = self._subscription = self._subscribe()
                self._positions = subscription.positions
                self._records = Results(self._thread, lambda: next(subscription, None))
            return self._records

        if self._records is None:
            return await self._thread.run(subscribe)
        return self._records

"""The asynchronous consumer: runs a synchronous consumer on a thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Self, TypeVar

from strandline.client.aio_forward import Forwarding, awaited
from strandline.client.aio_thread import DedicatedThread
from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.offset_store import CommitCall, Offsets
from strandline.client.consumer.prefetcher import ConsumedBatch
from strandline.errors import DisconnectedError
from strandline.types import PartitionName

T = TypeVar("T")


class ThreadConsumer(NamedTuple):
    """A consumer as a transaction uses it: commits on the consumer's own thread."""

    consumer: Consumer
    thread: DedicatedThread

    @property
    def group(self) -> str:
        """Return the group's name."""
        return self.consumer.group

    def positions(self) -> dict[PartitionName, int]:
        """Return the next offset of each partition; as ``Consumer.positions``."""
        return self.thread.submit(self.consumer.positions).result()

    def commit_in_transaction(self, commit: CommitCall, offsets: Offsets) -> None:
        """Commit offsets in a transaction; as ``Consumer.commit_in_transaction``."""
        self.thread.submit(lambda: self.consumer.commit_in_transaction(commit, offsets)).result()


def _take_back(consumer: Consumer, polled: "Future[list[ConsumedBatch]]") -> None:
    """Give batches that no caller received to the next poll; an error will occur there again."""
    consumer.unread([] if polled.exception() is not None else polled.result())


class AsyncConsumer(Forwarding[Consumer]):
    """A member of a consumer group for asyncio; ``async with`` joins and leaves.

    Callbacks are plain functions: they run inside ``poll`` on the consumer's own thread, with the
    synchronous ``Consumer`` as argument.

    Args:
        group: the group's name.
        join: makes the synchronous consumer.
    """

    assignment = awaited(Consumer.assignment)
    positions = awaited(Consumer.positions)
    seek = awaited(Consumer.seek)
    pause = awaited(Consumer.pause)
    resume = awaited(Consumer.resume)
    lag = awaited(Consumer.lag)
    commit = awaited(Consumer.commit)

    def __init__(self, group: str, join: Callable[[], Consumer]) -> None:
        self.group = group
        self._join = join
        self._thread = DedicatedThread("strandline-consumer")
        self._consumer: Consumer | None = None
        self._is_closed = False

    async def poll(self, timeout_s: float = 1.0) -> list[ConsumedBatch]:
        """Return records as soon as there are any; as ``Consumer.poll``.

        The records of a cancelled poll are returned by the next one.
        """
        consumer = await self._joined()
        polled = self._thread.submit(lambda: consumer.poll(timeout_s))
        try:
            return await asyncio.wrap_future(polled)
        except asyncio.CancelledError:
            if not polled.cancel():  # it is running already
                consumer.wakeup()
                self._thread.submit(lambda: _take_back(consumer, polled))
            raise

    async def member(self) -> ThreadConsumer:
        """Return the consumer in the form that ``AsyncTransaction.commit_offsets`` needs."""
        return ThreadConsumer(await self._joined(), self._thread)

    async def close(self, *, commit: bool = True) -> None:
        """Leave the group; as ``Consumer.close``."""
        self._is_closed = True
        try:
            await self._thread.run(lambda: self._leave(commit=commit))  # queued behind a join
        finally:
            self._thread.end()

    def _leave(self, *, commit: bool) -> None:
        if self._consumer is not None:
            self._consumer.close(commit=commit)

    async def __aenter__(self) -> Self:
        try:
            await self._joined()
        except asyncio.CancelledError:
            # ``async with`` does not call ``__aexit__`` here, so the member would keep its
            # partitions.
            self._is_closed = True
            self._thread.submit(lambda: self._leave(commit=False))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(commit=kind is None)

    async def _joined(self) -> Consumer:
        def join() -> Consumer:
            # On the thread, since several tasks may be first, and a cancelled one may have joined.
            if self._is_closed:
                raise DisconnectedError("this consumer is closed; create another")
            if self._consumer is None:
                self._consumer = self._join()
            return self._consumer

        if self._consumer is None:
            return await self._thread.run(join)
        return self._consumer

    async def _call(self, call: Callable[[Consumer], T]) -> T:
        consumer = await self._joined()
        return await self._thread.run(lambda: call(consumer))

"""Consumers of a group for asyncio: the synchronous one, on a thread of its own."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, Self, TypeVar

from strandline.client.aio_thread import OneThread
from strandline.client.consumer import Consumer
from strandline.client.positions import Offsets, Tell
from strandline.client.prefetcher import ConsumedBatch
from strandline.client.reading import Place
from strandline.errors import DisconnectedError
from strandline.types import PartitionName

T = TypeVar("T")


class MemberOfThread(NamedTuple):
    """A consumer for a transaction, which commits on a thread of its own."""

    consumer: Consumer
    thread: OneThread

    @property
    def group(self) -> str:
        """As ``Consumer.group``."""
        return self.consumer.group

    def positions(self) -> dict[PartitionName, int]:
        """As ``Consumer.positions``."""
        return self.thread.submit(self.consumer.positions).result()

    def commit_in_transaction(self, tell: Tell, offsets: Offsets) -> None:
        """As ``Consumer.commit_in_transaction``."""
        self.thread.submit(lambda: self.consumer.commit_in_transaction(tell, offsets)).result()


def _take_back(consumer: Consumer, polled: "Future[list[ConsumedBatch]]") -> None:
    """Let the next poll have what nobody has waited for; an error comes again by itself."""
    consumer.unread([] if polled.exception() is not None else polled.result())


class AsyncConsumer:
    """A member of a consumer group for asyncio; ``async with`` joins and leaves.

    Callbacks are plain functions: they run on the consumer's own thread, inside ``poll``, and are
    given the synchronous ``Consumer``.

    Args:
        group: its name.
        join: makes the synchronous consumer.
    """

    def __init__(self, group: str, join: Callable[[], Consumer]) -> None:
        self.group = group
        self._join = join
        self._thread = OneThread("strandline-consumer")
        self._consumer: Consumer | None = None
        self._is_closed = False

    async def poll(self, timeout_s: float = 1.0) -> list[ConsumedBatch]:
        """Records, as soon as there are any; as ``Consumer.poll``.

        One that is cancelled, by a timeout perhaps, leaves what it finds to the next.
        """
        consumer = await self._joined()
        polled = self._thread.submit(lambda: consumer.poll(timeout_s))
        try:
            return await asyncio.wrap_future(polled)
        except asyncio.CancelledError:
            if not polled.cancel():  # it has begun
                consumer.interrupt()
                self._thread.submit(lambda: _take_back(consumer, polled))
            raise

    async def assignment(self) -> frozenset[PartitionName]:
        """The partitions of this member; as ``Consumer.assignment``."""
        return await self._do(Consumer.assignment)

    async def positions(self) -> dict[PartitionName, int]:
        """The next record of each partition; as ``Consumer.positions``."""
        return await self._do(Consumer.positions)

    async def seek(self, stream: str, partition: int, to: Place) -> None:
        """Go on elsewhere; as ``Consumer.seek``."""
        await self._do(lambda consumer: consumer.seek(stream, partition, to))

    async def pause(self, stream: str, partition: int) -> None:
        """Hand out nothing of a partition; as ``Consumer.pause``."""
        await self._do(lambda consumer: consumer.pause(stream, partition))

    async def resume(self, stream: str, partition: int) -> None:
        """Hand it out again; as ``Consumer.resume``."""
        await self._do(lambda consumer: consumer.resume(stream, partition))

    async def lag(self) -> dict[PartitionName, int]:
        """What was not handed out yet; as ``Consumer.lag``."""
        return await self._do(Consumer.lag)

    async def commit(self, offsets: Mapping[PartitionName, int] | None = None) -> None:
        """Note how far the group has come; as ``Consumer.commit``."""
        await self._do(lambda consumer: consumer.commit(offsets))

    async def member(self) -> MemberOfThread:
        """Itself, as a transaction has it; what ``AsyncTransaction.commit_offsets`` takes."""
        return MemberOfThread(await self._joined(), self._thread)

    async def close(self, *, commit: bool = True) -> None:
        """Leave the group; as ``Consumer.close``."""
        self._is_closed = True
        try:
            await self._thread.run(lambda: self._leave(commit=commit))  # behind who is joining
        finally:
            self._thread.end()

    def _leave(self, *, commit: bool) -> None:
        if self._consumer is not None:
            self._consumer.close(commit=commit)

    async def __aenter__(self) -> Self:
        try:
            await self._joined()
        except asyncio.CancelledError:
            # A context that was not entered is not left: it would hold its partitions for long.
            self._is_closed = True
            self._thread.submit(lambda: self._leave(commit=False))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(commit=kind is None)

    async def _joined(self) -> Consumer:
        def join() -> Consumer:
            # Asked on the thread: several tasks may be the first, and those cancelled have joined.
            if self._is_closed:
                raise DisconnectedError("this consumer is closed; make another")
            if self._consumer is None:
                self._consumer = self._join()
            return self._consumer

        if self._consumer is None:
            return await self._thread.run(join)
        return self._consumer

    async def _do(self, call: Callable[[Consumer], T]) -> T:
        consumer = await self._joined()
        return await self._thread.run(lambda: call(consumer))

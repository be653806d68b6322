"""A reader of one partition for a consumer of all partitions, wherever the partition is led.

Rule: the leader of the partition reads it: this broker on threads, another broker on request.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from strandline.broker.write_path.partition import Partition
from strandline.core.consumers.state import ConsumerState
from strandline.errors import UnavailableError
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.partition_queries import (
    Ask,
    PartitionAnswer,
    PartitionQuery,
    RemoteEnds,
)
from strandline.servers.nats.jetstream.partition_reader import OnThread, PartitionReader, ReadPart
from strandline.servers.nats.jetstream.starts import start_of
from strandline.servers.nats.jetstream.state import RecordCounter
from strandline.servers.nats.jetstream.views import JetStreamView


class MergedHost(NamedTuple):
    """State that all consumers of several partitions share."""

    find: Callable[[str], Partition | None]
    """Returns the partition of a name if this broker leads it, else None."""
    ask: Ask
    ends: RemoteEnds
    counter: RecordCounter
    on_thread: OnThread


class MergedReader:
    """A reader of one of several partitions; ``PartitionReader`` describes the methods.

    Args:
        name: the partition's name, as clients know it.
        filters: patterns of the records' subjects.
        host: the state shared by such consumers.
    """

    def __init__(self, name: str, filters: tuple[str, ...], host: MergedHost) -> None:
        self._name = name
        self._filters = filters
        self._host = host
        self._local: PartitionReader | None = None
        self._remote_start = 0
        self._watched: Partition | None = None

    def _here(self) -> PartitionReader | None:
        """Return the local reader; None if another broker leads the partition.

        Raises:
            UnavailableError: this broker has just begun to lead and does not know its end yet.
        """
        partition = self._host.find(self._name)
        if partition is None:
            self._local = None
            return None
        if not partition.knows_end:
            # Records that have been delivered would look deleted.
            raise UnavailableError(f"the new leader of {partition.name} does not know its end yet")
        if self._local is None or self._local.partition is not partition:
            host = self._host
            self._local = PartitionReader(
                partition, self._filters, counter=host.counter, on_thread=host.on_thread
            )
        return self._local

    async def _ask(self, query: PartitionQuery) -> PartitionAnswer:
        answer = await self._host.ask(self._name, query)
        self._remote_start = answer.log_start_offset
        self._host.ends.saw(self._name, answer.end)
        return answer

    @property
    def log_start_offset(self) -> int:
        """The offset before which records were deleted."""
        return self._local.log_start_offset if self._local is not None else self._remote_start

    async def read(self, start: int) -> ReadPart:
        """Read the next records from an offset on."""
        local = self._here()
        if local is not None:
            return await local.read(start)
        found = await self._ask(PartitionQuery(self._filters, read_from=start))
        run = MessageRun.of(found.messages)
        return ReadPart(run, found.position, found.position >= found.end)

    async def read_at(self, offsets: list[int]) -> dict[int, StoredMessage | None]:
        """Read the records at some offsets."""
        local = self._here()
        if local is not None:
            return await local.read_at(offsets)
        answer = await self._ask(PartitionQuery(offsets=tuple(offsets)))
        found: dict[int, StoredMessage | None] = {each.sequence: each for each in answer.messages}
        return found | dict.fromkeys(answer.missing)

    async def count(self, after: int) -> int:
        """Return how many records follow a sequence."""
        local = self._here()
        if local is not None:
            return await local.count(after)
        return (await self._ask(PartitionQuery(self._filters, count_after=after))).number

    async def begin(self, config: ConsumerConfig) -> int:
        """Return the sequence before the first record of a new consumer."""
        local = self._here()
        if local is not None:
            return cast("int", await self._host.on_thread(start_of, local.partition, config))
        return (await self._ask(PartitionQuery(begin=config))).number

    def passed(self, last: int, count: int) -> None:
        """Note that ``count`` records up to a sequence were delivered."""
        if self._local is not None:
            self._local.passed(last, count)

    def has_more(self, sequence: int) -> bool:
        """Return whether there is a record with this sequence or a later one."""
        partition = self._host.find(self._name)
        if partition is not None:
            return partition.last_stable_offset >= sequence
        return self._host.ends.known(self._name) >= sequence

    def watch(self, event: asyncio.Event) -> None:
        """Set an event whenever a record arrives."""
        partition = self._host.find(self._name)
        if partition is not None:
            self._watched = partition
            partition.watch(event)
        else:
            self._host.ends.watch(self._name, event)

    def unwatch(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.unwatch(event)
        else:
            self._host.ends.unwatch(self._name, event)


async def first_state(
    view: JetStreamView, config: ConsumerConfig, host: MergedHost
) -> ConsumerState:
    """Return the first state of a new consumer of a stream.

    Raises:
        StrandlineError, ApiRejection: the position where it begins cannot be found now.
    """
    if view.is_exact:
        before = await host.on_thread(start_of, view.partitions[0], config)
        return ConsumerState(delivered_stream=before, floor_stream=before)
    names = [f"{view.name}:{number}" for number in range(len(view.partitions))]
    readers = [MergedReader(each, config.filters, host) for each in names]
    positions = await asyncio.gather(*(each.begin(config) for each in readers))
    count = sum(positions)
    return ConsumerState(delivered_stream=count, floor_stream=count, positions=positions)

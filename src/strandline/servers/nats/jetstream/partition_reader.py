"""A reader of a partition that this broker leads, for a consumer; it reads on threads."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import compress
from typing import Any, NamedTuple, cast

from strandline.broker.write_path.partition import Partition
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.pending_counter import PendingCounter
from strandline.servers.nats.jetstream.records import messages_at, read_some
from strandline.servers.nats.jetstream.starts import find_heads
from strandline.servers.nats.jetstream.state import RecordCounter

OnThread = Callable[..., Awaitable[Any]]


class ReadPart(NamedTuple):
    """The records that were read from an offset on."""

    run: MessageRun
    position: int
    """The offset at which to continue; no other record before it passes the filters."""
    is_end: bool
    """Whether no record follows yet."""


class PartitionReader:
    """A reader and counter of the records that pass a consumer's filters.

    Args:
        partition: the partition.
        filters: patterns of the records' subjects; if empty, all records pass.
        counter: counts records where there are no filters.
        on_thread: runs a function that reads files.
        heads_to: up to this sequence only each subject's last record passes; 0: all do.
    """

    def __init__(
        self,
        partition: Partition,
        filters: tuple[str, ...],
        *,
        counter: RecordCounter,
        on_thread: OnThread,
        heads_to: int = 0,
    ) -> None:
        self.partition = partition
        self._filters = filters
        self._on_thread = on_thread
        self._heads_to = heads_to
        self._search = partition.find_runs(*filters)
        self._pending = PendingCounter(partition, counter, filters)

    @property
    def log_start_offset(self) -> int:
        """The offset before which records were deleted."""
        return self.partition.log_start_offset

    async def read(self, start: int) -> ReadPart:
        """Read the next records from an offset on."""
        heads = self._pending.heads
        if heads is not None and start < heads.end:
            head = heads.after(start)
            start = heads.end if head is None else head - 1
        run, position = await self._on_thread(read_some, self.partition, start, self._search)
        if heads is not None:
            wanted = [each > heads.end or each in heads for each in run.sequences]
            if not all(wanted):
                run = MessageRun.of(compress(run.messages(), wanted))
        return ReadPart(run, position, position >= self.partition.last_stable_offset)

    async def read_at(self, offsets: list[int]) -> dict[int, StoredMessage | None]:
        """Read the records at some offsets; ``messages_at`` describes the result."""
        found = await self._on_thread(messages_at, self.partition, offsets)
        return cast("dict[int, StoredMessage | None]", found)

    async def count(self, after: int) -> int:
        """Return how many records follow a sequence."""
        if self._heads_to and self._pending.heads is None:
            self._pending.heads = await self._on_thread(
                find_heads, self.partition, self._filters, self._heads_to
            )
        if self._pending.reads_nothing:
            return self._pending.refresh(after)
        return cast("int", await self._on_thread(self._pending.refresh, after))

    def passed(self, last: int, count: int) -> None:
        """Note that ``count`` records up to a sequence were delivered."""
        self._pending.passed(last, count)

    def has_more(self, sequence: int) -> bool:
        """Return whether there is a record with this sequence or a later one."""
        return self.partition.last_stable_offset >= sequence

    def watch(self, event: asyncio.Event) -> None:
        """Set an event whenever a record arrives."""
        self.partition.watch(event)

    def unwatch(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self.partition.unwatch(event)

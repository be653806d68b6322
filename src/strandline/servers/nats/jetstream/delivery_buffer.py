"""Records that a consumer has read ahead: new ones, and those due for redelivery.

Rules: new records are read in runs, which wait here until pulls want them. Records due for
redelivery are read together. Records that have been deleted since they were read are not delivered.
"""

import asyncio
from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from strandline.core.consumers.consumer import Wanted
from strandline.servers.nats.headers import VERSION_LINE
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.partition_reader import ReadPart

OVERDUE_BYTES_MAX: Final = 1 << 20
RUN_MESSAGES: Final = 512
SIZE_HEADER: Final = b"Nats-Msg-Size"


class ReadRun(NamedTuple):
    """Messages to deliver, and how many bytes each counts for the limit of a pull."""

    messages: MessageRun
    sizes: list[int]

    def between(self, start: int, stop: int) -> "ReadRun":
        """Return the messages with indexes from ``start`` to ``stop``."""
        return ReadRun(self.messages.between(start, stop), self.sizes[start:stop])


NOTHING: Final = ReadRun(MessageRun.of(()), [])


class Passed(NamedTuple):
    """The outcome of a read that found nothing to deliver."""

    sequences: list[int]
    """Sequences, one of each partition read, up to which no record passes the filters."""
    is_end: bool
    """Whether no record follows yet."""


class Reader(Protocol):
    """The interface of a reader of one partition; ``PartitionReader`` describes the methods."""

    @property
    def log_start_offset(self) -> int: ...  # noqa: D102  there
    async def read(self, start: int) -> ReadPart: ...  # noqa: D102  there
    async def read_at(self, offsets: list[int]) -> dict[int, StoredMessage | None]: ...  # noqa: D102  there
    async def count(self, after: int) -> int: ...  # noqa: D102  there
    def passed(self, last: int, count: int) -> None: ...  # noqa: D102  there
    def has_more(self, sequence: int) -> bool: ...  # noqa: D102  there
    def watch(self, event: asyncio.Event) -> None: ...  # noqa: D102  there
    def unwatch(self, event: asyncio.Event) -> None: ...  # noqa: D102  there


class DeliveryBuffer:
    """The records of one partition that a consumer has read ahead.

    Args:
        stream: the stream's name, as clients know it.
        config: the consumer's settings.
        reader: the reader of the partition.
    """

    def __init__(self, stream: str, config: ConsumerConfig, reader: Reader) -> None:
        self._config = config
        self.reader = reader
        self._fixed_size = len(stream) + len(config.name) + 40
        """What each message counts for a pull's limit of bytes, in addition to subject, headers and
        payload."""
        self._fresh = NOTHING
        """New records."""
        self._fresh_at = 0
        """The index of the next new record to deliver."""
        self._overdue: dict[int, StoredMessage | None] = {}
        """Records due for redelivery by sequence; None if the record is no longer stored."""
        self._read_to = -1
        """The offset at which reading continues; -1 if unknown."""

    def buffered(self, wanted: Wanted) -> ReadRun:
        """Return wanted records that were read ahead: one to redeliver, or new ones."""
        if wanted.is_again:
            is_kept = wanted.sequence > self.reader.log_start_offset
            message = self._overdue.get(wanted.sequence) if is_kept else None
            return NOTHING if message is None else self._shown(MessageRun.of([message]))
        first = max(wanted.sequence, self.reader.log_start_offset + 1)
        sequences = self._fresh.messages.sequences
        # Records before it were delivered, or deleted since they were read.
        self._fresh_at = bisect_left(sequences, first, self._fresh_at)
        return self._fresh.between(self._fresh_at, self._fresh_at + RUN_MESSAGES)

    def delivered(self, last: int, count: int, *, is_again: bool) -> None:
        """Note that records up to a sequence were delivered."""
        if is_again:
            del self._overdue[last]
        else:
            self._fresh_at += count
            self.reader.passed(last, count)

    def passed(self, last: int) -> None:
        """Note that no record up to a sequence passes the filters."""
        self.reader.passed(last, 0)

    async def count(self, after: int, *, is_exact: bool = True) -> int:  # noqa: ARG002  always
        """Return how many records after a sequence pass the filters."""
        return await self.reader.count(after)

    async def read_again(self, sequence: int, due: list[int]) -> list[int]:
        """Read a record to redeliver, together with others that are due.

        Returns:
            The sequences of those that cannot be read now.
        """
        if sequence in self._overdue:
            return []
        # Records that have been acknowledged since they were read are dropped.
        kept = {each: self._overdue[each] for each in due if each in self._overdue}
        if sum(len(each.payload) for each in kept.values() if each) > OVERDUE_BYTES_MAX:
            kept = {}  # too much is held: records become due in another order than they are stored
        offsets = [each - 1 for each in due if each not in kept]
        self._overdue = kept | await self.reader.read_at(offsets)
        return []

    async def read_new(self, sequence: int) -> Passed | None:
        """Read the next records from a sequence on that pass the filters.

        Returns:
            None if records were found.
        """
        run, self._read_to, is_end = await self.reader.read(max(self._read_to, sequence - 1))
        if not run.sequences:
            return Passed([self._read_to], is_end)
        self._fresh, self._fresh_at = self._shown(run), 0
        return None

    def is_gone(self, sequence: int) -> bool:
        """Return whether a record is no longer stored."""
        return sequence <= self.reader.log_start_offset

    def has_more(self, wanted: Wanted) -> bool:
        """Return whether the wanted records may exist."""
        return wanted.is_again or self.reader.has_more(wanted.sequence)

    @property
    def retry_ms(self) -> float | None:
        """The time of the next attempt after a failed read; None if none has failed."""
        return None

    def watch(self, event: asyncio.Event) -> None:
        """Set an event whenever a record arrives."""
        self.reader.watch(event)

    def unwatch(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self.reader.unwatch(event)

    def close(self) -> None:
        """Do nothing: no read continues in the background."""

    def _shown(self, run: MessageRun) -> ReadRun:
        """Return messages in the form that this consumer delivers."""
        if self._config.headers_only:
            run = MessageRun.of(map(_without_payload, run.messages()))
        columns = zip(run.subjects, run.blocks, run.payloads, strict=True)
        return ReadRun(run, [self._fixed_size + len(s) + len(b) + len(p) for s, b, p in columns])


def first_part(run: ReadRun, count: int, bytes_max: int) -> ReadRun:
    """Return at most ``count`` records, up to and including the one that reaches ``bytes_max``."""
    if sum(run.sizes) > bytes_max:
        count = min(count, bisect_left(list(accumulate(run.sizes)), bytes_max) + 1)
    return run if len(run.sizes) <= count else run.between(0, count)


def _without_payload(message: StoredMessage) -> StoredMessage:
    """Return a message without its payload, with a header for the payload's size."""
    size = b"%b: %d\r\n\r\n" % (SIZE_HEADER, len(message.payload))
    block = (message.block[:-2] or VERSION_LINE + b"\r\n") + size
    return message._replace(block=block, payload=b"")

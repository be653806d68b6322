"""Records that a consumer has read ahead: new ones, and those due for redelivery.

Rules: new records are read in runs, which wait here until pulls want them; redeliveries are read
together, as they are due. Records that were deleted meanwhile are not given out.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast

from strandline.broker.write_path.partition import Partition
from strandline.core.consumers.consumer import Wanted
from strandline.servers.nats.headers import VERSION_LINE
from strandline.servers.nats.jetstream.consumer_info import KeptConsumer
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.pending_counter import PendingCounter
from strandline.servers.nats.jetstream.records import messages_at, read_some
from strandline.servers.nats.jetstream.starts import find_heads
from strandline.servers.nats.jetstream.state import RecordCounter

OVERDUE_BYTES_MAX: Final = 1 << 20
RUN_MESSAGES: Final = 512
SIZE_HEADER: Final = b"Nats-Msg-Size"


class ReadRun(NamedTuple):
    """Messages as the consumer delivers them, and what each counts for a pull's limit."""

    messages: MessageRun
    sizes: list[int]

    def between(self, start: int, stop: int) -> "ReadRun":
        """Return a part of it."""
        return ReadRun(self.messages.between(start, stop), self.sizes[start:stop])


NOTHING: Final = ReadRun(MessageRun.of(()), [])


class DeliveryBuffer:
    """The records that a consumer has read ahead.

    Args:
        stream: the name of its stream, as clients know it.
        partition: of the records.
        kept: its settings.
        counter: counts records without a filter.
        on_thread: runs what reads files.
    """

    def __init__(
        self,
        stream: str,
        partition: Partition,
        kept: KeptConsumer,
        *,
        counter: RecordCounter,
        on_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._partition = partition
        self._kept = kept
        self._on_thread = on_thread
        self._fixed_size = len(stream) + len(kept.config.name) + 40
        """Bytes that a message counts towards a pull's byte limit, besides subject, headers and
        payload."""
        self._pending = PendingCounter(partition, counter, kept.config.filters)
        self._search = partition.find_runs(*kept.config.filters)
        self._fresh = NOTHING
        """New records."""
        self._fresh_at = 0
        """How many of them were delivered."""
        self._overdue: dict[int, StoredMessage | None] = {}
        """Records due for redelivery, by sequence; None: it is no longer there."""
        self._read_to = -1
        """The offset to read on from; -1: unknown."""

    def buffered(self, wanted: Wanted) -> ReadRun:
        """Return what is wanted and was read ahead: one record again, or new ones."""
        if wanted.is_again:
            is_kept = wanted.sequence > self._partition.log_start_offset
            message = self._overdue.get(wanted.sequence) if is_kept else None
            return NOTHING if message is None else self._shown(MessageRun.of([message]))
        first = max(wanted.sequence, self._partition.log_start_offset + 1)
        sequences = self._fresh.messages.sequences
        # Those before were delivered, or deleted since they were read.
        self._fresh_at = bisect_left(sequences, first, self._fresh_at)
        return self._fresh.between(self._fresh_at, self._fresh_at + RUN_MESSAGES)

    def delivered(self, last: int, count: int, *, is_again: bool) -> None:
        """Note the delivery of some records, up to a sequence."""
        if is_again:
            del self._overdue[last]
        else:
            self._fresh_at += count
            self._pending.passed(last, count)

    def passed(self, last: int) -> None:
        """Note that no record up to a sequence passes the filters."""
        self._pending.passed(last, 0)

    async def count(self, after: int) -> int:
        """Return how many records that pass the filters follow a sequence."""
        if self._kept.heads_to and self._pending.heads is None:
            self._pending.heads = await self._on_thread(
                find_heads, self._partition, self._kept.config.filters, self._kept.heads_to
            )
        if self._pending.reads_nothing:
            return self._pending.refresh(after)
        return cast("int", await self._on_thread(self._pending.refresh, after))

    async def read_again(self, sequence: int, due: list[int]) -> None:
        """Read a record that is due for redelivery, and others that are due ahead."""
        if sequence in self._overdue:
            return
        # Some may have been acknowledged since they were read.
        kept = {each: self._overdue[each] for each in due if each in self._overdue}
        if sum(len(each.payload) for each in kept.values() if each) > OVERDUE_BYTES_MAX:
            kept = {}  # they are due in another order than they are stored in
        offsets = [each - 1 for each in due if each not in kept]
        self._overdue = kept | await self._on_thread(messages_at, self._partition, offsets)

    async def read_new(self, sequence: int) -> int | None:
        """Read the next records that pass the filters, from a sequence on.

        Returns:
            None if there are some; else up to which sequence there are none.
        """
        start, heads = max(self._read_to, sequence - 1), self._pending.heads
        if heads is not None and start < heads.end:
            head = heads.after(start)
            start = heads.end if head is None else head - 1
        run, self._read_to = await self._on_thread(read_some, self._partition, start, self._search)
        if heads is not None:
            found = [m for m in run.messages() if m.sequence > heads.end or m.sequence in heads]
            run = MessageRun.of(found)
        if not run.sequences:
            return self._read_to
        self._fresh, self._fresh_at = self._shown(run), 0
        return None

    def _shown(self, run: MessageRun) -> ReadRun:
        """Return messages as this consumer delivers them."""
        if self._kept.config.headers_only:
            run = MessageRun.of(map(_without_payload, run.messages()))
        columns = zip(run.subjects, run.blocks, run.payloads, strict=True)
        return ReadRun(run, [self._fixed_size + len(s) + len(b) + len(p) for s, b, p in columns])


def first_part(run: ReadRun, count: int, bytes_max: int) -> ReadRun:
    """Return at most ``count`` records, up to and including the one that reaches ``bytes_max``."""
    if sum(run.sizes) > bytes_max:
        count = min(count, bisect_left(list(accumulate(run.sizes)), bytes_max) + 1)
    return run if len(run.sizes) <= count else run.between(0, count)


def _without_payload(message: StoredMessage) -> StoredMessage:
    """Return a message with nothing but its headers, and one about its size."""
    size = b"%b: %d\r\n\r\n" % (SIZE_HEADER, len(message.payload))
    block = (message.block[:-2] or VERSION_LINE + b"\r\n") + size
    return message._replace(block=block, payload=b"")

"""Records of several partitions that one consumer has read ahead.

Rules: partitions take turns, a run of records each; each one's records stay in order. All
    partitions
are read at the same time. A partition that does not answer does not delay the others: its read
continues without being awaited. A partition that cannot be read is left out for a while.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from strandline.core.consumers.consumer import Wanted
from strandline.core.consumers.state import ConsumerState, merged_sequence, split_sequence
from strandline.errors import StrandlineError
from strandline.servers.nats.jetstream.delivery_buffer import (
    NOTHING,
    DeliveryBuffer,
    Passed,
    ReadRun,
)
from strandline.servers.nats.jetstream.errors import ApiRejection

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 0.5
RETRY_MS: Final = 1_000.0
_FAILURES: Final = (StrandlineError, ApiRejection, TimeoutError)


class _PartitionState:
    """A partition: its buffer, and the state of reading it."""

    def __init__(self, buffer: DeliveryBuffer) -> None:
        self.buffer = buffer
        self.reading: asyncio.Task[Passed | None] | None = None
        self.slow_s = 0.0
        """The loop time from which its present read is no longer awaited."""
        self.wakes = False
        """Whether the consumer is woken when the read ends."""
        self.retry_ms: float | None = None
        """When a partition that cannot be read is tried again; None if it can be read."""
        self.pending = 0
        """How many records were still to be delivered, by the last count."""


class MergedBuffer:
    """The records of several partitions that a consumer has read ahead.

    Args:
        name: the consumer's name, for the log.
        parts: the buffers of the partitions, in order.
        state: the consumer's state, with the position in each partition.
        now_ms: returns the time.
        wake: set when a read that is no longer awaited has ended.
    """

    def __init__(
        self,
        name: str,
        parts: list[DeliveryBuffer],
        state: ConsumerState,
        *,
        now_ms: Callable[[], float],
        wake: asyncio.Event,
    ) -> None:
        self._name = name
        self._parts = list(map(_PartitionState, parts))
        self._state = state
        self._now_ms = now_ms
        self._wake = wake
        self._turn = 0
        """The partition whose turn it is."""

    def _wanted(self, number: int) -> Wanted:
        """Return the next new record of a partition as the wanted one."""
        return Wanted(self._state.positions[number] + 1, is_again=False)

    def _merged(self, run: ReadRun, number: int) -> ReadRun:
        """Return records of a partition with the sequences that clients see."""
        count = len(self._parts)
        sequences = [merged_sequence(each, number, count) for each in run.messages.sequences]
        return run._replace(messages=run.messages._replace(sequences=sequences))

    def buffered(self, wanted: Wanted) -> ReadRun:
        """Return wanted records that were read ahead: one to redeliver, or new ones."""
        count = len(self._parts)
        if wanted.is_again:
            within, number = split_sequence(wanted.sequence, count)
            run = self._parts[number].buffer.buffered(Wanted(within, is_again=True))
            return self._merged(run, number)
        for step in range(count):
            number = (self._turn + step) % count
            run = self._parts[number].buffer.buffered(self._wanted(number))
            if run.sizes:
                return self._merged(run, number)
        return NOTHING

    def delivered(self, last: int, count: int, *, is_again: bool) -> None:
        """Note that records of one partition, up to a sequence, were delivered."""
        within, number = split_sequence(last, len(self._parts))
        part = self._parts[number]
        part.buffer.delivered(within, count, is_again=is_again)
        if not is_again:
            part.pending = max(0, part.pending - count)
            self._turn = (number + 1) % len(self._parts)

    def passed(self, _last: int) -> None:
        """Note that no record up to the consumer's positions passes the filters."""
        for part, position in zip(self._parts, self._state.positions, strict=True):
            part.buffer.passed(position)

    # Counting

    async def count(self, _after: int, *, is_exact: bool = False) -> int:
        """Return how many records that pass the filters are still to be delivered.

        Args:
            is_exact: whether a partition that cannot be counted is an error; if not, its last count
                is used.

        Raises:
            StrandlineError, ApiRejection: a partition cannot be counted now.
        """
        numbers = range(len(self._parts))
        return sum(
            await asyncio.gather(*(self._count(each, is_exact=is_exact) for each in numbers))
        )

    async def _count(self, number: int, *, is_exact: bool) -> int:
        part, position = self._parts[number], self._state.positions[number]
        if is_exact:
            return await part.buffer.count(position)
        if not self._is_absent(part):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    part.pending = await part.buffer.count(position)
            except _FAILURES as error:
                self._failed(number, error)
        return part.pending

    # Reading

    async def read_again(self, sequence: int, due: list[int]) -> list[int]:
        """Read a record to redeliver, together with others of its partition that are due.

        Returns:
            The sequences of those that cannot be read now.
        """
        count = len(self._parts)
        within, number = split_sequence(sequence, count)
        part = self._parts[number]
        places = [split_sequence(each, count) for each in due]
        together = [place for place, other in places if other == number]
        if not self._is_absent(part):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await part.buffer.read_again(within, together)
            except _FAILURES as error:
                self._failed(number, error)
        return [merged_sequence(each, number, count) for each in together]

    async def read_new(self, _sequence: int) -> Passed | None:
        """Read the next records of all partitions that pass the filters.

        Returns:
            None if records were found.
        """
        loop = asyncio.get_running_loop()
        passed: list[int] = []
        ends: set[int] = set()
        for number, part in enumerate(self._parts):
            if part.reading is not None and part.reading.done():
                self._settle(number, passed, ends)
        for number in range(len(self._parts)):
            if number not in ends:
                self._begin(number)
        while not self._has_records and (awaited := self._awaited):
            left_s = min(part.slow_s for part in awaited.values()) - loop.time()
            await asyncio.wait(
                awaited, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            for number, part in enumerate(self._parts):
                if part.reading is not None and part.reading.done():
                    self._settle(number, passed, ends)
        for part in self._parts:
            if part.reading is not None and not part.wakes:
                part.wakes = True  # from now on the read may no longer be awaited
                part.reading.add_done_callback(lambda _: self._wake.set())
        if self._has_records and not passed:
            return None
        is_end = all(
            number in ends or self._is_absent(part) or part.reading is not None
            for number, part in enumerate(self._parts)
        )
        return Passed(passed, is_end and not self._has_records)

    @property
    def _awaited(self) -> dict[asyncio.Task[Passed | None], _PartitionState]:
        """The reads in progress that may still be awaited, with their partitions."""
        now_s = asyncio.get_running_loop().time()
        return {
            part.reading: part
            for part in self._parts
            if part.reading is not None and part.slow_s > now_s
        }

    @property
    def _has_records(self) -> bool:
        """Whether there are new records to deliver."""
        return bool(self.buffered(Wanted(0, is_again=False)).sizes)

    def _begin(self, number: int) -> None:
        """Begin to read a partition, unless records of it are here already."""
        part, wanted = self._parts[number], self._wanted(number)
        is_there = part.reading is not None or self._is_absent(part)
        if is_there or part.buffer.buffered(wanted).sizes:
            return
        part.slow_s, part.wakes = asyncio.get_running_loop().time() + PATIENCE_S, False
        part.reading = asyncio.create_task(
            part.buffer.read_new(wanted.sequence), name="jetstream-part"
        )

    def _settle(self, number: int, passed: list[int], ends: set[int]) -> None:
        """Handle the outcome of a partition's read."""
        part = self._parts[number]
        task, part.reading = part.reading, None
        assert task is not None, "it was begun"
        try:
            outcome = task.result()
        except _FAILURES as error:
            self._failed(number, error)
            return
        if outcome is None:
            return
        [within] = outcome.sequences
        if within:
            passed.append(merged_sequence(within, number, len(self._parts)))
        if outcome.is_end:
            ends.add(number)

    def _is_absent(self, part: _PartitionState) -> bool:
        """Return whether a partition is left out now."""
        if part.retry_ms is not None and part.retry_ms <= self._now_ms():
            part.retry_ms = None
        return part.retry_ms is not None

    def _failed(self, number: int, error: Exception) -> None:
        why = error or "no answer in time"
        logger.warning("consumer %s leaves out partition %d for now: %s", self._name, number, why)
        self._parts[number].retry_ms = self._now_ms() + RETRY_MS

    def is_gone(self, sequence: int) -> bool:
        """Return whether a record is no longer stored, as far as this broker knows."""
        within, number = split_sequence(sequence, len(self._parts))
        return self._parts[number].buffer.is_gone(within)

    # Waiting

    def has_more(self, wanted: Wanted) -> bool:
        """Return whether the wanted records may exist."""
        return wanted.is_again or any(
            part.buffer.has_more(self._wanted(number))
            for number, part in enumerate(self._parts)
            if part.reading is None and not self._is_absent(part)
        )

    @property
    def retry_ms(self) -> float | None:
        """The time of the next attempt after a failed read; None if none has failed."""
        now_ms = self._now_ms()
        times = [part.retry_ms for part in self._parts if part.retry_ms is not None]
        return min((each for each in times if each > now_ms), default=None)

    def watch(self, event: asyncio.Event) -> None:
        """Set an event whenever a record arrives."""
        for part in self._parts:
            part.buffer.watch(event)

    def unwatch(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        for part in self._parts:
            part.buffer.unwatch(event)

    def close(self) -> None:
        """Stop all reads."""
        for part in self._parts:
            if part.reading is not None:
                part.reading.cancel()

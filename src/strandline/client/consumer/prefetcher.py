"""The prefetcher of a consumer: manages its fetchers and hands out what they have read.

Rules:
- a batch is dropped if its partition was released, or another offset sought, in the meantime;
- the error of a failed fetcher is raised at every poll until one of its partitions is stopped. Then
  its other partitions are read again, since the failure may concern only the stopped one;
- a fetcher is restarted if most of its partitions are no longer wanted.

Must not know groups or committed offsets. Used by one thread; ``wake`` may be called on any.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.client.consumer.fetcher import INBOX_BATCHES, Fetched, Fetcher, Inbox, Source
from strandline.client.reader.reading import OffsetSpec
from strandline.client.reader.results import Record
from strandline.client.reader.subscription import records_of
from strandline.errors import StrandlineError
from strandline.types import PartitionName

POLL_BYTES = 8 << 20
"""The approximate size of the records that one poll returns."""


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """Records of one partition, in order."""

    stream: str
    partition: int
    records: pa.RecordBatch
    """The columns partition, offset, timestamp, subject, key, value and headers."""

    @property
    def first_offset(self) -> int:
        """Return the offset of the first record."""
        return int(self.records.column("offset")[0].as_py())

    @property
    def next_offset(self) -> int:
        """Return the offset after the last record."""
        return int(self.records.column("offset")[-1].as_py()) + 1

    def __iter__(self) -> Iterator[Record]:
        """Iterate the records as Python objects."""
        return records_of(self.records, self.stream)


class Prefetcher:
    """The fetchers of one consumer.

    Args:
        source: the client to read with.
        positions: the next offset to return in each partition; shared with the consumer.
        restart: where to continue if the log ends before a position.
    """

    def __init__(
        self, source: Source, positions: dict[PartitionName, int], *, restart: OffsetSpec
    ) -> None:
        self._source = source
        self._positions = positions
        self._restart = restart
        self._inbox: Inbox = queue.Queue(INBOX_BATCHES)
        self._returned: deque[Fetched] = deque()
        self._awake = threading.Event()
        self._fetches: dict[PartitionName, Fetcher] = {}
        """The fetcher of each partition; paused partitions have none."""
        self._failed: dict[Fetcher, StrandlineError] = {}

    def wake(self) -> None:
        """Let ``take`` return; any thread may call this."""
        self._awake.set()
        with contextlib.suppress(queue.Full):  # a full queue wakes ``take`` anyway
            self._inbox.put_nowait(None)

    def awoken(self) -> None:
        """Remove a wake-up that was not used."""
        self._awake.clear()

    def take(self, deadline_s: float) -> list[ConsumedBatch]:
        """Return the batches read so far; wait for the first one, or until ``wake``."""
        found: list[ConsumedBatch] = []
        size = 0
        while size < POLL_BYTES and not self._awake.is_set():
            left_s = 0.0 if found else max(0.0, deadline_s - time.monotonic())
            try:
                fetched = self._fetched(left_s)
            except queue.Empty:
                break
            batch = self._accepted(fetched)
            if batch is not None:
                found.append(batch)
                size += batch.records.nbytes
        return found

    def _fetched(self, wait_s: float) -> Fetched | None:
        """Return the next result of a fetcher.

        Raises:
            queue.Empty: there was none in time.
        """
        if self._returned:
            return self._returned.popleft()
        return self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()

    def unread(self, batches: Iterable[ConsumedBatch]) -> None:
        """Put batches back; the next ``take`` returns them."""
        for batch in reversed(list(batches)):
            name = PartitionName(batch.stream, batch.partition)
            if name in self._positions:
                self._positions[name] = batch.first_offset
            if name in self._fetches:
                again = Fetched(self._fetches[name], batch.partition, batch.records)
                self._returned.appendleft(again)

    def _accepted(self, fetched: Fetched | None) -> ConsumedBatch | None:
        """Return the batch to hand out; None if there is none, or its partition was released."""
        if fetched is None:
            return None
        if fetched.moved_to is not None:
            name = PartitionName(fetched.fetch.stream, fetched.partition)
            if self._fetches.get(name) is fetched.fetch:
                self._positions[name] = fetched.moved_to
            return None
        if fetched.batch is None:
            assert fetched.error is not None, "a result without a batch has an error"
            if fetched.fetch not in self._fetches.values():
                return None
            if len(fetched.fetch.wanted) < fetched.fetch.begun_with:
                self._begin_rest(fetched.fetch)
                return None
            # The next poll raises it: this one may return batches, which must not be lost.
            self._failed[fetched.fetch] = fetched.error
            self._awake.set()
            return None
        name = PartitionName(fetched.fetch.stream, fetched.partition)
        if self._fetches.get(name) is not fetched.fetch:
            return None
        batch = ConsumedBatch(name.stream, name.partition, fetched.batch)
        self._positions[name] = batch.next_offset
        return batch

    def raise_failure(self) -> None:
        """Raise the error of a failed fetcher that is still in use.

        Raises:
            StrandlineError: the fetcher's error.
        """
        in_use = set(self._fetches.values())
        self._failed = {fetch: e for fetch, e in self._failed.items() if fetch in in_use}
        for error in self._failed.values():
            raise error

    def begin(self, partitions: Collection[PartitionName]) -> None:
        """Start to read partitions at their positions."""
        for stream in sorted({name.stream for name in partitions}):
            names = [name for name in sorted(partitions) if name.stream == stream]
            fetch = Fetcher(
                self._source,
                stream,
                {name.partition: self._positions[name] for name in names},
                inbox=self._inbox,
                restart=self._restart,
            )
            self._fetches |= dict.fromkeys(names, fetch)

    def begin_anew(self, name: PartitionName) -> None:
        """Read a partition again from its new position, unless it is paused."""
        if name in self._fetches:
            self.stop([name])
            self.begin([name])

    def stop(self, partitions: Iterable[PartitionName]) -> None:
        """Stop reading partitions, without disturbing other ones."""
        worn: set[Fetcher] = set()
        for name in partitions:
            fetch = self._fetches.pop(name, None)
            if fetch is not None:
                fetch.wanted.discard(name.partition)
                # The fetcher has failed, or most of what it reads is no longer wanted.
                if 2 * len(fetch.wanted) < fetch.begun_with or fetch in self._failed:
                    worn.add(fetch)
        for fetch in worn:
            self._begin_rest(fetch)

    def _begin_rest(self, fetch: Fetcher) -> None:
        """Read the partitions of a fetcher that are still wanted, without the others."""
        fetch.cancel()
        self.begin([PartitionName(fetch.stream, number) for number in fetch.wanted])

    def close(self) -> None:
        """Stop all reading."""
        for fetch in set(self._fetches.values()):
            fetch.cancel()

"""A fetcher: reads some partitions of a stream ahead for a consumer, on a thread of its own.

Rules:
- after a lost connection or leader change it continues where it was;
- a partition that is no longer wanted is dropped without disturbing the others;
- its error, even of a bug, is put into the inbox, or a poll would wait for ever;
- records wait in an inbox of limited size; each batch is of one partition.

Must not know groups or committed offsets.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.client.reader.reading import OffsetSpec
from strandline.client.reader.subscription import SUBSCRIPTION_COLUMNS
from strandline.client.retry_policy import RetryBackoff
from strandline.errors import (
    OffsetOutOfRangeError,
    StrandlineError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

PUT_SLICE_S = 0.1
INBOX_BATCHES = 8


class CancellableRead(Protocol):
    """A read that can be cancelled."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the read's batches."""
        ...

    def cancel(self) -> None:
        """End the read; any thread may call this."""
        ...


class Source(Protocol):
    """A client to read with."""

    def open_read(self, stream: str, **options: Any) -> CancellableRead:
        """Begin a read."""
        ...

    def offsets(self, stream: str, at: OffsetSpec = "latest") -> dict[int, int]:
        """Return the offset for ``at`` in each partition."""
        ...


class Fetched(NamedTuple):
    """Records of one partition, or the error that prevents them."""

    fetch: "Fetcher"
    partition: int
    batch: pa.RecordBatch | None
    error: StrandlineError | None = None
    moved_to: int | None = None
    """The new position, if the log does not have the old one."""


Inbox = queue.Queue[Fetched | None]


class Fetcher:
    """A read of some partitions of a stream, until it is cancelled.

    Args:
        source: the client to read with.
        stream: the stream's name.
        starts: the first offset of each partition.
        inbox: the queue for the results.
        restart: where to continue if the log ends before a position. A position whose record was
            deleted always moves to the first record kept.
    """

    def __init__(
        self,
        source: Source,
        stream: str,
        starts: Mapping[int, int],
        *,
        inbox: Inbox,
        restart: OffsetSpec,
    ) -> None:
        self.stream = stream
        self.wanted = set(starts)
        """The partitions whose records are delivered; the consumer removes partitions."""
        self.begun_with = len(starts)
        self._source = source
        self._next = dict(starts)
        self._inbox = inbox
        self._restart = restart
        self._is_cancelled = threading.Event()
        self._reading: CancellableRead | None = None
        self._thread = threading.Thread(target=self._run, name="strandline-fetch", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End the fetcher, without waiting for its end."""
        self._is_cancelled.set()
        reading = self._reading
        if reading is not None:
            reading.cancel()

    def _run(self) -> None:
        backoff = RetryBackoff()
        while not self._is_cancelled.is_set():
            try:
                self._read(backoff)
            except StrandlineError as error:
                if self._is_cancelled.is_set():
                    return
                failure = (
                    self._reset_offsets() if isinstance(error, OffsetOutOfRangeError) else error
                )
                # The coordinator will revoke the partitions of a deleted stream.
                is_gone = isinstance(failure, UnknownStreamError | UnknownPartitionError)
                if not (failure is None or failure.retriable or is_gone):
                    self._put(Fetched(self, -1, None, failure))
                    return
                now_s = time.monotonic()
                backoff.failed(now_s)
                self._is_cancelled.wait(backoff.wait_s(now_s))
            except Exception as bug:  # noqa: BLE001 - raised where records are waited for
                why = StrandlineError(f"the fetcher failed: {bug!r}")
                self._put(Fetched(self, -1, None, why))
                return

    def _read(self, backoff: RetryBackoff) -> None:
        starts = {number: at for number, at in self._next.items() if number in self.wanted}
        if not starts:
            self._is_cancelled.set()
            return
        reading = self._source.open_read(
            self.stream, starts=starts, columns=SUBSCRIPTION_COLUMNS, follow=True
        )
        self._reading = reading
        if self._is_cancelled.is_set():  # cancelled after the check above
            reading.cancel()
            return
        for batch in reading.batches():
            backoff.succeeded()
            for number, piece in split(batch):
                if number in self.wanted:
                    self._put(Fetched(self, number, piece))
                self._next[number] = piece.column("offset")[-1].as_py() + 1
            if self._is_cancelled.is_set():
                return

    def _put(self, fetched: Fetched) -> None:
        while not self._is_cancelled.is_set():
            try:
                self._inbox.put(fetched, timeout=PUT_SLICE_S)
            except queue.Full:
                continue
            return

    def _reset_offsets(self) -> StrandlineError | None:
        """Move positions that the log does not have; return an error that prevents it, or None."""
        try:
            first = self._source.offsets(self.stream, "earliest")
            end = self._source.offsets(self.stream, "latest")
            fresh = self._source.offsets(self.stream, self._restart)
        except StrandlineError as failure:
            return failure
        for number, at in self._next.items():
            if number in self.wanted and number in first and at < first[number]:
                # Not to ``restart``: the records that are left were never returned.
                self._reset_offset(number, first[number], why="records before that were deleted")
            elif number in self.wanted and number in end and at > end[number]:
                self._reset_offset(number, fresh[number], why=f"the log ends at {end[number]}")
        return None

    def _reset_offset(self, number: int, to: int, *, why: str) -> None:
        """Move a partition's position; notify the consumer, which commits it."""
        name = PartitionName(self.stream, number)
        logger.warning(
            "%s: offset %d does not exist, continuing at %d: %s", name, self._next[number], to, why
        )
        self._next[number] = to
        self._put(Fetched(self, number, None, moved_to=to))


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch into runs of one partition each, in order."""
    runs = pc.run_end_encode(batch.column("partition"))
    start = 0
    for end, number in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield number, batch.slice(start, end - start)
        start = end

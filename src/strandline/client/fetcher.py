"""Reading ahead for a consumer: one read for some partitions of a stream, on a thread of its own.

Rules:
- a read goes on through lost connections and changes of leaders, from where it was;
- a partition that is not wanted any more is dropped, and the others go on untouched;
- what ends it is told in the inbox, a bug of ours too, or whoever polls would wait for ever;
- what is read waits in an inbox of limited size; a batch in it is of one partition.

Must not know groups or positions.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client.reading import Place
from strandline.client.retry import Backoff
from strandline.client.subscription import SUBSCRIPTION_COLUMNS
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


class Reading(Protocol):
    """A read under way."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What it reads."""
        ...

    def cancel(self) -> None:
        """End it, from any thread."""
        ...


class Source(Protocol):
    """Where records come from: a ``Client``."""

    def open_read(self, stream: str, **options: Any) -> Reading:
        """Begin a read."""
        ...

    def offsets(self, stream: str, at: Place = "latest") -> dict[int, int]:
        """Where a place is in each partition."""
        ...


class Fetched(NamedTuple):
    """Records of one partition, or why there are none."""

    fetch: "Fetcher"
    partition: int
    batch: pa.RecordBatch | None
    error: StrandlineError | None = None
    moved_to: int | None = None
    """Where the partition is read on, as the log does not hold the offset that was next."""


Inbox = queue.Queue[Fetched | None]


class Fetcher:
    """A read of some partitions of a stream, until it is cancelled.

    Args:
        source: where to read.
        stream: its name.
        starts: where to begin, by partition.
        inbox: where to put what is read.
        restart: where to go on when the log ends before an offset. What retention has deleted is
            passed over: the first record kept is next.
    """

    def __init__(
        self,
        source: Source,
        stream: str,
        starts: Mapping[int, int],
        *,
        inbox: Inbox,
        restart: Place,
    ) -> None:
        self.stream = stream
        self.wanted = set(starts)
        """Partitions whose records count; the consumer takes them out."""
        self.begun_with = len(starts)
        self._source = source
        self._next = dict(starts)
        self._inbox = inbox
        self._restart = restart
        self._is_cancelled = threading.Event()
        self._reading: Reading | None = None
        self._thread = threading.Thread(target=self._run, name="strandline-fetch", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End it; does not wait."""
        self._is_cancelled.set()
        reading = self._reading
        if reading is not None:
            reading.cancel()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._is_cancelled.is_set():
            try:
                self._read(backoff)
            except StrandlineError as error:
                if self._is_cancelled.is_set():
                    return
                failure = self._repair() if isinstance(error, OffsetOutOfRangeError) else error
                # A stream that is gone is the coordinator's to take away.
                is_gone = isinstance(failure, UnknownStreamError | UnknownPartitionError)
                if not (failure is None or failure.retriable or is_gone):
                    self._put(Fetched(self, -1, None, failure))
                    return
                now_s = time.monotonic()
                backoff.failed(now_s)
                self._is_cancelled.wait(backoff.wait_s(now_s))
            except Exception as bug:  # noqa: BLE001 - raised where records are waited for
                why = StrandlineError(f"reading ahead failed: {bug!r}")
                self._put(Fetched(self, -1, None, why))
                return

    def _read(self, backoff: Backoff) -> None:
        starts = {number: at for number, at in self._next.items() if number in self.wanted}
        if not starts:
            self._is_cancelled.set()
            return
        reading = self._source.open_read(
            self.stream, starts=starts, columns=SUBSCRIPTION_COLUMNS, follow=True
        )
        self._reading = reading
        if self._is_cancelled.is_set():  # between the look and the read
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

    def _repair(self) -> StrandlineError | None:
        """Take places that exist for offsets that do not; returns why it cannot be done."""
        try:
            first = self._source.offsets(self.stream, "earliest")
            end = self._source.offsets(self.stream, "latest")
            fresh = self._source.offsets(self.stream, self._restart)
        except StrandlineError as failure:
            return failure
        for number, at in self._next.items():
            if number in self.wanted and number in first and at < first[number]:
                # Not where members begin: what is kept was never handed out.
                self._move(number, first[number], why="records before that were deleted")
            elif number in self.wanted and number in end and at > end[number]:
                self._move(number, fresh[number], why=f"the log ends at {end[number]}")
        return None

    def _move(self, number: int, to: int, *, why: str) -> None:
        """Read a partition on elsewhere, and let the consumer know, so that it is committed."""
        name = PartitionName(self.stream, number)
        logger.warning(
            "%s: offset %d is not there, going on at %d: %s", name, self._next[number], to, why
        )
        self._next[number] = to
        self._put(Fetched(self, number, None, moved_to=to))


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The runs of one partition in a batch, in order."""
    runs = pc.run_end_encode(batch.column("partition"))
    start = 0
    for end, number in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield number, batch.slice(start, end - start)
        start = end

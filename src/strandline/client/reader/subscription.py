"""A subscription: iterates records as Python objects, as they are stored, and reconnects.

Rules: it keeps the next offset of each partition, so that no record is repeated or skipped after a
reconnect. It fails if brokers are unreachable for ``reconnect_timeout_s``. A read in a cluster
reconnects by itself.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import msgspec
import pyarrow as pa

from strandline.api.tickets import ReadRequest
from strandline.client.reader.cluster_reader import ClusterReader
from strandline.client.reader.reading import BatchStream
from strandline.client.reader.results import Record
from strandline.client.retry_policy import call_with_retries
from strandline.errors import StrandlineError
from strandline.record.schema import COLUMNS

logger = logging.getLogger(__name__)

SUBSCRIPTION_COLUMNS = ["partition", *COLUMNS]


class Subscription:
    """An endless iterator of records. Use it as a context manager, or ``close`` it.

    Several threads may iterate it; each record goes to one of them.

    Args:
        begin: a function that begins a read.
        request: the read, with ``starts``.
        reconnect_timeout_s: how long the broker may be unreachable.
    """

    def __init__(
        self,
        begin: Callable[[ReadRequest], BatchStream | ClusterReader],
        request: ReadRequest,
        *,
        reconnect_timeout_s: float,
    ) -> None:
        assert request.starts is not None, "a subscription knows its positions"
        assert request.follow, "a subscription follows"
        self._begin = begin
        self._request = request
        self._timeout_s = reconnect_timeout_s
        self._left = request.records_max
        """The number of records still wanted; None: no limit."""
        self._is_closed = threading.Event()
        self._stream = begin(request)
        self._records = self._generate()
        self._taking = threading.Lock()
        self._positions: dict[int, int] = dict(request.starts)

    @property
    def added(self) -> Mapping[int, int]:
        """Return the partitions added since the start, with the first offset read of each."""
        return self._stream.added

    @property
    def positions(self) -> dict[int, int]:
        """Return the next offset of each partition; pass it as ``starts`` to continue later."""
        return {**self.added, **self._positions}

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """Wait for the next record and return it.

        Raises:
            StrandlineError: the subscription has failed.
            StopIteration: the subscription was closed.
        """
        with self._taking:
            if self._is_closed.is_set():
                raise StopIteration
            return next(self._records)

    def close(self) -> None:
        """End the subscription; any thread may call this; has no effect when repeated."""
        self._is_closed.set()
        self._stream.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _generate(self) -> Iterator[Record]:
        """Yield the records of one connection after another."""
        while True:
            try:
                yield from self._records_of(self._stream)
            except StrandlineError as error:
                if self._is_closed.is_set() or self._left == 0:
                    return
                if self._stream.resumes or not error.is_connection_loss:
                    raise
                logger.warning("reconnecting to read %s: %s", self._request.stream, error.message)
            else:
                return
            stream = self._reopen()
            if stream is None:
                return
            self._stream = stream
            if self._is_closed.is_set():  # ``close`` may have cancelled only the read before
                stream.cancel()
                return

    def _records_of(self, stream: BatchStream | ClusterReader) -> Iterator[Record]:
        for batch in stream.batches():
            for record in records_of(batch, self._request.stream):
                self._positions[record.partition] = record.offset + 1
                if self._left is not None:
                    self._left -= 1
                yield record

    def _reopen(self) -> BatchStream | ClusterReader | None:
        """Reconnect, and continue at the positions; None if the subscription was closed."""
        return call_with_retries(
            lambda: None if self._is_closed.is_set() else self._begin(self._resumed()),
            timeout_s=self._timeout_s,
            should_retry=lambda error: error.is_connection_loss,
            pause=self._is_closed.wait,
        )

    def _resumed(self) -> ReadRequest:
        """Return the request for reading on from the current positions."""
        return msgspec.structs.replace(self._request, starts=self.positions, records_max=self._left)


def records_of(batch: pa.RecordBatch, stream: str) -> Iterator[Record]:
    """Yield the rows of a batch with ``SUBSCRIPTION_COLUMNS`` as records."""
    columns: dict[str, list[Any]] = {}
    for name in SUBSCRIPTION_COLUMNS:
        column = batch.column(name)
        # As integers, since Python's datetime has no nanoseconds.
        columns[name] = (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()
    for *plain, headers in zip(*columns.values(), strict=True):
        yield Record._make((stream, *plain, headers or []))

"""Reads: builds the ticket of a read, and returns its records as a ``pyarrow.RecordBatchReader``.

A reader that is dropped cancels its call, so that the broker stops sending; an endless read is also
cancelled when it is closed. A read that may have to wait for records has a thread of its own:
pyarrow blocks where Python handles no signals, but Ctrl-C must work.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import pyarrow as pa

from strandline.api.tickets import (
    BATCH_BYTES_DEFAULT,
    AtTimestamp,
    Bound,
    ReadRequest,
    check_request,
)
from strandline.api.wire import decode, encode
from strandline.client.arguments import (
    listed,
    nanoseconds,
    offsets_by_number,
    utf8,
    whole_number,
)
from strandline.client.connection import BrokerConnection
from strandline.client.reader.exit_guard import GuardedBatches
from strandline.errors import InvalidRequestError

OffsetSpec = str | int | datetime
"""``"earliest"``, ``"latest"``, an offset, a time (in UTC if it has no zone), or, as a start,
``-n`` for the last n records."""

PUMPED_BATCHES = 4


def bound_of(place: OffsetSpec) -> Bound:
    """Convert an offset spec to its wire form.

    Raises:
        InvalidRequestError: the offset spec is not valid.
    """
    if isinstance(place, datetime):
        return AtTimestamp(timestamp_ns=nanoseconds(place))
    if place == "earliest":
        return "earliest"
    if place == "latest":
        return "latest"
    try:
        return whole_number(place, "an offset")
    except InvalidRequestError:
        raise InvalidRequestError(
            f"{place!r} is not an offset; give 'earliest', 'latest', a whole number or a datetime"
        ) from None


def read_request(
    stream: str,
    *,
    partition: int | None = None,
    start: OffsetSpec = "earliest",
    stop: OffsetSpec | None = None,
    columns: Sequence[str] | None = None,
    order: str = "ascending",
    follow: bool = False,
    subject: str | None = None,
    keys: Sequence[bytes | str] | None = None,
    timestamp_from: datetime | None = None,
    timestamp_to: datetime | None = None,
    starts: Mapping[int, int] | None = None,
    records_max: int | None = None,
    bytes_min: int = 0,
    wait_ms_max: int = 0,
    batch_bytes: int = BATCH_BYTES_DEFAULT,
    skip_corrupt: bool = False,
) -> ReadRequest:
    """Build the ticket of a read; the arguments are those of ``Client.read``.

    Raises:
        InvalidRequestError: an argument is out of range.
    """
    named = () if keys is None else listed(keys, "keys")
    encoded = [utf8(key, "key") if isinstance(key, str) else key for key in named]
    request = ReadRequest(
        stream=stream,
        partition=None if partition is None else whole_number(partition, "partition"),
        start=bound_of(start),
        starts=None if starts is None else offsets_by_number(starts, "starts"),
        stop=None if stop is None else bound_of(stop),
        order=order,  # type: ignore[arg-type]  # checked when it is decoded below
        follow=follow,
        columns=None if columns is None else listed(columns, "columns"),
        subject=subject,
        keys=None if keys is None else encoded,
        timestamp_from_ns=None if timestamp_from is None else nanoseconds(timestamp_from),
        timestamp_to_ns=None if timestamp_to is None else nanoseconds(timestamp_to),
        records_max=records_max,
        bytes_min=bytes_min,
        wait_ms_max=wait_ms_max,
        batch_bytes=batch_bytes,
        skip_corrupt=skip_corrupt,
    )
    # Checks all that the broker would check, with the same messages.
    check_request(decode(encode(request), ReadRequest, what="read"))
    return request


class EndlessReader:
    """A ``pyarrow.RecordBatchReader`` of an endless read, which ends the read when it is closed.

    pyarrow's own ``close`` does nothing: its reader releases its source only when it is
    garbage-collected, so an endless read would continue after its ``with`` block.

    Args:
        reader: the reader to wrap.
        cancel: ends the read; a waiting reader then gets a DisconnectedError.
    """

    def __init__(self, reader: pa.RecordBatchReader, cancel: Callable[[], None]) -> None:
        self._reader = reader
        self._cancel = cancel

    def close(self) -> None:
        """End the read; any thread may call this; has no effect when repeated."""
        self._reader = pa.RecordBatchReader.from_batches(self._reader.schema, ())
        self._cancel()

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of pyarrow's reader, including ``__arrow_c_stream__``."""
        return getattr(self._reader, name)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def arrow_reader(
    request: ReadRequest,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    *,
    cancel: Callable[[], None],
) -> pa.RecordBatchReader | EndlessReader:
    """Return the batches of a read as a reader."""
    reader = pa.RecordBatchReader.from_batches(schema, GuardedBatches(batches, cancel))
    is_endless = request.follow and request.stop is None and request.records_max is None
    return EndlessReader(reader, cancel) if is_endless else reader


class BatchStream:
    """A read in progress at one broker.

    Args:
        connection: the connection to the broker.
        request: what to read.

    Raises:
        StrandlineError: the broker rejects the read, or cannot be reached.
    """

    resumes = False
    """False: a lost connection ends this read."""
    added: Mapping[int, int] = {}
    """Empty: a read at a single broker has a fixed number of partitions."""

    def __init__(self, connection: BrokerConnection, request: ReadRequest) -> None:
        self._connection = connection
        self._stream = connection.read(request)
        self._request = request
        self._may_wait = request.follow or request.wait_ms_max > 0
        self.schema: pa.Schema = self._stream.schema
        connection.has_begun(self)

    def cancel(self) -> None:
        """End the read; any thread may call this; a waiting reader gets a DisconnectedError."""
        self._stream.cancel()

    def reader(self) -> pa.RecordBatchReader | EndlessReader:
        """Return the batches as a reader; callable once."""
        return arrow_reader(self._request, self.schema, self.batches(), cancel=self.cancel)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches; callable once. Closing the generator cancels the read.

        Raises:
            ClientClosedError: the client was closed.
            StrandlineError: the read failed.
        """
        return self._pumped() if self._may_wait else self.direct()

    def direct(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches; waits on the caller's thread.

        Raises:
            StrandlineError: as for ``batches``.
        """
        try:
            while True:
                try:
                    with self._connection.translated():
                        chunk = self._stream.read_chunk()
                except StopIteration:
                    return
                if chunk.data is not None:
                    yield chunk.data
        finally:
            self._stream.cancel()

    def _pumped(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches from a thread that reads ahead, so that a wait can be interrupted."""
        batches: queue.Queue[Any] = queue.Queue(PUMPED_BATCHES)
        stopped = threading.Event()

        def pump() -> None:
            end: BaseException | None = None
            try:
                for batch in self.direct():
                    batches.put(batch)
                    if stopped.is_set():
                        return
            except Exception as error:  # noqa: BLE001 - raised by the reader
                end = error
            batches.put(end)

        threading.Thread(target=pump, name="strandline-read", daemon=True).start()
        try:
            while (item := batches.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            self._stream.cancel()
            while not batches.empty():
                batches.get()

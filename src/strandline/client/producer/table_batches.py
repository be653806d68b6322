"""Conversion of producer batches to Arrow, and of acks to the results of futures."""

import concurrent.futures.thread  # noqa: F401 - pyarrow would import it too late, at exit
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.api.put import (
    NOT_STORED,
    NUMBERED_RECORDS_MAX,
    PUT_TYPES,
    AckedRange,
    PutAck,
    convert,
    normalise,
    put_schema,
)
from strandline.client.producer.accumulator import RecordProducerBatch
from strandline.client.reader.results import Ack, AckFuture, BatchAck
from strandline.errors import InvalidRecordError, SchemaMismatchError, StrandlineError
from strandline.record.schema import HEADERS_TYPE

FIELDS = ("value", "key", "subject", "headers", "message_id")
RAW_TYPES = {"subject": pa.string()}
Failed = Callable[[AckFuture[Any], StrandlineError], None]


def batch_of_records(batch: RecordProducerBatch[AckFuture[Ack]]) -> pa.RecordBatch:
    """Convert records to a record batch, with all columns that any of the records has.

    Raises:
        InvalidRecordError: a value is not bytes, or a header is not a (text, bytes) pair.
    """
    columns = dict(zip(FIELDS, zip(*batch.records, strict=True), strict=True))
    given = {
        name: columns[name]
        for name in PUT_TYPES
        if name == "value" or any(item is not None for item in columns[name])
    }
    try:
        arrays = [
            convert(pa.array(items, RAW_TYPES.get(name, PUT_TYPES[name])), name)
            for name, items in given.items()
        ]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRecordError(f"a record cannot be sent: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=put_schema(list(given)))


def resolve_records(
    batch: RecordProducerBatch[AckFuture[Ack]],
    ack: PutAck,
    failed: Failed,
    *,
    error: StrandlineError | None,
) -> None:
    """Resolve the future of each record; ``error`` is for the records that were not stored."""
    if ack.offsets:
        duplicates = set(ack.duplicates)
        for place, future in enumerate(batch.futures):
            offset = ack.offsets[place]
            if offset != NOT_STORED:
                is_duplicate = place in duplicates
                future.set_result(Ack.at(offset, ack.partitions[place], duplicate=is_duplicate))
            else:
                failed(future, error or StrandlineError("the broker gave no reason"))
        return
    if error is not None or not ack.ranges:
        _fail_records(batch, error or StrandlineError("the broker gave no offsets"), failed)
        return
    [stored] = ack.ranges
    for place, future in enumerate(batch.futures):
        future.set_result(Ack.at(stored.offset + place, stored.partition))


class TableAck:
    """The future of a table that is sent in several batches.

    Args:
        future: the future to resolve.
        batches: the number of batches.
        rows: the number of rows in the whole table.
    """

    def __init__(self, future: AckFuture[BatchAck], *, batches: int, rows: int) -> None:
        self.future = future
        self._left = batches
        self._rows = rows
        self._stored = 0
        self._ranges: list[AckedRange] = []
        self._error: StrandlineError | None = None

    def stored(self, ack: PutAck) -> None:
        """Note a batch that was stored."""
        if ack.offsets:
            self._stored += len(ack.offsets)
            places = zip(ack.partitions, ack.offsets, strict=True)
            self._ranges += [AckedRange(partition, offset, 1) for partition, offset in places]
        else:
            self._stored += sum(stored.records for stored in ack.ranges)
            self._ranges += ack.ranges

    def failed(self, error: StrandlineError) -> None:
        """Note a batch that was not stored."""
        self._error = self._error or error

    def settle(self, failed: Failed) -> None:
        """Count one batch as done; after the last one, resolve the future."""
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            self.future.set_result(BatchAck(self._rows, tuple(self._ranges)))
            return
        error = self._error
        if self._stored:
            error.add_note(f"{self._stored} of {self._rows} rows were stored")
        failed(self.future, error)


class TableProducerBatch:
    """The rows of a table that go to one partition."""

    __slots__ = ("data", "deadline_s", "partition", "size", "table_ack")

    def __init__(self, partition: int, data: pa.RecordBatch, table_ack: TableAck) -> None:
        self.partition = partition
        self.data = data
        self.table_ack = table_ack
        self.size = int(data.nbytes)
        self.deadline_s = 0.0

    @property
    def rows(self) -> int:
        """Return the number of records."""
        return int(self.data.num_rows)

    @property
    def has_ids(self) -> bool:
        """Return whether all records have a message id; otherwise none has."""
        at = self.data.schema.get_field_index("message_id")
        return at >= 0 and bool(self.data.column(at).null_count < self.rows)


AnyProducerBatch = RecordProducerBatch[AckFuture[Ack]] | TableProducerBatch


def batch_of(batch: AnyProducerBatch) -> pa.RecordBatch:
    """Convert a producer batch to a record batch.

    Raises:
        InvalidRecordError: a record cannot be sent.
    """
    return batch.data if isinstance(batch, TableProducerBatch) else batch_of_records(batch)


def resolve(
    batch: AnyProducerBatch, ack: PutAck, failed: Failed, *, error: StrandlineError | None = None
) -> None:
    """Resolve the futures of a batch, because of its ack.

    Args:
        batch: the batch.
        ack: the offsets of the records.
        failed: called to fail a future.
        error: the error of records that are not stored, or may not be; None: all are stored.
    """
    if not isinstance(batch, TableProducerBatch):
        resolve_records(batch, ack, failed, error=error)
        return
    if error is None:
        batch.table_ack.stored(ack)
    else:
        batch.table_ack.failed(error)
    batch.table_ack.settle(failed)


def fail(batch: AnyProducerBatch, error: StrandlineError, failed: Failed) -> None:
    """Fail the futures of a batch."""
    if isinstance(batch, TableProducerBatch):
        batch.table_ack.failed(error)
        batch.table_ack.settle(failed)
        return
    _fail_records(batch, error, failed)


def _fail_records(
    batch: RecordProducerBatch[AckFuture[Ack]], error: StrandlineError, failed: Failed
) -> None:
    """Fail the futures of a batch that was rejected as a whole."""
    for row, future in enumerate(batch.futures):
        failed(future, error.for_record(row) if isinstance(error, SchemaMismatchError) else error)


def batches_from(data: Any, *, batch_bytes: int) -> list[pa.RecordBatch]:
    """Convert Arrow-like data to batches in the put's form, of about ``batch_bytes`` at most.

    Args:
        data: a pyarrow batch, table or reader, or an object with ``__arrow_c_stream__`` (of Polars,
            DuckDB, or pandas from 2.2 on).
        batch_bytes: the target size.

    Raises:
        InvalidRecordError: the data is not Arrow-like, or a column cannot be appended.
    """
    batches: list[pa.RecordBatch] = []
    for batch in map(normalise, arrow_batches(data)):
        rows = max(1, batch.num_rows * batch_bytes // max(1, batch.nbytes))
        rows = min(rows, NUMBERED_RECORDS_MAX)
        for start in range(0, batch.num_rows, rows):
            batches += _halved(batch.slice(start, rows), bytes_max=batch_bytes + batch_bytes // 2)
    return batches


def arrow_batches(data: Any) -> list[pa.RecordBatch]:
    """Convert Arrow-like data to batches as they are; raises as ``batches_from`` does."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return data.to_batches() if isinstance(data, pa.Table) else list(data)
    try:
        pandas = sys.modules.get("pandas")
        if pandas is not None and isinstance(data, pandas.DataFrame):
            return list(_table_of_pandas(data).to_batches())
        if hasattr(data, "__arrow_c_stream__"):
            return list(pa.RecordBatchReader.from_stream(data))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"a {type(data).__name__} cannot be converted to Arrow: {error}"
        ) from error
    raise InvalidRecordError(
        f"cannot append {type(data).__name__}; give a pyarrow table or batch, or a data frame"
    )


def _table_of_pandas(frame: Any) -> pa.Table:
    """Convert a pandas data frame; Arrow would read pairs of a header as lists of text."""
    if "headers" not in frame.columns or frame["headers"].dtype != object:
        return pa.Table.from_pandas(frame)
    headers = pa.array(frame["headers"], HEADERS_TYPE, from_pandas=True)
    return pa.Table.from_pandas(frame.drop(columns="headers")).append_column("headers", headers)


def _halved(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split a batch with very large rows until each part is small enough."""
    if batch.nbytes <= bytes_max or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halved(batch.slice(0, half), bytes_max=bytes_max)
    yield from _halved(batch.slice(half), bytes_max=bytes_max)


def runs_of_ids(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Split a batch into runs of rows with message ids, and runs without, in order.

    Brokers deduplicate a batch either by its sequence or by the message ids of all its rows.
    """
    at = batch.schema.get_field_index("message_id")
    if at < 0 or batch.column(at).null_count in (0, batch.num_rows):
        return [batch]
    ends = pc.run_end_encode(batch.column(at).is_null()).run_ends.to_pylist()
    return [batch.slice(start, end - start) for start, end in pairwise([0, *ends])]


def pad(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add null columns where only ``schema`` has the column."""
    if batch.schema.equals(schema):
        return batch
    have = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

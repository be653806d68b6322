"""Lots of a producer as Arrow batches, and how an ack reaches the futures behind them."""

import concurrent.futures.thread  # noqa: F401 - pyarrow would import it when it is too late: at exit
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client.batching import RecordProducerBatch
from strandline.client.results import Ack, AckFuture, BatchAck
from strandline.errors import InvalidRecordError, StrandlineError
from strandline.protocol.put import (
    NOT_STORED,
    NUMBERED_RECORDS_MAX,
    PUT_TYPES,
    AckedRange,
    PutAck,
    convert,
    normalise,
    put_schema,
)
from strandline.record.schema import HEADERS_TYPE

FIELDS = ("value", "key", "subject", "headers", "message_id")
RAW_TYPES = {"subject": pa.string()}
Failed = Callable[[AckFuture[Any], StrandlineError], None]


def batch_of_records(lot: RecordProducerBatch[AckFuture[Ack]]) -> pa.RecordBatch:
    """The records of a lot, with the columns any of them has.

    Raises:
        InvalidRecordError: a value is not bytes, or a header is not a (text, bytes) pair.
    """
    columns = dict(zip(FIELDS, zip(*lot.records, strict=True), strict=True))
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
    lot: RecordProducerBatch[AckFuture[Ack]],
    ack: PutAck,
    failed: Failed,
    *,
    error: StrandlineError | None,
) -> None:
    """Give each record of a lot its outcome; ``error`` is that of those that are not stored."""
    if ack.offsets:
        duplicates = set(ack.duplicates)
        for place, future in enumerate(lot.futures):
            offset = ack.offsets[place]
            if offset != NOT_STORED:
                is_duplicate = place in duplicates
                future.set_result(Ack.at(offset, ack.partitions[place], duplicate=is_duplicate))
            else:
                failed(future, error or StrandlineError("the broker did not say why"))
        return
    if error is not None or not ack.ranges:
        for future in lot.futures:
            failed(future, error or StrandlineError("the broker did not say where"))
        return
    [stored] = ack.ranges
    for place, future in enumerate(lot.futures):
        future.set_result(Ack.at(stored.offset + place, stored.partition))


class TableAck:
    """The future of a table that travels as several lots.

    Args:
        future: to give the outcome to.
        lots: how many lots there are.
        rows: how many rows in all.
    """

    def __init__(self, future: AckFuture[BatchAck], *, lots: int, rows: int) -> None:
        self.future = future
        self._left = lots
        self._rows = rows
        self._stored = 0
        self._ranges: list[AckedRange] = []
        self._error: StrandlineError | None = None

    def stored(self, ack: PutAck) -> None:
        """A lot was answered without error."""
        if ack.offsets:
            self._stored += len(ack.offsets)
            places = zip(ack.partitions, ack.offsets, strict=True)
            self._ranges += [AckedRange(partition, offset, 1) for partition, offset in places]
        else:
            self._stored += sum(stored.records for stored in ack.ranges)
            self._ranges += ack.ranges

    def failed(self, error: StrandlineError) -> None:
        """A lot was not stored."""
        self._error = self._error or error

    def settle(self, failed: Failed) -> None:
        """One lot less to wait for; after the last, the future has its outcome."""
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
    """Rows of a table that go to one partition."""

    __slots__ = ("batch", "deadline_s", "partition", "promise", "size")

    def __init__(self, partition: int, batch: pa.RecordBatch, promise: TableAck) -> None:
        self.partition = partition
        self.batch = batch
        self.promise = promise
        self.size = int(batch.nbytes)
        self.deadline_s = 0.0

    @property
    def rows(self) -> int:
        """How many records there are."""
        return int(self.batch.num_rows)

    @property
    def has_ids(self) -> bool:
        """Whether each record has a message id, or none."""
        at = self.batch.schema.get_field_index("message_id")
        return at >= 0 and bool(self.batch.column(at).null_count < self.rows)


SomeLot = RecordProducerBatch[AckFuture[Ack]] | TableProducerBatch


def batch_of(lot: SomeLot) -> pa.RecordBatch:
    """A lot as a record batch.

    Raises:
        InvalidRecordError: a record cannot be sent.
    """
    return lot.batch if isinstance(lot, TableProducerBatch) else batch_of_records(lot)


def resolve(
    lot: SomeLot, ack: PutAck, failed: Failed, *, error: StrandlineError | None = None
) -> None:
    """Tell the futures of a lot what an ack says.

    Args:
        lot: which.
        ack: where its records are.
        failed: takes futures that fail.
        error: why records are not stored, or that nobody knows; None: all are.
    """
    if not isinstance(lot, TableProducerBatch):
        resolve_records(lot, ack, failed, error=error)
        return
    if error is None:
        lot.promise.stored(ack)
    else:
        lot.promise.failed(error)
    lot.promise.settle(failed)


def fail(lot: SomeLot, error: StrandlineError, failed: Failed) -> None:
    """Tell the futures of a lot that it was given up."""
    if isinstance(lot, TableProducerBatch):
        lot.promise.failed(error)
        lot.promise.settle(failed)
        return
    for future in lot.futures:
        failed(future, error)


def batches_from(data: Any, *, batch_bytes: int) -> list[pa.RecordBatch]:
    """Anything Arrow-like as normalised batches of at most about ``batch_bytes``.

    Args:
        data: a pyarrow batch, table or reader, or what has ``__arrow_c_stream__`` (Polars, DuckDB,
            pandas 2.2+).
        batch_bytes: the size to aim at.

    Raises:
        InvalidRecordError: not Arrow-like, or columns that cannot be appended.
    """
    batches: list[pa.RecordBatch] = []
    for batch in map(normalise, arrow_batches(data)):
        rows = max(1, batch.num_rows * batch_bytes // max(1, batch.nbytes))
        rows = min(rows, NUMBERED_RECORDS_MAX)
        for start in range(0, batch.num_rows, rows):
            batches += _halved(batch.slice(start, rows), bytes_max=batch_bytes + batch_bytes // 2)
    return batches


def arrow_batches(data: Any) -> list[pa.RecordBatch]:
    """Anything Arrow-like as the batches that it has; as ``batches_from``."""
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
        f"cannot append a {type(data).__name__}; give a pyarrow table or batch, or a data frame"
    )


def _table_of_pandas(frame: Any) -> pa.Table:
    """A data frame of pandas as a table; Arrow would take header pairs for lists of text."""
    if "headers" not in frame.columns or frame["headers"].dtype != object:
        return pa.Table.from_pandas(frame)
    headers = pa.array(frame["headers"], HEADERS_TYPE, from_pandas=True)
    return pa.Table.from_pandas(frame.drop(columns="headers")).append_column("headers", headers)


def _halved(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """A batch whose rows are larger than most, in pieces."""
    if batch.nbytes <= bytes_max or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halved(batch.slice(0, half), bytes_max=bytes_max)
    yield from _halved(batch.slice(half), bytes_max=bytes_max)


def runs_of_ids(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The runs of rows that have message ids, and of rows that have none, in order.

    Brokers know what is sent again either by its number or by its id, for all rows of a lot.
    """
    at = batch.schema.get_field_index("message_id")
    if at < 0 or batch.column(at).null_count in (0, batch.num_rows):
        return [batch]
    ends = pc.run_end_encode(batch.column(at).is_null()).run_ends.to_pylist()
    return [batch.slice(start, end - start) for start, end in pairwise([0, *ends])]


def pad(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with null columns where ``schema`` has more."""
    if batch.schema.equals(schema):
        return batch
    have = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

"""Rows to be appended to streams: checks their columns, routes them, computes a fingerprint.

Rules: rows of one partition keep their order; a batch is split only where a column names the stream
or partition. The fingerprint does not depend on the order of rows nor their distribution to tasks,
because Spark may distribute a replay differently. Must not know Spark's writers.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, StructType

from strandline.client import Client, Producer
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.options import WriteOptions

COLUMNS: dict[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "subject": ("string",),
    "headers": ("map<string,binary>",),
    "message_id": ("string",),
}
"""Columns a row may have, with their types."""
STREAM_COLUMN = "stream"
"""The column that names the stream of each row."""
IGNORED_COLUMNS = ("partition", "offset", "timestamp")
"""Columns that rows may have and the broker sets anew, so that rows of a read can be written."""
_WORD = 1 << 64


@dataclass(frozen=True)
class Fingerprint:
    """A fingerprint of a set of rows: their number, and a sum of checksums."""

    rows: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Fingerprint":
        """Return the fingerprint of a batch, by its values."""
        values = batch.column("value").cast(pa.binary()).fill_null(b"").to_pylist()
        return cls(batch.num_rows, sum(map(zlib.crc32, values)) % _WORD)

    def __add__(self, other: "Fingerprint") -> "Fingerprint":
        return Fingerprint(self.rows + other.rows, (self.checksum + other.checksum) % _WORD)

    def __str__(self) -> str:
        return f"{self.rows}-{self.checksum:x}"


class RoutedRows(NamedTuple):
    """Rows with the same stream and partition."""

    stream: str
    partition: int | None
    """The partition of the rows; None: each row is routed by its key or subject."""
    rows: pa.RecordBatch


class RowRouter:
    """Splits batches of rows by stream and partition.

    Args:
        options: default stream and subject, and whether a column names partitions.
        names: the columns of the rows.
    """

    def __init__(self, options: WriteOptions, names: Sequence[str]) -> None:
        self._options = options
        self._columns = [name for name in names if name in COLUMNS]
        self._by_stream = STREAM_COLUMN in names
        self._by_partition = options.partition_by == "column"

    def pieces(self, batch: pa.RecordBatch) -> Iterator[RoutedRows]:
        """Split a batch; each piece keeps the order of its rows.

        Raises:
            InvalidRecordError: a row lacks a required stream or partition.
        """
        if batch.num_rows == 0:
            return
        rows = self._prepared(batch)
        ways = self._ways(batch)
        for stream, partition in ways:
            name = stream or self._options.stream
            if not name:
                raise InvalidRecordError(
                    "a row names no stream, and the option 'stream' neither; set it, or fill the "
                    "column 'stream'"
                )
            # Most batches have one route and are not copied.
            is_whole = len(ways) == 1
            mine = rows if is_whole else rows.filter(self._mask(batch, stream, partition))
            yield RoutedRows(name, partition, mine)

    def producers(self, client: Client, *, timeout_s: float) -> "StreamProducers":
        """Return an object with a producer for each stream, made on first use."""
        return StreamProducers(client, timeout_s)

    def _ways(self, batch: pa.RecordBatch) -> list[tuple[str | None, int | None]]:
        """Return the distinct streams and partitions of a batch, in order of first occurrence."""
        columns = {}
        if self._by_stream:
            columns[STREAM_COLUMN] = batch.column(STREAM_COLUMN)
        if self._by_partition:
            columns["partition"] = batch.column("partition")
            if columns["partition"].null_count:
                raise InvalidRecordError(
                    "a row has no partition, which 'partitionBy' asks for; fill the column, or "
                    "leave that option out"
                )
        if not columns:
            return [(None, None)]
        # One thread keeps the order.
        grouped = pa.table(columns).group_by(list(columns), use_threads=False).aggregate([])
        return [(way.get(STREAM_COLUMN), way.get("partition")) for way in grouped.to_pylist()]

    def _mask(
        self, batch: pa.RecordBatch, stream: str | None, partition: int | None
    ) -> pa.BooleanArray:
        mask = pa.repeat(pa.scalar(value=True), batch.num_rows)
        if self._by_stream:
            column = batch.column(STREAM_COLUMN)
            same = column.is_null() if stream is None else pc.equal(column, stream).fill_null(False)
            mask = pc.and_(mask, same)
        if self._by_partition:
            mask = pc.and_(mask, pc.equal(batch.column("partition"), partition))
        return mask

    def _prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to append; rows without a subject get the subject in the options."""
        chosen = batch.select(self._columns)
        if self._options.subject is None:
            return chosen
        if "subject" not in self._columns:
            subjects = pa.repeat(pa.scalar(self._options.subject), batch.num_rows)
            return chosen.append_column("subject", subjects)
        place = self._columns.index("subject")
        filled = pc.fill_null(chosen.column(place), self._options.subject)
        return chosen.set_column(place, "subject", filled)


class StreamProducers:
    """Producers by stream; leaving the context waits for all acks."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._made: dict[str, Producer] = {}
        self._stack = ExitStack()

    def __getitem__(self, stream: str) -> Producer:
        if stream not in self._made:
            producer = self._client.producer(stream, delivery_timeout_s=self._timeout_s)
            self._made[stream] = self._stack.enter_context(producer)
        return self._made[stream]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Check that rows can be appended as records.

    Raises:
        InvalidConfigError: there is no column ``value``, an unknown column, a type that a record
            cannot have, or no stream to write to.
    """
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidConfigError(
            "rows need a column 'value' of type binary or string; encode the others into it, for "
            "example with to_json(struct(*))"
        )
    if "message_id" in names and options.exactly_once:
        raise InvalidConfigError(
            "a column 'message_id' is for delivery 'atLeastOnce': exactly once needs none"
        )
    if options.partition_by == "column" and "partition" not in names:
        raise InvalidConfigError(
            f"partitionBy 'column' needs a column 'partition' of type int; add it to "
            f"{', '.join(names)}"
        )
    if options.partition_by == "column" and not _is_integer(schema["partition"].dataType):
        kind = schema["partition"].dataType.simpleString()
        raise InvalidConfigError(f"column 'partition' is {kind}, not int; cast it first")
    if options.stream is None and STREAM_COLUMN not in names:
        raise InvalidConfigError(
            "option 'stream' is missing: name the stream to append to, or give rows a column "
            "'stream'"
        )
    kinds = COLUMNS | {STREAM_COLUMN: ("string",)}
    for field in schema.fields:
        allowed = kinds.get(field.name)
        if allowed is None and field.name not in IGNORED_COLUMNS:
            raise InvalidConfigError(
                f"unknown column '{field.name}'; rows may have {', '.join(kinds)}: encode the "
                "others into 'value', for example with to_json(struct(*))"
            )
        if allowed is not None and field.dataType.simpleString() not in allowed:
            raise InvalidConfigError(
                f"column '{field.name}' is {field.dataType.simpleString()}, not "
                f"{' or '.join(allowed)}; cast it first"
            )


def _is_integer(kind: DataType) -> bool:
    return kind.simpleString() in ("tinyint", "smallint", "int", "bigint")

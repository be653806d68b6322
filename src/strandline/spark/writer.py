"""Appends rows to a stream, from batch jobs and streaming queries: at least once.

Rules: every row a task wrote is acknowledged, as durable as the stream promises, before the task
ends; a task that Spark repeats appends its rows again, and so does a replayed micro-batch. A
``message_id`` column makes repeats duplicates that the broker drops, within the stream's window.
Exactly once into the log needs transactions, which are not built yet.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError
from strandline.spark.connection import client_of
from strandline.spark.options import WriteOptions

COLUMNS: dict[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "subject": ("string",),
    "headers": ("map<string,binary>",),
    "message_id": ("string",),
}
"""What a row may bring, and in which types."""
IGNORED_COLUMNS = ("partition", "offset", "timestamp")
"""Left to the broker, so that what was read from one stream can be written to another."""


@dataclass
class Appended(WriterCommitMessage):
    """How many rows a task appended."""

    rows: int


class _Appender:
    """What both writers do in a task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self.options = options
        self.columns = [name for name in schema.fieldNames() if name in COLUMNS]

    def append(self, batches: Iterator[pa.RecordBatch]) -> Appended:
        """Append every row and wait for the acknowledgements."""
        rows = 0
        timeout_s = max(1.0, self.options.retry_timeout_ms / 1000)
        client = client_of(self.options.server)
        with client.producer(self.options.stream, delivery_timeout_s=timeout_s) as producer:
            for batch in batches:
                producer.append_batch(self._prepared(batch))
                rows += batch.num_rows
        return Appended(rows)

    def _prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns to append; rows without a subject get the option's."""
        chosen = batch.select(self.columns)
        if self.options.subject is None:
            return chosen
        if "subject" not in self.columns:
            subjects = pa.repeat(pa.scalar(self.options.subject), batch.num_rows)
            return chosen.append_column("subject", subjects)
        place = self.columns.index("subject")
        filled = pc.fill_null(chosen.column(place), self.options.subject)
        return chosen.set_column(place, "subject", filled)


class BatchAppendWriter(DataSourceArrowWriter):
    """Appends the rows of a batch job."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.appender = _Appender(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append the rows of a task."""
        return self.appender.append(iterator)


class StreamAppendWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.appender = _Appender(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append the rows of a task."""
        return self.appender.append(iterator)


def check_columns(schema: StructType) -> None:
    """Check that rows can be appended as records.

    Raises:
        InvalidConfigError: no value, an unknown column, or a type that is not a record's.
    """
    if "value" not in schema.fieldNames():
        raise InvalidConfigError(
            "rows need a column 'value' of type binary or string; encode the others into it, for "
            "example with to_json(struct(*))"
        )
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None and field.name not in IGNORED_COLUMNS:
            raise InvalidConfigError(
                f"unknown column '{field.name}'; rows may have {', '.join(COLUMNS)}: encode the "
                "others into 'value', for example with to_json(struct(*))"
            )
        if kinds is not None and field.dataType.simpleString() not in kinds:
            raise InvalidConfigError(
                f"column '{field.name}' is {field.dataType.simpleString()}, not "
                f"{' or '.join(kinds)}; cast it first"
            )

"""Decoding within a task of the table sink, and the dead letters of values that are refused.

Rules: a value that cannot be decoded is appended to the dead-letter stream with the reason and its
source in headers, acknowledged before the task ends; without such a stream it ends the query. Its
message id is its source, so a task that Spark repeats stores it once within that stream's window
for duplicates. Must not know files.
"""

import json
from typing import Self

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.client import Producer
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.connection import client_of
from strandline.spark.decode import record_columns, value_decoder
from strandline.spark.headers import ERROR, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM
from strandline.spark.options import TableOptions

_DELIVERY_TIMEOUT_S = 120.0


def value_schema(options: TableOptions) -> pa.Schema | None:
    """The columns of decoded values; None if values stay as they are.

    Raises:
        InvalidConfigError: the option is not a Spark schema as JSON.
    """
    if options.values == "raw":
        return None
    assert options.value_schema is not None
    try:
        fields = StructType.fromJson(json.loads(options.value_schema))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfigError(
            "option 'valueSchema' takes a Spark schema as JSON, as schema.json() writes it"
        ) from error
    return to_arrow_schema(fields, timezone="UTC")


class Decoding:
    """Turns the records of one task into rows; a context, whose end waits for the dead letters.

    Args:
        options: of the table.
        schema: the table's.
    """

    def __init__(self, options: TableOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._producer: Producer | None = None
        values = value_schema(options)
        if values is not None:
            self._values = values
            self._decode = value_decoder(options.values, values, avro_schema=options.avro_schema)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the table made of records.

        Raises:
            InvalidRecordError: a value cannot be decoded, and there is no dead-letter stream.
        """
        decoded = self._decode(batch.column("value"))
        if decoded.bad:
            self._refuse(batch, decoded.bad)
        columns = [column for _, column in record_columns(batch, decoded.sources)]
        columns += decoded.rows.flatten()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._producer is not None:
            self._producer.close()

    def _refuse(self, batch: pa.RecordBatch, bad: list[tuple[int, str]]) -> None:
        if self._options.dead_letters is None:
            place, reason = bad[0]
            raise InvalidRecordError(
                f"the value of {_source(batch, place)} is not {self._options.values}: {reason}; "
                "name a stream for such values with the option 'deadLetters'"
            )
        if self._producer is None:
            assert self._options.server is not None
            client = client_of(self._options.server)
            self._producer = client.producer(
                self._options.dead_letters, delivery_timeout_s=_DELIVERY_TIMEOUT_S
            )
        self._producer.append_batch(_letters(batch, bad, stream=self._options.stream or ""))


def _source(batch: pa.RecordBatch, place: int) -> str:
    partition, offset = (batch.column(name)[place].as_py() for name in ("partition", "offset"))
    return f"partition {partition}, offset {offset}"


def _letters(batch: pa.RecordBatch, bad: list[tuple[int, str]], *, stream: str) -> pa.Table:
    """Records for the dead-letter stream."""
    rows = batch.take(pa.array([place for place, _ in bad], pa.int64())).to_pylist()
    headers = [
        [
            (ERROR, reason.encode()),
            (SOURCE_STREAM, stream.encode()),
            (SOURCE_PARTITION, b"%d" % row["partition"]),
            (SOURCE_OFFSET, b"%d" % row["offset"]),
        ]
        for row, (_, reason) in zip(rows, bad, strict=True)
    ]
    ids = [f"{stream}/{row['partition']}/{row['offset']}" for row in rows]
    return pa.table(
        {
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "key": pa.array([row.get("key") for row in rows], pa.binary()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
            "message_id": pa.array(ids, pa.string()),
        }
    )

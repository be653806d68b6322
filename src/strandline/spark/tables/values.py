"""Decoding within a task of the table sink, and the dead letters of rejected values.

Rules: a value that cannot be decoded is staged for the dead-letter stream, with the reason and the
source in headers, under a second transaction; the driver commits that once, just before the table.
Without a dead-letter stream the query fails. Must not know files.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StructType,
    TimeType,
)

from strandline.client.transactions.staged_write import StagedWrite
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.connection import schemas_of
from strandline.spark.headers import ERROR, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM
from strandline.spark.options import ReadOptions, TableFormat, TableOptions
from strandline.spark.publication import Part, begin_stage
from strandline.spark.rows import Fingerprint
from strandline.spark.tables.changes import (
    ChangeDecoder,
    Changes,
    check_primary_key,
    envelope_schema,
    row_versions,
)
from strandline.spark.tables.columns import (
    FollowingColumns,
    columns_of_streams,
    following_columns,
)
from strandline.spark.tables.stage import tracks_offsets
from strandline.spark.tables.stream_values import StreamDecoder
from strandline.values.decode import (
    Decoded,
    check_decodable,
    check_distinct_names,
    decoded_schema,
    record_columns,
    value_decoder,
)
from strandline.values.schema import SchemaVersion

DecodeValues = Callable[[pa.Array], Decoded]

_NOT_KEPT = (NullType, AnsiIntervalType, CalendarIntervalType)
_RETRY_TIMEOUT_MS = 120_000
_STAGE_TIMEOUT_MS = 3_600_000


def value_schema(options: TableOptions) -> pa.Schema | None:
    """Return the columns of decoded values; None if values are not decoded.

    Raises:
        InvalidConfigError: the option is not a Spark schema as JSON, or has a type that the table
            cannot store.
    """
    if options.values == "raw":
        return None
    assert options.value_schema is not None
    try:
        fields = StructType.fromJson(json.loads(options.value_schema))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfigError(
            "option 'valueSchema' takes a Spark schema as JSON, as schema.json() writes it, got "
            f"{options.value_schema[:200]!r}"
        ) from error
    check_storable(fields, options.table_format)
    return to_arrow_schema(fields, timezone="UTC")


def check_storable(schema: StructType, table_format: TableFormat) -> None:
    """Check that a table can store the types of all columns and nested fields.

    Raises:
        InvalidConfigError: it cannot; the message names the column and its type.
    """
    not_kept = _NOT_KEPT if table_format == "parquet" else (*_NOT_KEPT, TimeType)
    for field in schema.fields:
        _check_storable(field.name, field.dataType, not_kept)


def _check_storable(name: str, kind: DataType, not_kept: tuple[type[DataType], ...]) -> None:
    if isinstance(kind, not_kept) or kind == StructType([]):
        raise InvalidConfigError(
            f"column '{name}' is {kind.simpleString()}, which the table cannot keep; CAST it to "
            "the type that is meant, as array() to ARRAY<STRING>, or to STRING"
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_storable(f"{name}.{field.name}", field.dataType, not_kept)
    elif isinstance(kind, ArrayType):
        _check_storable(f"{name}.element", kind.elementType, not_kept)
    elif isinstance(kind, MapType):
        _check_storable(f"{name}.key", kind.keyType, not_kept)
        _check_storable(f"{name}.value", kind.valueType, not_kept)


def check_decoding(records: pa.Schema, options: TableOptions) -> None:
    """Check that rows have the record columns needed, and values can be decoded to the columns.

    Raises:
        InvalidConfigError: the rows have no column ``value``, or none to name the source of a dead
            letter, or values cannot be decoded to a column's type.
    """
    schema = value_schema(options)
    if schema is None:
        return
    if options.values == "json":
        check_decodable(schema)
    if "value" not in records.names or not pa.types.is_binary(records.field("value").type):
        raise InvalidConfigError(
            f"values can be decoded as {options.values} only where rows have a column 'value' of "
            f"type binary; add it to {', '.join(records.names)}"
        )
    if options.dead_letters is None:
        return
    if not tracks_offsets(records):
        raise InvalidConfigError(
            "dead letters say which record they were: rows need the columns 'partition' of type "
            "int and 'offset' of type bigint"
        )
    if options.stream is None and "stream" not in records.names:
        raise InvalidConfigError(
            "dead letters say which record they were: name the stream that is loaded with the "
            "option 'stream'"
        )


def check_changes(records: pa.Schema, schema: pa.Schema, options: TableOptions) -> None:
    """Check that records can change the rows of a table by its primary key, if it has one.

    Args:
        records: the columns of the records.
        schema: the schema of the table.
        options: the options of the table.

    Raises:
        InvalidConfigError: the records have no offsets, or the table lacks the key's columns.
    """
    if options.primary_key and not tracks_offsets(records):
        raise InvalidConfigError(
            "changes by 'primaryKey' are applied in the order of their records: rows need the "
            "columns 'partition' of type int and 'offset' of type bigint"
        )
    check_primary_key(schema, options.primary_key)


class Decoding:
    """Decodes the records of one task; leaving the context discards what was not finished.

    Args:
        options: the options of the table.
        records: the columns of the records.
        values: the columns of decoded values, as known before the task; None: not decoded.
        batch: transaction id and number of the task's batch.
    """

    def __init__(
        self,
        options: TableOptions,
        records: pa.Schema,
        values: pa.Schema | None,
        *,
        batch: tuple[str, int],
    ) -> None:
        self._options = options
        self._txn_id, self._batch = f"{batch[0]}/dead-letters", batch[1]
        self._stage: StagedWrite | None = None
        self._letters = Fingerprint()
        schemas = _schemas(options)
        versions = schemas.get(options.stream or "", ())
        is_debezium = options.envelope == "debezium"
        rows = row_versions(versions) if is_debezium else versions
        self.version = sum(each[-1].version for each in schemas.values())
        """The version of the stream's schema, of several streams the sum; 0: decoded by none."""
        self.values = values
        """The columns of decoded values in the table."""
        self.names: dict[str, str] | None = None
        """The new names of columns, if the columns follow the stream's schema."""
        self.schema = records
        """The schema of the table."""
        decode: DecodeValues | None = None
        self._of_streams: StreamDecoder | None = None
        if values is not None:
            if versions:
                values, self.names, _ = columns_by_schema(options, values, rows)
            elif schemas:
                values, self.names, _ = columns_by_schemas(options, values, schemas)
            self.values = values
            self.schema = decoded_schema(records, values)
            check_distinct_names(self.schema)
            if is_debezium:
                values = envelope_schema(values, has_wrapper=options.values == "json")
            if options.schema_streams:
                self._of_streams = StreamDecoder(options.values, values, schemas)
            else:
                decode = value_decoder(
                    options.values,
                    values,
                    avro_schema=options.avro_schema,
                    avro_writer_schema=options.avro_writer_schema,
                    versions=versions,
                )
        self._decode = decode
        self._changes = ChangeDecoder(
            self.schema,
            options.primary_key,
            decode=decode,
            is_debezium=is_debezium,
            versions=rows,
        )

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode records to rows of the table.

        Raises:
            InvalidRecordError: a value cannot be decoded, and there is no dead-letter stream.
        """
        if self._of_streams is not None:
            decoded = self._of_streams(batch)
        else:
            assert self._decode is not None
            decoded = self._decode(batch.column("value"))
        if decoded.bad:
            self._refuse(batch, decoded.bad)
        columns = [column for _, column in record_columns(batch, decoded.sources)]
        columns += decoded.rows.flatten()
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def changes(self, batch: pa.RecordBatch) -> Changes:
        """Decode records to changes by the primary key; errors are those of ``rows``."""
        changes, bad = self._changes(batch)
        if bad:
            self._refuse(batch, bad)
        return changes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stage is not None:
            self._stage.__exit__(kind, error, trace)

    def finish(self) -> Part | None:
        """Finish the dead letters; return their part, or None if there are none."""
        if self._stage is None:
            return None
        ref = self._stage.finish().ref
        return Part(txn_id=self._txn_id, batch=self._batch, ref=ref, fingerprint=self._letters)

    def _refuse(self, batch: pa.RecordBatch, bad: list[tuple[int, str]]) -> None:
        if self._options.dead_letters is None:
            place, reason = bad[0]
            kind = "a change of a row" if self._options.primary_key else self._options.values
            raise InvalidRecordError(
                f"the value of {_source(batch, place)} is not {kind}: {reason}; "
                "name a stream for such values with the option 'deadLetters'"
            )
        if self._stage is None:
            assert self._options.server is not None
            self._stage = begin_stage(
                self._options.server,
                (self._txn_id, self._batch),
                timeout_ms=_RETRY_TIMEOUT_MS,
                stage_timeout_ms=_STAGE_TIMEOUT_MS,
            )
        letters = _letters(batch, bad, stream=self._options.stream or "")
        self._letters += Fingerprint.of(letters)
        self._stage.append_batch(self._options.dead_letters, letters)


def columns_by_schema(
    options: TableOptions, values: pa.Schema, versions: Sequence[SchemaVersion]
) -> FollowingColumns:
    """Return the columns of a table's values, by the schema of its stream.

    Raises:
        InvalidConfigError: the names of two columns differ only in case.
    """
    found = following_columns(
        values,
        versions,
        table_format=options.table_format,
        primary_key=options.primary_key,
    )
    return found._replace(schema=_as_spark(found.schema))


def columns_by_schemas(
    options: TableOptions,
    values: pa.Schema,
    schemas: Mapping[str, Sequence[SchemaVersion]],
) -> FollowingColumns:
    """Return the columns that the values of a table have by the schemas of its streams.

    Raises:
        InvalidConfigError: the schemas do not agree.
    """
    found = columns_of_streams(values, schemas, table_format=options.table_format)
    return found._replace(schema=_as_spark(found.schema))


def _as_spark(schema: pa.Schema) -> pa.Schema:
    """Return the columns in Spark's types, as which the table's are read at the next start."""
    return to_arrow_schema(from_arrow_schema(schema), timezone="UTC")


def _schemas(options: TableOptions) -> Mapping[str, Sequence[SchemaVersion]]:
    """Return the versions of the schemas of streams, if values are decoded by them.

    Each task reads them, so that it knows every version that was set before its values.
    """
    if not options.stream_schema:
        return {}
    assert options.server is not None
    several = options.schema_streams or ""
    is_pattern = any(sign in several for sign in "*?[")
    read = ReadOptions(
        server=options.server,
        stream=None if several else options.stream,
        streams=() if is_pattern else tuple(filter(None, several.split(","))),
        stream_pattern=several if is_pattern else None,
        retry_timeout_ms=_RETRY_TIMEOUT_MS,
    )
    return schemas_of(read, kind=options.values)


def _source(batch: pa.RecordBatch, place: int) -> str:
    if not tracks_offsets(batch.schema):
        return "a record"
    row = batch.slice(place, 1).to_pylist()[0]
    stream = f"stream {row['stream']}, " if "stream" in row else ""
    return f"{stream}partition {row['partition']}, offset {row['offset']}"


def _letters(batch: pa.RecordBatch, bad: list[tuple[int, str]], *, stream: str) -> pa.RecordBatch:
    """Return records for the dead-letter stream."""
    rows = batch.take(pa.array([place for place, _ in bad], pa.int64())).to_pylist()
    headers = [
        [
            (ERROR, reason.encode()),
            (SOURCE_STREAM, row.get("stream", stream).encode()),
            (SOURCE_PARTITION, b"%d" % row["partition"]),
            (SOURCE_OFFSET, b"%d" % row["offset"]),
        ]
        for row, (_, reason) in zip(rows, bad, strict=True)
    ]
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "key": pa.array([row.get("key") for row in rows], pa.binary()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
        }
    )

"""Reads whose values are decoded inside the source: the option ``valueFormat``.

Rules: batches are decoded as a whole, not row by row; the record's own columns get an underscore,
as in a load. The stream's schema is looked up twice: when a read is loaded, for its columns, and in
each task, to know every version that was set before its values were published. Must not know
Spark's readers.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.connection import read_rows, schema_versions
from strandline.spark.options import ReadOptions
from strandline.spark.planning import OffsetRange
from strandline.values.columns import arrow_schema, parse_columns
from strandline.values.decode import (
    RECORD_COLUMNS,
    RECORD_PREFIX,
    Decoded,
    check_decodable,
    check_distinct_names,
    value_decoder,
)
from strandline.values.evolution import given_versions
from strandline.values.schema import SchemaVersion

ERROR_COLUMN = "_error"
"""The column with the reason why a value was not decoded, in mode PERMISSIVE."""
_OWN = {f"{RECORD_PREFIX}{name}": name for name in ("stream", *RECORD_COLUMNS)}


def decoded_columns(options: ReadOptions, records: dict[str, DataType]) -> list[StructField]:
    """Return the columns of a decoded read: the record's own, then the value's.

    Args:
        options: the options of the read.
        records: the record's own columns in this read.

    Raises:
        InvalidConfigError: the columns of values are not known or cannot be read, or two have one
            name.
        UnknownStreamError: there is no such stream.
    """
    values = _value_columns(options)
    own = [
        StructField(f"{RECORD_PREFIX}{name}", kind)
        for name, kind in records.items()
        if name != "value"
    ]
    errors = [StructField(ERROR_COLUMN, StringType())] if options.mode == "PERMISSIVE" else []
    fields = [*own, *from_arrow_schema(values), *errors]
    check_distinct_names(pa.schema([(field.name, pa.null()) for field in fields]))
    return [StructField(field.name, field.dataType) for field in fields]


def check_decoded_columns(schema: StructType, known: Sequence[StructField]) -> None:
    """Check that a schema has only columns of a decoded read, with their types.

    Raises:
        InvalidConfigError: naming the column and its type.
    """
    types = {field.name: field.dataType for field in known}
    for field in schema.fields:
        if field.name not in types:
            raise InvalidConfigError(
                f"the read has no column '{field.name}'; it has: {', '.join(types)}"
            )
        wanted = types[field.name].simpleString()
        if field.dataType.simpleString() != wanted:
            raise InvalidConfigError(
                f"column '{field.name}' is {wanted}, not {field.dataType.simpleString()}; cast it "
                "after loading"
            )
        if not field.nullable:
            raise InvalidConfigError(
                f"column '{field.name}' may be null, but the schema says NOT NULL, which Spark "
                "relies on; leave NOT NULL out"
            )


def decoded_rows(
    options: ReadOptions, wanted: OffsetRange, target: pa.Schema, *, identity: str
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range with decoded values; otherwise like ``read_rows``.

    Raises:
        InvalidRecordError: a value cannot be decoded, in mode FAILFAST.
    """
    own = [field.with_name(_OWN[field.name]) for field in target if field.name in _OWN]
    records = pa.schema([*own, ("value", pa.binary())])
    if "offset" not in records.names:
        records = records.append(pa.field("offset", pa.int64()))
    values = pa.schema([field for field in target if _is_value(field.name)])
    stream = options.place(wanted.partition).stream
    versions: Sequence[SchemaVersion] = given_versions(options.value_format, options.value_schema)
    if not options.value_schema:
        versions = _versions(options, stream)
    decode = value_decoder(
        options.value_format,
        values,
        avro_schema=options.value_schema,
        avro_writer_schema=options.writer_schema,
        versions=versions,
    )
    for batch in read_rows(options, wanted, records, identity=identity):
        found = decode(batch.column("value"))
        if found.bad and options.mode == "FAILFAST":
            place, reason = found.bad[0]
            raise InvalidRecordError(
                f"the value of {options.place(wanted.partition)}, offset "
                f"{batch.column('offset')[place]} is not {options.value_format}: {reason}; set "
                "'mode' to PERMISSIVE for nulls and the reason, or to DROPMALFORMED"
            )
        yield _joined(batch, found, target)


def _is_value(name: str) -> bool:
    return name not in _OWN and name != ERROR_COLUMN


def _joined(batch: pa.RecordBatch, found: Decoded, target: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a batch. With the column for reasons, bad values become rows of nulls."""
    sources, bad = found.sources, []
    if ERROR_COLUMN in target.names:
        bad = found.bad
        sources = sources + [place for place, _ in bad]
    order = sorted(range(len(sources)), key=lambda row: sources[row])  # stable
    places = pa.array([sources[row] for row in order], pa.int64())
    values = dict(zip((field.name for field in found.rows.type), found.rows.flatten(), strict=True))
    columns = []
    for field in target:
        if field.name in _OWN:
            columns.append(batch.column(_OWN[field.name]).take(places))
            continue
        if field.name == ERROR_COLUMN:
            column = pa.array(
                [None] * len(found.sources) + [reason for _, reason in bad], pa.string()
            )
        else:
            column = values[field.name]
            if bad:
                column = pa.concat_arrays([column, pa.nulls(len(bad), column.type)])
        columns.append(column.take(pa.array(order, pa.int64())) if bad else column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _value_columns(options: ReadOptions) -> pa.Schema:
    """Return the columns of the values, from the option or the stream's schema."""
    if options.value_schema is None:
        if options.stream is None:
            raise InvalidConfigError(
                "a read of several streams has the columns of one schema: give 'schema'"
            )
        return arrow_schema(_versions(options, options.stream)[-1].columns)
    if options.value_format == "avro":
        from strandline.values.avro import arrow_schema_of

        return arrow_schema_of(options.value_schema)
    if versions := given_versions(options.value_format, options.value_schema):
        return arrow_schema(versions[-1].columns)
    columns = parse_columns(options.value_schema)
    if options.value_format == "json":
        check_decodable(columns)
    return columns


def _versions(options: ReadOptions, stream: str) -> Sequence[SchemaVersion]:
    """Return the versions of a stream's schema, at least one.

    Raises:
        InvalidConfigError: the stream has no schema, or one for values of another format.
    """
    if options.value_format == "arrow":
        return ()
    found = schema_versions(
        options.server, stream, kind=options.value_format, timeout_ms=options.retry_timeout_ms
    )
    if not found:
        option = "" if options.value_format == "protobuf" else "give the option 'schema', or "
        raise InvalidConfigError(
            f"stream {stream!r} has no schema: {option}set it with "
            f"'strandline stream schema set {stream} FILE'"
        )
    return found

"""A table that a stream is loaded into, together with the records that are not loaded yet.

    import strandline
    orders = strandline.table("orders", table="lake/orders")
    polars.DataFrame(orders)                       # or duckdb.sql("SELECT count(*) FROM orders")

Rules: read the table and its offsets from one commit, then the log from these offsets. Later
commits do not affect the result, so each record appears once. Must not know Spark.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.arrow import SparkCast
from strandline.spark.connection import read_rows, schemas_of, stream_state
from strandline.spark.options import ReadOptions, TableFormat
from strandline.spark.planning import (
    OffsetRange,
    StreamExtent,
    available_end,
    keyed,
    plan_ranges,
    starting_offsets,
)
from strandline.spark.tables.columns import columns_of_streams, following_columns, with_columns
from strandline.spark.tables.log import TableState, check_same_stream, decode_schema
from strandline.spark.tables.open import existing_store
from strandline.spark.tables.store import Loaded, TableStore
from strandline.spark.tables.stream_values import StreamDecoder
from strandline.values.decode import (
    RECORD_COLUMNS,
    RECORD_PREFIX,
    RECORD_SCHEMA,
    Decoded,
    record_columns,
    value_decoder,
)
from strandline.values.schema import SchemaVersion, ValueFormat

Decode = Callable[[pa.RecordBatch], pa.RecordBatch]

Schemas = Mapping[str, Sequence[SchemaVersion]]
"""The versions of the schema of each stream, ascending."""
_NO_SCHEMAS: Schemas = MappingProxyType({})
_SEVERAL = pa.schema([pa.field("stream", pa.string()), *RECORD_SCHEMA])
"""The columns of records of several streams."""


@dataclass(frozen=True)
class LiveTable:
    """The committed rows of a table, and then the records of the log up to its end at that moment.

    Reading it again gives the same rows; call ``strandline.table`` again for newer ones. Polars,
    DuckDB and pyarrow accept it as Arrow data (``__arrow_c_stream__``).
    """

    schema: pa.Schema
    """The columns; those of the stream's newest schema, if values are decoded by it."""
    tail: list[OffsetRange]
    """The ranges that are read from the log."""
    names: dict[str, str]
    """The new names of the table's columns, by their names in its files."""
    _store: TableStore
    _loaded: Loaded
    _options: ReadOptions
    _identity: str
    _records: pa.Schema
    _decode: Decode | None

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of all rows, first the table's, then the log's.

        It reads as it is consumed. Errors while reading: ``DataLossError`` if records were deleted
        before they were loaded, ``InvalidRecordError`` for a value that cannot be decoded,
        ``UnavailableError``.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return all rows as an Arrow C stream."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self._loaded.state is not None:
            stored = self._store.scan(self._loaded)
            whole = (with_columns(batch, self.schema, self.names) for batch in stored)
            yield from map(SparkCast(self.schema), whole)
        for wanted in self.tail:
            rows = read_rows(self._options, wanted, self._records, identity=self._identity)
            yield from rows if self._decode is None else map(self._decode, rows)


def table(
    stream: str | Sequence[str] | None = None,
    *,
    table: str,
    stream_pattern: str | None = None,
    server: str = "127.0.0.1:9293",
    table_format: TableFormat = "parquet",
    catalog: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
    values: ValueFormat = "raw",
    avro_schema: str | None = None,
    avro_writer_schema: str | None = None,
    skip_invalid: bool = False,
) -> LiveTable:
    """Return a table that a stream is loaded into, with the records that are not loaded yet.

    Args:
        stream: the name of the stream, or the names of several that are loaded into one table.
        table: the table's directory or URL, or ``namespace.table`` of an Iceberg table, as in
            ``into`` of the load.
        stream_pattern: instead of ``stream``, as in the load.
        server: the broker's Flight address; in a cluster several, separated by commas.
        table_format: ``parquet``, ``delta`` or ``iceberg``.
        catalog: properties of the Iceberg catalog.
        storage: settings of the object store, as in the load.
        values: how the load decodes values: ``raw``, ``json``, ``avro`` or ``arrow``.
        avro_schema: for Avro, as the load's ``schema``; by default the stream's.
        avro_writer_schema: for Avro, as the load's ``writer_schema``.
        skip_invalid: leave out values that cannot be decoded, as a load with dead letters does.

    Raises:
        InvalidConfigError: the table's columns are not those of such a load, or nothing is
            committed yet from which the columns of values could be known.
        InvalidRequestError: the table holds another stream's records.
        DataLossError: records were deleted before they were loaded.
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker could not be reached in time.
    """
    where = {"catalog": catalog, "storage": storage}
    store = existing_store(table, table_format=table_format, **where)
    # The table is loaded before the log's end is read. Records that a load commits in between are
    # read from the log, and not from the table, whose files are those of the loaded commit.
    loaded = store.load()
    options = _read_options(server, stream, stream_pattern)
    extent = stream_state(options)
    has_several = options.stream is None
    if loaded.state is not None:
        check_same_stream(loaded.state, extent.identity, several=has_several)
    own = _SEVERAL if has_several else RECORD_SCHEMA
    schema = _schema(loaded.state, table, values=values, own=own)
    decode, records = None, schema
    names: dict[str, str] = {}
    if values != "raw":
        schemas = _schemas(options, values, avro_schema)
        if schemas:
            schema, names = _followed(
                schema, schemas, several=has_several, table_format=table_format
            )
        records = _record_schema(schema, own)
        decode = _decoder(
            schema,
            values,
            skip_invalid=skip_invalid,
            avro_schema=avro_schema,
            avro_writer_schema=avro_writer_schema,
            schemas=schemas,
            several=has_several,
        )
    return LiveTable(
        schema=schema,
        names=names,
        tail=_tail(options, extent, loaded.state),
        _store=store,
        _loaded=loaded,
        _options=options,
        _identity=extent.identity,
        _records=records,
        _decode=decode,
    )


def _schemas(options: ReadOptions, values: ValueFormat, avro_schema: str | None) -> Schemas:
    """Return the versions of the streams' schemas; none if another schema is given.

    They are read after the end of the log, so that they include the versions of all its records.
    """
    if avro_schema is not None or values in ("raw", "arrow"):
        return {}
    return schemas_of(options, kind=values)


def _read_options(
    server: str, stream: str | Sequence[str] | None, pattern: str | None
) -> ReadOptions:
    if (stream is None) == (pattern is None):
        raise InvalidConfigError("give a stream, a list of them, or 'stream_pattern'")
    read = ReadOptions(server=server, stream=None, stream_pattern=pattern)
    if stream is None:
        return read
    names = (stream,) if isinstance(stream, str) else tuple(stream)
    if not names:
        raise InvalidConfigError("the list of streams is empty: name one, or several")
    # One is loaded into a table whose rows do not name it, as by 'streams' of a load.
    return replace(read, stream=names[0]) if len(names) == 1 else replace(read, streams=names)


def _tail(
    options: ReadOptions, extent: StreamExtent, state: TableState | None
) -> list[OffsetRange]:
    """Return the ranges that are not in the table; a new partition begins at its log start."""
    committed = state.offsets if state is not None else {}
    start = starting_offsets(extent.partitions, options)
    start |= keyed(committed.items(), options, identity=extent.identity)
    return plan_ranges(start, available_end(extent.partitions, options, start=start), options)


def _schema(
    state: TableState | None, table: str, *, values: ValueFormat, own: pa.Schema
) -> pa.Schema:
    """Return the columns of the rows.

    Raises:
        InvalidConfigError: the table's columns are not those of records, nor of decoded values.
    """
    if state is None:
        if values != "raw":
            raise InvalidConfigError(
                f"nothing is committed to {table} yet, so the columns of its values are not known; "
                "wait for the first commit of its load"
            )
        return own
    schema = decode_schema(state.arrow_schema)
    if state.primary_key:
        raise InvalidConfigError(
            f"the rows of {table} are those of the primary key {', '.join(state.primary_key)}, and "
            "the log has every change; read only the table"
        )
    if not state.tracks_offsets:
        raise InvalidConfigError(
            f"{table} has no stream offsets, so it cannot be joined with the log; "
            "read only the table"
        )
    if (f"{RECORD_PREFIX}offset" in schema.names) != (values != "raw"):
        columns = ", ".join(schema.names)
        raise InvalidConfigError(
            f"values={values!r} does not fit {table} with the columns {columns}: give the "
            "'values' of the load that writes it"
        )
    known = {*own.names, "stream"}
    foreign = [name for name in schema.names if values == "raw" and name not in known]
    if foreign:
        raise InvalidConfigError(
            f"{table} has the column {foreign[0]!r}, which a query computed and the log does not "
            "have; read only the table"
        )
    return schema


def _followed(
    schema: pa.Schema, schemas: Schemas, *, several: bool, table_format: TableFormat
) -> tuple[pa.Schema, dict[str, str]]:
    """Return the columns that the next commit gives a table, and their new names."""
    own = _own(schema)
    values = pa.schema([field for field in schema if field.name not in own])
    if several:
        found = columns_of_streams(values, schemas, table_format=table_format)
    else:
        [versions] = schemas.values()
        found = following_columns(values, versions, table_format=table_format)
    return pa.schema([*(schema.field(name) for name in own), *found.schema]), found.names


def _record_schema(schema: pa.Schema, own: pa.Schema) -> pa.Schema:
    """Return the columns of records that a table of decoded values needs."""
    wanted = {"value", *(name.removeprefix(RECORD_PREFIX) for name in _own(schema))}
    return pa.schema([field for field in own if field.name in wanted])


def _own(schema: pa.Schema) -> list[str]:
    """Return the record's own columns of a table of decoded values."""
    own = {f"{RECORD_PREFIX}{name}" for name in RECORD_COLUMNS}
    return [name for name in schema.names if name in own]


def _decoder(
    schema: pa.Schema,
    values: ValueFormat,
    *,
    skip_invalid: bool,
    schemas: Schemas = _NO_SCHEMAS,
    several: bool = False,
    **avro: Any,
) -> Decode:
    """Return a function that converts a batch of records to rows of the table."""
    own = _own(schema)
    columns = pa.schema([field for field in schema if field.name not in own])
    decode_records: Callable[[pa.RecordBatch], Decoded]
    if several and schemas:
        decode_records = StreamDecoder(values, columns, schemas)
    else:
        versions = next(iter(schemas.values()), ())
        decode_values = value_decoder(values, columns, versions=versions, **avro)

        def decode_records(batch: pa.RecordBatch) -> Decoded:
            return decode_values(batch.column("value"))

    def decode(batch: pa.RecordBatch) -> pa.RecordBatch:
        decoded = decode_records(batch)
        if decoded.bad and not skip_invalid:
            place, reason = decoded.bad[0]
            raise InvalidRecordError(
                f"the value at offset {batch.column('offset')[place]} is not {values}: {reason}; "
                "give skip_invalid=True to leave such values out, as dead letters are"
            )
        named = dict(record_columns(batch, decoded.sources))
        arrays = [named[name] for name in own] + decoded.rows.flatten()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return decode

"""Load: streams into Parquet, Delta Lake or Iceberg tables, each record once.

Rules: a load resumes at the table's own offsets, so that after a lost checkpoint no record is lost
or stored twice; a recreated stream needs a new table. The first commit fixes the columns of decoded
values; only a new version of the stream's schema changes them. The table sink (``tables/io``)
commits.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError
from strandline.spark.connection import client_of, schemas_of, stream_state
from strandline.spark.options import (
    ReadOptions,
    TableOptions,
    check_upsert,
    parse_table_options,
)
from strandline.spark.pipelines.config import LoadPipeline
from strandline.spark.pipelines.outputs import stream_of
from strandline.spark.pipelines.queries import read_stream, triggered
from strandline.spark.planning import keyed
from strandline.spark.session import wait_for_sources
from strandline.spark.tables.changes import row_versions, rows_of_events
from strandline.spark.tables.columns import columns_of_streams
from strandline.spark.tables.log import TableState, check_same_key, check_same_stream, decode_schema
from strandline.spark.tables.open import existing_store, is_object_url
from strandline.spark.tables.store import Loaded, MissingTableError, TableStore, local_path
from strandline.spark.tables.stream_values import StreamDecoder
from strandline.spark.tables.values import columns_by_schema, columns_by_schemas, value_schema
from strandline.values.columns import arrow_schema, parse_columns
from strandline.values.decode import (
    RECORD_COLUMNS,
    RECORD_PREFIX,
    check_distinct_names,
    infer_json_schema,
    value_decoder,
)
from strandline.values.schema import SchemaVersion

logger = logging.getLogger(__name__)

StreamSchemas = Mapping[str, Sequence[SchemaVersion]]
"""The versions of the schema of each stream, ascending."""
_SAMPLE_RECORDS = 1000
_RETRY_TIMEOUT_MS = 60_000
LOCAL_TXN_ID = "local"
"""Beginning of the transaction ids of ``engine: local``."""


class PreparedLoad(NamedTuple):
    """A load into one table, checked and ready to run on any engine."""

    read: ReadOptions
    """Options that select the stream or streams."""
    path: str
    """The table's directory, or its name in the catalog."""
    name: str
    """The name of the query, in reports and as the default group."""
    starting_offsets: str | None
    """The table's offsets, at which a new reader starts; None: nothing is committed yet."""
    local_commits: int
    """A number that grows with each commit of ``engine: local``, and with no other commit."""
    options: dict[str, str]
    """The options of the table."""


def start_load(spark: SparkSession, config: LoadPipeline) -> list[StreamingQuery]:
    """Start one query per table.

    Raises:
        InvalidConfigError: the columns of the values are not known.
        InvalidRequestError: a table holds records of another stream.
        UnknownStreamError: there is no stream to load, or for dead letters.
    """
    check_load(config)
    return [_start_one(spark, config, prepare_load(config, each)) for each in reads_of(config)]


def reads_of(config: LoadPipeline) -> list[ReadOptions]:
    """Return the stream, or the streams, of each table of a load."""
    read = ReadOptions(
        server=config.server,
        stream=None,
        stream_pattern=config.stream_pattern,
        fail_on_data_loss=config.fail_on_data_loss,
        retry_timeout_ms=_RETRY_TIMEOUT_MS,
    )
    if config.stream_pattern is not None:
        return [read]
    if len(config.streams) > 1 and "{stream}" not in config.into:
        return [replace(read, streams=tuple(config.streams))]
    return [read.of_stream(stream) for stream in config.streams]


def source_options(read: ReadOptions) -> dict[str, str]:
    """Return the streams of a read as options."""
    if read.stream_pattern is not None:
        return {"streamPattern": read.stream_pattern}
    return {"stream": read.stream or ",".join(read.streams)}


def streams_of(read: ReadOptions) -> str:
    """Return the streams of a read in words."""
    return read.stream or read.stream_pattern or ", ".join(read.streams)


def checkpoint_of(read: ReadOptions) -> str:
    """Return the name of a read's checkpoint, which stays the same when streams are added."""
    return read.stream or "all-streams"


def check_load(config: LoadPipeline) -> None:
    """Check the settings that do not depend on a stream; errors are those of ``start_load``."""
    if config.schema and config.values == "raw":
        raise InvalidConfigError(
            "'schema' names columns of decoded values, and 'values' is raw: set 'values' to json, "
            "avro or arrow, or leave 'schema' out"
        )
    if config.schema and config.values == "protobuf":
        raise InvalidConfigError(
            "values in Protocol Buffers are decoded by the schema of their stream: leave 'schema' "
            "out, and set it with 'strandline stream schema set'"
        )
    if config.writer_schema and config.values != "avro":
        raise InvalidConfigError(
            f"'writer_schema' is for Avro, and 'values' is {config.values}; leave it out"
        )
    if (config.mode == "upsert") != bool(config.primary_key):
        raise InvalidConfigError(
            "'mode' is upsert, and 'primary_key' does not say by which columns; set it"
            if config.mode == "upsert"
            else f"'primary_key' is for 'mode: upsert', got {config.primary_key}; leave it out, or "
            "set that mode"
        )
    check_upsert(config.format, config.values, key=config.primary_key, envelope=config.envelope)
    _check_places(config)
    if config.dead_letters:
        stream_of(config.server, config.dead_letters)  # raises now, not at the first invalid value


def _check_places(config: LoadPipeline) -> None:
    """Check that ``into``, ``format``, ``catalog`` and ``storage`` can be combined."""
    if config.format == "iceberg":
        return
    if config.catalog:
        raise InvalidConfigError(
            f"'catalog' is for 'format: iceberg', and 'format' is {config.format}; leave it out"
        )
    for table in {table_of(config, read) for read in reads_of(config)}:
        if is_object_url(table):
            continue
        if config.storage:
            raise InvalidConfigError(
                f"'storage' is for an object store, and 'into' is the directory {table}; leave it "
                "out"
            )
        where, root = config.checkpoint, local_path(table).resolve()
        if not is_object_url(where) and local_path(where).resolve().is_relative_to(root):
            raise InvalidConfigError(
                f"'checkpoint' is {where}, in the directory of the table, {table}; put it elsewhere"
            )


def prepare_load(config: LoadPipeline, read: ReadOptions) -> PreparedLoad:
    """Check the streams and the table, and find its columns; errors are those of ``start_load``."""
    path = table_of(config, read)
    identity, _, loaded = open_load(config, read)
    state = loaded.state
    columns, schemas = None, _stream_schemas(config, read)
    if config.values != "raw":
        columns = _value_schema(config, read, state, schemas=schemas)
        arrow = to_arrow_schema(columns, timezone="UTC")
        check_distinct_names(arrow)
    options = table_options(config, read, identity=identity, columns=columns)
    if schemas:
        options["streamSchema"] = "true"
        if read.stream is None:
            options["schemaStreams"] = read.stream_pattern or ",".join(read.streams)
        _check_following(parse_table_options(options | {"path": path}), schemas)
    return PreparedLoad(
        read=read,
        path=path,
        name=f"load {streams_of(read)} into {path}",
        starting_offsets=_first_offsets(state, read, identity),
        local_commits=_local_commits(state),
        options=options,
    )


def table_of(config: LoadPipeline, read: ReadOptions) -> str:
    """Return the directory, URL or name of the table of a read."""
    return config.into.replace("{stream}", read.stream or "")


def open_load(config: LoadPipeline, read: ReadOptions) -> tuple[str, TableStore | None, Loaded]:
    """Return the identity of streams, their table and its state, after a check that they fit.

    The table is None if it is an Iceberg table that does not exist yet.

    Raises:
        InvalidConfigError: the catalog does not exist, or the path is not valid.
        InvalidRequestError: the table is of another format, holds records of another stream, or has
            another primary key.
        UnknownStreamError: there is no such stream.
        UnavailableError: the broker or the table cannot be reached.
    """
    identity = stream_state(read).identity
    store, loaded = _load_table_of(config, table_of(config, read))
    state = loaded.state
    if state is not None:
        check_same_stream(state, identity, several=read.stream is None)
        check_same_key(state, config.primary_key)
    if store is not None:
        store.check_kind(None if state is None else decode_schema(state.arrow_schema))
    return identity, store, loaded


def _start_one(spark: SparkSession, config: LoadPipeline, load: PreparedLoad) -> StreamingQuery:
    # Batches of changes are limited, since their keys are compared in memory.
    is_upsert = config.mode == "upsert"
    records = read_stream(
        spark,
        config,
        source_options(load.read),
        name=load.name,
        output=_output_of(config, load.path),
        startingOffsets=load.starting_offsets,
        maxBytesPerTrigger=config.batch_bytes_max or (config.file_bytes if is_upsert else None),
        minBytesPerTrigger=config.batch_bytes_min,
        maxTriggerDelayMs=config.batch_delay_ms_max,
    )
    writer = records.writeStream.format("strandline-table").options(**load.options)
    # Not as a Path, which would take a slash out of ``hdfs://``.
    checkpoint = f"{config.checkpoint.rstrip('/')}/{checkpoint_of(load.read)}"
    if load.local_commits > 0:
        # An older checkpoint is behind the table: a new one begins at the table's offsets.
        checkpoint += f"-after-local-{load.local_commits}"
    writer = writer.option("checkpointLocation", checkpoint)
    query = triggered(writer, config).queryName(load.name).start(load.path)
    wait_for_sources(query)
    return query


def _output_of(config: LoadPipeline, path: str) -> str:
    """Return the name of a table in the checkpoint, different for each table."""
    if config.format == "iceberg" or is_object_url(path):
        return path
    return str(local_path(path))


def table_options(
    config: LoadPipeline, read: ReadOptions, *, identity: str, columns: StructType | None
) -> dict[str, str]:
    """Return the options of the table that streams are loaded into.

    Args:
        config: the settings of the pipeline.
        read: the streams that are loaded.
        identity: the identity of the streams.
        columns: the columns of decoded values; None: values are not decoded.
    """
    dense = config.fail_on_data_loss if config.dense_offsets is None else config.dense_offsets
    options = {
        "tableFormat": config.format,
        "catalog": json.dumps(config.catalog),
        "storage": json.dumps(config.storage),
        "values": config.values,
        "denseOffsets": str(dense),
        "fileBytes": str(config.file_bytes),
        "snapshotAgeMs": str(config.snapshot_age_ms),
        "streamIdentity": identity,
        "server": config.server,
    }
    if read.stream is not None:
        options["stream"] = read.stream
    if config.compaction is not None:
        options["compaction"] = str(config.compaction)
    if config.primary_key:
        options["primaryKey"] = ",".join(config.primary_key)
    if config.envelope != "none":
        options["envelope"] = config.envelope
    if config.dead_letters:
        options["deadLetters"] = config.dead_letters
    if config.values == "avro":
        options["avroSchema"] = config.schema or ""
        options["avroWriterSchema"] = config.writer_schema or ""
    if columns is not None:
        options["valueSchema"] = columns.json()
    return options


def _load_table_of(config: LoadPipeline, path: str) -> tuple[TableStore | None, Loaded]:
    try:
        store = existing_store(
            path, table_format=config.format, catalog=config.catalog, storage=config.storage
        )
    except MissingTableError:
        return None, Loaded(None)  # the first commit makes it
    return store, store.load()


def _first_offsets(state: TableState | None, read: ReadOptions, identity: str) -> str | None:
    """Return the offsets of the table, at which a new reader starts; None: it has none."""
    if state is None:
        return None
    offsets = keyed(state.offsets.items(), read, identity=identity)
    named = {str(partition): offset for partition, offset in offsets.items()}
    return json.dumps(named) if named else None


def _local_commits(state: TableState | None) -> int:
    """Return a number that only the commits of ``engine: local`` increase."""
    transactions = {} if state is None else state.transactions
    return sum(
        newest.batch + 1
        for txn_id, newest in transactions.items()
        if txn_id.startswith(LOCAL_TXN_ID)
    )


def _stream_schemas(config: LoadPipeline, read: ReadOptions) -> StreamSchemas:
    """Return the versions of the streams' schemas by which a load decodes values.

    Empty if the file has a schema, or for an upsert of several streams. For Debezium's events they
    are the versions of the rows inside the events.

    Raises:
        InvalidConfigError: a schema is for another format of values.
    """
    if config.schema or config.values in ("raw", "arrow"):
        return {}
    if read.stream is None and config.mode == "upsert":
        return {}
    found = schemas_of(read, kind=config.values)
    if config.envelope == "debezium":
        return {stream: row_versions(versions) for stream, versions in found.items()}
    return found


def _check_following(options: TableOptions, schemas: StreamSchemas) -> None:
    """Check that a table can have the columns of its streams' schemas, before tasks start.

    Raises:
        InvalidConfigError: it cannot; the message names the column.
    """
    values = value_schema(options)
    assert values is not None
    if options.schema_streams:
        found = columns_by_schemas(options, values, schemas)
        StreamDecoder(options.values, found.schema, schemas)
    else:
        [versions] = schemas.values()
        found = columns_by_schema(options, values, versions)
        value_decoder(options.values, found.schema, versions=versions)
    check_distinct_names(found.schema)
    if found.kept:
        logger.warning(
            "%s keeps the columns %s, although the schema of its stream has wider types: the "
            "library cannot widen columns of Delta Lake. A value that is too wide does not fit; to "
            "have it, load into a new table, with a new checkpoint",
            options.path,
            ", ".join(found.kept),
        )


def _value_schema(
    config: LoadPipeline,
    read: ReadOptions,
    state: TableState | None,
    *,
    schemas: StreamSchemas,
) -> StructType:
    """Return the columns of the values, from table, file, stream or a sample, in this order."""
    if state is not None:
        own = {f"{RECORD_PREFIX}{name}" for name in RECORD_COLUMNS}
        fields = [field for field in decode_schema(state.arrow_schema) if field.name not in own]
        columns = from_arrow_schema(pa.schema(fields))
        _check_same_columns(config, columns)
        return columns
    if schemas:
        if read.stream is None:
            found = columns_of_streams(pa.schema([]), schemas, table_format="parquet")
            return from_arrow_schema(found.schema)
        [versions] = schemas.values()
        return from_arrow_schema(arrow_schema(versions[-1].columns))
    if config.values == "protobuf":
        raise InvalidConfigError(
            f"stream {streams_of(read)} has no schema, by which values in Protocol Buffers are "
            "decoded: set it with 'strandline stream schema set'"
        )
    if config.values == "avro":
        from strandline.values.avro import arrow_schema_of

        columns = arrow_schema_of(config.schema)
        if config.envelope == "debezium":
            columns = _row_of(columns)
        return from_arrow_schema(columns)
    if config.schema:
        return _columns_of(config.schema)
    sample = _sample(read)
    if config.envelope == "debezium":
        sample = pa.array(rows_of_events(sample.to_pylist()), pa.binary())
    if config.values == "json":
        return from_arrow_schema(infer_json_schema(sample))
    return from_arrow_schema(_schema_of_arrow(sample, streams_of(read)))


def _check_same_columns(config: LoadPipeline, columns: StructType) -> None:
    """Check that the schema in the file still has the table's columns.

    Not for an Avro schema, which says how values are written.

    Raises:
        InvalidConfigError: the schema was changed after the first commit.
    """
    if config.values == "avro" or not config.schema:
        return
    # Converted by Arrow like the table's: some Spark types change their name.
    stored = from_arrow_schema(to_arrow_schema(_columns_of(config.schema), timezone="UTC"))
    wanted, given = (
        {field.name: field.dataType.simpleString() for field in schema}
        for schema in (columns, stored)
    )
    if wanted != given:
        raise InvalidConfigError(
            f"'schema' is {_described(given)}, but the table's columns were fixed by its first "
            f"commit: {_described(wanted)}; write that, or load into another table with a new "
            "checkpoint"
        )


def _row_of(event: pa.Schema) -> pa.Schema:
    """Return the columns of the row in Debezium's events, from the events' Avro schema.

    Raises:
        InvalidConfigError: it is not the schema of such events.
    """
    row = event.field("after").type if "after" in event.names else pa.null()
    if not pa.types.is_struct(row):
        raise InvalidConfigError(
            "'schema' is no schema of Debezium's events: it has no record 'after'"
        )
    return pa.schema(list(row))


def _columns_of(schema: str) -> StructType:
    """Parse columns as Spark writes them, with Spark's own parser if Spark runs."""
    if SparkSession.getActiveSession() is None:
        return from_arrow_schema(parse_columns(schema))
    return StructType.fromDDL(schema)


def _described(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _sample(read: ReadOptions) -> pa.Array:
    """Return the first values of each partition."""
    client = client_of(read.server)
    places = [read.place(each.partition) for each in stream_state(read).partitions]
    found = [
        client.read(
            stream, partition=partition, columns=["value"], records_max=_SAMPLE_RECORDS
        ).read_all()
        for stream, partition in places
    ]
    return pa.concat_tables(found).column("value").combine_chunks()


def _schema_of_arrow(sample: pa.Array, stream: str) -> pa.Schema:
    for value in sample.to_pylist():
        try:
            with pa.ipc.open_stream(value) as reader:
                return reader.schema
        except (pa.ArrowException, OSError, TypeError):
            continue  # becomes a dead letter
    raise InvalidConfigError(
        f"stream {stream} has no Arrow value yet to take columns from; give 'schema'"
    )

"""The options of ``format("strandline")``, decoded and checked once.

Rules: option names are case-insensitive, as Spark's are; a name that is neither ours nor Spark's is
rejected, because Spark ignores unknown names silently; every invalid value is an
``InvalidConfigError`` that names the option and the valid values. Must not know Spark or the
broker: this module turns strings into values.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, get_args

from strandline.errors import InvalidConfigError
from strandline.spark.offset_options import (
    OffsetSpec,
    PartitionKey,
    TimeSpec,
    parse_offsets,
    parse_partition,
    parse_times,
)
from strandline.types import PartitionName
from strandline.values.schema import ValueFormat

STREAM_FORMAT = "strandline"
TABLE_FORMAT = "strandline-table"
ORIGIN = "strandline"
"""Key of a column's metadata that names the stream it was read from."""

READ_OPTIONS = (
    "server",
    "servers",
    "stream",
    "streamPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "subject",
    "keys",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minBytesPerTrigger",
    "maxTriggerDelayMs",
    "maxRecordsPerPartition",
    "minPartitions",
    "failOnDataLoss",
    "longPollMs",
    "retryTimeoutMs",
    "group",
    "output",
    "valueFormat",
    "schema",
    "writerSchema",
    "mode",
)
WRITE_OPTIONS = (
    "server",
    "servers",
    "stream",
    "subject",
    "retryTimeoutMs",
    "delivery",
    "txnId",
    "batchId",
    "partitionBy",
    "stageTimeoutMs",
)
TABLE_OPTIONS = (
    "path",
    "txnId",
    "batchId",
    "denseOffsets",
    "compression",
    "garbageAgeMs",
    "fileBytes",
    "compaction",
    "snapshotAgeMs",
    "tableFormat",
    "catalog",
    "storage",
    "values",
    "valueSchema",
    "avroSchema",
    "avroWriterSchema",
    "deadLetters",
    "primaryKey",
    "envelope",
    "schemaStreams",
    "streamSchema",
    "server",
    "servers",
    "stream",
    "streamIdentity",
)
_SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Options that Spark itself passes to a sink."""
_CATALOG_OPTIONS = ("owner", "provider")
"""Options that Spark adds for a table of its catalog."""
_ELSEWHERE = {
    "assign": "stream",
    "bootstrap.servers": "server",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "endtimestamp": "endingTimestamp",
    "endoffset": "endingOffsets",
    "groupidprefix": "group",
    "kafka.bootstrap.servers": "server",
    "kafka.group.id": "group",
    "maxbytes": "maxBytesPerTrigger",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "maxrecordsperbatch": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minBytesPerTrigger",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "starttimestamp": "startingTimestamp",
    "path": "stream",
    "paths": "stream",
    "startoffset": "startingOffsets",
    "subscribe": "stream",
    "streams": "stream",
    "subscribepattern": "streamPattern",
}
"""Options of Kafka's and other sources; for them the error suggests our option of this purpose."""
TableFormat = Literal["parquet", "delta", "iceberg"]
Envelope = Literal["none", "debezium"]
"""The form of a value: a row, or an event that has the row before and after a change."""
ParseMode = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
"""How a value that cannot be decoded is handled, in the words of Spark's sources."""
PartitionBy = Literal["stream", "column"]
"""How a row's partition is chosen: by the stream's own rule, or by a column."""
Delivery = Literal["exactlyOnce", "atLeastOnce"]
Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "lz4_raw", "none", "uncompressed"]
"""Parquet's codecs; the last two, Parquet's word and Spark's, mean none."""

C = TypeVar("C", bound=str)

_LONG_POLL_MS = 500
_TRIGGER_DELAY_MS = 15 * 60 * 1000
_FILE_BYTES = 512 << 20
_RETRY_TIMEOUT_MS = 120_000
_STAGE_TIMEOUT_MS = 3600 * 1000
_GARBAGE_AGE_MS = 24 * 3600 * 1000
_SNAPSHOT_AGE_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read."""

    server: str
    stream: str | None
    """The only stream; None: ``streams`` or ``stream_pattern`` selects several."""
    streams: tuple[str, ...] = ()
    stream_pattern: str | None = None
    """A glob that selects streams by name."""
    starting_offsets: OffsetSpec = "earliest"
    ending_offsets: OffsetSpec = "latest"
    starting_times_ns: TimeSpec | None = None
    ending_times_ns: TimeSpec | None = None
    subject: str | None = None
    keys: tuple[bytes, ...] | None = None
    records_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    bytes_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = _TRIGGER_DELAY_MS
    records_per_partition_max: int | None = None
    partitions_min: int | None = None
    fail_on_data_loss: bool = True
    long_poll_ms: int = _LONG_POLL_MS
    retry_timeout_ms: int = _RETRY_TIMEOUT_MS
    group: str | None = None
    """The consumer group under which a streaming query commits its progress."""
    output: str | None = None
    """The output of a streaming query; its checkpoint is valid for this output only."""
    identity: str | None = None
    """The identity of the offsets' stream, if the starting or ending offsets contain it."""
    value_format: ValueFormat = "raw"
    value_schema: str | None = None
    """Columns of the values, or their Avro schema; None: by the stream's schema."""
    writer_schema: str | None = None
    """The schema Avro values were written with, if not ``value_schema``."""
    mode: ParseMode = "FAILFAST"

    def of_stream(self, stream: str) -> "ReadOptions":
        """Return the options of a read of one of the streams."""
        return replace(self, stream=stream, streams=(), stream_pattern=None)

    def place(self, partition: PartitionKey) -> PartitionName:
        """Return the stream and number of a partition."""
        if isinstance(partition, PartitionName):
            return partition
        assert self.stream is not None, partition
        return PartitionName(self.stream, partition)

    def key(self, stream: str, partition: int) -> PartitionKey:
        """Return the key of a partition in the offsets of this read."""
        return partition if self.stream is not None else PartitionName(stream, partition)

    def key_of(self, partition: int | str) -> PartitionKey:
        """Return the key, in the offsets of this read, of a partition as a table names it."""
        key = parse_partition(str(partition), only=self.stream)
        assert key is not None, partition
        return key


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of an append."""

    server: str
    stream: str | None = None
    """The stream of rows that name none."""
    subject: str | None = None
    """The subject of rows that have none; None: the stream's default subject."""
    retry_timeout_ms: int = _RETRY_TIMEOUT_MS
    exactly_once: bool = True
    txn_id: str | None = None
    batch_id: int = 0
    """For a batch job under ``txn_id``; a streaming query numbers its batches itself."""
    partition_by: PartitionBy = "stream"
    stage_timeout_ms: int = _STAGE_TIMEOUT_MS
    """How long staged rows wait to be committed before they are discarded."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of a table."""

    path: str
    txn_id: str | None = None
    batch_id: int = 0
    """For a batch job under ``txn_id``; a streaming query numbers its batches itself."""
    dense_offsets: bool = True
    compression: str = "zstd"
    garbage_age_ms: int = _GARBAGE_AGE_MS
    file_bytes: int = _FILE_BYTES
    compaction: bool = False
    """Whether commits merge small files."""
    snapshot_age_ms: int = _SNAPSHOT_AGE_MS
    """How long replaced files are kept for readers of older versions."""
    table_format: TableFormat = "parquet"
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of the Iceberg catalog."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """Settings of the object store, with references instead of secrets."""
    values: ValueFormat = "raw"
    value_schema: str | None = None
    """The columns of decoded values: a Spark schema as JSON."""
    avro_schema: str | None = None
    avro_writer_schema: str | None = None
    """The schema Avro values were written with, if not ``avro_schema``."""
    stream_schema: bool = False
    """Whether values are decoded by the schema that ``stream`` has when a task begins."""
    schema_streams: str | None = None
    """Several streams instead of ``stream``, separated by commas, or a glob; each has a schema."""
    dead_letters: str | None = None
    """The stream for values that cannot be decoded; None: they fail the query."""
    primary_key: tuple[str, ...] = ()
    """Columns by which records replace and delete rows; none: rows are appended."""
    envelope: Envelope = "none"
    server: str | None = None
    stream: str | None = None
    """The loaded stream, for dead letters and to look up missing offsets.

    None: unknown, or named by a column of the rows.
    """
    stream_identity: str | None = None
    """Names and creation times of the loaded streams; records of other streams are rejected."""


@dataclass(frozen=True)
class _OptionReader:
    """Typed look-ups in a mapping of strings with case-insensitive names."""

    values: Mapping[str, str]
    lowered: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lowered", {k.lower(): v for k, v in self.values.items()})

    def check_option_names(self, known: tuple[str, ...], source: str) -> None:
        """Check that every name is ours or Spark's.

        Args:
            known: the names of our options.
            source: Spark's name of the format.

        Raises:
            InvalidConfigError: an option is unknown; the message suggests the nearest one.
        """
        if any(name in self.lowered for name in _CATALOG_OPTIONS):
            raise InvalidConfigError(
                f"CREATE TABLE ... USING `{source}` cannot work: Spark does not hand the options "
                f"of such a table to a Python source; write CREATE TEMPORARY VIEW ... USING "
                f"`{source}` OPTIONS (...), or spark.read.format('{source}')"
            )
        names = {name.lower(): name for name in known}
        for key in self.lowered:
            if key in names or key in _SPARK_OPTIONS:
                continue
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.75)
            similar = _ELSEWHERE.get(key)
            meant = similar if similar in known else (names[near[0]] if near else None)
            hint = f"did you mean '{meant}'?" if meant else f"there are: {', '.join(known)}"
            raise InvalidConfigError(f"unknown option '{key}' of format('{source}'); {hint}")

    def text(self, name: str) -> str | None:
        value = self.lowered.get(name.lower(), "").strip()
        return value or None

    def required(self, name: str, hint: str) -> str:
        value = self.text(name)
        if value is None:
            raise InvalidConfigError(f"option '{name}' is missing: {hint}")
        return value

    def count(self, name: str, *, at_least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or int(value) < at_least:
            raise InvalidConfigError(
                f"option '{name}' must be a whole number of at least {at_least}, got {value!r}"
            )
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidConfigError(f"option '{name}' must be true or false, got {value!r}")
        return value == "true"

    def choice(self, name: str, choices: tuple[C, ...]) -> C:
        """Return one of the given words; the first if the option is missing."""
        value = self.text(name) or choices[0]
        for each in choices:
            if value.lower() == each.lower():
                return each
        raise InvalidConfigError(
            f"option '{name}' must be one of {', '.join(choices)}; got {value!r}"
        )

    def server(self) -> str:
        hint = (
            "give the broker's Flight address, for example .option('server', 'localhost:9293'); a "
            "table of CREATE TABLE ... USING has lost its options: make a TEMPORARY VIEW of it"
        )
        value = self.text("server") or self.text("servers") or self.required("server", hint)
        # All addresses are kept: a process may start while one of the brokers is down.
        return ",".join(each.strip().removeprefix("grpc://") for each in value.split(","))


def _ends_early(options: _OptionReader) -> InvalidConfigError:
    return InvalidConfigError(
        f"option 'endingTimestamp', {options.text('endingTimestamp')!r}, is before "
        f"'startingTimestamp', {options.text('startingTimestamp')!r}; give a later one"
    )


def parse_read_options(values: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Decode the options of a read.

    Args:
        values: the options from Spark.
        streaming: whether it is a streaming read, which cannot have ``endingOffsets``; None:
            unknown.

    Raises:
        InvalidConfigError: naming the option that is missing, misspelt or invalid.
    """
    options = _OptionReader(values)
    options.check_option_names(READ_OPTIONS, STREAM_FORMAT)
    for name in ("endingOffsets", "endingTimestamp"):
        if streaming and options.text(name):
            raise InvalidConfigError(
                f"option '{name}' is for batch reads; end a stream with trigger(availableNow=True)"
            )
    for name in ("group", "output"):
        if streaming is False and options.text(name):
            raise InvalidConfigError(
                f"option '{name}' is for streaming reads, which have checkpoints; omit it"
            )
    for edge in ("starting", "ending"):
        if options.text(f"{edge}Offsets") and options.text(f"{edge}Timestamp"):
            raise InvalidConfigError(f"give '{edge}Offsets' or '{edge}Timestamp', not both")
    long_poll = options.count("longPollMs", at_least=0)
    delay = options.count("maxTriggerDelayMs", at_least=0)
    retry = options.count("retryTimeoutMs", at_least=0)
    _check_decoding(options)
    streams = _streams(options)
    stream = streams[0] if len(streams) == 1 else None
    start, end = (options.text(name) for name in ("startingOffsets", "endingOffsets"))
    first, first_identity = parse_offsets("startingOffsets", start or "earliest", stream=stream)
    last, last_identity = parse_offsets("endingOffsets", end or "latest", stream=stream)
    since, until = (
        parse_times(name, options.text(name), stream=stream)
        for name in ("startingTimestamp", "endingTimestamp")
    )
    if isinstance(since, int) and isinstance(until, int) and until < since:
        raise _ends_early(options)
    return ReadOptions(
        server=options.server(),
        stream=stream,
        streams=streams if stream is None else (),
        stream_pattern=options.text("streamPattern"),
        identity=first_identity or last_identity,
        value_format=options.choice("valueFormat", get_args(ValueFormat)),
        value_schema=options.text("schema"),
        writer_schema=options.text("writerSchema"),
        mode=options.choice("mode", get_args(ParseMode)),
        starting_offsets=first,
        ending_offsets=last,
        starting_times_ns=since,
        ending_times_ns=until,
        subject=options.text("subject"),
        keys=_keys(options.text("keys")),
        records_per_trigger_max=options.count("maxRecordsPerTrigger"),
        bytes_per_trigger_max=options.count("maxBytesPerTrigger"),
        bytes_per_trigger_min=options.count("minBytesPerTrigger"),
        trigger_delay_ms_max=_TRIGGER_DELAY_MS if delay is None else delay,
        records_per_partition_max=options.count("maxRecordsPerPartition"),
        partitions_min=options.count("minPartitions"),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        long_poll_ms=_LONG_POLL_MS if long_poll is None else long_poll,
        retry_timeout_ms=_RETRY_TIMEOUT_MS if retry is None else retry,
        group=options.text("group"),
        output=options.text("output"),
    )


def parse_write_options(values: Mapping[str, str]) -> WriteOptions:
    """Decode the options of an append to a stream.

    Raises:
        InvalidConfigError: naming the option that is missing, misspelt or invalid.
    """
    options = _OptionReader(values)
    options.check_option_names(WRITE_OPTIONS, STREAM_FORMAT)
    retry = options.count("retryTimeoutMs", at_least=0)
    return WriteOptions(
        server=options.server(),
        stream=options.text("stream"),
        subject=options.text("subject"),
        retry_timeout_ms=_RETRY_TIMEOUT_MS if retry is None else retry,
        exactly_once=options.choice("delivery", get_args(Delivery)) == "exactlyOnce",
        txn_id=options.text("txnId"),
        batch_id=options.count("batchId", at_least=0) or 0,
        partition_by=options.choice("partitionBy", get_args(PartitionBy)),
        stage_timeout_ms=options.count("stageTimeoutMs") or _STAGE_TIMEOUT_MS,
    )


def parse_table_options(values: Mapping[str, str]) -> TableOptions:
    """Decode the options of ``format("strandline-table")``.

    Raises:
        InvalidConfigError: naming the option that is missing, misspelt or invalid.
    """
    options = _OptionReader(values)
    options.check_option_names(TABLE_OPTIONS, TABLE_FORMAT)
    age = options.count("garbageAgeMs", at_least=0)
    snapshots = options.count("snapshotAgeMs", at_least=0)
    table_format: TableFormat = options.choice("tableFormat", get_args(TableFormat))
    value_format: ValueFormat = options.choice("values", get_args(ValueFormat))
    if value_format != "raw":
        options.required("valueSchema", "a Spark schema as JSON: the columns of the values")
    compression: Compression = options.choice("compression", get_args(Compression))
    primary_key = tuple(filter(None, (options.text("primaryKey") or "").split(",")))
    envelope: Envelope = options.choice("envelope", get_args(Envelope))
    check_upsert(table_format, value_format, key=primary_key, envelope=envelope)
    needs_server = any(options.text(name) for name in ("deadLetters", "server", "servers"))
    return TableOptions(
        path=options.required("path", "name the table's directory, as in .start('/data/flights')"),
        txn_id=options.text("txnId"),
        batch_id=options.count("batchId", at_least=0) or 0,
        dense_offsets=options.flag("denseOffsets", default=True),
        compression="none" if compression == "uncompressed" else compression,
        garbage_age_ms=_GARBAGE_AGE_MS if age is None else age,
        file_bytes=options.count("fileBytes") or _FILE_BYTES,
        # Readers may list plain files, and would see old and new files, or neither, for a while.
        compaction=options.flag("compaction", default=table_format != "parquet"),
        snapshot_age_ms=_SNAPSHOT_AGE_MS if snapshots is None else snapshots,
        table_format=table_format,
        catalog=_properties("catalog", options.text("catalog")),
        storage=_properties("storage", options.text("storage")),
        values=value_format,
        value_schema=options.text("valueSchema"),
        avro_schema=options.text("avroSchema"),
        avro_writer_schema=options.text("avroWriterSchema"),
        stream_schema=options.flag("streamSchema", default=False),
        schema_streams=options.text("schemaStreams"),
        dead_letters=options.text("deadLetters"),
        primary_key=primary_key,
        envelope=envelope,
        server=options.server() if needs_server else None,
        stream=options.text("stream"),
        stream_identity=options.text("streamIdentity"),
    )


def check_upsert(
    table_format: TableFormat, values: ValueFormat, *, key: Sequence[str], envelope: Envelope
) -> None:
    """Check that rows can be changed by a primary key, if one is given.

    Raises:
        InvalidConfigError: the table is plain Parquet, a column is there twice, or events are not
            decoded.
    """
    lower = [name.lower() for name in key]
    twice = [name for name in key if lower.count(name.lower()) > 1]
    if twice:
        raise InvalidConfigError(
            f"option 'primaryKey' names '{twice[-1]}' twice (case does not tell columns apart); "
            "name it once"
        )
    if key and table_format == "parquet":
        raise InvalidConfigError(
            "a table of plain Parquet files takes no 'primaryKey': a listing of its directory "
            "would show replaced and deleted rows; set option 'tableFormat' to delta or iceberg"
        )
    if envelope != "none" and (values not in ("json", "avro") or not key):
        raise InvalidConfigError(
            f"option 'envelope' is {envelope}, whose events change rows by a primary key: set "
            "'primaryKey', and 'values' to json or avro"
        )


def origin_metadata(options: ReadOptions) -> dict[str, dict[str, str]]:
    """Return the metadata of a column of a read: its stream, if the read has only one."""
    named = {} if options.stream is None else {"stream": options.stream}
    return {ORIGIN: {"server": options.server} | named}


def _check_decoding(options: _OptionReader) -> None:
    """Check that the options about values can be combined.

    Raises:
        InvalidConfigError: they cannot; the message names the option.
    """
    kind: ValueFormat = options.choice("valueFormat", get_args(ValueFormat))
    for name in ("schema", "writerSchema", "mode"):
        if kind == "raw" and options.text(name):
            raise InvalidConfigError(
                f"option '{name}' is for decoded values: set 'valueFormat' to json, avro, arrow or "
                "protobuf"
            )
    if kind == "protobuf" and options.text("schema"):
        raise InvalidConfigError(
            "values in Protocol Buffers are decoded by the schema of their stream: leave option "
            "'schema' out, and set it with 'strandline stream schema set'"
        )
    if options.text("writerSchema") and not (kind == "avro" and options.text("schema")):
        raise InvalidConfigError(
            "option 'writerSchema' is for Avro values, beside 'schema'; leave it out, or set both "
            "and 'valueFormat' to avro"
        )
    if kind == "arrow":
        options.required("schema", "the columns of the values, such as 'id BIGINT, name STRING'")


def _streams(options: _OptionReader) -> tuple[str, ...]:
    """Return the named streams; empty if a pattern selects them.

    Raises:
        InvalidConfigError: both names and a pattern are given, neither, or a name twice.
    """
    if options.text("streamPattern"):
        if options.text("stream"):
            raise InvalidConfigError("give 'stream' or 'streamPattern', not both")
        return ()
    text = options.required(
        "stream",
        "name the stream to read, several with commas between them, or give 'streamPattern', for "
        "example orders-*",
    )
    names = tuple(each.strip() for each in text.split(","))
    for name in names:
        if not name:
            raise InvalidConfigError(f"option 'stream' has an empty name between commas: {text!r}")
        if names.count(name) > 1:
            raise InvalidConfigError(f"option 'stream' names {name!r} twice; name it once")
    return names


def _properties(name: str, text: str | None) -> dict[str, str]:
    """Parse a JSON object of strings."""
    if text is None:
        return {}
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise InvalidConfigError(f"option '{name}' is not valid JSON: {error}") from error
    if not isinstance(decoded, dict) or not all(isinstance(v, str) for v in decoded.values()):
        raise InvalidConfigError(
            f"option '{name}' must be a JSON object whose values are strings, got {text[:200]!r}"
        )
    return decoded


def _keys(text: str | None) -> tuple[bytes, ...] | None:
    """Parse the keys of a filter: a JSON list of strings, or a single key."""
    if text is None:
        return None
    if not text.startswith("["):
        return (text.encode(),)
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise InvalidConfigError(f"option 'keys' is not valid JSON: {error}") from error
    if not decoded or not all(isinstance(key, str) for key in decoded):
        raise InvalidConfigError(
            f"option 'keys' must be a JSON list of strings, or one key, got {text[:200]!r}"
        )
    return tuple(key.encode() for key in decoded)

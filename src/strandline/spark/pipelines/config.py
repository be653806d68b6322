"""The content of a pipeline file: one struct per kind of pipeline, unknown keys rejected.

Rules: plain values, checked when decoded; an error names the key. Paths are used unchanged. Must
not know Spark or YAML.
"""

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args

import msgspec

from strandline.api.groups import GROUPS_STREAM
from strandline.api.transactions import COORDINATOR_STREAM
from strandline.config import check_known_keys, misfit_text
from strandline.core.metadata.internal_streams import is_internal
from strandline.errors import UNDECODABLE, InvalidConfigError
from strandline.values.schema import ValueFormat

_FED = {GROUPS_STREAM, COORDINATOR_STREAM}
"""Internal streams that a pipeline must not read: its own commits add records to them."""

Trigger = Literal["available_now", "continuous"]
Count = Annotated[int, msgspec.Meta(ge=1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Common(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """Keys of every pipeline."""

    server: str = "127.0.0.1:9293"
    """The broker's Flight address."""
    checkpoint: Name
    """Directory for Spark's checkpoints; never share it with another pipeline."""
    trigger: Trigger = "available_now"
    """Whether to end after the records that are stored at the start, or to continue."""
    interval_ms: Milliseconds = 0
    """The time from one micro-batch of a continuous pipeline to the next; 0: no pause."""
    starting_offsets: str = "earliest"
    """Where a new pipeline begins, like the option ``startingOffsets`` of Spark."""
    fail_on_data_loss: bool = True
    """Whether it is an error if records were deleted before they were read."""
    group: str | None = None
    """The consumer group under which progress is committed; by default the query's name."""


class LoadPipeline(Common, frozen=True, kw_only=True, tag="load"):
    """A load of streams into tables: each into its own table, or several into one."""

    streams: list[str] = []
    stream_pattern: str | None = None
    """Instead of ``streams``: a glob of names, such as ``orders-*``, also for later streams."""
    engine: Literal["spark", "local"] = "spark"
    """Spark, or a Python process without Java for small streams; either continues the other."""
    into: Name
    """A directory, or ``namespace.table`` of Iceberg; ``{stream}`` stands for the stream's name.
    Without ``{stream}`` several streams become one table, whose rows name their stream.
    """
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    catalog: dict[str, str] = {}
    """Properties of the Iceberg catalog, as pyiceberg takes them."""
    storage: dict[str, str] = {}
    """Settings of the object store; secrets are named, by ``env:NAME`` or ``file:PATH``."""
    values: ValueFormat = "raw"
    """The format of the values; all formats but ``raw`` are decoded into columns."""
    schema: str | None = None
    """Columns of the values as Spark writes them, ``id BIGINT, name STRING``; for Avro the Avro
    schema. Without it the columns of JSON and Arrow values are inferred once, before the first
    commit.
    """
    mode: Literal["append", "upsert"] = "append"
    """Whether records become rows, or replace and delete rows by ``primary_key``."""
    primary_key: list[Name] = []
    """For ``upsert``: columns of the table, in Delta Lake and Iceberg. A record without a value, or
    an event that says so, deletes a row.
    """
    envelope: Literal["none", "debezium"] = "none"
    """For ``upsert``: whether values are rows, or Debezium's events."""
    writer_schema: str | None = None
    """The Avro schema that values were written with, if different from ``schema``."""
    dead_letters: str | None = None
    """The stream for values that cannot be decoded."""
    file_bytes: Count = 512 << 20
    """Approximate size at which files are closed."""
    compaction: bool | None = None
    """Whether commits merge small files, to 24 for each partition; None: not in plain Parquet,
    where a plain listing of the directory would no longer be exact.
    """
    snapshot_age_ms: Milliseconds = 7 * 24 * 3600 * 1000
    """How long files that a merge replaced are kept, for readers of older versions."""
    dense_offsets: bool | None = None
    """Whether to reject a batch that lacks a record; None: if ``fail_on_data_loss`` is on."""
    batch_bytes_min: Count | None = None
    """The bytes for which a continuous load waits, so that slow streams make no small files."""
    batch_delay_ms_max: Milliseconds = 900_000
    """How long a continuous load waits for ``batch_bytes_min`` at most."""
    batch_bytes_max: Count | None = None


class Derived(Common, frozen=True, kw_only=True):
    """Streams derived from streams."""

    batch_records_max: Count | None = None
    """The largest micro-batch, in records."""


class CopyPipeline(Derived, frozen=True, kw_only=True, tag="copy"):
    """A copy of a stream, partition by partition, perhaps in another cluster."""

    stream: Name
    into: Name
    into_server: str | None = None
    """The address of the copy's broker, if it is not ``server``."""


class TransformPipeline(Derived, frozen=True, kw_only=True, tag="transform"):
    """Records filtered, multiplied, changed, or split to several streams, by SQL."""

    stream: Name
    sql: str
    """Selects from ``records``; needs a column ``value``, may have the others of a record, and
    ``stream`` to name the stream of each row.
    """
    into: str | None = None
    """The stream of rows that name no stream."""


class AggregatePipeline(Derived, frozen=True, kw_only=True, tag="aggregate"):
    """A running state per key, in a compacted stream that others can read."""

    stream: Name
    into: Name
    """The changelog: the newest state of each key, as JSON."""
    key: str
    """SQL of a record's key; records where it is null are left out."""
    columns: dict[str, str]
    """The state: names, and ``count()``, ``sum(X)``, ``min(X)``, ``max(X)`` or ``last(X)``."""


class MergePipeline(Derived, frozen=True, kw_only=True, tag="merge"):
    """Several streams merged into one, in a recorded order."""

    streams: list[str]
    into: Name
    values: bool = True
    """Whether records keep their values; if not, records without a value only give the order."""


class RepartitionPipeline(Derived, frozen=True, kw_only=True, tag="repartition"):
    """A stream partitioned by another key; headers name each record's source."""

    stream: Name
    into: Name
    key: str
    """SQL of a record's new key."""
    partitions: Count = 1
    """Number of partitions of a new result."""


class CleanPipeline(Derived, frozen=True, kw_only=True, tag="clean"):
    """A stream without duplicates, as recognized by source headers, and without these headers."""

    stream: Name
    into: Name
    batch_records_max: Count = 50_000


Pipeline = (
    LoadPipeline
    | CopyPipeline
    | TransformPipeline
    | AggregatePipeline
    | MergePipeline
    | RepartitionPipeline
    | CleanPipeline
)

_KINDS: dict[str, type[Common]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Pipeline)
}


def decode_pipeline(values: Any) -> Pipeline:
    """Decode a pipeline from a mapping.

    Raises:
        InvalidConfigError: a key is invalid, missing or unknown, or the pipeline would read its own
            output; the message names the key, and for an unknown key the nearest known one.
    """
    kind = None
    if isinstance(values, Mapping) and "kind" in values:
        rest = {key: value for key, value in values.items() if key != "kind"}
        kind = _kind_of(values["kind"])
        check_known_keys(rest, kind, path="")
        if isinstance(names := rest.get("streams"), str):
            raise InvalidConfigError(
                f"'streams' is a list: write streams: [{names}], with commas between several"
            )
    try:
        pipeline: Pipeline = msgspec.convert(values, Pipeline)
    except UNDECODABLE as error:
        raise InvalidConfigError(
            f"not a pipeline: {misfit_text(error, values, kind)}; see docs/pipelines.md"
        ) from error
    if isinstance(pipeline, LoadPipeline) and pipeline.stream_pattern is not None:
        _check_names_or_pattern(pipeline)
    elif isinstance(pipeline, LoadPipeline | MergePipeline):
        _check_streams(pipeline.streams)
    _check_not_circular(pipeline)
    return pipeline


def _check_streams(streams: list[str]) -> None:
    if not streams:
        raise InvalidConfigError("'streams' is empty: name the streams to read")
    for name in streams:
        if streams.count(name) > 1:
            raise InvalidConfigError(f"'streams' names '{name}' twice; name it once")


def _check_names_or_pattern(pipeline: LoadPipeline) -> None:
    if pipeline.streams:
        raise InvalidConfigError("give 'streams' or 'stream_pattern', not both")
    if "{stream}" in pipeline.into:
        raise InvalidConfigError(
            "the streams of 'stream_pattern' become one table: write 'into' without {stream}, or "
            "name the streams in 'streams'"
        )


def _check_not_circular(pipeline: Pipeline) -> None:
    """Check that a pipeline does not read its own output, nor write to internal streams.

    A transform may read its output: its SQL can select other records than those it writes.
    """
    inputs = (
        pipeline.streams
        if isinstance(pipeline, LoadPipeline | MergePipeline)
        else [pipeline.stream]
    )
    key, output = "into", pipeline.into
    if isinstance(pipeline, LoadPipeline):
        key, output = "dead_letters", pipeline.dead_letters
    fed = sorted(_FED & set(inputs))
    if fed:
        raise InvalidConfigError(
            f"'{fed[0]}' is the broker's own stream, to which the progress of a pipeline is "
            "written: it would read what it writes, without end; name another stream"
        )
    if output is not None and is_internal(output):
        raise InvalidConfigError(
            f"'{key}' is '{output}', the broker's own stream; name another stream"
        )
    is_mirror = isinstance(pipeline, CopyPipeline) and pipeline.into_server not in (
        None,
        pipeline.server,
    )
    pattern = getattr(pipeline, "stream_pattern", None)
    is_read = output in inputs or (pattern and output and fnmatchcase(output, pattern))
    if is_read and not is_mirror and not isinstance(pipeline, TransformPipeline):
        raise InvalidConfigError(
            f"'{key}' is '{output}', which the pipeline reads: it would read what it writes, "
            "without end; name another stream"
        )


def _kind_of(name: Any) -> type[Common]:
    if name not in tuple(_KINDS):
        near = difflib.get_close_matches(str(name), _KINDS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(_KINDS)}"
        raise InvalidConfigError(f"no kind of pipeline is called {name!r}; {hint}")
    return _KINDS[name]

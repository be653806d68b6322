"""What a pipeline file says: one struct for each kind of pipeline, unknown keys refused.

Rules: plain values, checked when they are decoded; a mistake is named with its place. Paths are
taken as they stand. Must not know Spark or YAML.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from strandline.config import refuse_unknown_keys
from strandline.errors import UNDECODABLE, InvalidConfigError

Trigger = Literal["available_now", "continuous"]
Count = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Common(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """What every pipeline takes."""

    server: str = "127.0.0.1:9293"
    """The broker's Flight address."""
    checkpoint: Name
    """Directory for Spark's checkpoints, of this pipeline alone."""
    trigger: Trigger = "available_now"
    """Whether to end when what is there is done, or to go on."""
    interval_ms: int = 0
    """Of a continuous pipeline: time from one micro-batch to the next; 0 is at once."""
    starting_offsets: str = "earliest"
    """Where a pipeline that never ran begins: as the option ``startingOffsets``."""
    fail_on_data_loss: bool = True
    """Whether records that were deleted before they were read end it: as ``failOnDataLoss``."""
    group: str | None = None
    """Consumer group under which its progress is noted, for metrics; the query's name if None."""


class Load(Common, frozen=True, kw_only=True, tag="load"):
    """Streams into tables, one table for each stream."""

    streams: list[str]
    into: Name
    """A directory, or ``namespace.table`` of Iceberg; ``{stream}`` stands for the stream's name."""
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    catalog: dict[str, str] = {}
    """Properties of the Iceberg catalog, as pyiceberg takes them."""
    values: Literal["raw", "json", "avro", "arrow"] = "raw"
    """What the values are; other than raw they become columns."""
    schema: str | None = None
    """Columns of the values as Spark writes them, ``id BIGINT, name STRING``; for Avro the Avro
    schema. Without it JSON and Arrow values tell, once, before the first commit."""
    writer_schema: str | None = None
    """The Avro schema that values were written with, if it is another version of ``schema``."""
    dead_letters: str | None = None
    """The stream for values that cannot be decoded."""
    file_bytes: Count = 512 << 20
    """Files are closed at about this size."""
    dense_offsets: bool | None = None
    """Refuse a batch that leaves out a record; None: unless ``fail_on_data_loss`` is off."""
    batch_bytes_min: Count | None = None
    """A continuous load waits for this much, so that slow streams make no small files ..."""
    batch_delay_ms_max: int = 900_000
    """... but no longer than this."""
    batch_bytes_max: Count | None = None


class Derived(Common, frozen=True, kw_only=True):
    """Streams that are made of streams."""

    batch_records_max: Count | None = None
    """The largest micro-batch, in records."""


class Copy(Derived, frozen=True, kw_only=True, tag="copy"):
    """A stream into another, partition by partition; perhaps of another cluster."""

    stream: Name
    into: Name
    into_server: str | None = None
    """Where the copy is, if not at ``server``."""


class Transform(Derived, frozen=True, kw_only=True, tag="transform"):
    """Records filtered, multiplied, changed, or split to several streams, by SQL."""

    stream: Name
    sql: str
    """Selects from ``records``; needs a column ``value``, may have the others of a record, and
    ``stream`` to name the stream of each row."""
    into: str | None = None
    """The stream of rows that name none."""


class Aggregate(Derived, frozen=True, kw_only=True, tag="aggregate"):
    """A running state for each key, kept in a compacted stream that others can read."""

    stream: Name
    into: Name
    """The changelog: for each key the newest state, as JSON."""
    key: str
    """SQL that gives a record's key; records where it is null are left out."""
    columns: dict[str, str]
    """The state: names, and ``count()``, ``sum(X)``, ``min(X)``, ``max(X)`` or ``last(X)``."""


class Merge(Derived, frozen=True, kw_only=True, tag="merge"):
    """Several streams interleaved into one; the order that was chosen is in the result."""

    streams: list[str]
    into: Name
    values: bool = True
    """False keeps the order alone: records without value that say which record comes next."""


class Repartition(Derived, frozen=True, kw_only=True, tag="repartition"):
    """A stream by another key; where each record comes from stays in its headers."""

    stream: Name
    into: Name
    key: str
    """SQL that gives a record's new key."""
    partitions: int = 1
    """Of the result, if it is not there yet."""


class Clean(Derived, frozen=True, kw_only=True, tag="clean"):
    """A stream without the headers that pipelines put in, and without duplicates by them."""

    stream: Name
    into: Name
    batch_records_max: Count = 50_000


Pipeline = Load | Copy | Transform | Aggregate | Merge | Repartition | Clean

_KINDS: dict[str, type[Common]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Pipeline)
}


def decode_pipeline(values: Any) -> Pipeline:
    """The pipeline that a mapping describes.

    Raises:
        InvalidConfigError: naming the key that is wrong, missing or unknown; for what is unknown
            the nearest that there is. Or the pipeline would feed on itself.
    """
    if isinstance(values, Mapping) and "kind" in values:
        rest = {key: value for key, value in values.items() if key != "kind"}
        refuse_unknown_keys(rest, _kind_of(values["kind"]), path="")
    try:
        pipeline: Pipeline = msgspec.convert(values, Pipeline)
    except UNDECODABLE as error:
        raise InvalidConfigError(f"not a pipeline: {error}; see docs/pipelines.md") from error
    if isinstance(pipeline, Load | Merge):
        _refuse_repeats(pipeline.streams)
    _refuse_feeding_itself(pipeline)
    return pipeline


def _refuse_repeats(streams: list[str]) -> None:
    if not streams:
        raise InvalidConfigError("'streams' is empty: name the streams to read")
    for name in streams:
        if streams.count(name) > 1:
            raise InvalidConfigError(f"'streams' names '{name}' twice; name it once")


def _refuse_feeding_itself(pipeline: Pipeline) -> None:
    """Check that a pipeline does not read what it writes.

    A transform may: its SQL can choose other records than those it makes.
    """
    inputs = pipeline.streams if isinstance(pipeline, Load | Merge) else [pipeline.stream]
    key, output = "into", pipeline.into
    if isinstance(pipeline, Load):
        key, output = "dead_letters", pipeline.dead_letters
    is_mirror = isinstance(pipeline, Copy) and pipeline.into_server not in (None, pipeline.server)
    if output in inputs and not is_mirror and not isinstance(pipeline, Transform):
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

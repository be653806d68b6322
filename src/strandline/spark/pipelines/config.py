"""What a pipeline file says: one struct for each kind of pipeline, unknown keys refused.

Rules: plain values, checked when they are decoded; a mistake is named with its place. Paths are
taken as they stand. Must not know Spark or YAML.
"""

from typing import Any, Literal

import msgspec

from strandline.errors import UNDECODABLE, InvalidConfigError

Trigger = Literal["available_now", "continuous"]


class Common(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """What every pipeline takes."""

    server: str = "127.0.0.1:9293"
    """The broker's Flight address."""
    checkpoint: str
    """Directory for Spark's checkpoints, of this pipeline alone."""
    trigger: Trigger = "available_now"
    """Whether to end when what is there is done, or to go on."""
    interval_ms: int = 0
    """Of a continuous pipeline: time from one micro-batch to the next; 0 is at once."""
    starting_offsets: str = "earliest"
    """Where a pipeline that never ran begins: as the option ``startingOffsets``."""


class Load(Common, frozen=True, kw_only=True, tag="load"):
    """Streams into tables, one table for each stream."""

    streams: list[str]
    into: str
    """A directory, or ``namespace.table`` of Iceberg; ``{stream}`` stands for the stream's name."""
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    catalog: dict[str, str] = {}
    """Properties of the Iceberg catalog, as pyiceberg takes them."""
    values: Literal["raw", "json", "avro", "arrow"] = "raw"
    """What the values are; other than raw they become columns."""
    schema: str | None = None
    """Columns of the values as Spark writes them, ``id BIGINT, name STRING``; for Avro the Avro
    schema. Without it JSON and Arrow values tell, once, before the first commit."""
    dead_letters: str | None = None
    """The stream for values that cannot be decoded."""
    file_bytes: int = 512 << 20
    """Files are closed at about this size."""
    batch_bytes_min: int | None = None
    """A continuous load waits for this much, so that slow streams make no small files ..."""
    batch_delay_ms_max: int = 900_000
    """... but no longer than this."""
    batch_bytes_max: int | None = None


Pipeline = Load


def decode_pipeline(values: Any) -> Pipeline:
    """The pipeline that a mapping describes.

    Raises:
        InvalidConfigError: naming the key that is wrong, missing or unknown.
    """
    try:
        return msgspec.convert(values, Pipeline)
    except UNDECODABLE as error:
        raise InvalidConfigError(
            f"not a pipeline: {error}; docs/pipelines.md shows each"
        ) from error

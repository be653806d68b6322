"""The batch read: one slice of the log, fixed when a DataFrame is first used.

Rules: Spark calls ``partitions`` once for all actions on a DataFrame, so that a DataFrame is a
snapshot: always the same records. ``latest`` is resolved then; a new ``load()`` resolves it again.
A stream recreated meanwhile is an error. ``planning`` plans, ``connection`` fetches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.spark.arrow import to_spark_batches
from strandline.spark.connection import offsets_at_time, read_range, stream_state
from strandline.spark.options import ReadOptions
from strandline.spark.planning import (
    OffsetRange,
    Offsets,
    PartitionExtent,
    ending_offsets,
    high_watermarks,
    plan_ranges,
    starting_offsets,
)
from strandline.spark.worker import settle


@dataclass
class RangePartition(InputPartition):
    """The records that one Spark task reads."""

    range: OffsetRange
    identity: str
    """The identity of the stream it was planned on."""


class StreamSliceReader(DataSourceReader):
    """Reads from a start to an end that are known before the job runs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.target = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Return one Spark partition per log partition, or more if requested."""
        stream = stream_state(self.options)
        start = first_offsets(self.options, stream.partitions)
        if self.options.starting_timestamp_ns is not None:
            # Resolved after the ends: a time beyond all records may resolve to a later end.
            known = high_watermarks(stream.partitions)
            start = {p: min(start[p], known[p]) for p in known}
        end = ending_offsets(stream.partitions, self.options, starting=start)
        ranges = plan_ranges(start, end, self.options)
        return [RangePartition(each, stream.identity) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches of 0.5-2 MiB."""
        # Spark adds a partition without a range if there is nothing to read.
        if isinstance(partition, RangePartition):
            yield from read_task(self.options, partition, self.target)


def first_offsets(options: ReadOptions, states: Sequence[PartitionExtent]) -> Offsets:
    """Return the offsets at which a new read starts."""
    if options.starting_timestamp_ns is None:
        return starting_offsets(states, options)
    return offsets_at_time(options, options.starting_timestamp_ns)


def read_task(
    options: ReadOptions, partition: RangePartition, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Fetch a range and convert it for Spark."""
    settle()
    wanted = partition.range
    batches = read_range(options, wanted, target.names, identity=partition.identity)
    return to_spark_batches(batches, target, partition=wanted.partition)

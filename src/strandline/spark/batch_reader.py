"""The batch read: one slice of the log, fixed when a DataFrame is first used.

Rules: Spark calls ``partitions`` once for all actions on a DataFrame, so that a DataFrame is a
snapshot: always the same records. ``latest`` is resolved then; a new ``load()`` resolves it again.
A stream recreated meanwhile is an error. ``planning`` plans, ``connection`` fetches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.spark.connection import offsets_at_times, read_rows, stream_state
from strandline.spark.offset_options import IDENTITY
from strandline.spark.options import (
    ReadOptions,
)
from strandline.spark.planning import (
    OffsetRange,
    Offsets,
    StreamExtent,
    check_known_partitions,
    check_same_stream,
    ending_offsets,
    high_watermarks,
    identities,
    plan_ranges,
    starting_offsets,
)
from strandline.spark.worker import settle


@dataclass
class RangePartition(InputPartition):
    """The records that one Spark task reads."""

    range: OffsetRange
    identity: str
    """The identity of the stream for which the range was planned."""


class StreamSliceReader(DataSourceReader):
    """Reads from a start to an end that are known before the job runs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.target = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Return one Spark partition per log partition, or more if requested."""
        stream = stream_state(self.options)
        start = first_offsets(self.options, stream)
        known = high_watermarks(stream.partitions)
        if self.options.starting_times_ns is not None:
            # Resolved after the ends: a time beyond all records may resolve to a later end.
            start = {p: min(start[p], known[p]) for p in known}
        end = ending_offsets(stream.partitions, self.options, starting=start)
        if self.options.ending_times_ns is not None:
            found = times_to_offsets(self.options, stream, name="endingTimestamp")
            end |= {p: max(start[p], min(found[p], known[p])) for p in found}
        ranges = plan_ranges(start, end, self.options)
        return tasks(self.options, ranges, identity=stream.identity)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches of 0.5-2 MiB."""
        # Spark adds a partition without a range if there is nothing to read.
        if isinstance(partition, RangePartition):
            yield from read_task(self.options, partition, self.target)


def first_offsets(options: ReadOptions, state: StreamExtent) -> Offsets:
    """Return the offsets at which a new read starts."""
    if options.identity is not None:
        check_same_stream({IDENTITY: options.identity}, state)
    first = starting_offsets(state.partitions, options)
    return first | times_to_offsets(options, state, name="startingTimestamp")


def times_to_offsets(options: ReadOptions, state: StreamExtent, *, name: str) -> Offsets:
    """Return the offsets of the partitions for which an option gives a time.

    Raises:
        UnknownPartitionError: the option names a partition that does not exist.
    """
    is_start = name == "startingTimestamp"
    times_ns = options.starting_times_ns if is_start else options.ending_times_ns
    if isinstance(times_ns, dict):
        check_known_partitions(state.partitions, times_ns, name=name)
    if times_ns is None:
        return {}
    partitions = [each.partition for each in state.partitions]
    return offsets_at_times(options, times_ns, partitions)


def tasks(
    options: ReadOptions, ranges: Iterable[OffsetRange], *, identity: str
) -> list[InputPartition]:
    """Return Spark's tasks for ranges of streams with this identity."""
    known = identities(identity)
    return [RangePartition(each, known[options.place(each.partition).stream]) for each in ranges]


def read_task(
    options: ReadOptions, partition: RangePartition, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Fetch a range and convert it for Spark."""
    settle()
    if options.value_format != "raw":
        from strandline.spark.value_source import decoded_rows

        return decoded_rows(options, partition.range, target, identity=partition.identity)
    return read_rows(options, partition.range, target, identity=partition.identity)

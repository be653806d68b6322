"""Merge: several streams merged into one, in an order that is the same for all readers.

Rules: a micro-batch takes the available records of each stream and sorts them by time, then by
stream, partition and offset, so that a replay has the same order. Each record of the result names
its source. Without values the result is a merge log, which has only the order.
"""

from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name all of Spark's users know
from pyspark.sql.streaming import StreamingQuery

from strandline.spark.pipelines.config import MergePipeline
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import with_source

_ORDER = ("timestamp", "source", "partition", "offset")


def start_merge(spark: SparkSession, config: MergePipeline) -> list[StreamingQuery]:
    """Start the query; the result is created with one partition if it does not exist.

    Raises:
        UnknownStreamError: one of the streams does not exist.
    """
    inputs = [stream_of(config.server, stream) for stream in config.streams]
    safest = max(inputs, key=lambda info: info.config.replicas)
    output = ensure_stream(config.server, config.into, like=safest)
    name = f"merge {', '.join(config.streams)} into {config.into}"

    def records_of(stream: str) -> DataFrame:
        records = read_stream(spark, config, stream, name=name, output=output)
        return with_source(records, stream).withColumn("source", F.lit(stream))

    together = reduce(DataFrame.unionByName, map(records_of, config.streams))
    # One task sorts all; Spark cannot sort a stream.
    ordered = together.repartition(1).mapInArrow(_sorted, together.schema)
    if config.values:
        rows = ordered.select("value", "key", "subject", "headers")
    else:
        rows = ordered.select(F.lit(None).cast("binary").alias("value"), "headers")
    return [write_stream(rows, config, name=name, into=config.into)]


def _sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a task in order."""
    found = list(batches)
    if found:
        table = pa.Table.from_batches(found)
        yield from table.sort_by([(name, "ascending") for name in _ORDER]).to_batches()

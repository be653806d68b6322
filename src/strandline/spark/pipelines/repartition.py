"""Repartition: a stream partitioned by another key.

Rules: headers name each record's source, by which readers and ``clean`` recognize duplicates;
records of one source partition keep their order in each partition of the result.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name all of Spark's users know
from pyspark.sql.streaming import StreamingQuery

from strandline.spark.pipelines.config import RepartitionPipeline
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import with_source


def start_repartition(spark: SparkSession, config: RepartitionPipeline) -> list[StreamingQuery]:
    """Start the query; the result is created, partitioned by key, if it does not exist.

    Raises:
        UnknownStreamError: there is no stream to read.
    """
    source = stream_of(config.server, config.stream)
    output = ensure_stream(config.server, config.into, like=source, partitions=config.partitions)
    name = f"repartition {config.stream} into {config.into}"
    records = read_stream(spark, config, config.stream, name=name, output=output)
    keyed = with_source(records, config.stream).withColumn(
        "key", F.expr(config.key).cast("string").cast("binary")
    )
    rows = keyed.select("value", "key", "subject", "headers")
    return [write_stream(rows, config, name=name, into=config.into)]

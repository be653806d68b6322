"""Transform: filters, multiplies, changes or splits records by SQL.

Rules: one query reads and commits, so that the rows of a micro-batch appear in all their streams at
once, and Spark's position is that of the last committed batch.
"""

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.spark.connection import identity_of
from strandline.spark.pipelines.config import TransformPipeline
from strandline.spark.pipelines.outputs import stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream


def start_transform(spark: SparkSession, config: TransformPipeline) -> list[StreamingQuery]:
    """Start the query; its output streams must exist.

    Raises:
        UnknownStreamError: a stream to read or to write does not exist.
        InvalidConfigError: the SQL returns columns that records do not have.
    """
    name = f"transform {config.stream}" + (f" into {config.into}" if config.into else "")
    output = identity_of(stream_of(config.server, config.into)) if config.into else None
    records = read_stream(spark, config, config.stream, name=name, output=output)
    records.createOrReplaceTempView("records")
    rows = spark.sql(config.sql)
    return [write_stream(rows, config, name=name, into=config.into)]

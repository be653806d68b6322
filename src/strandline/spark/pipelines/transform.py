"""Transform: filter, flat-map, change or split records by SQL.

Rules: one query reads and publishes, so the rows of a micro-batch appear in all their streams at
once, and the position that Spark keeps is that of the last batch published.
"""

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.spark.connection import identity_of
from strandline.spark.pipelines.config import Transform
from strandline.spark.pipelines.outputs import stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream


def start_transform(spark: SparkSession, config: Transform) -> list[StreamingQuery]:
    """Start the query that transforms; its streams have to be there.

    Raises:
        UnknownStreamError: there is no stream to read, or to write.
        InvalidConfigError: the SQL gives columns that no record has.
    """
    name = f"transform {config.stream}" + (f" into {config.into}" if config.into else "")
    output = identity_of(stream_of(config.server, config.into)) if config.into else None
    records = read_stream(spark, config, config.stream, name=name, output=output)
    records.createOrReplaceTempView("records")
    rows = spark.sql(config.sql)
    return [write_stream(rows, config, name=name, into=config.into)]

"""Copy: copies a stream partition by partition, in order; mirrors between clusters.

Rules: the copy's records name their source, so that a copy without checkpoint resumes at the
position found in its output; only one pipeline may write to the output. The sink commits once.
"""

import json

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.spark.connection import client_of
from strandline.spark.pipelines.config import CopyPipeline
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import copied_offsets, with_source


def start_copy(spark: SparkSession, config: CopyPipeline) -> list[StreamingQuery]:
    """Start the query; the copy is created with as many partitions if it does not exist.

    Raises:
        UnknownStreamError: there is no stream to copy.
        InvalidRequestError: the copied records are older than the stream.
    """
    server = config.into_server or config.server
    source = stream_of(config.server, config.stream)
    output = ensure_stream(server, config.into, like=source, partitions=len(source.partitions))
    copied = copied_offsets(client_of(server), source, into=config.into)
    position = json.dumps({str(p): offset for p, offset in copied.items()}) if copied else None
    name = f"copy {config.stream} into {config.into}"
    records = read_stream(
        spark,
        config,
        config.stream,
        name=name,
        output=output,
        startingOffsets=position,
    )
    rows = with_source(records, config.stream)
    query = write_stream(
        rows,
        config,
        name=name,
        into=config.into,
        server=server,
        partitionBy="column",
    )
    return [query]

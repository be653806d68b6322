"""Copy: a stream into another, partition by partition, in order; mirroring between clusters.

Rules: the copy's records say where they come from, so a copy that lost its checkpoint goes on at
the position that its output tells; one copy only may write to its output. What is published once
is the sink's business.
"""

import json

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.spark.connection import client_of
from strandline.spark.pipelines.config import Copy
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import copied_offsets, with_source


def start_copy(spark: SparkSession, config: Copy) -> list[StreamingQuery]:
    """Start the query that copies; the copy is created with as many partitions if it is not there.

    Raises:
        UnknownStreamError: there is no stream to copy.
        InvalidRequestError: what was copied is older than the stream.
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

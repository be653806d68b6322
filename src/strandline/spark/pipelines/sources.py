"""The headers that say which record a record was made of: putting them in, and reading them back.

Rules: a record has one source, that of the last pipeline it went through. Where a stream's newest
record of each source partition comes from is the position of the pipeline that made it, so the
position is in the output itself.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name all of Spark's users know

from strandline.client import Client
from strandline.spark.headers import SOURCE_HEADERS, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM

_WINDOW_RECORDS = 1024


def headers_with_source(stream: str) -> Column:
    """A record's headers with its place in ``stream``; an older source is replaced."""
    places = {
        SOURCE_STREAM: F.lit(stream),
        SOURCE_PARTITION: F.col("partition").cast("string"),
        SOURCE_OFFSET: F.col("offset").cast("string"),
    }
    pairs = [each for name, place in places.items() for each in (F.lit(name), place.cast("binary"))]
    return F.map_concat(headers_without_source(), F.create_map(*pairs))


def headers_without_source() -> Column:
    """A record's headers but for its source."""
    empty = F.expr("CAST(map() AS MAP<STRING, BINARY>)")
    headers = F.coalesce(F.col("headers"), empty)
    return F.map_filter(headers, lambda name, _: ~name.isin(*SOURCE_HEADERS))


def with_source(records: DataFrame, stream: str) -> DataFrame:
    """Records of ``stream`` that say so in their headers."""
    return records.withColumn("headers", headers_with_source(stream))


def source_of(headers: Mapping[str, bytes]) -> tuple[str, int, int] | None:
    """Stream, partition and offset that a record was made of; None if its headers do not say."""
    try:
        stream, partition, offset = (bytes(headers[name]).decode() for name in SOURCE_HEADERS)
        return stream, int(partition), int(offset)
    except (KeyError, ValueError):
        return None


def copied_offsets(client: Client, *, stream: str, into: str) -> dict[int, int]:
    """For each partition of ``stream`` the first offset that its copy does not have.

    Args:
        client: of the copy's broker.
        stream: what was copied.
        into: the copy, whose partitions have the numbers of their sources.
    """
    found = {}
    for info in client.stream_info(into).partitions:
        for batch in _backwards(client, into, info.partition):
            offsets = [
                place[2]
                for headers in batch.column("headers").to_pylist()
                if (place := source_of(dict(headers or ()))) and place[0] == stream
            ]
            if offsets:
                found[info.partition] = max(offsets) + 1
                break
    return found


def _backwards(client: Client, stream: str, partition: int) -> Iterator[pa.Table]:
    """The records of a partition in windows, the newest first."""
    start = client.offsets(stream, "earliest")[partition]
    stop = client.offsets(stream, "latest")[partition]
    while stop > start:
        begin = max(start, stop - _WINDOW_RECORDS)
        reader = client.read(
            stream, partition=partition, start=begin, stop=stop, columns=["headers"]
        )
        yield reader.read_all()
        stop = begin

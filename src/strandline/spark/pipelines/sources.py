"""The source headers of derived records: the stream, partition and offset of the original record.

Rules: a record has one source, written by the last pipeline. A pipeline's position in a source
partition is the source offset of its newest output record. An output that is older than its stream
was derived from an earlier stream of the same name.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name all of Spark's users know

from strandline.api.admin import StreamInfo
from strandline.client import Client
from strandline.errors import InvalidRequestError
from strandline.spark.headers import SOURCE_HEADERS, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM

_WINDOW_RECORDS = 1024


def headers_with_source(stream: str) -> Column:
    """Add a record's position in ``stream`` to its headers, replacing an older source."""
    places = {
        SOURCE_STREAM: F.lit(stream),
        SOURCE_PARTITION: F.col("partition").cast("string"),
        SOURCE_OFFSET: F.col("offset").cast("string"),
    }
    pairs = [each for name, place in places.items() for each in (F.lit(name), place.cast("binary"))]
    return F.map_concat(headers_without_source(), F.create_map(*pairs))


def headers_without_source() -> Column:
    """Remove the source from a record's headers."""
    empty = F.expr("CAST(map() AS MAP<STRING, BINARY>)")
    headers = F.coalesce(F.col("headers"), empty)
    return F.map_filter(headers, lambda name, _: ~name.isin(*SOURCE_HEADERS))


def with_source(records: DataFrame, stream: str) -> DataFrame:
    """Add source headers to the records of ``stream``."""
    return records.withColumn("headers", headers_with_source(stream))


def source_of(headers: Mapping[str, bytes]) -> tuple[str, int, int] | None:
    """Return the stream, partition and offset of a record's source; None without source headers."""
    try:
        stream, partition, offset = (bytes(headers[name]).decode() for name in SOURCE_HEADERS)
        return stream, int(partition), int(offset)
    except (KeyError, ValueError):
        return None


def copied_offsets(client: Client, source: StreamInfo, *, into: str) -> dict[int, int]:
    """Return the first offset of each partition of a stream that its copy lacks.

    Args:
        client: a client of the copy's broker.
        source: the copied stream.
        into: the copy; its partitions have the same numbers as those of the source.

    Raises:
        InvalidRequestError: the copy is older than the stream, so it is of an earlier stream.
    """
    found = {}
    for info in client.stream_info(into).partitions:
        for batch in _backwards(client, into, info.partition):
            times = batch.column("timestamp").cast("int64").to_pylist()
            copies = [
                (place[2], time_ns)
                for headers, time_ns in zip(batch.column("headers").to_pylist(), times, strict=True)
                if (place := source_of(dict(headers or ()))) and place[0] == source.name
            ]
            if copies:
                newest, time_ns = max(copies)
                check_derivable(time_ns, source, into=into)
                found[info.partition] = newest + 1
                break
    return found


def check_derivable(time_ns: int, source: StreamInfo, *, into: str) -> None:
    """Check that an output can have been derived from a stream.

    Args:
        time_ns: the time at which a record of the output was stored.
        source: the stream.
        into: the output.

    Raises:
        InvalidRequestError: the stream was created later, so the output is of an earlier stream.
    """
    if time_ns < source.created_ns:
        raise InvalidRequestError(
            f"stream {source.name} was recreated after records of {into} were made of it: "
            "offsets of one mean nothing in the other; write to another stream, with a new "
            "checkpoint"
        )


def _backwards(client: Client, stream: str, partition: int) -> Iterator[pa.Table]:
    """Yield the records of a partition in windows, the newest first."""
    start = client.offsets(stream, "earliest")[partition]
    stop = client.offsets(stream, "latest")[partition]
    while stop > start:
        begin = max(start, stop - _WINDOW_RECORDS)
        reader = client.read(
            stream, partition=partition, start=begin, stop=stop, columns=["headers", "timestamp"]
        )
        yield reader.read_all()
        stop = begin

"""Starting, watching and ending the Spark queries of a pipeline.

Rules: a pipeline that fails in one query ends them all and raises that query's error; its queries
can be started again at any time. Must not know which pipeline it is.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from strandline.client import Client
from strandline.errors import StreamExistsError, UnavailableError
from strandline.spark.connection import with_retries
from strandline.spark.pipelines.config import Common

_POLL_S = 0.2
_RETRY_TIMEOUT_MS = 60_000

Report = Callable[[Mapping[str, Any]], None]


def read_stream(spark: SparkSession, config: Common, stream: str, **options: Any) -> DataFrame:
    """The records of a stream, as they come; options that are None are left out."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    chosen = {"startingOffsets": config.starting_offsets} | given
    reader = spark.readStream.format("strandline")
    return reader.options(server=config.server, stream=stream, **chosen).load()


def write_stream(
    rows: DataFrame, config: Common, *, name: str, into: str | None, **options: str
) -> StreamingQuery:
    """Start the query that writes rows to streams, each micro-batch published once.

    Args:
        rows: with the columns that ``format("strandline")`` takes.
        config: the pipeline.
        name: of the query, in reports.
        into: the stream of rows that name none.
        **options: more of the sink's.
    """
    chosen = {"server": config.server} | options
    if into is not None:
        chosen["stream"] = into
    writer = rows.writeStream.format("strandline").options(**chosen)
    writer = writer.option("checkpointLocation", config.checkpoint).queryName(name)
    return triggered(writer, config).start()


def ensure_stream(server: str, name: str, **settings: Any) -> None:
    """Create a stream with these settings if there is none of this name."""

    def create(client: Client) -> None:
        with contextlib.suppress(StreamExistsError):
            client.create_stream(name, **settings)

    with_retries(server, create, timeout_ms=_RETRY_TIMEOUT_MS)


def partitions_of(server: str, stream: str) -> int:
    """How many partitions a stream has.

    Raises:
        UnknownStreamError: there is no such stream.
    """
    info = with_retries(
        server, lambda client: client.stream_info(stream), timeout_ms=_RETRY_TIMEOUT_MS
    )
    return len(info.partitions)


def triggered(writer: DataStreamWriter, config: Common) -> DataStreamWriter:
    """The writer with the pipeline's trigger."""
    if config.trigger == "available_now":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{config.interval_ms} milliseconds")


def wait_for_end(queries: Sequence[StreamingQuery], *, report: Report | None = None) -> None:
    """Wait until every query has ended; the first that fails ends the others.

    Args:
        queries: of one pipeline.
        report: called with what each micro-batch did; batches that end close together share a call.

    Raises:
        UnavailableError: a query failed; its message says why.
    """
    told: dict[str, int] = {}
    is_over = False
    with _stopped_at_the_end(queries):
        while not is_over:
            # Looked at before the last report, so that no batch goes untold.
            is_over = not any(query.isActive for query in queries)
            for query in queries:
                _await(query)
                line = progress_line(query)
                if report and line and told.get(query.id, -1) < line["batch"]:
                    told[query.id] = line["batch"]
                    report(line)


def progress_line(query: StreamingQuery) -> Mapping[str, Any] | None:
    """What the newest micro-batch did: records, and the lag of each partition behind the stream."""
    progress = query.lastProgress
    if progress is None:
        return None
    lag: dict[str, int] = {}
    for source in progress["sources"]:
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        lag |= {place: latest[place] - end[place] for place in latest if place in end}
    return {
        "event": "batch",
        "query": query.name,
        "batch": progress["batchId"],
        "records": progress["numInputRows"],
        "lag": lag,
        "ms": progress["durationMs"].get("triggerExecution", 0),
    }


def _offsets(encoded: str | None) -> dict[str, int]:
    """Offsets of a source of ours by ``stream/partition``; nothing of another's."""
    found = json.loads(encoded) if encoded else None
    if not isinstance(found, dict) or "stream" not in found:
        return {}
    stream = str(found.pop("stream")).rpartition("@")[0]
    return {f"{stream}/{partition}": offset for partition, offset in found.items()}


def _await(query: StreamingQuery) -> None:
    try:
        query.awaitTermination(_POLL_S)
    except StreamingQueryException as error:
        raise UnavailableError(f"query {query.name} failed: {error}") from error


@contextlib.contextmanager
def _stopped_at_the_end(queries: Sequence[StreamingQuery]) -> Iterator[None]:
    try:
        yield
    finally:
        for query in queries:
            query.stop()

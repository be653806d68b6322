"""Start, monitoring and end of the Spark queries of a pipeline.

Rules: a pipeline with a failed query ends all queries and raises that query's error; its queries
can be restarted at any time. Must not know which pipeline it is.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from strandline.spark.options import ReadOptions
from strandline.spark.pipelines.config import Common, Derived
from strandline.spark.pipelines.failures import query_failure
from strandline.spark.pipelines.unread import oldest_unread_ms
from strandline.spark.planning import offsets_of
from strandline.spark.session import silence_spark

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_SILENCE_S = 15.0
"""The interval at which the log repeats that a batch is running."""
_PROCESSING = "Processing new data"
"""Spark's status message for a query with a running batch."""

Report = Callable[[Mapping[str, Any]], None]


def read_stream(
    spark: SparkSession,
    config: Common,
    stream: str | Mapping[str, str],
    *,
    name: str,
    output: str | None,
    **options: Any,
) -> DataFrame:
    """Return the records of a stream as a streaming DataFrame.

    Args:
        spark: the session.
        config: the pipeline.
        stream: the stream's name, or options that select several.
        name: the name of the query, which is the default group of its progress.
        output: the query's output, to which its checkpoint belongs; None: not known before it runs.
        **options: further options of the source; options with the value None are left out.
    """
    options |= {"stream": stream} if isinstance(stream, str) else stream
    options["output"] = output
    if isinstance(config, Derived):
        options["maxRecordsPerTrigger"] = config.batch_records_max
    given = {option: str(value) for option, value in options.items() if value is not None}
    chosen = {
        "startingOffsets": config.starting_offsets,
        "group": config.group or name,
        "failOnDataLoss": str(config.fail_on_data_loss),
    } | given
    reader = spark.readStream.format("strandline")
    return reader.options(server=config.server, **chosen).load()


def write_stream(
    rows: DataFrame, config: Common, *, name: str, into: str | None, **options: str
) -> StreamingQuery:
    """Start a query that writes rows to streams, each micro-batch committed once.

    Args:
        rows: have the columns that ``format("strandline")`` accepts.
        config: the pipeline.
        name: the name of the query, in reports; unique in a session.
        into: the stream of rows that name no stream.
        **options: further options of the sink.
    """
    chosen = {"server": config.server} | options
    if into is not None:
        chosen["stream"] = into
    writer = rows.writeStream.format("strandline").options(**chosen)
    writer = writer.option("checkpointLocation", config.checkpoint).queryName(name)
    return triggered(writer, config).start()


def triggered(writer: DataStreamWriter, config: Common) -> DataStreamWriter:
    """Set the pipeline's trigger on a writer."""
    if config.trigger == "available_now":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{config.interval_ms} milliseconds")


def wait_for_end(
    queries: Sequence[StreamingQuery],
    *,
    server: str,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Wait until every query has ended; the first failure ends the others.

    Args:
        queries: the queries of one pipeline.
        server: the address of the broker of the streams that they read.
        report: called with a line for each micro-batch.
        stop: set to end the queries; their running batches are abandoned.

    Raises:
        StrandlineError: a query failed; its error, or an ``UnavailableError`` with the reason.
    """
    watches = [Watch(query, server) for query in queries]
    is_over = False
    with _stopped_at_the_end(queries):
        while not is_over and not (stop is not None and stop.is_set()):
            # Checked before the last report, so that no batch is missed.
            is_over = not any(query.isActive for query in queries)
            for watch in watches:
                _await(watch.query)
                watch.tell(report)
        if not is_over:
            silence_spark(SparkSession.active())
    if not is_over:
        for watch in watches:
            watch.tell(report)
        logger.info("stopped; %s; run it again to continue", "; ".join(map(str, watches)))


class Watch:
    """Reports each micro-batch of a query once, even if several end close together.

    Args:
        query: the query, running or ended.
        server: the address of the broker of the streams that it reads.
    """

    def __init__(self, query: StreamingQuery, server: str) -> None:
        self.query = query
        self._server = server
        self._looked_at: str | None = None
        self._reported = -1
        self._records = 0
        self._state = ""
        self._logged_s = time.monotonic()

    def __str__(self) -> str:
        """Return a text that says what the query has committed."""
        if self._reported < 0:
            return f"{self.query.name}: no batch was committed"
        return (
            f"{self.query.name}: committed up to batch {self._reported}, "
            f"{self._records} records in this run"
        )

    def tell(self, report: Report | None) -> None:
        """Report new micro-batches; log what the query does while there are none."""
        for line in self.news():
            self._logged_s = time.monotonic()
            if report is not None:
                report(line)
        if self.query.isActive:
            self._log_state(self.query.status["message"])

    def _log_state(self, state: str) -> None:
        """Log Spark's message when it changes before the first batch, and during a long batch."""
        is_news = self._reported < 0 and state != self._state
        self._state = state
        if not is_news:
            is_silent = time.monotonic() - self._logged_s > _SILENCE_S
            if state != _PROCESSING or not is_silent:
                return
            state = f"still {state[0].lower()}{state[1:]}"
        logger.info("%s: %s", self.query.name, state)
        self._logged_s = time.monotonic()

    def news(self) -> list[Mapping[str, Any]]:
        """Return a line for each micro-batch that has ended since the last call.

        The line of the newest one includes the age of the oldest unread record, if there is one.
        """
        last = self.query.lastProgress
        if last is None or last["timestamp"] == self._looked_at:
            return []
        self._looked_at = last["timestamp"]
        # Spark reports idle triggers, too, under the number of the next batch.
        ended = [
            each
            for each in self.query.recentProgress
            if each["batchId"] > self._reported and "addBatch" in each["durationMs"]
        ]
        lines: list[Mapping[str, Any]] = [_progress_line(self.query.name, each) for each in ended]
        if ended:
            self._reported = ended[-1]["batchId"]
            self._records += sum(each["numInputRows"] for each in ended)
            ages = oldest_unread_ms(self._server, _unread(ended[-1]))
            lines[-1] = {**lines[-1], "oldest_unread_ms": ages}
        return lines


def _progress_line(name: str | None, progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a micro-batch's number, records, and the lag of each partition."""
    lag = {f"{stream}/{p}": end - at for (stream, p), (at, end) in _offsets(progress).items()}
    return {
        "event": "batch",
        "query": name,
        "batch": progress["batchId"],
        "records": progress["numInputRows"],
        "lag": lag,
        "ms": progress["durationMs"].get("triggerExecution", 0),
    }


def _unread(progress: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition that has unread records."""
    return {place: at for place, (at, end) in _offsets(progress).items() if end > at}


def _offsets(progress: Mapping[str, Any]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the end of the micro-batch and the end of the stream, for each partition."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for source in progress["sources"]:
        read, latest = _decoded(source["endOffset"]), _decoded(source["latestOffset"])
        found |= {place: (read[place], latest[place]) for place in latest if place in read}
    return found


def _decoded(encoded: str | None) -> dict[tuple[str, int], int]:
    """Decode offsets of ``format("strandline")``; empty for other sources."""
    found = json.loads(encoded) if encoded else None
    if not isinstance(found, dict) or "stream" not in found:
        return {}
    options = ReadOptions(server="", stream=None)
    return {options.place(p): offset for p, offset in offsets_of(found, options).items()}


def _await(query: StreamingQuery) -> None:
    try:
        query.awaitTermination(_POLL_S)
    except StreamingQueryException as error:
        raise query_failure(query.name, error) from error


@contextlib.contextmanager
def _stopped_at_the_end(queries: Sequence[StreamingQuery]) -> Iterator[None]:
    try:
        yield
    finally:
        for query in queries:
            query.stop()

"""The Spark job of the demo, a process of its own so that it can be killed.

Two queries over one stream: ``records`` writes every record to an exactly-once table, ``delays``
adds up delays per carrier and hour in event time. Both resume from their checkpoints after a kill.

Rules: this is what a user's job looks like; it does not know about kills or checks. It reports on
its standard output, one JSON line per second, and ends when its standard input is closed.
"""

import argparse
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import IntegerType, StringType, StructType

from strandline.spark.demo.flights import COLUMNS, TEXT_COLUMNS
from strandline.spark.session import QUICK_START, spark_session, wait_for_sources

# How much later than the newest record of any partition another may come: partitions are read in
# proportion to what waits in each, so that a backlog of months stays within days.
LATENESS = "60 days"


def read_stream(
    spark: SparkSession, *, server: str, stream: str, records_per_trigger: int
) -> DataFrame:
    """Return the stream's records with their JSON parsed."""
    raw = (
        spark.readStream.format("strandline")
        .option("server", server)
        .option("stream", stream)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", records_per_trigger)
        .schema("partition INT, offset BIGINT, subject STRING, value BINARY")
        .load()
    )
    fields = f.from_json(f.col("value").cast("string"), flight_schema())
    return raw.select("partition", "offset", "subject", fields.alias("flight")).select(
        "partition", "offset", "subject", "flight.*"
    )


def flight_schema() -> StructType:
    """Return the JSON of a flight as Spark types."""
    schema = StructType()
    for name in COLUMNS:
        is_text = name in TEXT_COLUMNS or name == "time_hour"
        schema = schema.add(name, StringType() if is_text else IntegerType())
    return schema


def land_records(flights: DataFrame, directory: Path) -> StreamingQuery:
    """Write every record to a table, once."""
    return (
        flights.writeStream.queryName("records")
        .format("strandline-table")
        .option("checkpointLocation", str(directory / "checkpoints" / "records"))
        .start(str(directory / "records"))
    )


def count_delays(flights: DataFrame, directory: Path) -> StreamingQuery:
    """Count flights, departures and delays per carrier and hour of scheduled departure, once."""
    hours = (
        flights.select(f.to_timestamp("time_hour").alias("time"), "id", "carrier", "dep_delay")
        .withWatermark("time", LATENESS)
        .groupBy(f.window("time", "1 hour").alias("hour"), "carrier")
        .agg(
            f.count("id").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.sum("dep_delay").alias("dep_delay_sum"),
            f.max("dep_delay").alias("dep_delay_max"),
        )
        .select(
            f.col("hour.start").alias("hour"),
            *("carrier", "flights", "departed", "dep_delay_sum", "dep_delay_max"),
        )
    )
    return (
        hours.writeStream.queryName("delays")
        .format("strandline-table")
        .outputMode("append")
        .option("checkpointLocation", str(directory / "checkpoints" / "delays"))
        .start(str(directory / "delays"))
    )


def main() -> None:
    """Run both queries until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--records-per-trigger", type=int, required=True)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"event": "starting", "pid": os.getpid()}
    _say(report)
    spark = spark_session("local[2]", app_name="strandline-demo", settings=QUICK_START)
    spark.sparkContext.setLogLevel("ERROR")
    flights = read_stream(
        spark,
        server=arguments.server,
        stream=arguments.stream,
        records_per_trigger=arguments.records_per_trigger,
    )
    directory = arguments.directory.absolute()
    queries = []
    for start in (land_records, count_delays):
        queries.append(start(flights, directory))
        wait_for_sources(queries[-1])
    while not _input_ended(wait_s=1.0):
        for query in queries:
            if (failure := query.exception()) is not None:
                reason = str(failure).partition("=== Streaming Query ===")[0].rstrip()  # no plan
                raise SystemExit(f"query {query.name} failed: {reason}")
        _say({"event": "progress"} | {query.name: _records_read(query) for query in queries})
    for query in queries:
        query.stop()
    spark.stop()


def _records_read(query: StreamingQuery) -> int:
    """Return the number of records that the query has read since the stream's start."""
    progress = query.lastProgress
    if progress is None:
        return 0
    end = progress["sources"][0]["endOffset"]
    offsets = json.loads(end) if isinstance(end, str) else end
    return sum(value for key, value in (offsets or {}).items() if key.isdecimal())


def _input_ended(*, wait_s: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not sys.stdin.readline()


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

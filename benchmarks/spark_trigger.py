"""The latency of a small micro-batch, beside a source and a sink in memory.

Run it from the root of the repository: `python -m benchmarks.spark_trigger`. Queries with trigger 0
take `--records` a micro-batch, one partition, and go on until `--batches` are done: both ends ours,
both in memory, and each with the other's, which says where time goes. Ours are exactly once.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Findings
from benchmarks.fill import Shape, append_many
from benchmarks.spark.data import SMALL_BYTES, WIDE_BYTES, parser_of, scratch
from benchmarks.spark.meter import Runs, busy_batches, trigger_ms
from benchmarks.spark.session import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from strandline.client import Client

OURS, MEMORY = "Strandline", "memory"
PAIRS: Final = ((MEMORY, MEMORY), (OURS, OURS), (OURS, MEMORY), (MEMORY, OURS))
MEDIAN: Final = "ms of a micro-batch, median"
SLOW: Final = "ms of a micro-batch, 90th percentile"
AIM: Final = 1.3
POLL_S: Final = 0.1
SKIPPED: Final = 10
"""Micro-batches at the start of a query, while processes start and connections are made."""
STREAM: Final = "source"
INTRO: Final = (
    "Spark {version} in `local[{cores}]`, trigger 0: micro-batches of {records} records of "
    f"{SMALL_BYTES} B of one partition, from source to sink; medians of {{runs}} runs of "
    f"{{batches}} micro-batches each, the first {SKIPPED} not counted, taking turns. The "
    "engine itself takes most of it: `memory → memory` is a Python source and sink that do "
    "nothing. Ours publishes each micro-batch in one transaction that is on disk."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("spark_trigger", __doc__)
    add = parser.add_argument
    add("--runs", type=int, default=3, help="queries of each pair (3)")
    add(
        "--batches",
        type=int,
        default=60,
        help="micro-batches of a query that count, 2 or more (60)",
    )
    add("--records", type=int, default=1000, help="records in a micro-batch (1000)")
    add("--seconds", type=float, default=300.0, help="longest a query may take (300)")
    return parser.parse_args()


def name_of(pair: tuple[str, str]) -> str:
    """A pair as the tables write it."""
    return " → ".join(pair)


class Bench:
    """Queries from either source to either sink."""

    def __init__(
        self, spark: SparkSession, broker: brokers.Broker, args: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.args = args
        self.batches = args.batches + SKIPPED
        self._numbers = itertools.count()

    def fill(self, client: Client) -> None:
        """A stream that has enough for a query."""
        client.create_stream(STREAM)
        append_many(client, STREAM, Shape(self.args.records * self.batches, SMALL_BYTES))

    def run(self, client: Client, pair: tuple[str, str]) -> list[float]:
        """Milliseconds of the micro-batches that count."""
        into = f"sink{next(self._numbers)}"
        client.create_stream(into)
        source, sink = pair
        rows = self._rows(source)
        options: dict[str, Any] = {}
        if sink == OURS:
            options = {"server": self.broker.address, "stream": into}
        with scratch(self.args.data_root) as folder:
            writer = rows.writeStream.format("strandline" if sink == OURS else "ceiling")
            query = writer.options(checkpointLocation=str(folder), **options).start()
            found = self._watch(query)
        client.delete_stream(into)
        return found[SKIPPED:]

    def _rows(self, source: str) -> Any:
        records = self.args.records
        options: dict[str, Any]
        if source == OURS:
            options = {"server": self.broker.address, "stream": STREAM}
            options["maxRecordsPerTrigger"] = records
        else:
            options = {"records": records * self.batches, "step": records}
            options |= {"partitions": 1, "value_bytes": SMALL_BYTES}
        reader = self.spark.readStream.format("strandline" if source == OURS else "ceiling")
        return reader.options(**options).schema("value BINARY").load()

    def _watch(self, query: StreamingQuery) -> list[float]:
        """Waits until every micro-batch is done, and stops the query."""
        deadline = time.monotonic() + self.args.seconds
        try:
            while len(busy_batches(query)) < self.batches:
                if query.awaitTermination(POLL_S) or time.monotonic() > deadline:
                    done = len(busy_batches(query))
                    raise RuntimeError(f"{done} of {self.batches} micro-batches were done in time")
        finally:
            query.stop()
        return [trigger_ms(each) for each in busy_batches(query)]


def measure(bench: Bench, client: Client, args: argparse.Namespace) -> Runs:
    """All pairs, all runs; the first round is not counted."""
    runs = Runs()
    case = f"{args.records} records, trigger 0"
    for run in range(-1, args.runs):
        for pair in PAIRS:
            runner.preparation_of(args).run()
            found = bench.run(client, pair)
            if run < 0:
                continue  # the JVM still compiles
            median, slow = statistics.median(found), statistics.quantiles(found, n=10)[-1]
            print(f"  {name_of(pair):<28} p50 {median:6.0f} ms  p90 {slow:6.0f} ms", flush=True)
            runs.add(case, name_of(pair), {MEDIAN: median, SLOW: slow})
    return runs


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    with brokers.fresh(args.data_root) as broker, broker.connect() as client:
        spark = start_spark(args.cores)
        version = spark.version
        bench = Bench(spark, broker, args)
        bench.fill(client)
        runs = measure(bench, client, args)
        spark.stop()
    case = f"{args.records} records, trigger 0"
    ratio = runs.ratio(case, (name_of((OURS, OURS)), name_of((MEMORY, MEMORY))), MEDIAN)
    findings = Findings(
        name="spark-trigger",
        title="Time of a small micro-batch",
        intro=INTRO.format(version=version, **vars(args)),
        machine=host,
        settings={
            "records in a micro-batch": f"{args.records:,} of {SMALL_BYTES} B",
            "checkpoints": "FileSystemBasedCheckpointFileManager, local disk",
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
        },
        figures=runs.figures(),
        aims=[Aim("micro-batch, ours ÷ memory", AIM, ratio, "x", at_most=True)],
        module="benchmarks.spark_trigger",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

"""Spark following a stream micro-batch by micro-batch, beside our own batch read of the same.

Run it from the root of the repository: `python -m benchmarks.spark_stream`. Both read every record
into Spark's `noop` sink, taking turns in one session: the streaming query with
`trigger(availableNow=True)`, in micro-batches of `--batch-mib`, each time with a new checkpoint.
The source in memory is read in the same two ways: what Spark itself loses by streaming.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Findings
from benchmarks.spark.data import (
    COLUMNS,
    PARTITIONS,
    WIDE_BYTES,
    Shape,
    add_size_options,
    fill,
    parser_of,
    scratch,
    shapes_of,
)
from benchmarks.spark.meter import Runs, Turn, run_to_end, write_noop
from benchmarks.spark.session import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH, STREAMING = "Strandline, batch", "Strandline, streaming"
MEMORY_BATCH, MEMORY_STREAMING = "memory, batch", "memory, streaming"
AIM: Final = 0.8
INTRO: Final = (
    "Spark {version} in `local[{cores}]` reads {partitions} partitions of a stream into `noop`; "
    "median of {runs} runs after one that is not counted, taking turns. A streaming read's rate is "
    "over the time of its micro-batches, of {batch_mib} MiB of values at most; starting a query, "
    "which happens once, is a figure of its own. `memory` is a Python source that yields batches "
    "of the same shape and does nothing else. The broker shares the cores with Spark. Values are "
    "random bytes."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("spark_stream", __doc__)
    add_size_options(parser, runs=3, mib=1024, small=10_000_000)
    parser.add_argument(
        "--batch-mib", type=int, default=512, help="largest micro-batch, MiB of values (512)"
    )
    return parser.parse_args()


class Bench:
    """A stream, and the source in memory, read in two ways each."""

    def __init__(self, spark: SparkSession, args: argparse.Namespace) -> None:
        self.spark = spark
        self.args = args

    def turns(self, broker: brokers.Broker, stream: str, shape: Shape) -> list[Turn]:
        """Every source in both ways."""
        step = shape.records_in(self.args.batch_mib)
        ours = {"server": broker.address, "stream": stream, "maxRecordsPerTrigger": step}
        memory = {
            "records": shape.records // PARTITIONS,
            "value_bytes": shape.value_bytes,
            "partitions": PARTITIONS,
            "step": step // PARTITIONS,
        }
        return [
            Turn(MEMORY_BATCH, lambda: self.read_batch("ceiling", memory)),
            Turn(MEMORY_STREAMING, lambda: self.read_stream("ceiling", memory, shape.records)),
            Turn(BATCH, lambda: self.read_batch("strandline", ours), broker.pid),
            Turn(
                STREAMING, lambda: self.read_stream("strandline", ours, shape.records), broker.pid
            ),
        ]

    def read_batch(self, source: str, options: dict[str, Any]) -> None:
        """One pass as a batch job."""
        write_noop(self.spark.read.format(source).options(**options).schema(COLUMNS).load())

    def read_stream(self, source: str, options: dict[str, Any], records: int) -> float:
        """One pass as a streaming query; seconds of its micro-batches."""
        frame = self.spark.readStream.format(source).options(**options).schema(COLUMNS).load()
        with scratch(self.args.data_root) as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
            return run_to_end(writer, records)


def aims(runs: Runs, shapes: list[Shape]) -> list[Aim]:
    """Return the promised ratio: streaming over batch."""
    return [
        Aim(
            f"{shape.case}, streaming ÷ batch",
            AIM,
            runs.ratio(shape.case, (STREAMING, BATCH)),
            "x",
        )
        for shape in shapes
    ]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    runs, shapes = Runs(), shapes_of(args)
    with brokers.fresh(args.data_root) as broker, broker.connect() as client:
        spark = start_spark(args.cores)
        version = spark.version
        bench = Bench(spark, args)
        for shape in shapes:
            stream = f"bench{shape.value_bytes}"
            fill(client, stream, shape)
            turns = bench.turns(broker, stream, shape)
            preparation = runner.preparation_of(args)
            runs.take_turns(
                shape.case, turns, records=shape.records, count=args.runs, preparation=preparation
            )
        spark.stop()
    findings = Findings(
        name="spark-stream",
        title="Spark following a stream",
        intro=INTRO.format(version=version, partitions=PARTITIONS, **vars(args)),
        machine=host,
        settings={
            "records": ", ".join(f"{shape.records:,} of {shape.size}" for shape in shapes),
            "columns": COLUMNS,
            "largest micro-batch": f"{args.batch_mib} MiB of values",
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
        },
        figures=runs.figures(),
        aims=aims(runs, shapes),
        module="benchmarks.spark_stream",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

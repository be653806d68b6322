"""Loading a stream into a Parquet table, beside writing the same rows from memory.

Run it from the root of the repository: `python -m benchmarks.spark_load`. `load` is the pipeline of
that kind. The same sink fed by a Python source in memory is what the load could reach if reading
the stream cost nothing; Spark's own Parquet writer, fed with rows that the JVM holds in memory, is
what one would use without a stream. All use the same codec; only the table's files are synced.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Findings
from benchmarks.spark.data import (
    PARTITIONS,
    WIDE_BYTES,
    Shape,
    add_size_options,
    cached,
    fill,
    from_memory,
    parser_of,
    scratch,
    shapes_of,
)
from benchmarks.spark.meter import Runs, Turn, run_to_end, seconds_of
from benchmarks.spark.session import CACHING, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOAD, SINK, WRITER = "load", "same sink, rows from memory", "Spark's writer, rows cached in the JVM"
RECORD: Final = (
    "partition INT, offset BIGINT, timestamp TIMESTAMP, subject STRING, key BINARY, value BINARY, "
    "headers MAP<STRING, BINARY>"
)
CODEC: Final = "zstd"
AIM: Final = 0.7
INTRO: Final = (
    "Spark {version} in `local[{cores}]` writes records with all their columns as Parquet, "
    f"{CODEC}; median of {{runs}} runs after one that is not counted, taking turns. The broker "
    "shares the cores with Spark. A load's files are on the disk when it is committed, Spark's own "
    "are not. Rates of queries are over the time of their micro-batches. Values are random bytes."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("spark_load", __doc__)
    add_size_options(parser, runs=3, mib=512, small=5_000_000)
    return parser.parse_args()


class Bench:
    """Ways of writing the same rows."""

    def __init__(
        self, spark: SparkSession, broker: brokers.Broker, args: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.args = args

    def load(self, stream: str, records: int) -> float:
        """The pipeline; seconds of its micro-batches."""
        from strandline.spark.pipelines.config import decode_pipeline
        from strandline.spark.pipelines.run import start_pipeline

        with scratch(self.args.data_root) as folder:
            config: dict[str, Any] = {
                "kind": "load",
                "server": self.broker.address,
                "streams": [stream],
                "into": str(folder / "table"),
                "checkpoint": str(folder / "checkpoint"),
            }
            [query] = start_pipeline(self.spark, decode_pipeline(config))
            return seconds_of(query, records)

    def sink(self, shape: Shape) -> float:
        """A query from memory into the same kind of table; seconds of its micro-batches."""
        options = {"records": shape.records // PARTITIONS, "partitions": PARTITIONS}
        reader = self.spark.readStream.format("ceiling").options(**options)
        rows = reader.option("value_bytes", shape.value_bytes).schema(RECORD).load()
        with scratch(self.args.data_root) as folder:
            writer = rows.writeStream.format("strandline-table")
            writer = writer.options(checkpointLocation=str(folder / "checkpoint"))
            return run_to_end(writer, shape.records, path=str(folder / "table"))

    def write(self, rows: DataFrame) -> None:
        """Spark's own writer."""
        with scratch(self.args.data_root) as folder:
            rows.write.option("compression", CODEC).parquet(str(folder / "table"))

    def turns(self, stream: str, shape: Shape, rows: DataFrame) -> list[Turn]:
        """All of them."""
        load = functools.partial(self.load, stream, shape.records)
        return [
            Turn(SINK, functools.partial(self.sink, shape)),
            Turn(WRITER, functools.partial(self.write, rows)),
            Turn(LOAD, load, self.broker.pid),
        ]


def aims(runs: Runs, shapes: list[Shape]) -> list[Aim]:
    """Return the promised ratio: the load over each way of writing from memory."""
    return [
        Aim(f"{shape.case}: {LOAD} ÷ {other}", AIM, runs.ratio(shape.case, (LOAD, other)), "x")
        for shape, other in itertools.product(shapes, (SINK, WRITER))
    ]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    runs, shapes = Runs(), shapes_of(args)
    with brokers.fresh(args.data_root) as broker, broker.connect() as client:
        spark = start_spark(args.cores, CACHING)
        version = spark.version
        bench = Bench(spark, broker, args)
        for shape in shapes:
            stream = f"bench{shape.value_bytes}"
            fill(client, stream, shape)
            with cached(from_memory(spark, shape, RECORD)) as rows:
                turns = bench.turns(stream, shape, rows)
                preparation = runner.preparation_of(args)
                runs.take_turns(
                    shape.case,
                    turns,
                    records=shape.records,
                    count=args.runs,
                    preparation=preparation,
                )
        spark.stop()
    findings = Findings(
        name="spark-load",
        title="Loading a stream into Parquet",
        intro=INTRO.format(version=version, **vars(args)),
        machine=host,
        settings={
            "records": ", ".join(f"{shape.records:,} of {shape.size}" for shape in shapes),
            "columns": RECORD,
            "codec": CODEC,
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
        },
        figures=runs.figures(),
        aims=aims(runs, shapes),
        module="benchmarks.spark_load",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

"""An exactly-once copy of a stream by Spark, beside the same copy at least once.

Run it from the root of the repository: `python -m benchmarks.spark_copy`. Both are the query of the
`copy` pipeline, from a stream into another, partition by partition; only the sink's `delivery`
differs: staged rows that the driver publishes in one transaction, or rows that are appended and
acknowledged by each task. Each run has a new output and a new checkpoint.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from typing import TYPE_CHECKING, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Findings
from benchmarks.spark.data import (
    PARTITIONS,
    WIDE_BYTES,
    Shape,
    add_size_options,
    fill,
    parser_of,
    scratch,
    shapes_of,
)
from benchmarks.spark.meter import Runs, Turn, run_to_end
from benchmarks.spark.session import start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.client import Client

SYSTEMS: Final = {"exactly once": "exactlyOnce", "at least once": "atLeastOnce"}
ONCE, AT_LEAST = SYSTEMS
PLAIN: Final = "value and partition"
AIM: Final = 0.5
INTRO: Final = (
    "Spark {version} in `local[{cores}]` copies a stream of {partitions} partitions into another "
    "of the same broker, acks `disk`; median of {runs} runs after one that is not counted, taking "
    "turns. Rates are over the time of the micro-batches, of {batch_mib} MiB of values at most. "
    "`pipeline` is the query of `kind: copy`, which puts each record's source into its headers; "
    "`" + PLAIN + "` leaves them alone. Values are random bytes."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("spark_copy", __doc__)
    add_size_options(parser, runs=3, mib=256, small=2_000_000)
    parser.add_argument(
        "--batch-mib", type=int, default=128, help="largest micro-batch, MiB of values (128)"
    )
    return parser.parse_args()


class Bench:
    """Copies of one stream."""

    def __init__(
        self, spark: SparkSession, broker: brokers.Broker, args: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.args = args
        self._numbers = itertools.count()

    def rows(self, stream: str, shape: Shape, *, plain: bool) -> DataFrame:
        """The rows to write."""
        from strandline.spark.pipelines.sources import with_source

        step = shape.records_in(self.args.batch_mib)
        options = {"server": self.broker.address, "stream": stream, "maxRecordsPerTrigger": step}
        reader = self.spark.readStream.format("strandline").options(**options)
        if plain:
            return reader.schema("partition INT, value BINARY").load()
        return with_source(reader.load(), stream)

    def copy(self, client: Client, rows: DataFrame, records: int, *, delivery: str) -> float:
        """One copy into a new stream; seconds of its micro-batches."""
        into = f"copy{next(self._numbers)}"
        client.create_stream(into, partitions=PARTITIONS)
        options = {"server": self.broker.address, "stream": into, "delivery": delivery}
        with scratch(self.args.data_root) as folder:
            writer = rows.writeStream.format("strandline").options(**options)
            writer = writer.options(partitionBy="column", checkpointLocation=str(folder))
            seconds = run_to_end(writer, records)
        self.check(client, into, records)
        client.delete_stream(into)
        return seconds

    def check(self, client: Client, into: str, records: int) -> None:
        """Every record arrived; a transaction's markers have offsets too."""
        found = sum(client.offsets(into, "latest").values())
        if found < records:
            raise RuntimeError(f"the copy has {found} offsets for {records} records")

    def turns(self, client: Client, rows: DataFrame, records: int) -> list[Turn]:
        """Both deliveries."""
        copy = functools.partial(self.copy, client, rows, records)
        return [
            Turn(system, functools.partial(copy, delivery=delivery), self.broker.pid)
            for system, delivery in SYSTEMS.items()
        ]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    runs, shapes, aims = Runs(), shapes_of(args), []
    with brokers.fresh(args.data_root) as broker, broker.connect() as client:
        spark = start_spark(args.cores)
        version = spark.version
        bench = Bench(spark, broker, args)
        for shape in shapes:
            stream = f"bench{shape.value_bytes}"
            fill(client, stream, shape)
            for name, plain in (("pipeline", False), (PLAIN, True)):
                case = f"{shape.case}, {name}"
                turns = bench.turns(client, bench.rows(stream, shape, plain=plain), shape.records)
                preparation = runner.preparation_of(args)
                runs.take_turns(
                    case, turns, records=shape.records, count=args.runs, preparation=preparation
                )
                ratio = runs.ratio(case, (ONCE, AT_LEAST))
                aims.append(Aim(f"{case}: {ONCE} ÷ {AT_LEAST}", AIM, ratio, "x"))
        spark.stop()
    findings = Findings(
        name="spark-copy",
        title="Spark copying a stream exactly once",
        intro=INTRO.format(version=version, partitions=PARTITIONS, **vars(args)),
        machine=host,
        settings={
            "records": ", ".join(f"{shape.records:,} of {shape.size}" for shape in shapes),
            "largest micro-batch": f"{args.batch_mib} MiB of values",
            "acks": "disk, one broker",
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
        },
        figures=runs.figures(),
        aims=aims,
        module="benchmarks.spark_copy",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

"""Spark reading a stream, beside the ceiling of Spark's Python API and beside Parquet.

Run it from the root of the repository: `python -m benchmarks.spark_read`. The ceiling is a data
source that yields record batches of the same shape out of memory and does nothing else: what no
Python source can exceed. Parquet holds the same values, uncompressed, in the page cache. All three
are read by the same session, taking turns, into Spark's `noop` sink and into a count by partition.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Findings
from benchmarks.report import table
from benchmarks.spark.data import (
    COLUMNS,
    MIB,
    PARTITIONS,
    WIDE_BYTES,
    Shape,
    add_size_options,
    fill,
    from_memory,
    parser_of,
    scratch,
    shapes_of,
)
from benchmarks.spark.memory import spark_batch
from benchmarks.spark.meter import RATE, Runs, Turn, write_noop
from benchmarks.spark.session import start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING: Final = (
    "partition INT, offset BIGINT, timestamp TIMESTAMP, subject STRING, key BINARY, value BINARY, "
    "headers MAP<STRING, BINARY>"
)
OURS, CEILING, PARQUET = "Strandline", "ceiling (batches in memory)", "Parquet"
NOOP, COUNT, ALL = "noop", "count", "noop, all columns"
AIM: Final = 0.8
INTRO = (
    "Spark {version} in `local[{cores}]` reads {partitions} partitions; median of {runs} runs "
    "after one that is not counted, systems taking turns. The broker shares the cores with Spark, "
    "while the ceiling and Parquet have them for themselves. `noop` takes every column and row; "
    "`count` groups by partition, for which Parquet need not even read the values (Spark cannot "
    "prune columns of a Python source by itself). CPU is less disturbed by other load on the "
    "machine than rates are. Values are random bytes."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("spark_read", __doc__)
    add_size_options(parser, runs=7, mib=1024, small=10_000_000)
    return parser.parse_args()


def write_parquet(folder: Path, shape: Shape) -> Path:
    """The same amount as Parquet files, one for each partition."""
    directory = folder / f"parquet{shape.value_bytes}"
    directory.mkdir()
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("value", pa.binary()),
        ]
    )
    records, rows = shape.records // PARTITIONS, max(1, 32 * MIB // shape.value_bytes)
    for partition in range(PARTITIONS):
        path = directory / f"{partition}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as out:
            for first in range(0, records, rows):
                count = min(rows, records - first)
                batch = spark_batch(schema, partition, shape.value_bytes, count)
                out.write_table(pa.Table.from_batches([batch]))
    return directory


def count_rows(frame: DataFrame) -> None:
    """Rows by partition."""
    frame.groupBy("partition").count().collect()


class Bench:
    """One value size: its frames, and the turns over them."""

    def __init__(self, spark: SparkSession, broker: brokers.Broker, shape: Shape) -> None:
        self.spark = spark
        self.broker = broker
        self.shape = shape
        self.stream = f"bench{shape.value_bytes}"

    def ours(self, schema: str) -> DataFrame:
        """A fresh frame of the stream."""
        options = {"server": self.broker.address, "stream": self.stream}
        return self.spark.read.format("strandline").options(**options).schema(schema).load()

    def turns(self, case: str, parquet: Path) -> list[Turn]:
        """Return the systems to compare in a case."""
        work = count_rows if case == COUNT else write_noop
        schema = EVERYTHING if case == ALL else COLUMNS
        turns = [
            Turn(CEILING, lambda: work(from_memory(self.spark, self.shape, schema))),
            Turn(OURS, lambda: work(self.ours(schema)), self.broker.pid),
        ]
        if case != ALL:
            turns.append(Turn(PARQUET, lambda: work(self.spark.read.parquet(str(parquet)))))
        return turns


def aims(runs: Runs, shapes: list[Shape]) -> list[Aim]:
    """Return the promised ratio: ours over the ceiling."""
    cases = [f"{shape.case}, {name}" for shape in shapes for name in (NOOP, COUNT, ALL)]
    return [Aim(f"{case} ÷ ceiling", AIM, runs.ratio(case, (OURS, CEILING)), "x") for case in cases]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    runs, shapes = Runs(), shapes_of(args)
    with (
        scratch(args.data_root) as folder,
        brokers.fresh(args.data_root) as broker,
        broker.connect() as client,
    ):
        spark = start_spark(args.cores)
        version = spark.version
        for shape in shapes:
            print(f"filling {shape.records:,} records of {shape.size}", flush=True)
            bench = Bench(spark, broker, shape)
            fill(client, bench.stream, shape)
            parquet = write_parquet(folder, shape)
            take_turns = functools.partial(
                runs.take_turns,
                records=shape.records,
                count=args.runs,
                preparation=runner.preparation_of(args),
            )
            for name in (NOOP, COUNT, ALL):
                take_turns(f"{shape.case}, {name}", bench.turns(name, parquet))
        spark.stop()
    rates = [figure for figure in runs.figures() if figure.unit == RATE]
    ratios = table(["case", "ratio of rates", ""], figures.ratio_rows(rates, OURS))
    findings = Findings(
        name="spark-read",
        title="Spark reading a stream",
        intro=INTRO.format(version=version, partitions=PARTITIONS, **vars(args)),
        machine=host,
        settings={
            "records": ", ".join(f"{shape.records:,} of {shape.size}" for shape in shapes),
            "columns unless said": COLUMNS,
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
            "Parquet": "uncompressed, no dictionaries, row groups of 32 MiB",
        },
        figures=runs.figures(),
        aims=aims(runs, shapes),
        module="benchmarks.spark_read",
        sections=["## Ratios", ratios],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

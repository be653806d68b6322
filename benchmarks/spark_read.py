"""Spark reading a stream, beside the ceiling of Spark's Python API and beside Parquet.

Run it from the root of the repository: `python -m benchmarks.spark_read`. The ceiling is a data
source that yields record batches of the same shape out of memory and does nothing else: what no
Python source can exceed. Parquet holds the same values, uncompressed, in the page cache. All three
are read by the same session, taking turns, into Spark's `noop` sink and into a count by partition.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings, find
from benchmarks.fill import random_batch
from benchmarks.report import table
from benchmarks.warmup import touch_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).parents[1]
MIB: Final = 1 << 20
WIDE_BYTES: Final = 2048
SMALL_BYTES: Final = 100
PARTITIONS: Final = 2
RING_BATCHES: Final = 48
COLUMNS: Final = "partition INT, offset BIGINT, timestamp TIMESTAMP, value BINARY"
EVERYTHING: Final = (
    "partition INT, offset BIGINT, timestamp TIMESTAMP, subject STRING, key BINARY, value BINARY, "
    "headers MAP<STRING, BINARY>"
)
RATE, CPU = "records/s", "µs of CPU per record"
OURS, CEILING, PARQUET = "Strandline", "ceiling (batches in memory)", "Parquet"
AIM: Final = 0.8
INTRO = (
    "Spark {version} in `local[{cores}]` reads {partitions} partitions; median of {runs} runs "
    "after one that is not counted, systems taking turns. The broker shares the cores with Spark, "
    "while the ceiling and Parquet have them for themselves. `noop` takes every column and row; "
    "`count` groups by partition, for which Parquet need not even read the values (Spark cannot "
    "prune columns of a Python source by itself). CPU is Spark's and the broker's together, less "
    "disturbed by other load on the machine than rates are. Values are random bytes."
)


class CeilingSource(DataSource):
    """Yields batches from memory: option `records` for each of PARTITIONS, `value_bytes`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ceiling"

    def reader(self, schema: StructType) -> CeilingReader:
        """The reader of a whole pass."""
        records, value_bytes = int(self.options["records"]), int(self.options["value_bytes"])
        return CeilingReader(schema, records=records, value_bytes=value_bytes)


class CeilingReader(DataSourceReader):
    """Batches of about 1 MiB from a ring, so that they come from memory and not from a cache."""

    rings: dict[Any, list[pa.RecordBatch]] = {}  # noqa: RUF012 -- shared by a process's tasks

    def __init__(self, schema: StructType, *, records: int, value_bytes: int) -> None:
        self.schema = schema
        self.records = records
        self.value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        """As many as the stream has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition."""
        key = (self.schema.json(), self.value_bytes)
        ring = self.rings.get(key) or self.rings.setdefault(key, self._ring(partition.value))
        left, place = self.records, 0
        while left > 0:
            batch = ring[place % len(ring)]
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows
            place += 1

    def _ring(self, partition: int) -> list[pa.RecordBatch]:
        target = to_arrow_schema(self.schema, timezone="UTC")
        rows = max(1, MIB // (self.value_bytes + 24))
        return [spark_batch(target, partition, self.value_bytes, rows) for _ in range(RING_BATCHES)]


def spark_batch(target: pa.Schema, partition: int, value_bytes: int, rows: int) -> pa.RecordBatch:
    """Random records as Spark takes them."""
    made: dict[str, Any] = {
        "partition": [partition] * rows,
        "offset": range(rows),
        "timestamp": [1_700_000_000_000_000] * rows,
        "subject": ["bench"] * rows,
        "key": [None] * rows,
        "headers": [None] * rows,
    }
    columns = [
        random_batch(value_bytes, rows).column("value")
        if field.name == "value"
        else pa.array(made[field.name], field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_read",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--runs", type=int, default=7, help="runs of each case; medians are reported (7)")
    add("--mib", type=int, default=1024, help="MiB of 2 KiB records (1024)")
    add("--small", type=int, default=10_000_000, help="records of 100 B (10000000)")
    add("--cores", type=int, default=2, help="cores of the session (2)")
    runner.add_place_options(parser)
    return parser.parse_args()


def fill(client: Any, records: int, value_bytes: int) -> str:
    """Make a stream of `records` in each of PARTITIONS; returns its name."""
    stream = f"bench{value_bytes}"
    client.create_stream(stream, partitions=PARTITIONS)
    rows = max(1, MIB // (value_bytes + 4))
    ring = [random_batch(value_bytes, rows) for _ in range(RING_BATCHES)]
    with client.producer(stream) as producer:
        for partition in range(PARTITIONS):
            for place, first in enumerate(range(0, records, rows)):
                batch = ring[place % len(ring)].slice(0, min(rows, records - first))
                producer.append_batch(batch, partition=partition)
    return stream


def write_parquet(folder: Path, records: int, value_bytes: int) -> Path:
    """The same amount as Parquet files, one for each partition."""
    directory = folder / f"parquet{value_bytes}"
    directory.mkdir()
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("value", pa.binary()),
        ]
    )
    rows = max(1, 32 * MIB // value_bytes)
    for partition in range(PARTITIONS):
        path = directory / f"{partition}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as out:
            for first in range(0, records, rows):
                count = min(rows, records - first)
                batch = spark_batch(schema, partition, value_bytes, count)
                out.write_table(pa.Table.from_batches([batch]))
    return directory


def cpu_seconds() -> float:
    """CPU time that this process and its descendants (Spark's and the broker) have used so far."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


def read_noop(frame: DataFrame) -> None:
    """Every row and column, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def read_count(frame: DataFrame) -> None:
    """Rows by partition."""
    frame.groupBy("partition").count().collect()


QUERIES: Final = {"noop": read_noop, "count": read_count}


class Bench:
    """One value size: its frames, and the runs over them."""

    def __init__(self, spark: SparkSession, value_bytes: int, records: int) -> None:
        self.spark = spark
        self.value_bytes = value_bytes
        self.records = records
        self.values: dict[tuple[str, str, str], list[float]] = {}

    @property
    def size(self) -> str:
        """The size as a person says it."""
        return "2 KiB" if self.value_bytes == WIDE_BYTES else f"{self.value_bytes} B"

    def ours(self, server: str, stream: str, schema: str) -> DataFrame:
        """A fresh frame of the stream."""
        reader = self.spark.read.format("strandline").options(server=server, stream=stream)
        return reader.schema(schema).load()

    def ceiling(self, schema: str) -> DataFrame:
        """A fresh frame of the ceiling."""
        options = {"records": self.records, "value_bytes": self.value_bytes}
        return self.spark.read.format("ceiling").options(**options).schema(schema).load()

    def run(self, case: str, system: str, frame: DataFrame, query: str, *, counts: bool) -> None:
        """One timed pass."""
        started, cpu_before = time.perf_counter(), cpu_seconds()
        QUERIES[query](frame)
        seconds, cpu_s = time.perf_counter() - started, cpu_seconds() - cpu_before
        total = self.records * PARTITIONS
        if not counts:
            return
        self.values.setdefault((case, system, RATE), []).append(total / seconds)
        self.values.setdefault((case, system, CPU), []).append(cpu_s * 1e6 / total)
        mib_per_s = total * self.value_bytes / MIB / seconds
        rates = f"{total / seconds:12,.0f} records/s {mib_per_s:8,.0f} MiB/s {cpu_s:6.2f} s of CPU"
        print(f"  {case:<34} {system:<30} {rates}", flush=True)

    def measure(self, server: str, stream: str, parquet: Path, args: argparse.Namespace) -> None:
        """All cases, all runs."""
        for run in range(-1, args.runs):
            for query in QUERIES:
                touch_memory(args.warm_mib)
                case = f"{self.size} records, {query}"
                self.run(case, CEILING, self.ceiling(COLUMNS), query, counts=run >= 0)
                ours = self.ours(server, stream, COLUMNS)
                self.run(case, OURS, ours, query, counts=run >= 0)
                frame = self.spark.read.parquet(str(parquet))
                self.run(case, PARQUET, frame, query, counts=run >= 0)
            case = f"{self.size} records, noop, all columns"
            self.run(case, CEILING, self.ceiling(EVERYTHING), "noop", counts=run >= 0)
            everything = self.ours(server, stream, EVERYTHING)
            self.run(case, OURS, everything, "noop", counts=run >= 0)


def aims(found: Sequence[Figure]) -> list[Aim]:
    """What is promised: ours over the ceiling."""
    listed = []
    rates = [figure for figure in found if figure.unit == RATE]
    for figure in rates:
        if figure.system == OURS:
            ceiling = find(rates, figure.case, CEILING)
            measured = figure.median / ceiling.median if ceiling else None
            listed.append(Aim(f"{figure.case} ÷ ceiling", AIM, measured, "x"))
    return listed


def start_spark(cores: int) -> SparkSession:
    """A session whose workers find this module."""
    from strandline.spark.session import spark_session

    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    spark = spark_session(f"local[{cores}]", app_name="bench")
    spark.sparkContext.setLogLevel("ERROR")
    # Registered under its importable name, so that workers keep its ring between tasks.
    module = importlib.import_module("benchmarks.spark_read")
    spark.dataSource.register(module.CeilingSource)
    return spark


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    shapes = {
        WIDE_BYTES: args.mib * MIB // WIDE_BYTES // PARTITIONS,
        SMALL_BYTES: args.small // PARTITIONS,
    }
    found: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(dir=args.data_root) as folder,
        brokers.fresh(args.data_root) as broker,
        broker.connect() as client,
    ):
        spark = start_spark(args.cores)
        version = spark.version
        for value_bytes, records in shapes.items():
            print(f"filling {records * PARTITIONS:,} records of {value_bytes} B", flush=True)
            stream = fill(client, records, value_bytes)
            parquet = write_parquet(Path(folder), records, value_bytes)
            bench = Bench(spark, value_bytes, records)
            bench.measure(broker.address, stream, parquet, args)
            found += [Figure(*key, values) for key, values in bench.values.items()]
        spark.stop()
    ratios = table(["case", "ratio of medians", ""], figures.ratio_rows(found, OURS))
    findings = Findings(
        name="spark-read",
        title="Spark reading a stream",
        intro=INTRO.format(version=version, partitions=PARTITIONS, **vars(args)),
        machine=host,
        settings={
            "2 KiB records": shapes[WIDE_BYTES] * PARTITIONS,
            "100 B records": shapes[SMALL_BYTES] * PARTITIONS,
            "columns unless said": COLUMNS,
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
            "Parquet": "uncompressed, no dictionaries, row groups of 32 MiB",
        },
        figures=found,
        aims=aims(found),
        module="benchmarks.spark_read",
        sections=["## Ratios", ratios],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

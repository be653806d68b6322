"""Our Spark source and sink beside Spark's own for Kafka, on a real Kafka of one broker.

Run it from the root of the repository: `python -m benchmarks.spark_kafka`. Reads go into Spark's
`noop` sink, as a batch and as a stream; writes come from rows that the JVM holds in memory. Both
have the same cores, brokers included, so rows per second and core are compared by the clock; rows
per second of CPU, the JVM's with the Python workers' and the broker's apart, stand beside it.
Maven fetches Kafka and Spark's jars for it the first time; where it cannot, only ours is measured
and the page says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Findings
from benchmarks.peers import kafka, maven
from benchmarks.peers.process import UnavailableError
from benchmarks.peers.system import Place
from benchmarks.report import table
from benchmarks.spark.data import (
    COLUMNS,
    PARTITIONS,
    WIDE_BYTES,
    Shape,
    add_size_options,
    cached,
    from_memory,
    parser_of,
    scratch,
    shapes_of,
)
from benchmarks.spark.meter import BROKER_CPU, CPU, SPARK_CPU, Runs, Turn, run_to_end, write_noop
from benchmarks.spark.session import CACHING, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, KAFKA = "Strandline", "Kafka"
NAMES: Final = ("partition", "offset", "timestamp", "value")
AIMS: Final = {"batch read": 2.0, "streaming read": 2.0, "batch write": 1.0}
READ, FOLLOW, WRITE = AIMS
SOURCE_VERSION: Final = os.environ.get("BENCH_SPARK_KAFKA_VERSION", "4.2.0")
"""Newest on Maven Central when this was written; Spark 4.3 runs it."""
ARTIFACTS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SOURCE_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""What Spark's own installation lacks. The token provider only redacts settings here; it was not
to be had in the source's version."""
INTRO: Final = (
    "Spark {version} in `local[{cores}]`, {partitions} partitions; median of {runs} runs after one "
    "that is not counted, taking turns; both brokers are up. Kafka's source and sink are Spark's "
    "own, with their default settings. Kafka's sink is at least once and its broker leaves syncing "
    "to the operating system; our sink is exactly once, its records are on disk. Aims are ratios "
    "of records per second: both systems have the same cores, for Spark and broker together. "
    "A second of Spark's CPU, JVM and Python together, gives other ratios, which stand below; a "
    "streaming query of ours begins by starting a Python process, whose imports alone take 0.7 s. "
    "Values are random bytes, not compressed by either."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("spark_kafka", __doc__)
    add_size_options(parser, runs=3, mib=256, small=3_000_000)
    return parser.parse_args()


def spark_jars() -> str:
    """Spark's jars for Kafka, as its setting takes them; fetched the first time.

    Raises:
        UnavailableError: Maven is not there, or cannot fetch them.
    """
    found = maven.fetch(f"spark-kafka-{SOURCE_VERSION}", ARTIFACTS, alone=True)
    return ",".join(map(str, sorted(found.glob("*.jar"))))


@dataclass(frozen=True)
class System:
    """One broker and the options by which Spark's format of that name reaches its streams."""

    name: str
    format: str
    pid: int
    address: Mapping[str, str]
    stream_option: str
    """Of a read."""
    into_option: str
    write_options: Mapping[str, str]

    def frame(self, spark: SparkSession, stream: str, *, follow: bool) -> DataFrame:
        """Everything in a stream, as a batch or as a stream."""
        reader: Any = (spark.readStream if follow else spark.read).format(self.format)
        reader = reader.options(**self.address, startingOffsets="earliest")
        if self.name == OURS:
            reader = reader.schema(COLUMNS)  # Kafka's takes none: it has all columns always
        return reader.option(self.stream_option, stream).load().select(*NAMES)

    def write(self, rows: DataFrame, stream: str) -> None:
        """Append rows as one batch job."""
        writer = rows.select("partition", "value").write.format(self.format).mode("append")
        writer.options(**self.address, **self.write_options).option(self.into_option, stream).save()


@contextlib.contextmanager
def open_ours(data_root: Path, streams: Sequence[str]) -> Iterator[System]:
    """A broker with these streams, empty."""
    with brokers.fresh(data_root) as broker:
        with broker.connect() as client:
            for stream in streams:
                client.create_stream(stream, partitions=PARTITIONS)
        yield System(
            OURS,
            "strandline",
            broker.pid,
            {"server": broker.address},
            stream_option="stream",
            into_option="stream",
            write_options={"partitionBy": "column"},
        )


@contextlib.contextmanager
def open_kafka(place: Place) -> Iterator[System]:
    """A broker that makes what it is asked for."""
    with kafka.open_broker(place, flush=False, partitions=PARTITIONS) as broker:
        yield System(
            KAFKA,
            "kafka",
            broker.pid,
            {"kafka.bootstrap.servers": broker.address},
            stream_option="subscribe",
            into_option="topic",  # Kafka's word
            write_options={},
        )


class Bench:
    """The systems there are, written and read."""

    def __init__(
        self, spark: SparkSession, systems: Sequence[System], args: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.systems = systems
        self.args = args
        self.runs = Runs()

    def measure(self, shape: Shape) -> None:
        """Writes, and then reads of what one such write left."""
        with cached(from_memory(self.spark, shape)) as rows:
            for system in self.systems:
                system.write(rows, filled(shape))
            self._take_turns(WRITE, shape, lambda system: system.write(rows, written(shape)))
        self._take_turns(READ, shape, lambda system: self._read(system, shape))
        self._take_turns(FOLLOW, shape, lambda system: self._follow(system, shape))

    def _take_turns(self, name: str, shape: Shape, work: Callable[[System], float | None]) -> None:
        turns = [
            Turn(system.name, functools.partial(work, system), system.pid)
            for system in self.systems
        ]
        self.runs.take_turns(
            f"{shape.case}, {name}",
            turns,
            records=shape.records,
            count=self.args.runs,
            preparation=runner.preparation_of(self.args),
        )

    def _read(self, system: System, shape: Shape) -> None:
        write_noop(system.frame(self.spark, filled(shape), follow=False))

    def _follow(self, system: System, shape: Shape) -> float:
        frame = system.frame(self.spark, filled(shape), follow=True)
        with scratch(self.args.data_root) as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
            return run_to_end(writer, shape.records)


def filled(shape: Shape) -> str:
    """The stream that is read."""
    return f"read{shape.value_bytes}"


def written(shape: Shape) -> str:
    """The stream that is written, more of it with every run."""
    return f"written{shape.value_bytes}"


def aims(runs: Runs, shapes: Sequence[Shape]) -> list[Aim]:
    """Return the promised ratio: rows per second and core, ours over theirs."""
    return [
        Aim(
            f"{shape.case}, {name}: records per second on the same cores, {OURS} ÷ {KAFKA}",
            wanted,
            runs.ratio(f"{shape.case}, {name}", (OURS, KAFKA)),
            "x",
        )
        for shape in shapes
        for name, wanted in AIMS.items()
    ]


def ratios(runs: Runs, shapes: Sequence[Shape]) -> str:
    """The ratios of every unit, as a table."""
    rows = []
    for shape in shapes:
        for name in AIMS:
            case = f"{shape.case}, {name}"
            of_cpu = [
                runs.ratio(case, (KAFKA, OURS), unit) for unit in (SPARK_CPU, BROKER_CPU, CPU)
            ]
            found = [*of_cpu, runs.ratio(case, (OURS, KAFKA))]
            rows.append([case, *("-" if each is None else f"{each:.2f}x" for each in found)])
    head = [
        f"{OURS} ÷ {KAFKA}",
        "per s of Spark's CPU",
        "of the broker's",
        "of both",
        "by the clock",
    ]
    return "## Ratios\n\n" + table(head, rows)


def run(args: argparse.Namespace, shapes: Sequence[Shape]) -> tuple[Runs, dict[str, str]]:
    """Measures; also what could not be had, and why."""
    unavailable: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        streams = [name(shape) for shape in shapes for name in (filled, written)]
        systems = [stack.enter_context(open_ours(args.data_root, streams))]
        settings: dict[str, str] = {}
        try:
            settings["spark.jars"] = spark_jars()
            systems.append(stack.enter_context(open_kafka(Place(args.data_root))))
        except UnavailableError as error:
            unavailable[KAFKA] = str(error)
            print(f"{KAFKA} is left out: {error}", file=sys.stderr)
        spark = start_spark(args.cores, CACHING | settings)
        bench = Bench(spark, systems, args)
        for shape in shapes:
            bench.measure(shape)
        spark.stop()
    return bench.runs, unavailable


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, WIDE_BYTES)
    shapes = shapes_of(args)
    runs, unavailable = run(args, shapes)
    findings = Findings(
        name="spark-kafka",
        title="Spark on Strandline and on Kafka",
        intro=INTRO.format(version=pyspark.__version__, partitions=PARTITIONS, **vars(args)),
        machine=host,
        settings={
            "records": ", ".join(f"{shape.records:,} of {shape.size}" for shape in shapes),
            "columns read": COLUMNS,
            "columns written": "partition, value",
            "Kafka": f"{kafka.VERSION}, KRaft, 1 broker, no flush",
            "Kafka's source and sink": f"{ARTIFACTS[0][1]} {SOURCE_VERSION}",
            "session": f"local[{args.cores}], strandline.spark.session, UI off",
        },
        figures=runs.figures(),
        aims=aims(runs, shapes),
        module="benchmarks.spark_kafka",
        unavailable=unavailable,
        sections=[ratios(runs, shapes)],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())

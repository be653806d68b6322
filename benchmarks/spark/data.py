"""What the benchmarks of Spark work on: sizes from the command line, filled streams, rows."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import runner
from benchmarks.fill import random_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.client import Client

MIB: Final = 1 << 20
WIDE_BYTES: Final = 2048
SMALL_BYTES: Final = 100
PARTITIONS: Final = 2
RING_BATCHES: Final = 48
COLUMNS: Final = "partition INT, offset BIGINT, timestamp TIMESTAMP, value BINARY"


@dataclass(frozen=True)
class Shape:
    """How many records, over all partitions, of which size."""

    records: int
    value_bytes: int

    @property
    def size(self) -> str:
        """The size of a value as a person says it."""
        return "2 KiB" if self.value_bytes == WIDE_BYTES else f"{self.value_bytes} B"

    @property
    def case(self) -> str:
        """What the records are."""
        return f"{self.size} records"

    def records_in(self, mib: int) -> int:
        """How many make up so many MiB of values."""
        return max(PARTITIONS, mib * MIB // self.value_bytes)


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A command line with what all these benchmarks take."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cores", type=int, default=2, help="cores of the session (2)")
    runner.add_place_options(parser)
    return parser


def add_size_options(parser: argparse.ArgumentParser, *, runs: int, mib: int, small: int) -> None:
    """How much and how often."""
    add = parser.add_argument
    add("--runs", type=int, default=runs, help=f"runs of each case; medians are reported ({runs})")
    add("--mib", type=int, default=mib, help=f"MiB of 2 KiB records ({mib})")
    add("--small", type=int, default=small, help=f"records of 100 B ({small})")


def shapes_of(args: argparse.Namespace) -> list[Shape]:
    """The sizes asked for, as many records in each partition."""
    wide = args.mib * MIB // WIDE_BYTES
    shapes = [Shape(wide, WIDE_BYTES), Shape(args.small, SMALL_BYTES)]
    return [
        Shape(shape.records // PARTITIONS * PARTITIONS, shape.value_bytes)
        for shape in shapes
        if shape.records >= PARTITIONS
    ]


def fill(client: Client, stream: str, shape: Shape) -> None:
    """Make a stream of this shape."""
    client.create_stream(stream, partitions=PARTITIONS)
    rows = max(1, MIB // (shape.value_bytes + 4))
    ring = [random_batch(shape.value_bytes, rows) for _ in range(RING_BATCHES)]
    each = shape.records // PARTITIONS
    with client.producer(stream) as producer:
        for partition in range(PARTITIONS):
            for place, first in enumerate(range(0, each, rows)):
                batch = ring[place % len(ring)].slice(0, min(rows, each - first))
                producer.append_batch(batch, partition=partition)


def from_memory(spark: SparkSession, shape: Shape, schema: str = COLUMNS) -> DataFrame:
    """Rows of this shape out of the Python source in memory."""
    options = {
        "records": shape.records // PARTITIONS,
        "partitions": PARTITIONS,
        "value_bytes": shape.value_bytes,
    }
    return spark.read.format("ceiling").options(**options).schema(schema).load()


@contextlib.contextmanager
def cached(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, held in the JVM's memory, so that reading it costs next to nothing."""
    frame.persist()
    try:
        frame.count()
        yield frame
    finally:
        frame.unpersist(blocking=True)


@contextlib.contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A new directory for checkpoints and tables, removed afterwards."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.resolve()) as folder:
        yield Path(folder)

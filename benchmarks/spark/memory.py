"""A Spark source that yields record batches out of memory, and a sink that drops them.

They have the shape of ours and do nothing else: what a Python source or sink can hardly exceed.
Ours spare their workers' garbage collector (``strandline.spark.worker``), which these do not.

Rules: values are random bytes, batches have about 1 MiB and come from a ring, so that they are read
from memory and not from the processor's cache; offsets are right, so that a table may be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.fill import random_batch

MIB: Final = 1 << 20
RING_BATCHES: Final = 48
PLACE: Final = "records"


@dataclass(frozen=True)
class Supply:
    """What the source has: options `records` for each of `partitions`, `value_bytes`, `step`."""

    records: int
    partitions: int
    value_bytes: int
    step: int
    """Records of each partition in a micro-batch."""

    @classmethod
    def parse(cls, options: Any) -> Supply:
        """The supply that options describe; without `step` a micro-batch takes everything."""
        records = int(options["records"])
        return cls(
            records=records,
            partitions=int(options["partitions"]),
            value_bytes=int(options["value_bytes"]),
            step=int(options.get("step", records)),
        )


@dataclass
class Slice(InputPartition):
    """The records that a task yields."""

    partition: int
    start: int
    stop: int


class CeilingSource(DataSource):
    """Yields batches from memory, all at once or micro-batch by micro-batch; a sink drops rows."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ceiling"

    def reader(self, schema: StructType) -> CeilingReader:
        """The reader of a whole pass."""
        return CeilingReader(Ring(schema, Supply.parse(self.options)))

    def streamReader(self, schema: StructType) -> CeilingStreamReader:  # noqa: N802 -- Spark's name
        """The reader of micro-batches."""
        return CeilingStreamReader(Ring(schema, Supply.parse(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> CeilingWriter:  # noqa: ARG002, FBT001, N802 -- Spark's signature
        """The sink."""
        return CeilingWriter()


class Ring:
    """Makes record batches of a schema, over and over the same values."""

    rings: dict[Any, list[pa.RecordBatch]] = {}  # noqa: RUF012 -- shared by a process's tasks

    def __init__(self, schema: StructType, supply: Supply) -> None:
        self.schema = schema
        self.supply = supply

    def batches(self, wanted: Slice) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        key = (self.schema.json(), self.supply.value_bytes)
        ring = self.rings.get(key) or self.rings.setdefault(key, self._made(wanted.partition))
        first, place = wanted.start, 0
        while first < wanted.stop:
            whole = ring[place % len(ring)]
            batch = whole.slice(0, min(whole.num_rows, wanted.stop - first))
            yield placed(batch, first)
            first += batch.num_rows
            place += 1

    def _made(self, partition: int) -> list[pa.RecordBatch]:
        target = to_arrow_schema(self.schema, timezone="UTC")
        value_bytes = self.supply.value_bytes
        rows = max(1, MIB // (value_bytes + 24))
        return [spark_batch(target, partition, value_bytes, rows) for _ in range(RING_BATCHES)]


class CeilingReader(DataSourceReader):
    """Everything at once."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def partitions(self) -> list[InputPartition]:
        """As many as the stream has."""
        supply = self.ring.supply
        return [Slice(number, 0, supply.records) for number in range(supply.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition."""
        assert isinstance(partition, Slice), partition
        return self.ring.batches(partition)


class CeilingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A micro-batch of `step` records of each partition, until `records` are read."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 -- Spark's name
        """The first record."""
        return {PLACE: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 -- Spark's signature
        """The end of the next micro-batch."""
        supply = self.ring.supply
        return {PLACE: min(supply.records, start[PLACE] + supply.step)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """The end is known without asking."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """As many as the stream has."""
        numbers = range(self.ring.supply.partitions) if start != end else range(0)
        return [Slice(number, start[PLACE], end[PLACE]) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        assert isinstance(partition, Slice), partition
        return self.ring.batches(partition)


class CeilingWriter(DataSourceStreamArrowWriter):
    """Takes every batch and keeps nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Look at each batch's length."""
        sum(batch.num_rows for batch in iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Nothing is kept."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Nothing was kept."""


def spark_batch(target: pa.Schema, partition: int, value_bytes: int, rows: int) -> pa.RecordBatch:
    """Random records as Spark takes them, offsets from 0."""
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


def placed(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The batch with offsets from `first`."""
    place = batch.schema.get_field_index("offset")
    if place < 0:
        return batch
    offsets = pc.add(batch.column(place), pa.scalar(first, pa.int64()))
    return batch.set_column(place, batch.schema.field(place), offsets)

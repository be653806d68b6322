"""Clean: a copy of a stream without source headers and duplicates.

Rules: within a partition the records of one source partition are in the order of their offsets. So
it is enough to remember the last offset of each source; a record with an offset that is not higher
is a duplicate. Records without a source pass. The result has the partitions and the order of the
input.
"""

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from strandline.spark.pipelines.config import CleanPipeline
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import headers_without_source, source_of

_OUTPUT = (
    "partition INT, offset BIGINT, value BINARY, key BINARY, subject STRING, "
    "headers MAP<STRING, BINARY>"
)


def start_clean(spark: SparkSession, config: CleanPipeline) -> list[StreamingQuery]:
    """Start the query; the result is created with as many partitions if it does not exist.

    Raises:
        UnknownStreamError: there is no stream to clean.
    """
    dirty = stream_of(config.server, config.stream)
    partitions = len(dirty.partitions)
    output = ensure_stream(config.server, config.into, like=dirty, partitions=partitions)
    name = f"clean {config.stream} into {config.into}"
    records = read_stream(spark, config, config.stream, name=name, output=output)
    once = records.groupBy("partition").transformWithState(
        Deduplicator(), outputStructType=_OUTPUT, outputMode="Append", timeMode="None"
    )
    rows = once.withColumn("headers", headers_without_source())
    return [write_stream(rows, config, name=name, into=config.into, partitionBy="column")]


class Deduplicator(StatefulProcessor):
    """Passes each source record of a partition once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the newest offset of each source, as JSON."""
        self._state = handle.getValueState("seen", "seen STRING")

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 -- Spark's name
    ) -> Iterator[Row]:
        """Yield the new records of one partition, in order."""
        del key, timerValues
        seen: dict[str, int] = json.loads(self._state.get()[0]) if self._state.exists() else {}
        # A shuffle does not keep the order.
        for row in sorted(rows, key=lambda row: row["offset"]):
            if is_new(dict(row["headers"] or ()), seen):
                yield Row(**{name: row[name] for name in _COLUMNS})
        self._state.update((json.dumps(seen),))

    def close(self) -> None:
        """Do nothing: there are no resources."""


_COLUMNS = ("partition", "offset", "value", "key", "subject", "headers")


def is_new(headers: dict[str, bytes], seen: dict[str, int]) -> bool:
    """Return whether a record was not seen before, and add it to ``seen``."""
    source = source_of(headers)
    if source is None:
        return True
    stream, partition, offset = source
    place = f"{stream}/{partition}"
    if offset <= seen.get(place, -1):
        return False
    seen[place] = offset
    return True

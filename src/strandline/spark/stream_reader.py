"""The streaming read: follows a stream micro-batch by micro-batch.

Rules: Spark keeps the offsets; between calls this reader remembers only the target of an
``availableNow`` run, so that a replayed batch reads the records of the first attempt. An end is
never below its start, because Spark would accept that silently; its partitions are ascending,
because Spark compares offsets as text. Spark never calls ``stop`` (measured), so nothing depends on
it. ``planning`` plans, ``connection`` fetches.
"""

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from strandline.errors import StrandlineError
from strandline.spark.batch_reader import RangePartition, first_offsets, read_task, tasks
from strandline.spark.connection import stream_state, wait_for_records
from strandline.spark.options import ReadOptions
from strandline.spark.planning import (
    EncodedOffsets,
    Offsets,
    StreamExtent,
    available_end,
    beginning_of,
    check_same_output,
    check_same_stream,
    encode_offsets,
    high_watermarks,
    limit_bytes,
    limit_records,
    offsets_of,
    plan_ranges,
    waiting_bytes,
    with_added,
)
from strandline.spark.progress import QueryProgress

_RECHECK_S = 0.2


class RefusedStreamReader(DataSourceStreamReader):
    """A streaming reader with invalid options or columns: every method raises the error.

    Args:
        error: the error to raise.
    """

    def __init__(self, error: StrandlineError) -> None:
        self.error = error

    def initialOffset(self) -> EncodedOffsets:  # noqa: N802 -- Spark's name
        """Raise the error: the first call of a new query."""
        raise self.error

    def latestOffset(self, start: EncodedOffsets, limit: ReadLimit) -> EncodedOffsets:  # noqa: ARG002, N802 -- Spark's name
        """Raise the error: the first call of a resumed query."""
        raise self.error

    def partitions(self, start: EncodedOffsets, end: EncodedOffsets) -> list[InputPartition]:  # noqa: ARG002 -- Spark's signature
        """Raise the error: the first call of a repeated micro-batch."""
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 -- Spark's signature
        """Raise the error."""
        raise self.error


class StreamFollowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what has been committed since the last micro-batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.target = to_arrow_schema(schema, timezone="UTC")
        self.initial_offsets: Offsets | None = None
        self.final_offsets: Offsets | None = None
        self.waiting_since: float | None = None
        self.progress = QueryProgress(options)

    def initialOffset(self) -> EncodedOffsets:  # noqa: N802 -- Spark's name
        """Return the offsets at which a new query starts; a restarted one uses its checkpoint."""
        state = stream_state(self.options)
        first = self.initial_offsets = first_offsets(self.options, state)
        return encode_offsets(first, identity=state.identity)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """Return one of the user's limits: Spark takes only one, ``latestOffset`` adds the other.

        Never return "all available": Spark passes that limit for the trigger ``once``, which cannot
        be recognized otherwise.
        """
        if self.options.records_per_trigger_max is not None:
            return ReadMaxRows(self.options.records_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadMinRows(1)

    def latestOffset(self, start: EncodedOffsets, limit: ReadLimit) -> EncodedOffsets:  # noqa: N802 -- Spark's name
        """Return the end of the next micro-batch; waits a little if there is nothing to read."""
        # After ``availableNow`` and ``once`` no later trigger would read the rest.
        goes_on = self.final_offsets is None and not isinstance(limit, ReadAllAvailable)
        state, begin, end = self._next_records(start, may_wait=goes_on)
        if (goes_on and self._is_too_little(begin, end, state)) or end == begin:
            return start
        if isinstance(limit, ReadMaxRows):
            end = limit_records(begin, end, records_max=limit.max_rows)
        if self.options.bytes_per_trigger_max is not None and not isinstance(
            limit, ReadAllAvailable
        ):
            bytes_max = self.options.bytes_per_trigger_max
            end = limit_bytes(begin, end, bytes_max=bytes_max, states=state.partitions)
        before = offsets_of(start, self.options)
        # A new stream may begin above 0; the checkpoint does not have that start, either.
        is_untold = before == self.initial_offsets or any(
            offset > 0 for partition, offset in begin.items() if partition not in before
        )
        began_at = begin if is_untold else None
        return encode_offsets(
            end, identity=state.identity, began_at=began_at, output=self.options.output
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Note the current end of the stream, at which the run stops."""
        self.final_offsets = high_watermarks(stream_state(self.options).partitions)

    def reportLatestOffset(self) -> EncodedOffsets:  # noqa: N802 -- Spark's name
        """Return the end of the stream, for the lag in Spark's progress reports."""
        state = stream_state(self.options)
        return encode_offsets(high_watermarks(state.partitions), identity=state.identity)

    def partitions(self, start: EncodedOffsets, end: EncodedOffsets) -> list[InputPartition]:
        """Return the tasks of a micro-batch; they depend only on its offsets."""
        # A restarted query repeats its planned micro-batch here. The end is checked, since the
        # start of the first one may have been resolved again.
        state = self._state_for(end)
        begin = beginning_of(start, end, self.options)
        ranges = plan_ranges(begin, offsets_of(end, self.options), self.options)
        return tasks(self.options, ranges, identity=state.identity)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches of 0.5-2 MiB."""
        assert isinstance(partition, RangePartition), partition
        return read_task(self.options, partition, self.target)

    def _next_records(
        self, start: EncodedOffsets, *, may_wait: bool
    ) -> tuple[StreamExtent, Offsets, Offsets]:
        """Return the stream's state, the query's position and the available end.

        Waits for new records up to ``longPollMs``: otherwise Spark would ask 60 times a second.
        """
        state = self._state_for(start)
        begin = with_added(offsets_of(start, self.options), state.partitions)
        # Spark plans a batch once the previous one is committed; its ``commit`` call comes later.
        self.progress.reached(begin)
        # A query with a backlog does not wait, and asks once per micro-batch.
        is_behind = any(each.high_watermark > begin[each.partition] for each in state.partitions)
        if may_wait and not is_behind and self.options.long_poll_ms > 0:
            wait_for_records(self.options, begin)
            state = self._state_for(start)
            begin = with_added(begin, state.partitions)
        end = available_end(state.partitions, self.options, start=begin)
        return state, begin, self._up_to_final(end, begin)

    def _state_for(self, encoded: EncodedOffsets) -> StreamExtent:
        """Return the state of the streams that a checkpoint's offsets belong to."""
        state = stream_state(self.options)
        check_same_stream(encoded, state)
        check_same_output(encoded, self.options.output)
        return state

    def _is_too_little(self, begin: Offsets, end: Offsets, state: StreamExtent) -> bool:
        """Return whether to wait for more records, so that a slow stream makes no small batches.

        The waiting time is not persistent; it restarts with the process.
        """
        bytes_min = self.options.bytes_per_trigger_min
        if bytes_min is None or end == begin:
            self.waiting_since = None
            return False
        now = time.monotonic()
        if self.waiting_since is None:
            self.waiting_since = now
        waited_ms = (now - self.waiting_since) * 1000
        is_enough = waiting_bytes(begin, end, states=state.partitions) >= bytes_min
        if is_enough or waited_ms >= self.options.trigger_delay_ms_max:
            self.waiting_since = None
            return False
        # Sleep, not a long poll: the records already waiting would end a long poll at once.
        time.sleep(min(_RECHECK_S, self.options.long_poll_ms / 1000))
        return True

    def _up_to_final(self, end: Offsets, begin: Offsets) -> Offsets:
        if self.final_offsets is None:
            return end
        final = self.final_offsets
        return {p: max(begin[p], min(end[p], final.get(p, 0))) for p in end}

"""``engine: local``: a load run by this process, without Java.

Rules: uses the Spark sink's code to stage and commit, with its own transaction ids. Either engine
resumes at the table's committed offsets. Before a batch is staged, its plan is stored in a small
file beside Spark's checkpoints: after a crash the same batch is repeated, so that its dead letters
are published once. The plan also keeps positions that no row of the table shows (deleted or
compacted records, a start at the latest offset). Must not know YAML or the command line.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from strandline.errors import UNDECODABLE, InvalidConfigError, InvalidRecordError, UnavailableError
from strandline.spark.connection import read_rows, stopped_by, stream_state, wait_for_records
from strandline.spark.offset_options import IDENTITY
from strandline.spark.options import (
    ReadOptions,
    parse_read_options,
    parse_table_options,
)
from strandline.spark.pipelines.config import LoadPipeline
from strandline.spark.pipelines.failures import naming_keys
from strandline.spark.pipelines.load import (
    LOCAL_TXN_ID,
    PreparedLoad,
    check_load,
    checkpoint_of,
    prepare_load,
    reads_of,
    source_options,
)
from strandline.spark.pipelines.queries import Report
from strandline.spark.pipelines.unread import oldest_unread_ms
from strandline.spark.planning import (
    OffsetRange,
    Offsets,
    StreamExtent,
    available_end,
    check_same_stream,
    identities,
    keyed,
    limit_bytes,
    plan_ranges,
    reads_another,
    starting_offsets,
    waiting_bytes,
    with_added,
)
from strandline.spark.progress import QueryProgress, failure_noted
from strandline.spark.source import StrandlineSource
from strandline.spark.tables.io import StagedFiles, TableCommitter
from strandline.spark.tables.log import TableState
from strandline.spark.tables.store import local_path, make_directory, replace_durably, usable
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

_PAUSE_S = 0.5
_INITIAL = -1
"""The number of the first plan, which only stores where the load begins."""


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batch being loaded, or the last one."""

    txn_id: str
    """The transaction of all batches of this load."""
    identity: str
    """The identity of the streams."""
    batch: int
    start: dict[str, int]
    end: dict[str, int]
    done: bool = False
    """Whether the batch had no rows and is done; the table does not show such a batch."""


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Raised to end the load before its batch is complete."""


def run_local(
    config: LoadPipeline, *, report: Report | None = None, stop: threading.Event | None = None
) -> None:
    """Run a load: ``available_now`` ends by itself; ``continuous`` runs until ``stop`` or an error.

    Args:
        config: the settings of the load.
        report: called with a line for each batch.
        stop: set to end the load; the running batch is abandoned.

    Raises:
        StrandlineError: the settings do not fit the streams or tables, or a batch cannot be
            committed. Run the load again once the cause is resolved; it resumes where it stopped.
    """
    stop = stop or threading.Event()
    with stopped_by(stop), naming_keys():
        try:
            _run(config, report, stop)
        except Stopped:
            pass
        except UnavailableError:
            if not stop.is_set():
                raise  # else the user no longer waits for the broker, whose absence is logged
    if stop.is_set():
        logger.info("stopped; the reported batches are committed; run it again to continue")


def _run(config: LoadPipeline, report: Report | None, stop: threading.Event) -> None:
    check_load(config)
    loads = [LocalLoad(config, prepare_load(config, each), stop) for each in reads_of(config)]
    with failure_noted(config.server, [load.group for load in loads], stop):
        while not stop.is_set():
            began_s = time.monotonic()
            moved = [load.step(report) for load in loads]
            if config.trigger == "available_now":
                if not any(moved):
                    return
            elif any(moved):
                stop.wait(max(0.0, config.interval_ms / 1000 - (time.monotonic() - began_s)))
            else:
                beyond: Offsets = {p: at for load in loads for p, at in load.position.items()}
                wait_for_records(loads[0].options, beyond)


class LocalLoad:
    """The load of one table.

    Args:
        config: the settings of the pipeline.
        load: the load that fills the table.
        stop: set to abandon the running batch.
    """

    def __init__(self, config: LoadPipeline, load: PreparedLoad, stop: threading.Event) -> None:
        self._config = config
        self._name = load.name
        self.group = config.group or load.name
        """The consumer group to which the load commits its progress."""
        self._stop = stop
        read = {
            "server": config.server,
            "startingOffsets": load.starting_offsets or config.starting_offsets,
            "failOnDataLoss": str(config.fail_on_data_loss),
            "group": self.group,
            **source_options(load.read),
        }
        self.options = parse_read_options(read, streaming=True)
        schema = StrandlineSource(read).schema()
        self._records = to_arrow_schema(schema, timezone="UTC")
        table = parse_table_options(load.options | {"path": load.path})
        self._table = TableCommitter(table, schema)
        self._progress = QueryProgress(self.options)
        self._checkpoint = plan_path(config, load.read)
        extent = stream_state(self.options)
        self._identity = extent.identity
        self._plan = self._begin(extent)
        self._final = {each.partition: each.high_watermark for each in extent.partitions}
        self._waiting_since: float | None = None
        self.position: dict[PartitionName, int] = {}
        """The next offset of each partition to load."""

    def step(self, report: Report | None) -> bool:
        """Load the next batch; return whether there was one."""
        began_s = time.monotonic()
        extent = stream_state(self.options)
        check_same_stream({IDENTITY: self._identity}, extent)
        self._identity = extent.identity
        state = self._table.store.load().state
        plan = self._next(extent, state)
        if plan is None:
            return False
        rows = self._load(plan)
        self._progress.reached(self._keyed(plan.end.items()))
        if report is not None:
            report(self._line(plan, rows, ms=int((time.monotonic() - began_s) * 1000)))
        return True

    def _begin(self, extent: StreamExtent) -> BatchPlan:
        """Return the last plan, or where a new load begins, made durable."""
        found = read_plan(self._checkpoint, identity=extent.identity)
        if found is not None:
            return found
        start = starting_offsets(extent.partitions, self.options)
        begun = BatchPlan(
            txn_id=f"{LOCAL_TXN_ID}-{uuid.uuid4().hex}",
            identity=extent.identity,
            batch=_INITIAL,
            start=_named(start),
            end=_named(start),
        )
        return self._store_plan(begun)

    def _next(self, extent: StreamExtent, state: TableState | None) -> BatchPlan | None:
        """Return the plan of the next batch, made durable; None: there is nothing to load yet."""
        plan = self._plan
        last = state.transactions.get(plan.txn_id) if state is not None else None
        number = _INITIAL if last is None else last.batch
        is_open = plan.batch > number and not plan.done
        planned = plan.start if is_open else plan.end
        start = with_added(self._keyed(planned.items()), extent.partitions)
        committed = state.offsets if state is not None else {}
        for partition, offset in self._keyed(committed.items()).items():
            start[partition] = max(offset, start.get(partition, 0))
        self.position = {self.options.place(p): offset for p, offset in start.items()}
        # Partitions that were added since wait, so that an open batch is repeated as planned.
        if is_open and all(
            start[p] == offset for p, offset in self._keyed(planned.items()).items()
        ):
            return plan
        end = available_end(extent.partitions, self.options, start=start)
        if self._config.trigger == "available_now":
            end = {
                p: max(start[p], min(offset, self._final.get(p, 0))) for p, offset in end.items()
            }
        if end == start or self._is_too_little(start, end, extent):
            return None
        bytes_max = self._config.batch_bytes_max or self._config.file_bytes
        end = limit_bytes(start, end, bytes_max=bytes_max, states=extent.partitions)
        batch = max(number, plan.batch) + 1
        return self._store_plan(
            msgspec.structs.replace(
                plan,
                identity=self._identity,
                batch=batch,
                start=_named(start),
                end=_named(end),
                done=False,
            )
        )

    def _is_too_little(self, start: Offsets, end: Offsets, extent: StreamExtent) -> bool:
        """Return whether a continuous load waits for more records, to make no small files."""
        bytes_min = self._config.batch_bytes_min
        if bytes_min is None or self._config.trigger == "available_now":
            return False
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        is_late = (now - self._waiting_since) * 1000 >= self._config.batch_delay_ms_max
        if is_late or waiting_bytes(start, end, states=extent.partitions) >= bytes_min:
            self._waiting_since = None
            return False
        self._stop.wait(_PAUSE_S)
        return True

    def _ranges(self, plan: BatchPlan) -> list[OffsetRange]:
        start, end = self._keyed(plan.start.items()), self._keyed(plan.end.items())
        return plan_ranges(start, end, self.options)

    def _load(self, plan: BatchPlan) -> int:
        """Stage and commit a batch; return its records."""
        staged: list[StagedFiles] = []
        try:
            for wanted in self._ranges(plan):
                rows = self._until_stopped(wanted)
                staged.append(self._table.stage(rows, txn_id=plan.txn_id, batch=plan.batch))
        except BaseException:
            for each in staged:
                files = [*each.rows.files, *each.rows.deletes]
                self._table.store.directory.discard([file.staged for file in files])
            raise
        self._table.commit(staged)
        records = sum(found.rows for each in staged for found in each.rows.ranges.values())
        if not records:
            self._store_plan(msgspec.structs.replace(plan, done=True))
        return records

    def _until_stopped(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        for batch in read_rows(self.options, wanted, self._records, identity=self._identity):
            if self._stop.is_set():
                raise Stopped
            yield batch

    def _keyed(self, offsets: Iterable[tuple[int | str, int]]) -> Offsets:
        """Return the offsets of a plan or table, with partitions named as in a read."""
        return keyed(offsets, self.options, identity=self._identity)

    def _store_plan(self, plan: BatchPlan) -> BatchPlan:
        """Make a plan durable, and return it."""
        make_directory(self._checkpoint.parent)
        replace_durably(self._checkpoint, msgspec.json.encode(plan))
        self._plan = plan
        return plan

    def _line(self, plan: BatchPlan, records: int, *, ms: int) -> dict[str, Any]:
        end = self._keyed(plan.end.items())
        reached = {self.options.place(p): offset for p, offset in end.items()}
        lag = {
            place: max(0, each.high_watermark - reached[place])
            for each in stream_state(self.options).partitions
            if (place := self.options.place(each.partition)) in reached
        }
        unread: dict[tuple[str, int], int] = {p: reached[p] for p, behind in lag.items() if behind}
        return {
            "event": "batch",
            "query": self._name,
            "batch": plan.batch,
            "records": records,
            "lag": {str(place): behind for place, behind in lag.items()},
            "ms": ms,
            "oldest_unread_ms": oldest_unread_ms(self.options.server, unread),
        }


def _named(offsets: Offsets) -> dict[str, int]:
    """Return the offsets of a read, with partitions named as in a plan."""
    return {str(partition): offset for partition, offset in offsets.items()}


def plan_path(config: LoadPipeline, read: ReadOptions) -> Path:
    """Return the file of the plan of a load."""
    return local_path(config.checkpoint) / f"{checkpoint_of(read)}.local.json"


def read_plan(path: Path, *, identity: str) -> BatchPlan | None:
    """Read a plan; None: there is none.

    Args:
        path: the path of the plan.
        identity: the present identity of the streams.

    Raises:
        InvalidConfigError: the plan belongs to another stream, or to more streams.
        InvalidRecordError: the plan is corrupt.
    """
    try:
        with usable(path):
            found = msgspec.json.decode(path.read_bytes(), type=BatchPlan)
    except FileNotFoundError:
        return None
    except UNDECODABLE as error:
        raise InvalidRecordError(
            f"{path} is not the plan of a load: {error}; delete it, and the load begins at the "
            "table's offsets"
        ) from error
    current = identities(identity)
    for name, known in identities(found.identity).items():
        if name not in current:
            raise InvalidConfigError(reads_another(str(path), name))
        if current[name] != known:
            raise InvalidConfigError(
                f"{path} belongs to another incarnation of the stream ({known}, the broker has "
                f"{current[name]}): load into another table, with a new checkpoint"
            )
    return found

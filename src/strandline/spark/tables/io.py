"""Spark's readers and writers of the exactly-once table.

Rules: tasks stage files, and the driver commits them in one step under a transaction id and a batch
number: the query's id and Spark's batch number, unless ``txnId`` is given. ``abort`` removes
nothing, since Spark also calls it after a commit whose answer was lost; garbage is removed by age.
``log`` decides what may be committed.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError, UnavailableError
from strandline.spark.arrow import SparkCast, sized_batches
from strandline.spark.options import TableOptions
from strandline.spark.publication import Part, publish
from strandline.spark.table import commit, committed_files, committed_schema
from strandline.spark.tables.changes import delete_schema
from strandline.spark.tables.columns import conformed, is_part
from strandline.spark.tables.compact import compact
from strandline.spark.tables.gaps import GapExplainer
from strandline.spark.tables.log import Proposal, decide, encode_schema, merge_ranges
from strandline.spark.tables.open import directory_of, open_store
from strandline.spark.tables.stage import FileSettings, StagedRows, stage, tracks_offsets
from strandline.spark.tables.store import usable
from strandline.spark.tables.upsert import Upsert
from strandline.spark.tables.values import (
    Decoding,
    check_changes,
    check_decoding,
    check_storable,
    value_schema,
)
from strandline.spark.worker import micro_batch, settle
from strandline.values.decode import check_distinct_names, decoded_schema

logger = logging.getLogger(__name__)

_READ_ROWS = 8192
_TASK_FILES = 32
_PUBLISH_TIMEOUT_MS = 120_000


@dataclass
class StagedFiles(WriterCommitMessage):
    """The files a task has staged, sent to the driver."""

    txn_id: str
    batch: int
    rows: StagedRows
    letters: Part | None
    """The staged part with rejected values, for the dead-letter stream."""
    values: pa.Schema | None
    """The columns of decoded values."""
    version: int
    """The version of the stream's schema by which the values were decoded."""
    names: dict[str, str] | None
    """The new names of columns, if the columns follow the stream's schema."""


class TableCommitter:
    """Stages rows in tasks, and commits them on the driver.

    Args:
        options: the options of the table.
        schema: the schema of the rows.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        check_storable(schema, options.table_format)
        self.records = table_schema(schema)
        check_decoding(self.records, options)
        self._values = value_schema(options)
        self.schema = self._schema(self._values)
        check_distinct_names(self.schema)
        check_changes(self.records, self.schema, options)
        self.store = open_store(options, self.schema)
        self.gaps = GapExplainer(options, schema)

    def stage(self, batches: Iterator[pa.RecordBatch], *, txn_id: str, batch: int) -> StagedFiles:
        """Write the rows of a task to staged files."""
        settle()
        self.store.create()
        context = TaskContext.get()
        where = f"{context.partitionId()}-{context.attemptNumber()}" if context else "0-0"
        changes = bool(self.options.primary_key)
        with Decoding(self.options, self.records, self._values, batch=(txn_id, batch)) as decoding:
            schema = decoding.schema
            decode = decoding.rows if self.options.values != "raw" else None
            settings = FileSettings(
                schema=schema,
                prefix=f"{txn_id[:8]}-{batch}-{where}",
                compression=self.options.compression,
                file_bytes=self.options.file_bytes,
                decode=decoding.changes if changes else decode,
                deletes=delete_schema(schema, self.options.primary_key) if changes else None,
                by_stream=self.gaps.has_several,
            )
            gathered = sized_batches(batches)
            named = (each.rename_columns(self.records.names) for each in gathered)
            rows = stage(self.store, named, settings)
            return StagedFiles(
                txn_id,
                batch,
                rows,
                letters=decoding.finish(),
                values=decoding.values,
                version=decoding.version,
                names=decoding.names,
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged files of a batch; a repeated call has no effect."""
        staged = [message for message in messages if isinstance(message, StagedFiles)]
        # If a version was set while tasks ran, its columns can hold the rows of all tasks.
        newest = max(staged, key=lambda message: message.version, default=None)
        if newest is not None:
            if any(message.names != newest.names for message in staged):
                raise UnavailableError(
                    "a column of the stream's schema was renamed while the batch was decoded, and "
                    "its files have both names: nothing was written; run the load again, which "
                    "repeats the batch"
                )
            if not all(_begins_with(newest.values, message.values) for message in staged):
                raise UnavailableError(
                    "schemas of streams were set while the batch was decoded, and its files have "
                    "different columns: nothing was written; run the load again, which repeats the "
                    "batch"
                )
            self._values = newest.values
            self.schema = self._schema(newest.values)
        proposal = Proposal(
            txn_id=staged[0].txn_id if staged else "",
            batch=staged[0].batch if staged else 0,
            files=[file for message in staged for file in message.rows.files],
            ranges=merge_ranges(message.rows.ranges for message in staged),
            arrow_schema=encode_schema(self.schema),
            tracks_offsets=tracks_offsets(self.records),
            dense=self.options.dense_offsets,
            stream=self.options.stream_identity,
            primary_key=list(self.options.primary_key),
            deletes=[file for message in staged for file in message.rows.deletes],
            follows=newest.names if newest is not None else None,
        )
        state = self.store.load().state
        # A batch without rows creates the table, so that readers get no rows instead of an error.
        if proposal.files or proposal.ranges or state is None:
            # If the batch is rejected here, no dead letters are published. They are committed
            # before the table: after a crash in between, the replay repeats that commit without
            # effect, and then commits the table.
            decide(state, self.gaps.explain(state, proposal))
            self.store.create()  # a batch without rows has no tasks that would do so
            letters = [message.letters for message in staged if message.letters]
            if letters:
                assert self.options.server is not None
                publish(self.options.server, letters, timeout_ms=_PUBLISH_TIMEOUT_MS)
            age_ms = self.options.garbage_age_ms
            explain = self.gaps.explain
            prepare = Upsert(
                self.store,
                compression=self.options.compression,
                file_bytes=self.options.file_bytes,
            )
            commit(self.store, proposal, garbage_age_ms=age_ms, explain=explain, prepare=prepare)
            self._maintain()

    def _schema(self, values: pa.Schema | None) -> pa.Schema:
        """Return the columns of the table, given the columns of decoded values."""
        return self.records if values is None else decoded_schema(self.records, values)

    def _maintain(self) -> None:
        """Merge small files if there are too many, and remove files of expired snapshots."""
        try:
            compression, is_merged = self.options.compression, 0
            if self.options.compaction:
                is_merged = compact(
                    self.store, file_bytes=self.options.file_bytes, compression=compression
                )
            if is_merged or self.options.primary_key:
                self.store.expire(age_s=self.options.snapshot_age_ms / 1000)
        except UnavailableError as error:
            # The batch is committed already, so this is no failure; the next commit tries again.
            logger.warning("compaction of %s: %s", self.store.directory, error)


class StreamTableWriter(DataSourceStreamArrowWriter):
    """Commits each micro-batch once."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.stager = TableCommitter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Stage the rows of a task."""
        query, batch = micro_batch()
        txn_id = self.stager.options.txn_id or query
        return self.stager.stage(iterator, txn_id=txn_id, batch=batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Commit the batch; has no effect when repeated."""
        assert all(m.batch == batchId for m in messages if isinstance(m, StagedFiles)), batchId
        self.stager.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Do nothing: the batch may be committed although Spark believes it failed."""


class BatchTableWriter(DataSourceArrowWriter):
    """Commits a batch job once."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.stager = TableCommitter(options, schema)
        # Made on the driver and pickled to every task, so that all name one transaction.
        self.txn_id = options.txn_id or f"job-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Stage the rows of a task."""
        batch = self.stager.options.batch_id
        return self.stager.stage(iterator, txn_id=self.txn_id, batch=batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job; has no effect when repeated."""
        self.stager.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the job may be committed although Spark believes it failed."""


class TableReader(DataSourceReader):
    """Reads the files that are committed when the DataFrame is first used."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.path, self.storage = options.path, options.storage
        self.directory = directory_of(options.path, options.storage)
        self.target = to_arrow_schema(schema, timezone="UTC")
        known = committed_schema(options.path, storage=options.storage).names
        if unknown := set(schema.fieldNames()) - set(known):
            raise InvalidConfigError(
                f"the table has no column '{min(unknown)}'; it has: {', '.join(known)}"
            )

    def partitions(self) -> list[InputPartition]:
        """Return tasks of a few files each."""
        paths = committed_files(self.path, storage=self.storage)
        return [
            InputPartition(paths[i : i + _TASK_FILES]) for i in range(0, len(paths), _TASK_FILES)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files."""
        yield from map(SparkCast(self.target), sized_batches(self._batches(partition.value or [])))

    def _batches(self, paths: list[str]) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with usable(path), pq.ParquetFile(self.directory.open_file(path)) as file:
                for batch in file.iter_batches(batch_size=_READ_ROWS, columns=self.target.names):
                    yield conformed(batch, self.target)


def _begins_with(columns: pa.Schema | None, earlier: pa.Schema | None) -> bool:
    """Return whether columns are earlier ones, possibly widened, with others after them."""
    if columns is None or earlier is None:
        return columns is earlier
    return is_part(pa.struct(list(earlier)), pa.struct(list(columns)), widens=True)


def table_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema under which rows of a Spark schema are stored.

    Every column is nullable, so that queries that differ only in that can share a table.
    """
    arrow = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([field.with_nullable(True).remove_metadata() for field in arrow])

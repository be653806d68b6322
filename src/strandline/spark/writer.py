"""Appends rows to streams, from batch jobs and streaming queries: exactly once, or at least once.

Rules: exactly once: tasks *stage* rows, which no reader sees. In one step the driver commits the
rows of the attempts that Spark chose, under a transaction id and a batch number: the query's id and
Spark's batch number, unless ``txnId`` is given. A batch that is already committed is acknowledged
if its fingerprint is the same. ``abort`` does nothing, because Spark also calls it after a commit
whose answer was lost; uncommitted parts expire. At least once: a task's rows are acknowledged
before the task ends, and a repeated task appends them again. ``rows`` routes rows.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from strandline.spark.arrow import sized_batches
from strandline.spark.connection import client_of
from strandline.spark.options import WriteOptions
from strandline.spark.publication import Part, begin_stage, publish
from strandline.spark.rows import Fingerprint, RowRouter, check_columns
from strandline.spark.worker import micro_batch, settle


@dataclass
class AppendedRows(WriterCommitMessage):
    """The number of rows that a task appended."""

    rows: int


@dataclass
class StagedAppend(WriterCommitMessage):
    """The staged rows of a task, sent to the driver."""

    part: Part


class _Appender:
    """The common base of the batch writer and the streaming writer, for tasks and driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.routes = RowRouter(options, schema.fieldNames())

    def append(self, batches: Iterator[pa.RecordBatch]) -> AppendedRows:
        """Append every row and wait for the acks."""
        settle()
        rows = 0
        timeout_s = max(1.0, self.options.retry_timeout_ms / 1000)
        client = client_of(self.options.server)
        with self.routes.producers(client, timeout_s=timeout_s) as producers:
            for batch in sized_batches(batches):
                for piece in self.routes.pieces(batch):
                    producers[piece.stream].append_batch(piece.rows, partition=piece.partition)
                rows += batch.num_rows
        return AppendedRows(rows)

    def stage(self, batches: Iterator[pa.RecordBatch], *, txn_id: str, batch: int) -> StagedAppend:
        """Stage every row under the batch of a transaction."""
        settle()
        fingerprint = Fingerprint()
        with begin_stage(
            self.options.server,
            (txn_id, batch),
            timeout_ms=self.options.retry_timeout_ms,
            stage_timeout_ms=self.options.stage_timeout_ms,
        ) as stage:
            for each in sized_batches(batches):
                fingerprint += Fingerprint.of(each)
                for piece in self.routes.pieces(each):
                    stage.append_batch(piece.stream, piece.rows, partition=piece.partition)
            ref = stage.finish().ref
        return StagedAppend(Part(txn_id=txn_id, batch=batch, ref=ref, fingerprint=fingerprint))

    def publish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows that the chosen attempts staged; a repeated call has no effect."""
        parts = [message.part for message in messages if isinstance(message, StagedAppend)]
        publish(self.options.server, parts, timeout_ms=self.options.retry_timeout_ms)


class BatchAppendWriter(DataSourceArrowWriter):
    """Appends the rows of a batch job."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.appender = _Appender(options, schema)
        # Made on the driver and pickled to every task, so that all name one transaction.
        self.txn_id = options.txn_id or f"job-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append or stage the rows of a task."""
        if not self.appender.options.exactly_once:
            return self.appender.append(iterator)
        batch = self.appender.options.batch_id
        return self.appender.stage(iterator, txn_id=self.txn_id, batch=batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job; has no effect when repeated."""
        self.appender.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the job may be committed although Spark believes it failed."""


class StreamAppendWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.appender = _Appender(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append or stage the rows of a task."""
        if not self.appender.options.exactly_once:
            return self.appender.append(iterator)
        query, batch = micro_batch()
        txn_id = self.appender.options.txn_id or query
        return self.appender.stage(iterator, txn_id=txn_id, batch=batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Commit the batch; has no effect when repeated."""
        assert all(m.part.batch == batchId for m in messages if isinstance(m, StagedAppend)), (
            batchId
        )
        self.appender.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Do nothing: the batch may be committed although Spark believes it failed."""

"""Distinguishes offsets without a record from missing records, by asking the stream.

Rules: transaction markers, aborted records and compacted records have offsets and are not read, so
a batch without them is complete. The stream is asked only about partitions with missing offsets,
and only for offsets. The options name the stream, or else the column ``offset``, whose metadata
come from the source and pass through a query. Must not know files.
"""

import logging

import msgspec
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError
from strandline.spark.connection import stored_offsets
from strandline.spark.options import ORIGIN, ReadOptions, TableOptions
from strandline.spark.planning import OffsetRange
from strandline.spark.table_log import Proposal, RangeSummary, TableState, unexplained

logger = logging.getLogger(__name__)


class GapExplainer:
    """The stream that a table's rows come from, if it is known.

    Args:
        options: of the table.
        schema: of the rows, with the metadata of its columns.

    Raises:
        InvalidConfigError: the rows come from several streams.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        _check_one_stream(options, schema)
        self._stream = _origin(options, schema)

    def explain(self, last: TableState | None, proposal: Proposal) -> Proposal:
        """Add to a proposal the stream's record counts where offsets are missing.

        Raises:
            UnknownStreamError: there is no such stream.
            UnavailableError: the broker could not be reached in time.
        """
        if self._stream is None:
            return proposal
        stored = {
            partition: _stored(self._stream, partition, span, found=proposal.ranges[partition])
            for partition, span in unexplained(last, proposal).items()
        }
        return msgspec.structs.replace(proposal, stored=stored)


def _origin(options: TableOptions, schema: StructType) -> ReadOptions | None:
    if options.server is not None and options.stream is not None:
        return ReadOptions(server=options.server, stream=options.stream)
    for field in schema.fields:
        if field.name == "offset" and ORIGIN in field.metadata:
            return ReadOptions(**field.metadata[ORIGIN])
    return None


def _check_one_stream(options: TableOptions, schema: StructType) -> None:
    """Check that offsets are of one stream, whose partitions the table's state names.

    Raises:
        InvalidConfigError: the rows were read from several streams.
    """
    fields = {field.name: field for field in schema.fields}
    if "offset" not in fields or "partition" not in fields:
        return
    origin = fields["offset"].metadata.get(ORIGIN)
    # A read with a schema of its own has no metadata.
    unknown = origin is None and options.stream is None and "stream" in fields
    if unknown or (origin is not None and "stream" not in origin):
        raise InvalidConfigError(
            "the rows come from several streams, and a table tracks the offsets of one: load each "
            "stream into its own table, with its own query; or rename the column 'offset', as in "
            ".withColumnRenamed('offset', 'source_offset'): each micro-batch is then committed "
            "once by its number, as long as the checkpoint is kept"
            + (
                " (if they are of one stream, give the options server and stream)"
                if unknown
                else ""
            )
        )


def _stored(
    options: ReadOptions, partition: int, span: tuple[int, int], *, found: RangeSummary
) -> RangeSummary:
    """Count the stream's records in a span, as far as possible.

    Args:
        options: of the table, with the stream.
        partition: its number.
        span: half-open; from 0 if nothing of the partition was committed.
        found: the batch's own range.
    """
    start, stop = span
    rows, total, state = stored_offsets(options, OffsetRange(partition, start, stop))
    starts = {each.partition: each.log_start_offset for each in state.partitions}
    log_start = starts.get(partition, 0)
    deleted = min(log_start, found.start) - start
    if start > 0 and deleted > 0:
        # Their number is no longer known: count them as records.
        return RangeSummary(start, stop, rows + deleted, total)
    may_be_fewer = state.is_compacted or log_start > found.start
    if stop == found.stop and may_be_fewer and rows <= found.rows:
        if not state.is_compacted:
            logger.warning(
                "%s/%d was deleted up to %d while the batch from %d on was read: whether it is "
                "complete cannot be checked",
                options.stream,
                partition,
                log_start,
                found.start,
            )
        return RangeSummary(start, stop, found.rows, found.offset_sum)
    return RangeSummary(start, stop, rows, total)

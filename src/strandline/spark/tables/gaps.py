"""Distinguishes offsets without a record from missing records, by asking the stream.

Rules: transaction markers, aborted records and compacted records have offsets but are not read, so
a batch without them is complete. The broker is asked only about partitions with missing offsets,
and only for offsets. The stream is in the options, or in the metadata of the column ``offset``,
which come from the source and pass through a query. Rows of several streams name their stream in
the column ``stream``. Must not know files.
"""

import logging

import msgspec
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError
from strandline.spark.connection import stored_offsets, stream_state
from strandline.spark.options import ORIGIN, ReadOptions, TableOptions
from strandline.spark.planning import OffsetRange, identities
from strandline.spark.tables.log import PartitionId, Proposal, RangeSummary, TableState, unexplained

logger = logging.getLogger(__name__)


class GapExplainer:
    """Asks the streams of a table's rows, if they are known, about missing offsets.

    Args:
        options: the options of the table.
        schema: the schema of the rows, with the metadata of its columns.

    Raises:
        InvalidConfigError: the rows come from several streams, and do not name their stream.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.has_several = _has_several(options, schema)
        """Whether rows name their stream."""
        self._origin = _origin(options, schema)

    def explain(self, last: TableState | None, proposal: Proposal) -> Proposal:
        """Add to a proposal how many records the stream has at missing offsets.

        With several streams, also add the identities of streams that are new to the load.

        Raises:
            UnknownStreamError: there is no such stream.
            UnavailableError: the broker could not be reached in time.
        """
        if self._origin is None:
            return proposal
        stored = {
            partition: _stored(*self._place(partition), span, found=proposal.ranges[partition])
            for partition, span in unexplained(last, proposal).items()
        }
        return msgspec.structs.replace(proposal, stored=stored, stream=self._identified(proposal))

    def _identified(self, proposal: Proposal) -> str | None:
        """Return the identities of a proposal's streams, if the options have those of a load."""
        if proposal.stream is None or not proposal.has_several:
            return proposal.stream
        known = identities(proposal.stream)
        for partition in proposal.ranges:
            read, _ = self._place(partition)
            if read.stream not in known:
                known[str(read.stream)] = stream_state(read).identity
        return ",".join(sorted(known.values()))

    def _place(self, partition: PartitionId) -> tuple[ReadOptions, int]:
        """Return the options to read a partition's stream, and the partition's number."""
        assert self._origin is not None
        stream, number = self._origin.place(self._origin.key_of(partition))
        return self._origin.of_stream(stream), number


def _has_several(options: TableOptions, schema: StructType) -> bool:
    """Return whether rows come from several streams, which their column ``stream`` names.

    Raises:
        InvalidConfigError: the rows lack this column.
    """
    fields = {field.name: field for field in schema.fields}
    if "offset" not in fields or "partition" not in fields or options.stream is not None:
        return False
    origin = fields["offset"].metadata.get(ORIGIN)
    if origin is not None and "stream" in origin:
        return False
    is_named = "stream" in fields and fields["stream"].dataType.simpleString() == "string"
    if origin is not None and not is_named:
        raise InvalidConfigError(
            "the rows come from several streams, and do not say from which: keep the column "
            "'stream'; or rename the column 'offset', as in .withColumnRenamed('offset', "
            "'source_offset'): each micro-batch is then committed once by its number, as long as "
            "the checkpoint is kept"
        )
    # The columns of a read with a schema in the query have no metadata.
    return is_named


def _origin(options: TableOptions, schema: StructType) -> ReadOptions | None:
    """Return the broker of the rows, and their stream unless rows name it; None: unknown."""
    if options.server is not None and (options.stream is not None or _has_several(options, schema)):
        return ReadOptions(server=options.server, stream=options.stream)
    for field in schema.fields:
        if field.name == "offset" and ORIGIN in field.metadata:
            return ReadOptions(**{"stream": None} | field.metadata[ORIGIN])
    return None


def _stored(
    options: ReadOptions, partition: int, span: tuple[int, int], *, found: RangeSummary
) -> RangeSummary:
    """Count the stream's records in a span, as far as possible.

    Args:
        options: the options of the table, with the stream.
        partition: the number of the partition.
        span: the offsets, half-open; from 0 if nothing of the partition was committed.
        found: the range of the batch.
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

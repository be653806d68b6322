"""A coordinator's log: reads its entries from the partition that stores them.

Rules: any thread. A corrupt entry was a decision that a client may have acted on, so the
coordinator does not start without it unless the operator allows that.
"""

import logging

from strandline.broker.write_path.partition import Partition
from strandline.errors import CorruptBatchError
from strandline.record.decode import decode_batches
from strandline.types import Offset

logger = logging.getLogger(__name__)

READ_BYTES = 4 << 20


def read_entries(partition: Partition, end: Offset, *, skips_corrupt: bool) -> list[bytes]:
    """Return the values of a partition's records below ``end``.

    Args:
        partition: the partition of the coordinator.
        end: the offset at which the next term begins.
        skips_corrupt: continue without corrupt entries, and log that.

    Raises:
        CorruptBatchError: an entry is corrupt.
        StrandlineError: the log cannot be read.
    """
    found: list[bytes] = []
    offset = first = partition.log_start_offset
    while offset < end:
        try:
            part = partition.log.read_dense(offset, READ_BYTES, below=end)
        except CorruptBatchError as corruption:
            partition.committed.report_corruption(corruption)
            if not skips_corrupt:
                raise _with_advice(corruption) from corruption
            logger.warning("%s continues without those entries: %s", partition.name, corruption)
            offset = Offset(corruption.next_offset)
            continue
        for batch in decode_batches(part.buffer, columns=["offset", "value"]):
            offsets, values = (column.to_pylist() for column in batch.columns)
            # The first batch may begin with entries that were deleted.
            found += [value for at, value in zip(offsets, values, strict=True) if at >= first]
        offset = part.next_offset
    return found


def _with_advice(corruption: CorruptBatchError) -> CorruptBatchError:
    return CorruptBatchError(
        f"{corruption.message}; it is repaired if another replica has it, else set "
        "allow_corrupt_coordinator_log to start the coordinator without it (docs/operations.md)",
        first_offset=corruption.first_offset,
        next_offset=corruption.next_offset,
    )

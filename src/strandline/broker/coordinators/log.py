"""A coordinator's log: reads the coordinator's entries from the partition that stores them.

Rules: any thread. A client may have acted on a decision whose entry is corrupt now, so the
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
        partition: the partition that stores the entries.
        end: the offset at which the next term begins.
        skips_corrupt: leave out corrupt entries, with a warning.

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
            logger.warning("%s continues without corrupt entries: %s", partition.name, corruption)
            offset = Offset(corruption.next_offset)
            continue
        for batch in decode_batches(part.buffer, columns=["offset", "value"]):
            offsets, values = (column.to_pylist() for column in batch.columns)
            # The first batch may begin with entries that are deleted already.
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

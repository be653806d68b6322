"""Reads the batches that readers may see: no markers, placeholders or aborted transactions.

Rules: any thread; batches are as stored, whole and in order, perhaps with gaps between them.
"""

from strandline.errors import StrandlineError
from strandline.record.batch import HEADER_BYTES, Buffer
from strandline.record.visible import IsCommitted, visible_stretches
from strandline.storage.log import Log
from strandline.storage.scan import header_at
from strandline.types import Offset, TimestampNs


def read_visible(
    log: Log, offset: Offset, bytes_max: int, *, below: Offset, is_committed: IsCommitted
) -> Buffer:
    """Read the batches that readers may see.

    Args:
        log: the log of the partition.
        offset: the offset of the first record wanted.
        bytes_max: about how many bytes to return.
        below: a stable offset.
        is_committed: whether a transaction's batch is committed.

    Returns:
        Whole batches in order, perhaps with gaps between them; empty if nothing is left.

    Raises:
        OffsetOutOfRangeError, CorruptBatchError: as for ``Log.read``.
    """
    while True:
        found = log.read(offset, bytes_max, below=below)
        pieces = visible_stretches(found.buffer, is_committed)
        if len(pieces) == 1:
            return pieces[0]
        if pieces:
            return b"".join(pieces)
        if not found.buffer or found.next_offset >= below:
            return b""
        offset = found.next_offset


def stored_time(log: Log, offset: Offset | int, *, below: Offset) -> TimestampNs | None:
    """Return the time of the batch at or after an offset; None if the batch is not readable."""
    try:
        found = log.read(offset, HEADER_BYTES, below=below, verify=False).buffer
    except StrandlineError:
        return None  # the error is raised when the records are read
    header = header_at(found, 0)
    return None if header is None else header.first_timestamp

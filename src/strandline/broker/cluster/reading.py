"""Reading a replica's log for other replicas: batches as they are, with what is said of them.

Rules: runs beside the loop, changes nothing; a batch is read only if its checksum is right. Must
not know who asks.
"""

from typing import Final

from strandline.errors import InvalidRequestError
from strandline.record.batch import Attributes, iter_headers
from strandline.record.codec import encode_filler
from strandline.replication.messages import BatchRef, Buffer
from strandline.storage.log import Log
from strandline.types import LeaderEpoch, Offset

RANGE_BYTES_MAX: Final = 32 << 20
"""Lent in one answer; half of what any frame may hold."""


def split(
    found: list[tuple[BatchRef, Buffer]],
) -> tuple[tuple[BatchRef, ...], tuple[Buffer, ...]]:
    """References and batches apart, as events have them."""
    return tuple(ref for ref, _ in found), tuple(batch for _, batch in found)


def read_batches(
    log: Log, offset: Offset, bytes_max: int, *, below: Offset
) -> list[tuple[BatchRef, Buffer]]:
    """Whole batches of a log from ``offset`` on, checked, of which the last begins below an offset.

    Compaction may have made one filler of what are several batches elsewhere, so that whoever ends
    where one of those does, or has lost it, asks from within it: such a filler is cut to size.

    Raises:
        CorruptBatchError: damage, or records are missing: logs with several copies are dense.
        OffsetOutOfRangeError, UnavailableError: the log does not hold or cannot read it.
    """
    found: list[tuple[BatchRef, Buffer]] = []
    part = log.read_dense(offset, bytes_max, below=below)
    for position, header in iter_headers(part.buffer):
        first, after = max(header.base_offset, offset), min(header.next_offset, below)
        if header.attributes & Attributes.REMOVED and after - first <= header.last_offset_delta:
            found.append(_filler(first, after, header.leader_epoch))
            continue
        ref = BatchRef(header.base_offset, header.next_offset, header.leader_epoch, header.length)
        found.append((ref, part.buffer[position : position + header.length]))
    return found


def _filler(base: Offset, after: Offset, epoch: LeaderEpoch) -> tuple[BatchRef, Buffer]:
    filler = encode_filler(base, after, leader_epoch=epoch)
    return BatchRef(base, after, epoch, len(filler)), filler


def read_range(log: Log, first: Offset, after: Offset) -> list[tuple[BatchRef, Buffer]]:
    """All batches that hold records of a range; raises as ``read_batches``.

    Raises:
        InvalidRequestError: they are too many for one answer.
    """
    found: list[tuple[BatchRef, Buffer]] = []
    size = 0
    while first < after:
        part = read_batches(log, first, 1 << 20, below=after)
        if not part:
            break
        found += part
        size += sum(ref.size for ref, _ in part)
        if size > RANGE_BYTES_MAX:
            raise InvalidRequestError(f"more than {RANGE_BYTES_MAX} bytes up to offset {after}")
        first = part[-1][0].next_offset
    return found

"""Reads a replica's log for other replicas: stored batches, with their references.

Rules: runs on a thread and changes nothing; a batch is returned only if its checksum is right. Must
not know who asks.
"""

from typing import Final

from strandline import arrow_compute as pc
from strandline.core.replication.messages import BatchRef, Buffer
from strandline.errors import InvalidRequestError
from strandline.record.batch import Attributes, header_of, iter_headers
from strandline.record.codec import decode_batches, encode_again, encode_filler
from strandline.storage.log import Log
from strandline.types import Offset

RANGE_BYTES_MAX: Final = 32 << 20
"""The most bytes of one answer: half of a frame's limit."""


def split(
    found: list[tuple[BatchRef, Buffer]],
) -> tuple[tuple[BatchRef, ...], tuple[Buffer, ...]]:
    """Return the references and the batches separately, as events need them."""
    return tuple(ref for ref, _ in found), tuple(batch for _, batch in found)


def read_batches(
    log: Log, offset: Offset, bytes_max: int, *, below: Offset
) -> list[tuple[BatchRef, Buffer]]:
    """Return whole, verified batches of a log from ``offset`` on that begin below ``below``.

    Compaction may have replaced several batches by one placeholder. A replica that ends at one of
    these batches, or has lost it, asks for an offset inside the placeholder, and gets a placeholder
    that begins there. A replica whose log starts inside a batch, since the records before were
    deleted, gets the remaining records of the batch.

    Raises:
        CorruptBatchError: a batch is corrupt, or missing: logs with several replicas are dense.
        OffsetOutOfRangeError, UnavailableError: the log does not have the offset, or cannot be
            read.
        EncryptionKeyError, DecryptionError: a batch that has to be split cannot be decrypted.
    """
    found: list[tuple[BatchRef, Buffer]] = []
    part = log.read_dense(offset, bytes_max, below=below)
    for position, header in iter_headers(part.buffer):
        first, after = max(header.base_offset, offset), min(header.next_offset, below)
        if header.attributes & Attributes.REMOVED and after - first <= header.last_offset_delta:
            filler = encode_filler(first, after, leader_epoch=header.leader_epoch)
            found.append(_with_ref(filler))
            continue
        batch = part.buffer[position : position + header.length]
        found.append(_with_ref(batch if first == header.base_offset else _tail(log, batch, first)))
    return found


def _with_ref(batch: Buffer) -> tuple[BatchRef, Buffer]:
    header = header_of(batch)
    return BatchRef(header.base_offset, header.next_offset, header.leader_epoch, len(batch)), batch


def _tail(log: Log, batch: Buffer, first: Offset) -> Buffer:
    """Return the part of a batch from the offset ``first`` on."""
    header = header_of(batch)
    [rows] = decode_batches(log.decrypted(batch))
    rows = rows.filter(pc.greater_equal(rows.column("offset"), first))
    if not rows.num_rows:
        return encode_filler(first, header.next_offset, leader_epoch=header.leader_epoch)
    transactional = header.attributes & Attributes.TRANSACTIONAL
    tail = encode_again(rows, header, base_offset=first, attributes=transactional)
    return tail if log.sealer is None else log.sealer.seal(tail)


def read_range(log: Log, first: Offset, after: Offset) -> list[tuple[BatchRef, Buffer]]:
    """Return all batches with records of a range; raises as ``read_batches`` does.

    Raises:
        InvalidRequestError: the batches are too large for one answer.
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

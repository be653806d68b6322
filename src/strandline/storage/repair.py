"""Repair of a corrupt log with batches from another replica.

Rules: only bytes without an intact batch are overwritten, and only with their former contents:
whole intact batches that fill the hole exactly, by offsets and by bytes. So nothing that was ever
served changes, and readers need no lock: until everything is written they find the corruption. In a
compacted log, another replica's batches may fit and still differ, so the intact bytes of each
corrupt batch have to prove that it is the same. Durable on return; a crash in the middle leaves
corruption, as before. Any thread: the log's files are not removed meanwhile. Must not know the
copy's source.
"""

from collections.abc import Sequence
from itertools import pairwise

from strandline.errors import CorruptBatchError, InvalidRecordError
from strandline.record.batch import HEADER_BYTES, BatchHeader, check_batch, read_header
from strandline.storage.disk import Bytes
from strandline.storage.log import Log
from strandline.storage.scan import header_at
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import CorruptRange
from strandline.types import Offset


def repair_log(log: Log, batches: Sequence[Bytes], *, is_compacted: bool = False) -> bool:
    """Overwrite corrupt batches of the first hole that the given batches cover.

    Args:
        log: the corrupt log.
        batches: one batch per item, in the order of their offsets; extra ones are ignored.
        is_compacted: other replicas may have different batches with the same offsets.

    Returns:
        False if none of them is corrupt in the log any longer.

    Raises:
        CorruptBatchError: a batch is corrupt itself.
        InvalidRecordError: the batches are not those that were there.
        DiskFullError: no space, on a file system that copies when it overwrites.
        LogPoisonedError: the write or its sync failed.
        ShuttingDownError: the log was closed or deleted.
    """
    headers = [check_batch(memoryview(batch), 0) for batch in batches]
    assert headers, "an answer without batches repairs nothing"
    for before, after in pairwise(headers):
        if before.next_offset != after.base_offset:
            raise InvalidRecordError(
                f"the copies have a gap: no batch begins at offset {before.next_offset}"
            )
    with log.files_held():
        return _put_back(log, batches, headers, is_compacted=is_compacted)


def _put_back(
    log: Log, batches: Sequence[Bytes], headers: list[BatchHeader], *, is_compacted: bool
) -> bool:
    for number, header in enumerate(headers):
        segment = _segment_of(log, header.base_offset)
        hole = _hole_at(segment, header.base_offset)
        if hole is not None:
            fitting = [each for each in headers[number:] if each.next_offset <= hole.next_offset]
            _check_fit(segment, hole, fitting)
            lost = batches[number : number + len(fitting)]
            if is_compacted:
                _check_same(segment, hole, lost)
            segment.put_back(b"".join(lost), hole.position)
            return True
    return False


def _segment_of(log: Log, offset: Offset) -> Segment:
    """Return the segment that had the batch.

    Raises:
        InvalidRecordError: the segment was removed meanwhile.
    """
    for segment in reversed(log.segments):
        if segment.base_offset <= offset:
            return segment
    raise InvalidRecordError(f"offset {offset} was deleted meanwhile; nothing to repair")


def _hole_at(segment: Segment, offset: Offset) -> CorruptRange | None:
    """Return the hole in which ``offset`` lies; None if its batch is intact.

    Raises:
        InvalidRecordError: the file ends before the offset.
    """
    try:
        place = segment.locate(offset)
    except CorruptBatchError as corruption:
        return segment.hole(corruption.position, corruption.first_offset)
    there = None if place is None else header_at(segment.view(place.position, HEADER_BYTES), 0)
    if there is None or there.base_offset > offset:
        raise InvalidRecordError(
            f"records from {offset} on cannot be repaired in place: {segment.path} ends before them"
        )
    return None


def _check_fit(segment: Segment, hole: CorruptRange, headers: list[BatchHeader]) -> None:
    """Check that batches fill a hole exactly.

    Raises:
        InvalidRecordError: they do not fit; the message has the difference.
    """
    if not headers:
        raise InvalidRecordError(
            f"the copy's batches are not aligned with byte {hole.position} of {segment.path}"
        )
    offsets = headers[0].base_offset, headers[-1].next_offset
    end = segment.size if hole.next_position < 0 else hole.next_position
    length = sum(header.length for header in headers)
    if (*offsets, length) != (hole.first_offset, hole.next_offset, end - hole.position):
        raise InvalidRecordError(
            f"the copy of records {offsets[0]} to {offsets[1] - 1} in {length} bytes is not what "
            f"was at byte {hole.position} of {segment.path}: records {hole.first_offset} to "
            f"{hole.next_offset - 1} in {end - hole.position} bytes"
        )
    if end > segment.written_bytes:
        raise InvalidRecordError(
            f"the corrupt bytes at {hole.position} of {segment.path} are not in the file yet"
        )


def _check_same(segment: Segment, hole: CorruptRange, batches: Sequence[Bytes]) -> None:
    """Check that batches that fit are the same as the corrupt ones.

    The proof is the old header, including its checksum, or else all bytes after the header.

    Raises:
        InvalidRecordError: a batch may differ; the message names it.
    """
    position = hole.position
    for batch in batches:
        there, copy = segment.view(position, len(batch)), memoryview(batch)
        is_same_header = there[:HEADER_BYTES] == copy[:HEADER_BYTES]
        if not is_same_header and there[HEADER_BYTES:] != copy[HEADER_BYTES:]:
            header = read_header(copy)
            raise InvalidRecordError(
                f"the copy of records {header.base_offset} to {header.next_offset - 1} fits, but "
                f"may differ from what was at byte {position} of {segment.path}"
            )
        position += len(batch)

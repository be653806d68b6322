"""The leader epochs of a log, found in the headers of its batches.

Epochs only grow along a log, so a binary search reads a few dozen headers to find all of them. So
there is no second file that could disagree with the batches or need a sync (ADR 0038).
"""

from collections.abc import Callable
from functools import partial

from strandline.errors import CorruptBatchError
from strandline.record.batch import BatchHeader, read_header
from strandline.storage.log import Log
from strandline.types import LeaderEpoch, Offset

Entry = tuple[LeaderEpoch, Offset]


def leader_epochs(log: Log) -> tuple[Entry, ...]:
    """Return each epoch of a log with its start offset, in order, from the log start offset.

    Raises:
        UnavailableError: the log cannot be read.
    """
    end = log.log_end_offset
    found: list[Entry] = []
    offset = log.log_start_offset
    while (header := _header_from(log, offset)) is not None:
        start = offset if not found else header.base_offset
        found.append((header.leader_epoch, Offset(start)))
        offset = _first(offset, end, partial(_is_after, log, epoch=header.leader_epoch))
    return tuple(found)


def _is_after(log: Log, offset: Offset, *, epoch: LeaderEpoch) -> bool:
    """Whether the batch at or after ``offset`` has a later epoch."""
    header = _header_from(log, offset)
    return header is None or header.leader_epoch > epoch


def _first(low: Offset, high: Offset, holds: Callable[[Offset], bool]) -> Offset:
    """Return the first offset of a range from which on a condition holds."""
    while low < high:
        middle = Offset((low + high) // 2)
        if holds(middle):
            high = middle
        else:
            low = Offset(middle + 1)
    return low


def _header_from(log: Log, offset: Offset) -> BatchHeader | None:
    """Return the header of the batch at ``offset``, or after it if that batch is lost."""
    while offset < log.log_end_offset:
        try:
            found = log.read(offset, 1, verify=False)
        except CorruptBatchError as corruption:
            offset = Offset(max(corruption.next_offset, offset + 1))
            continue
        if found.buffer:
            return read_header(found.buffer)
        offset = Offset(max(found.next_offset, offset + 1))
    return None

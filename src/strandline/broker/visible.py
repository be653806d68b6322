"""Reading a log as readers may see it: without markers, fillers, and what was aborted.

Rules: any thread; batches as they are in the log, whole and in order, perhaps with gaps between
them. Must not know how transactions end.
"""

import struct
from collections.abc import Callable
from typing import Final

from strandline.record.batch import Attributes, Buffer
from strandline.storage.log import Log
from strandline.types import Offset

_PARTS: Final = struct.Struct("<8xIxxHq32xq")
"""Length, attributes, base offset, producer id."""
_HIDDEN: Final = int(Attributes.MARKER | Attributes.REMOVED)
_SPECIAL: Final = int(_HIDDEN | Attributes.TRANSACTIONAL)

Counts = Callable[[int, int], bool]
"""Whether the batch of a transaction counts, by its producer's id and its base offset."""


def read_visible(
    log: Log, offset: Offset, bytes_max: int, *, below: Offset, counts: Counts
) -> Buffer:
    """As ``Log.read``, of what readers may see.

    Args:
        log: of the partition.
        offset: of the first record wanted.
        bytes_max: about so many.
        below: a stable offset.
        counts: asked of the batches of transactions.

    Returns:
        Whole batches in order, perhaps with gaps between them; empty if nothing is left.

    Raises:
        OffsetOutOfRangeError, CorruptBatchError: as ``Log.read``.
    """
    while True:
        found = log.read(offset, bytes_max, below=below)
        pieces = _stretches(found.buffer, counts)
        if len(pieces) == 1:
            return pieces[0]
        if pieces:
            return b"".join(pieces)
        if not found.buffer or found.next_offset >= below:
            return b""
        offset = found.next_offset


def _stretches(batches: memoryview, counts: Counts) -> list[memoryview]:
    """The stretches of batches that readers may see."""
    unpack, size = _PARTS.unpack_from, len(batches)
    pieces: list[memoryview] = []
    position = start = 0
    while position < size:
        length, attributes, base, producer_id = unpack(batches, position)
        end = position + length
        if attributes & _SPECIAL and (attributes & _HIDDEN or not counts(producer_id, base)):
            if start < position:
                pieces.append(batches[start:position])
            start = end
        position = end
    if start < size:
        pieces.append(batches[start:size])
    return pieces

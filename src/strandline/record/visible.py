"""The filter for the batches that readers may see: neither hidden nor aborted ones.

Must not know how transactions end.
"""

import struct
from collections.abc import Callable
from typing import Final

from strandline.record.batch import Attributes

_PARTS: Final = struct.Struct("<8xIxxHq32xq")
"""The header fields that decide: length, attributes, base offset, producer id."""
_HIDDEN: Final = int(Attributes.MARKER | Attributes.REMOVED | Attributes.PURGE)
_SPECIAL: Final = int(_HIDDEN | Attributes.TRANSACTIONAL)

IsCommitted = Callable[[int, int], bool]
"""Whether a transaction's batch is committed, given its producer's id and its base offset."""


def always_committed(_producer_id: int, _base_offset: int) -> bool:
    """Return True: without transactions every record is visible."""
    return True


def visible_stretches(batches: memoryview, is_committed: IsCommitted) -> list[memoryview]:
    """Return the stretches of whole batches that readers may see.

    Args:
        batches: whole and intact, in order.
        is_committed: called for each batch of a transaction.
    """
    unpack, size = _PARTS.unpack_from, len(batches)
    pieces: list[memoryview] = []
    position = start = 0
    while position < size:
        length, attributes, base, producer_id = unpack(batches, position)
        end = position + length
        if attributes & _SPECIAL and (attributes & _HIDDEN or not is_committed(producer_id, base)):
            if start < position:
                pieces.append(batches[start:position])
            start = end
        position = end
    if start < size:
        pieces.append(batches[start:size])
    return pieces

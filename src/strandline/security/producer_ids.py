"""Producer ids: a unique number combined with the number of the owner.

The owner is the principal that received the id. The metadata numbers principals, so every broker
knows from the id alone which principal may write with it, also after a failover. An id that was
allocated while access control was off has owner 0, which is no principal.
"""

from typing import Final

NUMBER_BITS: Final = 43
OWNERS_MAX: Final = (1 << 63 - NUMBER_BITS) - 1
"""The largest owner: a producer id has 63 bits in a batch's header."""


def producer_id_of(number: int, owner: int) -> int:
    """Return the producer id with this number and this owner."""
    return owner << NUMBER_BITS | number


def owner_of(producer_id: int) -> int:
    """Return the number of the principal that owns a producer id."""
    return producer_id >> NUMBER_BITS

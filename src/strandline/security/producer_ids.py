"""Producer ids: each holds a number that is given out once, and the number of its owner.

The owner is the principal that an id was given to. The metadata numbers principals, so every broker
can tell from the id alone who may write under it, also after a failover. The owner of an id that
was given out while access was not checked is nobody, number 0.
"""

from typing import Final

NUMBER_BITS: Final = 43
OWNERS_MAX: Final = (1 << 63 - NUMBER_BITS) - 1
"""A producer id has 63 bits in a batch's header."""


def producer_id_of(number: int, owner: int) -> int:
    """Return the producer id with this number and this owner."""
    return owner << NUMBER_BITS | number


def owner_of(producer_id: int) -> int:
    """Return the number of the principal that a producer id was given to."""
    return producer_id >> NUMBER_BITS

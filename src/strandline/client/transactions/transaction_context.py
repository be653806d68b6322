"""The transaction that a producer's records belong to."""

from collections.abc import Callable, Collection
from typing import NamedTuple


class TransactionContext(NamedTuple):
    """A transaction as its producers need it: producer id, epoch, and a way to add partitions."""

    producer_id: int
    epoch: int
    add_partitions: Callable[[Collection[int]], None]
    """Called before records are sent to partitions; returns when the coordinator has added them."""

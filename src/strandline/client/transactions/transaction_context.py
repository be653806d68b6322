"""The transaction that a producer's records belong to."""

from collections.abc import Callable, Collection
from typing import NamedTuple


class TransactionContext(NamedTuple):
    """The producer id, epoch and partitions of a transaction, for its producers."""

    producer_id: int
    epoch: int
    add_partitions: Callable[[Collection[int]], None]
    """Called before records go to partitions; returns once the coordinator has added them."""

"""What a producer has to know of the transaction that its records belong to."""

from collections.abc import Callable, Collection
from typing import NamedTuple


class TransactionContext(NamedTuple):
    """A producer's part in a transaction: its numbers are the transaction's, in one epoch."""

    producer_id: int
    epoch: int
    let_in: Callable[[Collection[int]], None]
    """Called before records go to partitions; returns when these let them in."""

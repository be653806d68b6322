"""Events of the coordinator: requests, outcomes of its own effects, and time.

A request's ``token`` comes back with its answer. Rules: plain values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.core.coordinator_effects import EntriesStored, Tick
from strandline.core.transactions.state import (
    BatchOfProducer,
    CoordinatorState,
    TransactionalProducer,
    TransactionPartition,
)


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a transaction. Answered with ``effects.Begun``.

    Attributes:
        after: the producer of the caller's last transaction; None takes the id over.
        nonce: the same in a repeat of this request.
        fresh_id: a producer id that nobody has, and the caller owns; used if a new one is needed.
        batch: what it is a part of.
    """

    token: object
    id: str
    after: TransactionalProducer | None
    nonce: str
    timeout_ms: int
    fresh_id: int
    batch: BatchOfProducer | None = None


@dataclass(frozen=True, slots=True)
class AddTransactionPartitions:
    """Let the transaction into partitions. Answered with None when its records are let in.

    The partition of the coordinator of consumer groups stands for their positions.
    """

    token: object
    id: str
    producer: TransactionalProducer
    places: Sequence[TransactionPartition]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Let it wait for ``EndStaged`` or, if it is a part, for ``Publish``. Answered with None."""

    token: object
    id: str
    producer: TransactionalProducer


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort what is open. Answered with None."""

    token: object
    id: str
    producer: TransactionalProducer
    is_commit: bool


@dataclass(frozen=True, slots=True)
class EndStaged:
    """Commit or abort what is prepared, whoever prepared it. Answered with None."""

    token: object
    id: str
    staged: TransactionalProducer
    is_commit: bool


@dataclass(frozen=True, slots=True)
class Publish:
    """Commit parts together, under the next number. Answered with ``effects.Published``."""

    token: object
    batch: BatchOfProducer
    parts: Sequence[str]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class QueryTransactions:
    """Ask something. Answered with what ``question`` gives, once what it saw is stored."""

    token: object
    question: Callable[[CoordinatorState], object]


Request = Begin | AddTransactionPartitions | Prepare | End | EndStaged | Publish | QueryTransactions


@dataclass(frozen=True, slots=True)
class Marked:
    """A partition has the marker, or is no more."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    is_begin: bool


@dataclass(frozen=True, slots=True)
class NotMarked:
    """The marker could not be written, or nobody knows; try again."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    is_begin: bool


Event = Request | EntriesStored | Marked | NotMarked | Tick

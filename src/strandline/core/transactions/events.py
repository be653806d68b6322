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
        after: the producer of the caller's last transaction; None takes over the id.
        nonce: the same in a repeat of this request.
        fresh_id: an unused producer id that the caller owns; used if a new one is needed.
        batch: the batch that it is a part of, if any.
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
    """Add partitions to the transaction. Answered with None when they accept its records.

    The group coordinator's partition stands for committed offsets.
    """

    token: object
    id: str
    producer: TransactionalProducer
    places: Sequence[TransactionPartition]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare it for ``EndStaged`` or, if it is a part, for ``Publish``. Answered with None."""

    token: object
    id: str
    producer: TransactionalProducer


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort an open transaction. Answered with None."""

    token: object
    id: str
    producer: TransactionalProducer
    is_commit: bool


@dataclass(frozen=True, slots=True)
class EndStaged:
    """Commit or abort a prepared transaction of any producer. Answered with None."""

    token: object
    id: str
    staged: TransactionalProducer
    is_commit: bool


@dataclass(frozen=True, slots=True)
class Publish:
    """Commit parts together, under the next batch number. Answered with ``effects.Published``."""

    token: object
    batch: BatchOfProducer
    parts: Sequence[str]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class QueryTransactions:
    """Query the state. Answered with the result of ``question`` once what it saw is stored."""

    token: object
    question: Callable[[CoordinatorState], object]


Request = Begin | AddTransactionPartitions | Prepare | End | EndStaged | Publish | QueryTransactions


@dataclass(frozen=True, slots=True)
class Marked:
    """A partition has the marker, or was deleted."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    is_begin: bool


@dataclass(frozen=True, slots=True)
class NotMarked:
    """The marker was not written, or it is unknown whether it was; retry."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    is_begin: bool


Event = Request | EntriesStored | Marked | NotMarked | Tick

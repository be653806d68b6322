"""Events of the coordinator: requests, outcomes of its own effects, and time.

A request's ``token`` comes back with its answer. Rules: plain values.
"""

from collections.abc import Callable, Sequence

import msgspec

from strandline.core.coordinator_effects import EntriesStored, Tick
from strandline.core.transactions.state import (
    BatchOfProducer,
    CoordinatorState,
    TransactionalProducer,
    TransactionPartition,
)


class Begin(msgspec.Struct, frozen=True):
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


class AddTransactionPartitions(msgspec.Struct, frozen=True):
    """Add partitions to the transaction. Answered with None when they accept its records.

    The group coordinator's partition stands for committed offsets.
    """

    token: object
    id: str
    producer: TransactionalProducer
    places: Sequence[TransactionPartition]


class Prepare(msgspec.Struct, frozen=True):
    """Prepare a transaction for ``EndStaged`` or, if it is a part of a batch, for ``Publish``.

    Answered with None.
    """

    token: object
    id: str
    producer: TransactionalProducer


class End(msgspec.Struct, frozen=True):
    """Commit or abort an open transaction. Answered with None."""

    token: object
    id: str
    producer: TransactionalProducer
    is_commit: bool


class EndStaged(msgspec.Struct, frozen=True):
    """Commit or abort a prepared transaction of any producer. Answered with None."""

    token: object
    id: str
    staged: TransactionalProducer
    is_commit: bool


class Publish(msgspec.Struct, frozen=True):
    """Commit parts together, under the next batch number. Answered with ``effects.Published``."""

    token: object
    batch: BatchOfProducer
    parts: Sequence[str]
    fingerprint: str


class QueryTransactions(msgspec.Struct, frozen=True):
    """Query the state. Answered with the result of ``question`` once the state it saw is stored."""

    token: object
    question: Callable[[CoordinatorState], object]


Request = Begin | AddTransactionPartitions | Prepare | End | EndStaged | Publish | QueryTransactions


class Marked(msgspec.Struct, frozen=True):
    """A partition has the marker, or was deleted."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    is_begin: bool


class NotMarked(msgspec.Struct, frozen=True):
    """The marker was not written, or it is unknown whether it was; retry."""

    id: str
    producer: TransactionalProducer
    place: TransactionPartition
    is_begin: bool


Event = Request | EntriesStored | Marked | NotMarked | Tick

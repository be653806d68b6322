"""Transactions on the wire: names of DoAction actions, their bodies and answers.

| action | body | results |
|---|---|---|
| begin_transaction | BeginTransaction | TransactionBegun |
| add_to_transaction | AddToTransaction | none |
| prepare_transaction | PrepareTransaction | none |
| end_transaction | EndTransaction | none |
| end_prepared | EndPrepared | none |
| commit_staged | CommitStaged | Publication |
| last_published | TransactionName | Publication, or none |
| list_transactions | empty | TransactionInfo, one per id |

The leader of ``COORDINATOR_STREAM`` serves these actions; other brokers answer ``not_leader``. Each
action may be retried when its answer was lost.

Rules: see ``admin``.
"""

from typing import Annotated

import msgspec

from strandline.api.wire import Count, Name, PartitionNumber, WireAnswer, WireMessage

COORDINATOR_STREAM = "__transactions"

BEGIN_TRANSACTION = "begin_transaction"
ADD_TO_TRANSACTION = "add_to_transaction"
PREPARE_TRANSACTION = "prepare_transaction"
END_TRANSACTION = "end_transaction"
END_PREPARED = "end_prepared"
COMMIT_STAGED = "commit_staged"
LAST_PUBLISHED = "last_published"
LIST_TRANSACTIONS = "list_transactions"

ACTIONS: dict[str, str] = {
    BEGIN_TRANSACTION: "Begin a transaction; body: {id, nonce, timeout_ms, after, batch}.",
    ADD_TO_TRANSACTION: "Let it into partitions; body: {id, producer, partitions, positions}.",
    PREPARE_TRANSACTION: "Let a decision from outside end it; body: {id, producer}.",
    END_TRANSACTION: "Commit or abort it; body: {id, producer, commit}.",
    END_PREPARED: "Commit or abort what is prepared; body: {id, staged, commit}.",
    COMMIT_STAGED: "Commit parts together; body: {transaction_id, batch, parts, fingerprint}.",
    LAST_PUBLISHED: "The last batch published; body: {transaction_id}.",
    LIST_TRANSACTIONS: "Every transactional id and its last transaction; no body.",
}
"""See ``admin.ACTIONS``."""

ID_BYTES_MAX = 400
TIMEOUT_MS_MAX = 24 * 3600 * 1000
PARTITIONS_MAX = 10_000
PARTS_MAX = 5_000
FINGERPRINT_BYTES_MAX = 1_000

TransactionalId = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_BYTES_MAX)]
TimeoutMs = Annotated[int, msgspec.Meta(ge=1, le=TIMEOUT_MS_MAX)]
_Fingerprint = Annotated[str, msgspec.Meta(max_length=FINGERPRINT_BYTES_MAX)]


class ProducerRef(WireMessage, frozen=True, array_like=True):
    """The producer of a transaction."""

    producer_id: Count
    epoch: Count


class PartitionRef(WireMessage, frozen=True, array_like=True):
    """A partition by name."""

    stream: Name
    partition: PartitionNumber


class StagedBatchRef(WireMessage, frozen=True, array_like=True):
    """A batch number of a transactional id, to be published from several parts."""

    transaction_id: TransactionalId
    number: Count


class BeginTransaction(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to begin a transaction."""

    id: TransactionalId
    nonce: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    """A random value, the same in each retry."""
    timeout_ms: TimeoutMs
    after: ProducerRef | None = None
    """Of the caller's last transaction; without it the id is taken over."""
    batch: StagedBatchRef | None = None
    """The batch that this is a part of."""


class TransactionBegun(WireAnswer, frozen=True, kw_only=True):
    """The answer to the start of a transaction."""

    producer: ProducerRef | None
    """None: the batch is published already, there is nothing to stage."""


class AddToTransaction(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to add partitions, or committed offsets of groups, to a transaction."""

    id: TransactionalId
    producer: ProducerRef
    partitions: Annotated[tuple[PartitionRef, ...], msgspec.Meta(max_length=PARTITIONS_MAX)] = ()
    positions: bool = False
    """Whether it is to commit positions, by ``commit_offsets`` of groups."""


class PrepareTransaction(WireMessage, frozen=True, kw_only=True):
    """A request to prepare a transaction whose outcome another system decides."""

    id: TransactionalId
    producer: ProducerRef


class EndTransaction(WireMessage, frozen=True, kw_only=True):
    """A request to commit or abort a transaction."""

    id: TransactionalId
    producer: ProducerRef
    commit: bool


class EndPrepared(WireMessage, frozen=True, kw_only=True):
    """A request to commit or abort a prepared transaction."""

    id: TransactionalId
    staged: Annotated[str, msgspec.Meta(pattern=r"^\d{1,19}\.\d{1,5}$")]
    commit: bool


class CommitStaged(WireMessage, frozen=True, kw_only=True):
    """A request to commit staged parts together, under an increasing batch number."""

    transaction_id: TransactionalId
    batch: Count
    parts: Annotated[tuple[TransactionalId, ...], msgspec.Meta(max_length=PARTS_MAX)]
    fingerprint: _Fingerprint


class TransactionName(WireMessage, frozen=True, kw_only=True):
    """A reference to a transactional id."""

    transaction_id: TransactionalId


class StagedPublication(WireAnswer, frozen=True, kw_only=True):
    """A published batch."""

    transaction_id: str
    batch_id: int
    fingerprint: str
    is_repeat: bool = False
    """Whether it had been published before."""


class TransactionInfo(WireAnswer, frozen=True, kw_only=True):
    """The newest transaction of an id."""

    id: str
    status: str
    """``open``, ``prepared``, ``committing``, ``aborting``, ``committed`` or ``aborted``."""
    staged_id: str
    """The id by which another system ends it once it is prepared."""
    timeout_ms: int
    partitions: tuple[PartitionRef, ...]
    reason: str = ""
    """The reason of an abort."""

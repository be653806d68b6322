"""The transaction commands.

The leader of ``COORDINATOR_STREAM`` serves them; other brokers answer ``not_leader``. A command may
be retried if its answer was lost.
"""

from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.command import AdminCommand, no_needs
from strandline.api.required_permissions import Need, group, known_group, stream
from strandline.api.wire import Count, Name, PartitionNumber, WireAnswer, WireMessage

COORDINATOR_STREAM = "__transactions"

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
    """A numbered batch of a transactional id that consists of several parts, published together."""

    transaction_id: TransactionalId
    number: Count


class BeginTransaction(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to begin a transaction."""

    id: TransactionalId
    nonce: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    """A random value, the same in each retry."""
    timeout_ms: TimeoutMs
    after: ProducerRef | None = None
    """The producer of the caller's last transaction; None: take the id over from any other."""
    batch: StagedBatchRef | None = None
    """The batch that this transaction is a part of."""


class TransactionBegun(WireAnswer, frozen=True, kw_only=True):
    """The answer to ``BeginTransaction``."""

    producer: ProducerRef | None
    """None: the batch was published before, so there is nothing to stage."""


class AddToTransaction(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to add partitions, or committed offsets of groups, to a transaction."""

    id: TransactionalId
    producer: ProducerRef
    partitions: Annotated[tuple[PartitionRef, ...], msgspec.Meta(max_length=PARTITIONS_MAX)] = ()
    positions: bool = False
    """Whether the transaction will commit offsets, by ``commit_offsets`` of groups."""


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
    """Whether the batch had been published by an earlier request."""


class TransactionInfo(WireAnswer, frozen=True, kw_only=True):
    """The newest transaction of a transactional id."""

    id: str
    status: str
    """``open``, ``prepared``, ``committing``, ``aborting``, ``committed`` or ``aborted``."""
    staged_id: str
    """The id by which another system ends the transaction once it is prepared."""
    timeout_ms: int
    partitions: tuple[PartitionRef, ...]
    reason: str = ""
    """Why the transaction was aborted."""


def _needs_to_begin(request: BeginTransaction) -> Iterator[Need]:
    yield group(request.id)
    if request.batch is not None:
        yield group(request.batch.transaction_id)


def _needs_to_add(request: AddToTransaction) -> Iterator[Need]:
    yield group(request.id)
    for each in request.partitions:
        yield stream(each.stream, "publish")


BEGIN_TRANSACTION: Final = AdminCommand(
    name="begin_transaction",
    help="Begin a transaction.",
    request=BeginTransaction,
    result=TransactionBegun,
    needs=_needs_to_begin,
    producer=lambda it: None if it.after is None else it.after.producer_id,
)
ADD_TO_TRANSACTION: Final = AdminCommand(
    name="add_to_transaction",
    help="Add partitions, or the committed offsets of groups, to a transaction.",
    request=AddToTransaction,
    result=NoneType,
    needs=_needs_to_add,
    producer=lambda it: it.producer.producer_id,
)
PREPARE_TRANSACTION: Final = AdminCommand(
    name="prepare_transaction",
    help="Prepare a transaction whose outcome another system decides.",
    request=PrepareTransaction,
    result=NoneType,
    needs=lambda it: [group(it.id)],
    producer=lambda it: it.producer.producer_id,
)
END_TRANSACTION: Final = AdminCommand(
    name="end_transaction",
    help="Commit or abort a transaction.",
    request=EndTransaction,
    result=NoneType,
    needs=lambda it: [group(it.id)],
    producer=lambda it: it.producer.producer_id,
)
END_PREPARED: Final = AdminCommand(
    name="end_prepared",
    help="Commit or abort a prepared transaction.",
    request=EndPrepared,
    result=NoneType,
    needs=lambda it: [group(it.id)],
)
COMMIT_STAGED: Final = AdminCommand(
    name="commit_staged",
    help="Commit staged parts together.",
    request=CommitStaged,
    result=StagedPublication,
    needs=lambda it: [group(it.transaction_id)],
)
LAST_PUBLISHED: Final = AdminCommand(
    name="last_published",
    help="Describe the last published batch of a transactional id, if there is one.",
    request=TransactionName,
    result=StagedPublication,
    needs=lambda it: [group(it.transaction_id)],
)
LIST_TRANSACTIONS: Final = AdminCommand(
    name="list_transactions",
    help="List every transactional id and its newest transaction.",
    request=NoneType,
    result=TransactionInfo,
    needs=no_needs,
    visibility=lambda it: known_group(it.id),
)

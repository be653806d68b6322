"""State of the coordinator, and the entries that change it.

The state is the result of applying its entries in the order in which they were stored. So a new
coordinator knows what its predecessor knew. One entry is one atomic decision: the outcome of any
number of transactions, and the publication they belong to.

Rules: entries carry results, not requests, so applying them decides nothing. Pure.
"""

import enum
from typing import Any

import msgspec

from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.types import LogId

EPOCH_MAX = (1 << 15) - 1
"""The largest epoch that a batch header can hold; after it another producer id is used."""
IDS_MAX = 100_000
"""The most transactional ids remembered; beyond it those that ended longest ago are forgotten."""


class TransactionPartition(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A partition; the log id distinguishes partitions recreated under the same name."""

    stream: str
    partition: int
    log_id: LogId

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


class TransactionalProducer(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The producer of a transaction; its epoch differs in every transaction."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}.{self.epoch}"


class TransactionStatus(enum.Enum):
    """The phase of a transaction; it only moves forward in this list."""

    OPEN = "open"
    PREPARED = "prepared"
    """All its records are written. An external decision ends it, or a timeout if it is a part."""
    COMMITTING = "committing"
    """Decided; not every partition has its marker yet."""
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"

    @property
    def is_undecided(self) -> bool:
        """Whether it may still be committed or aborted."""
        return self in (TransactionStatus.OPEN, TransactionStatus.PREPARED)

    @property
    def is_marking(self) -> bool:
        """Whether it is decided and markers are pending."""
        return self in (TransactionStatus.COMMITTING, TransactionStatus.ABORTING)

    @property
    def is_commit(self) -> bool:
        """Whether it was decided to commit."""
        return self in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)

    @property
    def completed(self) -> "TransactionStatus":
        """Return the final phase, in which every marker is written."""
        return TransactionStatus.COMMITTED if self.is_commit else TransactionStatus.ABORTED


class BatchOfProducer(msgspec.Struct, frozen=True, array_like=True):
    """The numbered batch that a part was staged for."""

    transaction_id: str
    number: int


class TransactionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest transaction of a transactional id."""

    id: str
    producer: TransactionalProducer
    status: TransactionStatus
    timeout_ms: int
    nonce: str
    """Given by the request that began it; a repeat of the request has the same."""
    places: tuple[TransactionPartition, ...] = ()
    """Every partition that may have records of the transaction: each gets a marker."""
    batch: BatchOfProducer | None = None
    """The batch that this transaction is a part of, if any."""
    reason: str = ""
    """Why it was aborted."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The last batch that was published under a transaction id."""

    transaction_id: str
    batch: int
    fingerprint: str


class TransactionOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a transaction; small, since a publication may decide thousands."""

    id: str
    status: TransactionStatus
    reason: str = ""


class TransactionEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One atomic change; the fields are applied in order."""

    transactions: tuple[TransactionState, ...] = ()
    outcomes: tuple[TransactionOutcome, ...] = ()
    publications: tuple[Publication, ...] = ()
    forgotten: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TransactionEntry).decode


def encode_entry(entry: TransactionEntry) -> bytes:
    """Encode an entry as a record's value."""
    return _encode(entry)


def decode_entry(value: bytes) -> TransactionEntry:
    """Decode the entry in a record.

    Raises:
        InvalidRecordError: the value is not an entry.
    """
    try:
        return _decode(value)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not an entry of the transaction coordinator: {error}") from error


class CoordinatorState:
    """The state of the transaction coordinator."""

    def __init__(self) -> None:
        self.transactions: dict[str, TransactionState] = {}
        """By transactional id, those that changed last at the end."""
        self.publications: dict[str, Publication] = {}

    def apply(self, entry: TransactionEntry) -> None:
        """Apply an entry."""
        for transaction in entry.transactions:
            self._put(transaction)
        for outcome in entry.outcomes:
            known = self.transactions.get(outcome.id)
            if known is None:
                continue  # the entry that began it is corrupt and lost
            self._put(msgspec.structs.replace(known, status=outcome.status, reason=outcome.reason))
        for publication in entry.publications:
            self.publications[publication.transaction_id] = publication
        for gone in entry.forgotten:
            self.transactions.pop(gone, None)

    def _put(self, transaction: TransactionState) -> None:
        self.transactions.pop(transaction.id, None)
        self.transactions[transaction.id] = transaction

    def parts_of(self, transaction_id: str) -> list[TransactionState]:
        """Return the staged parts under a transaction id that are still known."""
        return [
            each
            for each in self.transactions.values()
            if each.batch is not None and each.batch.transaction_id == transaction_id
        ]

    def surplus(self) -> tuple[str, ...]:
        """Return the ids to forget because there are too many: those that ended longest ago."""
        too_many = len(self.transactions) - IDS_MAX
        if too_many <= 0:
            return ()
        ended = [
            each.id
            for each in self.transactions.values()
            if not each.status.is_undecided and not each.status.is_marking
        ]
        return tuple(ended[:too_many])

    def entries(self, per_entry: int) -> list[TransactionEntry]:
        """Return the whole state as new entries of a limited number of items."""
        transactions = list(self.transactions.values())
        publications = list(self.publications.values())
        found = [
            TransactionEntry(transactions=tuple(transactions[start : start + per_entry]))
            for start in range(0, len(transactions), per_entry)
        ]
        found += [
            TransactionEntry(publications=tuple(publications[start : start + per_entry]))
            for start in range(0, len(publications), per_entry)
        ]
        return found

    def as_plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for tests and traces."""
        plain: dict[str, Any] = msgspec.to_builtins(
            {
                "transactions": self.transactions,
                "publications": self.publications,
            },
            str_keys=True,
        )
        return plain

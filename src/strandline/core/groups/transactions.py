"""The transactions that may commit offsets: those that have begun here and have not ended.

Rules: a transaction begins once and ends once, however late or often its events arrive. A later
transaction of the same producer ends it. So offsets that arrive late are rejected, and nothing
waits for an end that has passed.

Must not know who decides a transaction; events report the outcome.
"""

import enum

import msgspec

ENDED_MAX = 10_000
"""How many producers' last epochs are remembered; those that ended longest ago are forgotten. A
forgotten one cannot begin again: only the transaction coordinator begins, and without delay."""


class PendingOffsets(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A transaction, named by its producer; the epoch differs in each."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}.{self.epoch}"


class TransactionMark(enum.Enum):
    """The beginning or the outcome of a transaction."""

    BEGIN = "begin"
    """Offsets are accepted from here on, and wait for the end."""
    COMMIT = "commit"
    ABORT = "abort"


class _OpenOffsets:
    """A transaction that has not ended."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.groups: set[str] = set()
        """Groups with offsets that wait for it."""


class Transactions:
    """The transactions known to the group coordinator."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenOffsets] = {}
        self._ended: dict[int, int] = {}

    def may_begin(self, transaction: PendingOffsets) -> bool:
        """Whether neither this transaction nor a later one of its producer has begun or ended."""
        known = self._open.get(transaction.producer_id)
        last = self._ended.get(transaction.producer_id, -1)
        return transaction.epoch > max(last, -1 if known is None else known.epoch)

    def is_open(self, transaction: PendingOffsets) -> bool:
        """Whether the transaction has begun and not ended."""
        known = self._open.get(transaction.producer_id)
        return known is not None and known.epoch == transaction.epoch

    def has_ended(self, transaction: PendingOffsets) -> bool:
        """Whether the transaction, or a later one of its producer, has ended."""
        return self._ended.get(transaction.producer_id, -1) >= transaction.epoch

    def begin(self, transaction: PendingOffsets) -> None:
        """Note that a transaction has begun."""
        if self.may_begin(transaction):
            self._open[transaction.producer_id] = _OpenOffsets(transaction.epoch)

    def wait(self, transaction: PendingOffsets, group: str) -> None:
        """Note that a group has offsets that wait for the transaction's end."""
        self.begin(transaction)  # the entry that began it may be deleted already
        if self.is_open(transaction):
            self._open[transaction.producer_id].groups.add(group)

    def waiting(self, transaction: PendingOffsets) -> frozenset[str]:
        """Return the groups whose offsets wait for the transaction's end."""
        if not self.is_open(transaction):
            return frozenset()
        return frozenset(self._open[transaction.producer_id].groups)

    def end(self, transaction: PendingOffsets) -> frozenset[str]:
        """Note that a transaction has ended; return the groups whose offsets waited for it."""
        last = self._ended.pop(transaction.producer_id, -1)
        self._ended[transaction.producer_id] = max(last, transaction.epoch)
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        waiting = self.waiting(transaction)
        known = self._open.get(transaction.producer_id)
        if known is not None and known.epoch <= transaction.epoch:
            del self._open[transaction.producer_id]
        return waiting

    def opened(self) -> list[PendingOffsets]:
        """Return the transactions that have begun and not ended."""
        return [PendingOffsets(producer_id, each.epoch) for producer_id, each in self._open.items()]

    def ended(self) -> list[PendingOffsets]:
        """Return the last transaction that ended of each known producer."""
        return [PendingOffsets(*each) for each in self._ended.items()]

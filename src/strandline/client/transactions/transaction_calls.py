"""Calls to the transaction coordinator, repeated until they are answered.

Rules: every call may be repeated after a lost answer, since the coordinator remembers what it has
done. The coordinator is the leader of its stream, so it may move to another broker.
"""

import secrets
from typing import TypeVar

from strandline.api import transactions as wire
from strandline.api.command import AdminCommand
from strandline.client.arguments import milliseconds
from strandline.client.cluster_client import ClusterClient
from strandline.client.coordinator_client import CoordinatorClient

ANSWER_TIMEOUT_S = 60.0
Q = TypeVar("Q")
A = TypeVar("A")


class CoordinatorCalls:
    """Calls to the transaction coordinator.

    Args:
        brokers: the brokers of the cluster.
        timeout_s: how long to retry.
    """

    def __init__(self, brokers: ClusterClient, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._coordinator = CoordinatorClient(brokers, wire.COORDINATOR_STREAM)
        self._timeout_s = timeout_s

    def begin(
        self,
        id_: str,
        *,
        timeout_s: float,
        after: wire.ProducerRef | None = None,
        batch: wire.StagedBatchRef | None = None,
    ) -> wire.ProducerRef | None:
        """Begin a transaction; see ``api.transactions.BeginTransaction``."""
        request = wire.BeginTransaction(
            id=id_,
            nonce=secrets.token_hex(16),
            timeout_ms=milliseconds(timeout_s, "timeout_s"),
            after=after,
            batch=batch,
        )
        [begun] = self._ask(wire.BEGIN_TRANSACTION, request)
        return begun.producer

    def add(
        self, id_: str, producer: wire.ProducerRef, partitions: tuple[wire.PartitionRef, ...]
    ) -> None:
        """Add partitions to a transaction."""
        request = wire.AddToTransaction(id=id_, producer=producer, partitions=partitions)
        self._ask(wire.ADD_TO_TRANSACTION, request, partitions=partitions)

    def add_positions(self, id_: str, producer: wire.ProducerRef) -> None:
        """Announce that a transaction commits offsets of consumer groups."""
        request = wire.AddToTransaction(id=id_, producer=producer, positions=True)
        self._ask(wire.ADD_TO_TRANSACTION, request)

    def prepare(self, id_: str, producer: wire.ProducerRef) -> None:
        """Prepare a transaction, which another process may end."""
        request = wire.PrepareTransaction(id=id_, producer=producer)
        self._ask(wire.PREPARE_TRANSACTION, request)

    def end(self, id_: str, producer: wire.ProducerRef, *, commit: bool) -> None:
        """Commit or abort a transaction."""
        request = wire.EndTransaction(id=id_, producer=producer, commit=commit)
        self._ask(wire.END_TRANSACTION, request)

    def end_prepared(self, id_: str, staged: str, *, commit: bool) -> None:
        """Commit or abort a prepared transaction."""
        self._ask(wire.END_PREPARED, wire.EndPrepared(id=id_, staged=staged, commit=commit))

    def publish(self, request: wire.CommitStaged) -> wire.StagedPublication:
        """Commit the staged parts of a batch."""
        [found] = self._ask(wire.COMMIT_STAGED, request)
        return found

    def last_published(self, transaction_id: str) -> wire.StagedPublication | None:
        """Return the last batch committed under a transaction id."""
        request = wire.TransactionName(transaction_id=transaction_id)
        found = self._ask(wire.LAST_PUBLISHED, request)
        return found[0] if found else None

    def transactions(self) -> list[wire.TransactionInfo]:
        """Return every transactional id and the state of its last transaction."""
        return self._ask(wire.LIST_TRANSACTIONS, None)

    def _ask(
        self,
        command: AdminCommand[Q, A],
        request: Q,
        *,
        partitions: tuple[wire.PartitionRef, ...] = (),
    ) -> list[A]:
        names = [(each.stream, each.partition) for each in partitions]
        ask = self._coordinator.ask
        return ask(command, request, timeout_s=self._timeout_s, partitions=names)

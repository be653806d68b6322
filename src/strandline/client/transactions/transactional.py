"""The transactional calls of a client, as a part of ``Client``."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property

from strandline.api import transactions as wire
from strandline.client.arguments import listed, text, whole_number
from strandline.client.cluster_client import ClusterClient
from strandline.client.consumer.offset_store import LogOffsetStore, Offsets
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.producer.producer import Producer
from strandline.client.transactions.staged_write import StagedWrite
from strandline.client.transactions.transaction import Transaction
from strandline.client.transactions.transaction_calls import CoordinatorCalls
from strandline.client.transactions.transaction_context import TransactionContext
from strandline.client.transactions.transactional_writer import TransactionalWriter
from strandline.errors import InvalidRequestError

TIMEOUT_S = 60.0
STAGE_TIMEOUT_S = 3600.0
OFFSETS_PART = "offsets"


class TransactionalClient(ABC):
    """The transactional calls of a client."""

    @property
    @abstractmethod
    def _known(self) -> ClusterClient:
        """Return the brokers of the client."""

    @abstractmethod
    def _transactional_producer(self, stream: str, transaction: TransactionContext) -> Producer:
        """Return a producer whose records belong to a transaction."""

    @property
    @abstractmethod
    def group_coordinator(self) -> CoordinatorClient:
        """Return the coordinator of consumer groups."""

    @cached_property
    def _coordinator(self) -> CoordinatorCalls:
        return CoordinatorCalls(self._known)

    @cached_property
    def _last_producers(self) -> dict[str, wire.ProducerRef]:
        """Return this client's last producer of each id; one of another client would fence it."""
        return {}

    def transaction(self, transactional_id: str, *, timeout_s: float = TIMEOUT_S) -> Transaction:
        """Begin a transaction; leaving its context commits it, an exception aborts it.

        The first transaction of a client under an id takes the id over: an open transaction of
        another process under that id is aborted, and that process cannot begin another one.

        Args:
            transactional_id: the name of the work; it stays the same after a restart of the
                process.
            timeout_s: how long the transaction may stay open before it is aborted; a day at most.

        Raises:
            ProducerFencedError: another client has taken the id over.
            TransactionPreparedError: the id's last transaction is prepared; commit or abort it.
        """
        producer = self._coordinator.begin(
            text(transactional_id, "a transaction"),
            timeout_s=timeout_s,
            after=self._last_producers.get(transactional_id),
        )
        assert producer is not None, "only a part of a committed batch has no producer"
        self._last_producers[transactional_id] = producer
        return Transaction(self._writer(transactional_id, producer))

    def _writer(self, id_: str, producer: wire.ProducerRef) -> TransactionalWriter:
        return TransactionalWriter(
            self._coordinator,
            self._transactional_producer,
            positions=LogOffsetStore(self.group_coordinator),
            id_=id_,
            producer=producer,
        )

    def commit_prepared(self, transactional_id: str, staged_id: str) -> None:
        """Commit a transaction that ``Transaction.prepare`` has left; has no effect when repeated.

        Raises:
            UnknownTransactionError: nothing is prepared under these ids.
            TransactionAbortedError: the transaction was aborted.
        """
        self._end_prepared(transactional_id, staged_id, commit=True)

    def abort_prepared(self, transactional_id: str, staged_id: str) -> None:
        """Abort a transaction that ``Transaction.prepare`` has left; has no effect when repeated.

        Raises:
            UnknownTransactionError: nothing is prepared under these ids, or it was committed.
        """
        self._end_prepared(transactional_id, staged_id, commit=False)

    def _end_prepared(self, transactional_id: str, staged_id: str, *, commit: bool) -> None:
        name = text(transactional_id, "a transaction")
        self._coordinator.end_prepared(
            name, text(staged_id, "a prepared transaction"), commit=commit
        )

    def transactions(self) -> list[wire.TransactionInfo]:
        """Return every transactional id and the state of its last transaction."""
        return self._coordinator.transactions()

    def stage(
        self, transaction_id: str, batch_id: int, *, timeout_s: float = STAGE_TIMEOUT_S
    ) -> StagedWrite:
        """Begin one part of a batch; ``commit_staged`` commits all parts together.

        Args:
            transaction_id: the id under which batches are committed.
            batch_id: the number of the batch, from 0.
            timeout_s: how long until the part is discarded if it is not committed; a day at most.

        Raises:
            StrandlineError: the coordinator did not answer.
        """
        batch = _batch(transaction_id, batch_id)
        return self._stage(secrets.token_hex(8), batch, timeout_s=timeout_s)

    def _stage(self, name: str, batch: wire.StagedBatchRef, *, timeout_s: float) -> StagedWrite:
        """Begin one part of a batch; a part of the same name is replaced."""
        part = f"{batch.transaction_id}/{batch.number}/{name}"
        producer = self._coordinator.begin(part, timeout_s=timeout_s, batch=batch)
        return StagedWrite(None if producer is None else self._writer(part, producer))

    def commit_staged(
        self,
        transaction_id: str,
        batch_id: int,
        refs: Iterable[str],
        *,
        fingerprint: str,
        offsets: Mapping[str, Offsets] | None = None,
    ) -> wire.StagedPublication:
        """Commit the staged parts of a batch together; has no effect when repeated.

        Parts of this or an earlier batch that are not in ``refs`` are discarded.

        Args:
            transaction_id: the id under which batches are committed.
            batch_id: larger than that of the last committed batch; the same for a repeat.
            refs: the references of the finished parts; empty ones are ignored.
            fingerprint: the fingerprint of the batch; a repeat must have the same.
            offsets: the offsets to commit with the batch, by consumer group without members.

        Raises:
            GroupInUseError: one of the groups has members.
            InvalidRequestError: an argument is of the wrong type.
            UnknownTransactionError: a part does not exist (any more): stage the batch again.
            BatchSupersededError: a batch with a larger number was committed.
            FingerprintMismatchError: the batch was committed with another fingerprint.
        """
        batch = _batch(transaction_id, batch_id)
        parts = [text(ref, "a part") for ref in listed(refs, "refs") if ref]
        if not isinstance(fingerprint, str):
            raise InvalidRequestError(f"fingerprint must be text, got {fingerprint!r}")
        if offsets:
            # With the fixed name a repeated attempt replaces the part of the attempt before.
            with self._stage(OFFSETS_PART, batch, timeout_s=TIMEOUT_S) as stage:
                for group, committed in offsets.items():
                    stage.commit_offsets(group, committed)
                parts += filter(None, [stage.finish().ref])
        request = wire.CommitStaged(
            transaction_id=batch.transaction_id,
            batch=batch.number,
            parts=tuple(parts),
            fingerprint=fingerprint,
        )
        return self._coordinator.publish(request)

    def last_published(self, transaction_id: str) -> wire.StagedPublication | None:
        """Return the last batch committed under a transaction id, or None."""
        return self._coordinator.last_published(text(transaction_id, "a transaction"))


def _batch(transaction_id: str, number: int) -> wire.StagedBatchRef:
    """Return a reference to a batch.

    Raises:
        InvalidRequestError: the id is not text, or the number is not a whole number.
    """
    return wire.StagedBatchRef(
        text(transaction_id, "a transaction"), whole_number(number, "a batch")
    )

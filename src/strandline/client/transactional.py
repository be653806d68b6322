"""What clients offer of transactions; the part of ``Client`` that has to do with them."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property

from strandline.client.arguments import listed, text, whole_number
from strandline.client.cluster_client import ClusterClient
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.positions import LogPositions, Offsets
from strandline.client.producer import Producer
from strandline.client.staged_write import StagedWrite
from strandline.client.transaction import Transaction
from strandline.client.transaction_calls import CoordinatorCalls
from strandline.client.transaction_context import TransactionContext
from strandline.client.transactional_writer import TransactionalWriter
from strandline.errors import InvalidRequestError
from strandline.protocol import transactions as wire

TIMEOUT_S = 60.0
STAGE_TIMEOUT_S = 3600.0
POSITIONS_PART = "positions"


class TransactionalClient(ABC):
    """Transactions of a client."""

    @property
    @abstractmethod
    def _known(self) -> ClusterClient:
        """The brokers of the client."""

    @abstractmethod
    def _enlisted_producer(self, stream: str, enlisted: TransactionContext) -> Producer:
        """A producer whose records belong to a transaction."""

    @property
    @abstractmethod
    def group_office(self) -> CoordinatorClient:
        """The coordinator of consumer groups."""

    @cached_property
    def _coordinator(self) -> CoordinatorCalls:
        return CoordinatorCalls(self._known)

    @cached_property
    def _last_producers(self) -> dict[str, wire.ProducerRef]:
        """Ours under each transactional id: who has taken it over since fences us."""
        return {}

    def transaction(self, transactional_id: str, *, timeout_s: float = TIMEOUT_S) -> Transaction:
        """Begin a transaction; leaving its context commits, an exception aborts.

        The first one of a client under an id takes it over: what another process has open under it
        is aborted, and that process can begin no more.

        Args:
            transactional_id: names the work, the same after a restart of the process.
            timeout_s: what is not committed by then is aborted, at most a day.

        Raises:
            ProducerFencedError: another client has taken the id over.
            TransactionPreparedError: the last one waits for ``commit_staged`` or ``abort_staged``.
        """
        producer = self._coordinator.begin(
            text(transactional_id, "a transaction"),
            timeout_s=timeout_s,
            after=self._last_producers.get(transactional_id),
        )
        assert producer is not None, "only parts have nothing to do"
        self._last_producers[transactional_id] = producer
        return Transaction(self._writing(transactional_id, producer))

    def _writing(self, id_: str, producer: wire.ProducerRef) -> TransactionalWriter:
        return TransactionalWriter(
            self._coordinator,
            self._enlisted_producer,
            positions=LogPositions(self.group_office),
            id_=id_,
            producer=producer,
        )

    def commit_staged(self, transactional_id: str, staged_id: str) -> None:
        """Commit what ``Transaction.prepare`` has left; harmless when repeated.

        Raises:
            UnknownTransactionError: nothing is prepared under these ids.
            TransactionAbortedError: it was aborted.
        """
        self._end_staged(transactional_id, staged_id, commit=True)

    def abort_staged(self, transactional_id: str, staged_id: str) -> None:
        """Abort what ``Transaction.prepare`` has left; harmless when repeated.

        Raises:
            UnknownTransactionError: nothing is prepared under these ids, or it was committed.
        """
        self._end_staged(transactional_id, staged_id, commit=False)

    def _end_staged(self, transactional_id: str, staged_id: str, *, commit: bool) -> None:
        name = text(transactional_id, "a transaction")
        self._coordinator.end_staged(name, text(staged_id, "what is staged"), commit=commit)

    def transactions(self) -> list[wire.TransactionInfo]:
        """Every transactional id, and what its last transaction is."""
        return self._coordinator.transactions()

    def stage(
        self, transaction_id: str, batch_id: int, *, timeout_s: float = STAGE_TIMEOUT_S
    ) -> StagedWrite:
        """Begin one part of a batch, which ``publish_staged`` makes count with the others.

        Args:
            transaction_id: under which batches are published.
            batch_id: of the batch, from 0.
            timeout_s: what is not published by then is discarded, at most a day.

        Raises:
            StrandlineError: the coordinator was not reached.
        """
        batch = _batch(transaction_id, batch_id)
        return self._stage(secrets.token_hex(8), batch, timeout_s=timeout_s)

    def _stage(self, name: str, batch: wire.BatchRef, *, timeout_s: float) -> StagedWrite:
        """One part of a batch; it replaces one of the same name."""
        part = f"{batch.transaction_id}/{batch.number}/{name}"
        producer = self._coordinator.begin(part, timeout_s=timeout_s, batch=batch)
        return StagedWrite(None if producer is None else self._writing(part, producer))

    def publish_staged(
        self,
        transaction_id: str,
        batch_id: int,
        refs: Iterable[str],
        *,
        fingerprint: str,
        positions: Mapping[str, Offsets] | None = None,
    ) -> wire.Publication:
        """Make the parts of a batch count together; harmless when repeated.

        Parts of this or an earlier batch that are not named are discarded.

        Args:
            transaction_id: under which batches are published.
            batch_id: larger than the last one published; or the same, for a repeat.
            refs: of the finished parts; empty ones are left out.
            fingerprint: of the batch; a repeat must have the same.
            positions: to commit with it, by consumer group without members.

        Raises:
            GroupInUseError: one of the groups has members.
            InvalidRequestError: what is given is of another type.
            UnknownTransactionError: a part is not there (any more): stage the batch again.
            BatchSupersededError: a larger batch was published.
            FingerprintMismatchError: it was published with another fingerprint.
        """
        batch = _batch(transaction_id, batch_id)
        parts = [text(ref, "a part") for ref in listed(refs, "refs") if ref]
        if not isinstance(fingerprint, str):
            raise InvalidRequestError(f"a fingerprint is text, not {fingerprint!r}")
        if positions:
            # A part like any other, but for its name: that of an attempt before is replaced, and
            # is not in the way.
            with self._stage(POSITIONS_PART, batch, timeout_s=TIMEOUT_S) as stage:
                for group, offsets in positions.items():
                    stage.commit_offsets(group, offsets)
                parts += filter(None, [stage.finish().ref])
        request = wire.PublishStaged(
            transaction_id=batch.transaction_id,
            batch=batch.number,
            parts=tuple(parts),
            fingerprint=fingerprint,
        )
        return self._coordinator.publish(request)

    def last_published(self, transaction_id: str) -> wire.Publication | None:
        """The last batch published under a transaction id; None: none."""
        return self._coordinator.last_published(text(transaction_id, "a transaction"))


def _batch(transaction_id: str, number: int) -> wire.BatchRef:
    """A batch of the transaction.

    Raises:
        InvalidRequestError: it cannot be one.
    """
    return wire.BatchRef(text(transaction_id, "a transaction"), whole_number(number, "a batch"))

"""What transactions and stages are made of: producers whose records wait for one decision.

Rules: a record that was not stored for certain prevents the commit. What is asked of the
coordinator may be repeated, so it is, until it is answered. Safe to use from several threads, as
producers are. Must not know who decides, nor when.
"""

import contextlib
import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, Protocol

from strandline.client.positions import LogPositions, Offsets, Owner
from strandline.client.producer import Producer
from strandline.client.results import AckFuture
from strandline.client.transaction_calls import CoordinatorCalls
from strandline.client.transaction_context import TransactionContext
from strandline.errors import (
    InvalidRequestError,
    ProducerFencedError,
    TransactionAbortedError,
)
from strandline.protocol import transactions as wire


class ProducerMaker(Protocol):
    """Makes producers for the streams of a transaction."""

    def __call__(self, stream: str, enlisted: TransactionContext) -> Producer:
        """A producer whose records belong to the transaction."""
        ...


class TransactionalWriter:
    """What transactions and stages share: producers whose records wait for one decision.

    Args:
        calls: to the coordinator.
        make_producer: for each stream.
        positions: of consumer groups.
        id_: of the transaction.
        producer: who it is.
    """

    def __init__(
        self,
        calls: CoordinatorCalls,
        make_producer: ProducerMaker,
        *,
        positions: LogPositions,
        id_: str,
        producer: wire.ProducerRef,
    ) -> None:
        self.id = id_
        self.producer = producer
        self.calls = calls
        self._positions = positions
        self._has_positions = False
        self._make_producer = make_producer
        self._producers: dict[str, Producer] = {}
        self._let_in: set[tuple[str, int]] = set()
        self._lock = threading.RLock()
        self._failure: BaseException | None = None
        self._ended = ""

    def producer_of(self, stream: str) -> Producer:
        """The producer of a stream; made when first asked for.

        Raises:
            InvalidRequestError: the transaction has ended.
            UnknownStreamError: there is no such stream.
        """
        with self._lock:
            self.check_open()
            found = self._producers.get(stream)
            if found is None:
                enlisted = TransactionContext(
                    self.producer.producer_id,
                    self.producer.epoch,
                    lambda numbers: self._open_partitions(stream, numbers),
                )
                found = self._producers[stream] = self._make_producer(stream, enlisted)
            return found

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more records."""
        return bool(self._ended)

    def check_open(self) -> None:
        """Refuse more once it has ended.

        Raises:
            InvalidRequestError: it has.
        """
        if self._ended:
            raise InvalidRequestError(f"transaction {self.id!r} was {self._ended}; begin another")

    def _open_partitions(self, stream: str, numbers: Collection[int]) -> None:
        """Have the coordinator let records into partitions that are new in the transaction."""
        if all((stream, number) in self._let_in for number in numbers):
            return
        with self._lock:
            missing = sorted({(stream, number) for number in numbers} - self._let_in)
            if missing:
                refs = tuple(wire.PartitionRef(*each) for each in missing)
                self.calls.add(self.id, self.producer, refs)
                self._let_in.update(missing)

    def commit_offsets(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Have positions count with the transaction; nobody else commits them until it is decided.

        Raises:
            GroupInUseError: the group has members, and the owner is none.
            UnknownMemberError, StaleMemberError: they are not the member's to commit (any more).
            ProducerFencedError, TransactionAbortedError: the transaction is over.
        """
        if not offsets:
            return
        if not self._has_positions:
            self.calls.add_positions(self.id, self.producer)
            self._has_positions = True
        self._positions.commit_in(self.producer, group, offsets, owner=owner)

    def watch(self, future: AckFuture[Any]) -> None:
        """Notice a record that is not stored, whoever else looks at its future."""
        Future.add_done_callback(future, self._done)

    def _done(self, future: "Future[Any]") -> None:
        error = Future.exception(future)
        if error is not None and self._failure is None:
            self._failure = error

    def flush(self) -> None:
        """Wait until every record is stored.

        Raises:
            StrandlineError: one is not, or nobody knows.
        """
        for producer in list(self._producers.values()):
            producer.flush()
        if self._failure is not None:
            raise self._failure

    def end(self, how: str) -> None:
        """Let the producers go; nothing more is appended."""
        with self._lock:
            self._ended = how
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.abandon()

    def abort(self) -> None:
        """Have the coordinator abort it, unless it has ended."""
        if self._ended:
            return
        self.end("aborted")
        # Fenced or aborted already: somebody was first, and nothing of it counts either way.
        with contextlib.suppress(ProducerFencedError, TransactionAbortedError):
            self.calls.end(self.id, self.producer, commit=False)

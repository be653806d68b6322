"""The writer behind transactions and staged writes: its producers' records are decided together.

Rules: a record that is not certainly stored prevents the commit. Calls to the coordinator may be
repeated, so they are repeated until answered. Safe to use from several threads, as producers are.
Must not know who decides, nor when.
"""

import contextlib
import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, Protocol

from strandline.api import transactions as wire
from strandline.client.consumer.offset_store import LogOffsetStore, Offsets, Owner
from strandline.client.producer.producer import Producer
from strandline.client.reader.results import AckFuture
from strandline.client.transactions.transaction_calls import CoordinatorCalls
from strandline.client.transactions.transaction_context import TransactionContext
from strandline.errors import (
    InvalidRequestError,
    ProducerFencedError,
    TransactionAbortedError,
)


class ProducerMaker(Protocol):
    """Makes producers for the streams of a transaction."""

    def __call__(self, stream: str, transaction: TransactionContext) -> Producer:
        """Make a producer whose records belong to the transaction."""
        ...


class TransactionalWriter:
    """The producers of a transaction, and its calls to the coordinator.

    Args:
        calls: the calls to the coordinator.
        make_producer: makes the producer of a stream.
        positions: the store of committed offsets.
        id_: the id of the transaction.
        producer: the producer id and epoch of the transaction.
    """

    def __init__(
        self,
        calls: CoordinatorCalls,
        make_producer: ProducerMaker,
        *,
        positions: LogOffsetStore,
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
        self._added_partitions: set[tuple[str, int]] = set()
        self._lock = threading.RLock()
        self._failure: BaseException | None = None
        self._ended = ""

    def producer_of(self, stream: str) -> Producer:
        """Return the producer of a stream, made on first use.

        Raises:
            InvalidRequestError: the transaction has ended.
            UnknownStreamError: there is no such stream.
        """
        with self._lock:
            self.check_open()
            found = self._producers.get(stream)
            if found is None:
                transaction = TransactionContext(
                    self.producer.producer_id,
                    self.producer.epoch,
                    lambda numbers: self._open_partitions(stream, numbers),
                )
                found = self._producers[stream] = self._make_producer(stream, transaction)
            return found

    @property
    def has_ended(self) -> bool:
        """Return whether it accepts no more records."""
        return bool(self._ended)

    def check_open(self) -> None:
        """Raise an error if the transaction has ended.

        Raises:
            InvalidRequestError: it has ended.
        """
        if self._ended:
            raise InvalidRequestError(f"transaction {self.id!r} was {self._ended}; begin another")

    def _open_partitions(self, stream: str, numbers: Collection[int]) -> None:
        """Have the coordinator add the partitions that the transaction has not used before."""
        if all((stream, number) in self._added_partitions for number in numbers):
            return
        with self._lock:
            missing = sorted({(stream, number) for number in numbers} - self._added_partitions)
            if missing:
                refs = tuple(wire.PartitionRef(*each) for each in missing)
                self.calls.add(self.id, self.producer, refs)
                self._added_partitions.update(missing)

    def commit_offsets(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Add offsets to the transaction; until it ends no other commit can change them.

        Raises:
            GroupInUseError: the group has members, and the owner is none of them.
            UnknownMemberError, StaleMemberError: the member does not own the partitions (any more).
            ProducerFencedError, TransactionAbortedError: the transaction has ended.
        """
        if not offsets:
            return
        if not self._has_positions:
            self.calls.add_positions(self.id, self.producer)
            self._has_positions = True
        self._positions.commit_in(self.producer, group, offsets, owner=owner)

    def watch(self, future: AckFuture[Any]) -> None:
        """Note a failure of this future, even if others examine it."""
        Future.add_done_callback(future, self._done)

    def _done(self, future: "Future[Any]") -> None:
        error = Future.exception(future)
        if error is not None and self._failure is None:
            self._failure = error

    def flush(self) -> None:
        """Wait until every record is stored.

        Raises:
            StrandlineError: a record was not stored, or may not be.
        """
        for producer in list(self._producers.values()):
            producer.flush()
        if self._failure is not None:
            raise self._failure

    def end(self, how: str) -> None:
        """End the producers; nothing more can be appended."""
        with self._lock:
            self._ended = how
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.abandon()

    def abort(self) -> None:
        """Abort at the coordinator, unless the transaction has ended."""
        if self._ended:
            return
        self.end("aborted")
        # It was fenced or aborted before: in both cases none of it is committed.
        with contextlib.suppress(ProducerFencedError, TransactionAbortedError):
            self.calls.end(self.id, self.producer, commit=False)

"""Transactions of the client: records of several streams, and positions, that count together.

A ``Transaction`` belongs to one process, which ends it or leaves it prepared for somebody else. A
``Stage`` is one part of a batch that many processes write and one publishes.

Rules: a record that was not stored for certain prevents the commit. What is asked of the
coordinator may be repeated, so it is, until it is answered. Safe to use from several threads, as
producers are; a transaction itself is begun and ended by one.
"""

import contextlib
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from strandline.client.enlisted import Enlisted
from strandline.client.positions import LogPositions, Offsets, Owner
from strandline.client.producer import Headers, Producer
from strandline.client.results import Ack, AckFuture, BatchAck
from strandline.client.transaction_calls import CoordinatorCalls
from strandline.errors import (
    InvalidRequestError,
    ProducerFencedError,
    StrandlineError,
    TransactionAbortedError,
)
from strandline.protocol import transactions as wire
from strandline.types import PartitionName


class ProducerMaker(Protocol):
    """Makes producers for the streams of a transaction."""

    def __call__(self, stream: str, enlisted: Enlisted) -> Producer:
        """A producer whose records belong to the transaction."""
        ...


Tell = Callable[[str, Offsets, Owner], None]
"""Notes positions of a group for their owner."""


class Member(Protocol):
    """A member of a consumer group: a ``Consumer``."""

    @property
    def group(self) -> str:
        """Its name."""
        ...

    def positions(self) -> dict[PartitionName, int]:
        """The next record to be handed out, of each of its partitions."""
        ...

    def commit_by(self, tell: Tell, offsets: Offsets) -> None:
        """As ``Consumer.commit_by``."""
        ...


class Writing:
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
                enlisted = Enlisted(
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

    def commit_positions(self, group: str, offsets: Offsets, owner: Owner) -> None:
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


class Transaction:
    """Records and positions that count together or not. Made by ``Client.transaction``.

    Leaving its context commits, leaving by an exception aborts.
    """

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._positions: dict[str, dict[PartitionName, int]] = {}
        self._members: dict[str, Member] = {}

    @property
    def id(self) -> str:
        """The transactional id."""
        return self._writing.id

    @property
    def has_ended(self) -> bool:
        """Whether it was committed, aborted or prepared."""
        return self._writing.has_ended

    @property
    def staged_id(self) -> str:
        """By which it is ended from outside, once it is prepared."""
        who = self._writing.producer
        return f"{who.producer_id}.{who.epoch}"

    def append(
        self,
        stream: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        subject: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> AckFuture[Ack]:
        """Append a record; the future tells its offset, which counts once all is committed.

        Args:
            stream: its name; the others as ``Producer.append``.
            value: the payload.
            key: for compaction and partitioning.
            subject: by default the stream's.
            headers: a mapping, or (name, value) pairs.
            partition: where to append.

        Raises:
            StrandlineError: as ``Producer.append``; or the transaction has ended.
        """
        future = self._writing.producer_of(stream).append(
            value, key=key, subject=subject, headers=headers, partition=partition
        )
        self._writing.watch(future)
        return future

    def append_batch(
        self, stream: str, data: Any, *, partition: int | None = None
    ) -> AckFuture[BatchAck]:
        """Append the rows of a table; as ``append``, and ``Producer.append_batch``.

        Raises:
            StrandlineError: as ``append``.
        """
        future = self._writing.producer_of(stream).append_batch(data, partition=partition)
        self._writing.watch(future)
        return future

    def commit_positions(self, group: str | Member, offsets: Offsets | None = None) -> None:
        """Commit positions of a consumer group with the transaction; the last call counts.

        Args:
            group: a consumer with ``commit_interval_s=None``, whose partitions must still be its
                own when the transaction is committed; or the name of a group without members.
            offsets: the next record to consume of some partitions; by default, and only for a
                consumer, everything that it has handed out.

        Raises:
            InvalidRequestError: the transaction has ended, or no offsets are given.
        """
        self._writing.check_open()
        if isinstance(group, str):
            if offsets is None:
                raise InvalidRequestError(f"give the offsets of group {group!r}, or a consumer")
            name = group
        else:
            name = group.group
            self._members[name] = group
            offsets = group.positions() if offsets is None else offsets
        mine = self._positions.setdefault(name, {})
        mine |= {PartitionName(*at): offset for at, offset in offsets.items()}

    def flush(self) -> None:
        """Wait until every record is stored, though not committed.

        Raises:
            StrandlineError: one is not, or nobody knows.
        """
        self._writing.flush()

    def commit(self) -> None:
        """Make everything count; done when readers see it.

        Raises:
            TransactionAbortedError: its time was over.
            UnknownMemberError, StaleMemberError: the consumer has lost partitions whose positions
                it was to commit, and everything is aborted.
            StrandlineError: a record was not stored, and everything is aborted; or the coordinator
                did not answer in time, and ``Client.transactions`` tells what became of it.
        """
        self._settle()
        self._writing.end("committed")
        self._writing.calls.end(self.id, self._writing.producer, commit=True)

    def prepare(self) -> str:
        """Leave it to an outside decision: ``Client.commit_staged`` or ``abort_staged``.

        Returns:
            The staged id, by which it is ended, whenever and from wherever.

        Raises:
            StrandlineError: as ``commit``.
        """
        self._settle()
        self._writing.end("prepared")
        self._writing.calls.prepare(self.id, self._writing.producer)
        return self.staged_id

    def abort(self) -> None:
        """Make nothing count; harmless when repeated.

        Raises:
            StrandlineError: the coordinator did not answer; its timeout will end the transaction.
        """
        self._writing.abort()

    def _settle(self) -> None:
        """Have every record and position stored, or abort and say which was not.

        Positions last: from then on nobody else is given their partitions.
        """
        writing = self._writing
        writing.check_open()
        try:
            writing.flush()
            for group, offsets in self._positions.items():
                member = self._members.get(group)
                if member is None:
                    writing.commit_positions(group, offsets, Owner())
                else:
                    member.commit_by(writing.commit_positions, offsets)
        except BaseException:
            self._writing.abort()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writing.has_ended:
            return
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except StrandlineError as failure:
            error.add_note(f"besides, the transaction waits for its timeout: {failure.message}")


class StagedPart(NamedTuple):
    """A finished part; plain, so that it travels to whoever publishes."""

    ref: str
    """Empty: the batch was published already, and there was nothing to stage."""
    rows: int


class Stage:
    """One part of a batch. Made by ``Client.stage``.

    Leaving its context without ``finish`` discards it.
    """

    def __init__(self, writing: Writing | None) -> None:
        self._writing = writing
        self._rows = 0
        self._part: StagedPart | None = None

    @property
    def is_published(self) -> bool:
        """Whether the batch is published already: then nothing is stored."""
        return self._writing is None

    def append(self, stream: str, value: bytes | str | None, **record: Any) -> None:
        """Append a record; as ``Transaction.append``, whose failure ``finish`` raises.

        Raises:
            StrandlineError: as ``Transaction.append``.
        """
        self._rows += 1
        if self._writing is not None:
            self._writing.watch(self._writing.producer_of(stream).append(value, **record))

    def append_batch(self, stream: str, data: Any, *, partition: int | None = None) -> None:
        """Append the rows of a table or a record batch; as ``append``.

        Raises:
            StrandlineError: as ``Transaction.append_batch``.
        """
        self._rows += data.num_rows
        if self._writing is not None:
            producer = self._writing.producer_of(stream)
            self._writing.watch(producer.append_batch(data, partition=partition))

    def commit_positions(self, group: str, offsets: Offsets) -> None:
        """Have positions of a group without members count with the part.

        Raises:
            StrandlineError: as ``Writing.commit_positions``.
        """
        if self._writing is not None:
            self._writing.commit_positions(group, offsets, Owner())

    def finish(self) -> StagedPart:
        """Have everything stored, and wait to be published.

        Raises:
            ProducerFencedError, TransactionAbortedError: it was discarded meanwhile, because the
                batch was published without it or because its time was over.
            StrandlineError: a record was not stored.
        """
        if self._part is None:
            ref = ""
            if self._writing is not None:
                self._writing.check_open()
                self._writing.flush()
                self._writing.end("finished")
                self._writing.calls.prepare(self._writing.id, self._writing.producer)
                ref = self._writing.id
            self._part = StagedPart(ref, self._rows)
        return self._part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._part is not None or self._writing is None:
            return
        try:
            self._writing.abort()
        except StrandlineError as failure:
            if error is None:
                raise
            error.add_note(f"besides, the part waits for its timeout: {failure.message}")

"""Transactions of the client: records of several streams, and positions, that count together.

A ``Transaction`` belongs to one process, which ends it or leaves it prepared for somebody else.

Rules: as ``writing``; a transaction itself is begun and ended by one thread.
"""

from types import TracebackType
from typing import Any, Protocol, Self

from strandline.client.arguments import offsets_by_partition
from strandline.client.close_on_exit import leave
from strandline.client.positions import Offsets, Owner, Tell
from strandline.client.producer import Headers
from strandline.client.results import Ack, AckFuture, BatchAck
from strandline.client.transactional_writer import TransactionalWriter
from strandline.errors import InvalidRequestError
from strandline.types import PartitionName


class Member(Protocol):
    """A member of a consumer group: a ``Consumer``."""

    @property
    def group(self) -> str:
        """Its name."""
        ...

    def positions(self) -> dict[PartitionName, int]:
        """The next record to be handed out, of each of its partitions."""
        ...

    def commit_in_transaction(self, tell: Tell, offsets: Offsets) -> None:
        """As ``Consumer.commit_in_transaction``."""
        ...


class Transaction:
    """Records and positions that count together or not. Made by ``Client.transaction``.

    Leaving its context commits, leaving by an exception aborts.
    """

    def __init__(self, writing: TransactionalWriter) -> None:
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

    def commit_offsets(self, group: str | Member, offsets: Offsets | None = None) -> None:
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
        elif not hasattr(group, "commit_in_transaction"):
            raise InvalidRequestError(
                f"positions are of a consumer, or of a group, not of {group!r}"
            )
        else:
            name = group.group
            self._members[name] = group
            offsets = group.positions() if offsets is None else offsets
        given = offsets_by_partition(offsets)
        self._positions.setdefault(name, {}).update(given)

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
                    writing.commit_offsets(group, offsets, Owner())
                else:
                    member.commit_in_transaction(writing.commit_offsets, offsets)
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
        leave(self.abort, error, otherwise="the transaction waits for its timeout")

"""Transactions of the client: records of several streams and committed offsets, all or nothing.

A ``Transaction`` belongs to one process, which ends it or leaves it prepared for another.

Rules: as ``transactional_writer``; a transaction itself is begun and ended by one thread.
"""

from typing import Any, Protocol

from strandline.client.arguments import offsets_by_partition
from strandline.client.close_on_exit import ClosesOnExit
from strandline.client.consumer.offset_store import CommitCall, Offsets, Owner
from strandline.client.producer.producer import Headers
from strandline.client.reader.results import Ack, AckFuture, BatchAck
from strandline.client.transactions.transactional_writer import TransactionalWriter
from strandline.errors import InvalidRequestError
from strandline.types import PartitionName


class ConsumerMember(Protocol):
    """A member of a consumer group, such as a ``Consumer``."""

    @property
    def group(self) -> str:
        """Return the group's name."""
        ...

    def positions(self) -> dict[PartitionName, int]:
        """Return the next offset of each of its partitions."""
        ...

    def commit_in_transaction(self, commit: CommitCall, offsets: Offsets) -> None:
        """Commit offsets in a transaction; see ``Consumer``."""
        ...


class Transaction(ClosesOnExit):
    """Records and offsets that are committed together. Made by ``Client.transaction``.

    Leaving its context commits; leaving it by an exception aborts.
    """

    _failure_means = "the transaction is aborted at its timeout"

    def __init__(self, writer: TransactionalWriter) -> None:
        self._writer = writer
        self._positions: dict[str, dict[PartitionName, int]] = {}
        self._members: dict[str, ConsumerMember] = {}

    @property
    def id(self) -> str:
        """Return the transactional id."""
        return self._writer.id

    @property
    def has_ended(self) -> bool:
        """Return whether it was committed, aborted or prepared."""
        return self._writer.has_ended

    @property
    def staged_id(self) -> str:
        """Return the id by which another process ends it once prepared."""
        who = self._writer.producer
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
        """Append a record; the future returns its offset, visible once committed.

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
        future = self._writer.producer_of(stream).append(
            value, key=key, subject=subject, headers=headers, partition=partition
        )
        self._writer.watch(future)
        return future

    def append_batch(
        self, stream: str, data: Any, *, partition: int | None = None
    ) -> AckFuture[BatchAck]:
        """Append the rows of a table; as ``append``, and ``Producer.append_batch``.

        Raises:
            StrandlineError: as ``append``.
        """
        future = self._writer.producer_of(stream).append_batch(data, partition=partition)
        self._writer.watch(future)
        return future

    def commit_offsets(self, group: str | ConsumerMember, offsets: Offsets | None = None) -> None:
        """Commit offsets of a consumer group with the transaction; the last call counts.

        Args:
            group: a consumer with ``commit_interval_s=None``, which must still own the partitions
                when the transaction is committed; or the name of a group without members.
            offsets: the next offset to consume by partition; by default, and only for a consumer,
                everything that ``poll`` has returned.

        Raises:
            InvalidRequestError: the transaction has ended, or no offsets are given.
        """
        self._writer.check_open()
        if isinstance(group, str):
            if offsets is None:
                raise InvalidRequestError(
                    f"offsets of group {group!r} are missing; give them, or a consumer"
                )
            name = group
        elif not hasattr(group, "commit_in_transaction"):
            raise InvalidRequestError(f"group must be a consumer or a group's name, got {group!r}")
        else:
            name = group.group
            self._members[name] = group
            offsets = group.positions() if offsets is None else offsets
        given = offsets_by_partition(offsets)
        self._positions.setdefault(name, {}).update(given)

    def flush(self) -> None:
        """Wait until every record is stored, though not committed.

        Raises:
            StrandlineError: one was not stored, or its outcome is unknown.
        """
        self._writer.flush()

    def commit(self) -> None:
        """Commit; readers see the records when this returns.

        Raises:
            TransactionAbortedError: its timeout passed.
            UnknownMemberError, StaleMemberError: the consumer has lost partitions whose offsets it
                was to commit; the transaction is aborted.
            StrandlineError: a record was not stored, and the transaction is aborted; or the
                coordinator did not answer in time, and ``Client.transactions`` shows the outcome.
        """
        self._settle()
        self._writer.end("committed")
        self._writer.calls.end(self.id, self._writer.producer, commit=True)

    def prepare(self) -> str:
        """Prepare; ``Client.commit_prepared`` or ``abort_prepared`` ends it, in any process.

        Returns:
            The staged id, which those calls take.

        Raises:
            StrandlineError: as ``commit``.
        """
        self._settle()
        self._writer.end("prepared")
        self._writer.calls.prepare(self.id, self._writer.producer)
        return self.staged_id

    def abort(self) -> None:
        """Abort; has no effect when repeated.

        Raises:
            StrandlineError: the coordinator did not answer; the timeout will end the transaction.
        """
        self._writer.abort()

    def _settle(self) -> None:
        """Wait until every record is stored and add the offsets, or abort and raise.

        Offsets come last: from then on no other member gets their partitions.
        """
        writer = self._writer
        writer.check_open()
        try:
            writer.flush()
            for group, offsets in self._positions.items():
                member = self._members.get(group)
                if member is None:
                    writer.commit_offsets(group, offsets, Owner())
                else:
                    member.commit_in_transaction(writer.commit_offsets, offsets)
        except BaseException:
            self._writer.abort()
            raise

    def _end_context(self, error: BaseException | None, /) -> None:
        if self._writer.has_ended:
            return
        if error is None:
            self.commit()
        else:
            self.abort()

"""Transactions of the client: records of several streams and committed offsets, all or none.

A ``Transaction`` belongs to one process, which ends it or leaves it prepared for another process.

Rules: as for ``transactional_writer``; one thread begins and ends a transaction.
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
        """Return the next offset of each of the member's partitions."""
        ...

    def commit_in_transaction(self, commit: CommitCall, offsets: Offsets) -> None:
        """Commit offsets in a transaction; see ``Consumer``."""
        ...


class Transaction(ClosesOnExit):
    """Records and offsets that are committed together; see ``Client.transaction``.

    Leaving its context commits the transaction; leaving it with an exception aborts it.
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
        """Return the id by which another process ends the transaction once it is prepared."""
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
            stream: the stream's name; the other arguments are those of ``Producer.append``.
            value: the payload.
            key: the key for compaction and partitioning.
            subject: by default the stream's.
            headers: a mapping, or (name, value) pairs.
            partition: the partition to append to.

        Raises:
            StrandlineError: as for ``Producer.append``; or the transaction has ended.
        """
        future = self._writer.producer_of(stream).append(
            value, key=key, subject=subject, headers=headers, partition=partition
        )
        self._writer.watch(future)
        return future

    def append_batch(
        self, stream: str, data: Any, *, partition: int | None = None
    ) -> AckFuture[BatchAck]:
        """Append the rows of a table, as ``Producer.append_batch`` does, in the transaction.

        Raises:
            StrandlineError: as for ``append``.
        """
        future = self._writer.producer_of(stream).append_batch(data, partition=partition)
        self._writer.watch(future)
        return future

    def commit_offsets(self, group: str | ConsumerMember, offsets: Offsets | None = None) -> None:
        """Commit offsets of a consumer group with the transaction; the last call counts.

        Args:
            group: a consumer with ``commit_interval_s=None``, which must still own the partitions
                when the transaction commits; or the name of a group without members.
            offsets: the next offset to consume by partition; for a consumer, by default after all
                records that ``poll`` has returned.

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
            StrandlineError: a record was not stored, or may not be.
        """
        self._writer.flush()

    def commit(self) -> None:
        """Commit the transaction; readers see the records when this returns.

        Raises:
            TransactionAbortedError: the timeout of the transaction has passed.
            UnknownMemberError, StaleMemberError: the consumer has lost partitions whose offsets
                were to be committed; the transaction is aborted.
            StrandlineError: a record was not stored, and the transaction is aborted; or the
                coordinator did not answer in time, and ``Client.transactions`` shows the outcome.
        """
        self._settle()
        self._writer.end("committed")
        self._writer.calls.end(self.id, self._writer.producer, commit=True)

    def prepare(self) -> str:
        """Prepare the transaction, so that any process can end it later, by its staged id.

        Returns:
            The staged id, which those calls of ``Client`` need.

        Raises:
            StrandlineError: as for ``commit``.
        """
        self._settle()
        self._writer.end("prepared")
        self._writer.calls.prepare(self.id, self._writer.producer)
        return self.staged_id

    def abort(self) -> None:
        """Abort the transaction; has no effect when repeated.

        Raises:
            StrandlineError: the coordinator did not answer; the timeout will end the transaction.
        """
        self._writer.abort()

    def _settle(self) -> None:
        """Wait until every record is stored, then add the offsets; after a failure, abort.

        Offsets come last: from then on no other member gets their partitions until the end.
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

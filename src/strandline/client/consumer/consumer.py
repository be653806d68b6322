"""A consumer: a member of a group that reads its share of streams and commits offsets.

    with client.consumer("billing", ["orders"]) as consumer:
        while True:
            for batch in consumer.poll(1.0):
                ...  # batch.records, an Arrow record batch of one partition

Every record is delivered to a member of the group at least once: the offset after a record is
committed only when the record was returned and the next ``poll`` (or ``commit``) was called; the
next owner of a partition begins at its committed offset.

Rules:
- members whose partitions do not move are not disturbed when other members join or leave;
- callbacks run inside ``poll`` and ``close``, on the caller's thread; ``on_revoked`` can still
  commit the partitions that it is called with;
- only one thread may use a consumer; heartbeats and prefetching have threads of their own.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from math import inf
from typing import NamedTuple, Self

from strandline.api.wire import INT64_MAX
from strandline.client.arguments import (
    check_number,
    offsets_by_partition,
    text,
    wait,
    whole_number,
)
from strandline.client.consumer.fetcher import Source
from strandline.client.consumer.membership import GroupMembership, MemberAssignment
from strandline.client.consumer.offset_committer import OffsetCommitter
from strandline.client.consumer.offset_store import CommitCall, LogOffsetStore, Offsets, OffsetStore
from strandline.client.consumer.prefetcher import ConsumedBatch, Prefetcher
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.reader.reading import OffsetSpec
from strandline.client.retry_policy import RetrySchedule
from strandline.errors import (
    DisconnectedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StaleMemberError,
    StrandlineError,
    UnavailableError,
    UnknownMemberError,
    UnknownStreamError,
)
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

Partitions = frozenset[PartitionName]
OnAssigned = Callable[["Consumer", Partitions], None]
OnRevoked = Callable[["Consumer", Partitions], None]


class Options(NamedTuple):
    """The options of a consumer.

    Attributes:
        start: where to begin in partitions without a committed offset: ``"earliest"``, ``"latest"``
            or a time; also used if the log ends before the committed offset. A group that has
            fallen behind retention always continues at the first record kept. Partitions added
            after the group has begun to consume a stream are always read from their start.
        commit_interval_s: ``poll`` commits offsets at this interval; None: only ``commit`` does. If
            ``start`` is not ``"earliest"``, a member commits the offsets where it starts at once.
        instance: the name of a static member, which keeps its partitions if it returns within its
            session timeout.
        session_timeout_s: a member without a heartbeat for this long loses its partitions.
        poll_interval_max_s: a consumer that does not poll for this long leaves the group.
        on_assigned: called with new partitions, before any record of them is returned.
        on_revoked: called with removed partitions, after the last record of them was returned.
        offset_store: the store of committed offsets; by default the log.
    """

    start: OffsetSpec = "earliest"
    commit_interval_s: float | None = 5.0
    instance: str = ""
    session_timeout_s: float = 10.0
    poll_interval_max_s: float = 300.0
    on_assigned: OnAssigned | None = None
    on_revoked: OnRevoked | None = None
    offset_store: OffsetStore | None = None


class Consumer:
    """A member of a consumer group. Use it as a context manager, or ``close`` it.

    Args:
        source: the client to read with.
        coordinator: the coordinator of the group.
        group: the group's name.
        streams: the streams to consume.
        options: the consumer's options.

    Raises:
        UnknownStreamError: there is no such stream.
        StrandlineError: the coordinator rejects the consumer, or cannot be reached.
    """

    def __init__(
        self,
        source: Source,
        coordinator: CoordinatorClient,
        group: str,
        *,
        streams: Iterable[str],
        options: Options,
    ) -> None:
        if options.start not in ("earliest", "latest") and isinstance(options.start, str | int):
            raise InvalidRequestError(
                f"start must be 'earliest', 'latest' or a datetime, got {options.start!r}"
            )
        if options.commit_interval_s is not None:
            check_number(options.commit_interval_s, "commit_interval_s")
        check_number(options.poll_interval_max_s, "poll_interval_max_s")
        self.group = text(group, "a group")
        self._source = source
        self._options = options
        self._store = options.offset_store or LogOffsetStore(coordinator)
        self._next: dict[PartitionName, int] = {}
        """The position of each assigned partition: the next offset to return."""
        self._ahead = Prefetcher(source, self._next, restart=options.start)
        self._paused: set[PartitionName] = set()
        self._beginning = RetrySchedule()
        """The schedule for looking up starting offsets again after a failure."""
        self._is_woken_up = threading.Event()
        self._is_closed = False
        self._is_deposed = False
        self._membership = GroupMembership(
            coordinator,
            group,
            [text(stream, "a stream") for stream in streams],
            instance=text(options.instance, "an instance"),
            keeps=options.offset_store is not None,
            session_s=options.session_timeout_s,
            poll_interval_max_s=options.poll_interval_max_s,
            on_change=self._ahead.wake,
        )
        self._commits = OffsetCommitter(
            group,
            self._membership,
            self._next,
            commit_call=self._store.commit,
            interval_s=options.commit_interval_s,
        )
        self._membership.join()

    # Records

    def poll(self, timeout_s: float = 1.0) -> list[ConsumedBatch]:
        """Return records as soon as there are any; those of the previous poll count as processed.

        Args:
            timeout_s: the longest wait.

        Returns:
            Batches of one partition each, in order; empty after ``timeout_s``.

        Raises:
            MemberFencedError: another consumer has taken over this static member.
            DisconnectedError: the consumer is closed.
            InvalidRequestError: ``timeout_s`` is not a number.
            StrandlineError: a partition cannot be read, at every poll until it is paused or sought
                past the problem; or a callback's error.
        """
        if self._is_closed:
            raise DisconnectedError("this consumer is closed; create another")
        deadline_s = time.monotonic() + wait(timeout_s, "timeout_s")
        while True:
            self._settle()
            self._ahead.raise_failure()
            if self._is_woken_up.is_set():
                return []
            # Not beyond the next attempt to begin partitions that failed to begin.
            batches = self._ahead.take(min(deadline_s, self._beginning.not_before_s or deadline_s))
            if batches or time.monotonic() >= deadline_s:
                return batches

    def wakeup(self) -> None:
        """Let the current poll return; any thread; a call of ``unread`` must follow."""
        self._is_woken_up.set()
        self._ahead.wake()

    def unread(self, batches: Iterable[ConsumedBatch]) -> None:
        """Return the batches of the last poll once more, from the next poll."""
        self._is_woken_up.clear()
        self._ahead.unread(batches)

    # Assignment and positions

    def assignment(self) -> Partitions:
        """Return the partitions of this member."""
        return frozenset(self._next)

    def positions(self) -> dict[PartitionName, int]:
        """Return the next offset of each partition of this member."""
        return dict(self._next)

    def seek(self, stream: str, partition: int, to: OffsetSpec) -> None:
        """Continue a partition at another offset.

        Args:
            stream: the stream's name.
            partition: one of this member's partitions.
            to: an offset, ``"earliest"``, ``"latest"`` or a time.

        Raises:
            InvalidRequestError: the partition is not this member's, or ``to`` is invalid.
            StrandlineError: the offset of ``to`` cannot be looked up.
        """
        name = self._own(stream, partition)
        if isinstance(to, str | datetime):
            at = self._source.offsets(stream, to)[name.partition]
        else:
            at = whole_number(to, "an offset")
        if not 0 <= at <= INT64_MAX:
            raise OffsetOutOfRangeError(f"offset {at} is not between 0 and {INT64_MAX}")
        self._next[name] = at
        self._ahead.begin_anew(name)

    def pause(self, stream: str, partition: int) -> None:
        """Return no records of a partition until ``resume``; it stays assigned to this member.

        Raises:
            InvalidRequestError: the partition is not this member's.
        """
        name = self._own(stream, partition)
        self._paused.add(name)
        self._ahead.stop([name])

    def resume(self, stream: str, partition: int) -> None:
        """Return records of a paused partition again, from its position.

        Raises:
            InvalidRequestError: the partition is not this member's.
        """
        name = self._own(stream, partition)
        if name in self._paused:
            self._paused.discard(name)
            self._ahead.begin([name])

    def lag(self) -> dict[PartitionName, int]:
        """Return for each partition of this member how many offsets are left to return.

        Raises:
            StrandlineError: a leader does not answer.
        """
        ends = {stream: self._source.offsets(stream) for stream in {n.stream for n in self._next}}
        return {
            name: max(0, ends[name.stream].get(name.partition, 0) - at)
            for name, at in sorted(self._next.items())
        }

    # Commits

    def commit(self, offsets: Mapping[PartitionName, int] | None = None) -> None:
        """Commit offsets, at which the next owners of the partitions begin.

        Args:
            offsets: the next offset to consume by partition; by default after the records that
                ``poll``
                has returned, which then count as processed.

        Raises:
            InvalidRequestError: ``offsets`` is not a mapping of partitions to offsets.
            DisconnectedError: the consumer is closed.
            UnknownMemberError: this is no longer a member; others will consume those records again.
            StaleMemberError: another member owns one of the partitions now.
            StrandlineError: the offsets may or may not be committed; commit again.
        """
        self._check_open()
        if offsets is None:
            offsets = self._commits.pending(self._next)
        self._commits.commit(offsets_by_partition(offsets))

    def commit_in_transaction(self, commit: CommitCall, offsets: Offsets) -> None:
        """Commit offsets in a transaction; called by ``Transaction``.

        Args:
            commit: commits the offsets of a group in the transaction, with this member as owner.
            offsets: the next offset to consume by partition.

        Raises:
            InvalidRequestError: this consumer commits at intervals, or has its own offset store.
            StrandlineError: as for ``commit``.
        """
        options = self._options
        if options.commit_interval_s is not None or options.offset_store is not None:
            raise InvalidRequestError(
                f"a transaction cannot commit offsets of this consumer of group {self.group!r}: "
                "create it with commit_interval_s=None and without offset_store"
            )
        self._commits.commit(offsets, commit)

    # Changes of the assignment

    def _settle(self) -> None:
        """Apply the coordinator's decisions since the last poll."""
        self._ahead.awoken()
        self._membership.polled()
        view = self._membership.assignment()
        if view.is_lost:
            self._lose()
            return
        self._commits.commit_if_due()
        going = view.held - view.assigned
        if going:
            self._revoke(going)
        coming = view.assigned - self._next.keys()
        if not coming:
            self._beginning.succeeded()
        elif self._beginning.is_due(time.monotonic()):
            self._assign(coming, view)

    def _revoke(self, going: Partitions) -> None:
        """Release partitions: stop reading, commit, call back, notify the coordinator."""
        ours = going & self._next.keys()
        self._ahead.stop(ours)
        if ours:
            self._commits.commit_softly(ours)
            if self._options.on_revoked is not None:
                self._options.on_revoked(self, ours)
            self._forget(ours)
        self._membership.release(going)

    def _assign(self, coming: Partitions, view: MemberAssignment) -> None:
        """Start to read partitions at their committed offsets."""
        try:
            starts = self._starts(coming, view)
        except StrandlineError as error:
            has_moved = isinstance(error, StaleMemberError | UnknownMemberError)
            # The coordinator will revoke the partitions of a deleted stream.
            is_gone = isinstance(error, UnknownStreamError)
            if not (error.retriable or has_moved or is_gone):
                raise
            now_s = time.monotonic()
            self._beginning.failed(now_s)
            if self._beginning.should_log(now_s):
                logger.warning("group %s: cannot start reading, will retry: %s", self.group, error)
            if has_moved:
                self._membership.heartbeat_soon()  # so that the next poll has the new assignment
            return
        self._beginning.succeeded()
        self._next |= starts
        try:
            if self._options.on_assigned is not None:
                self._options.on_assigned(self, coming)
        except BaseException:
            self._forget(coming)  # so that the next poll assigns them again
            raise
        self._ahead.begin(coming - self._paused)

    def _starts(self, coming: Partitions, view: MemberAssignment) -> dict[PartitionName, int]:
        """Return the offset at which each partition begins.

        Raises:
            StrandlineError: the offsets cannot be looked up now.
        """
        if self._options.offset_store is None:
            starts = {name: view.starts[name] for name in coming if name in view.starts}
        else:
            starts = self._store.claim(self.group, coming, view.owner)
        self._commits.found(starts)
        fresh = coming - starts.keys()
        counts = view.began_with
        added = frozenset(name for name in fresh if name.partition >= counts.get(name.stream, inf))
        late = self._resolve_offsets(fresh - added)
        if late and self._options.start != "earliest":
            # Otherwise the next owner might start later, and skip records that this member
            # returned.
            self._commits.commit(late)
        return starts | self._resolve_offsets(added, "earliest") | late

    def _resolve_offsets(
        self, names: Partitions, at: OffsetSpec | None = None
    ) -> dict[PartitionName, int]:
        """Look up the offsets of ``at``, or of the option ``start``.

        Raises:
            StrandlineError: the offsets cannot be looked up now.
        """
        found: dict[PartitionName, int] = {}
        for stream in {name.stream for name in names}:
            offsets = self._source.offsets(stream, self._options.start if at is None else at)
            for name in names:
                if name.stream == stream:
                    if name.partition not in offsets:  # a partition that was just added
                        raise UnavailableError(
                            f"the broker does not know partition {name} yet; retry"
                        )
                    found[name] = offsets[name.partition]
        return found

    def _lose(self) -> None:
        """Drop all partitions after the membership was lost, then join again."""
        ours = self.assignment()
        self._ahead.stop(ours)
        if ours and self._options.on_revoked is not None:
            self._options.on_revoked(self, ours)
        self._forget(ours)
        self._membership.release_all()

    def _forget(self, partitions: Partitions) -> None:
        for name in partitions:
            self._next.pop(name, None)
            self._paused.discard(name)
        self._commits.forget(partitions)

    def _own(self, stream: str, partition: int) -> PartitionName:
        self._check_open()
        name = PartitionName(stream, whole_number(partition, "a partition"))
        if name not in self._next:
            mine = ", ".join(map(str, sorted(self._next))) or "none"
            raise InvalidRequestError(f"{name} is not assigned to this consumer; these are: {mine}")
        return name

    # Closing

    def _check_open(self) -> None:
        """Raise an error if the consumer has left; ``on_revoked`` runs before it leaves.

        Raises:
            DisconnectedError: the consumer has left.
        """
        if self._is_deposed:
            raise DisconnectedError("this consumer is closed; create another")

    def close(self, *, commit: bool = True) -> None:
        """Leave the group; has no effect when repeated.

        Args:
            commit: also commit the offsets after the returned records, if offsets are committed at
                intervals.

        Raises:
            StrandlineError: the offsets cannot be committed, or a callback's error.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            ours = self.assignment()
            self._ahead.stop(ours)
            if commit:
                self._commits.commit_softly(ours)
            if ours and self._options.on_revoked is not None:
                self._options.on_revoked(self, ours)
        finally:
            self._is_deposed = True
            self._ahead.close()
            self._membership.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an exception the last records count as unprocessed, so the next owner gets them.
        self.close(commit=kind is None)

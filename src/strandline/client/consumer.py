"""A consumer: a member of a group that reads its share of streams and notes how far it has come.

    with client.consumer("billing", ["orders"]) as consumer:
        while True:
            for batch in consumer.poll(1.0):
                ...  # batch.records, an Arrow record batch of one partition

Every record is handed to a member of the group at least once: positions are committed after the
records before them were handed out and the next ``poll`` was called (or ``commit``), and whoever
gets a partition begins at its position.

Rules:
- members whose partitions do not move are not disturbed when others come and go;
- callbacks run inside ``poll`` and ``close``, on the caller's thread; what is taken away may still
  be committed in ``on_revoked``;
- one thread uses a consumer; heartbeats and reading ahead have threads of their own.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from math import inf
from typing import NamedTuple, Self

from strandline.client.arguments import (
    check_number,
    offsets_by_partition,
    text,
    wait,
    whole_number,
)
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.fetcher import Source
from strandline.client.membership import MemberAssignment, Membership
from strandline.client.offset_committer import OffsetCommitter
from strandline.client.positions import LogPositions, Offsets, PositionStore, Tell
from strandline.client.prefetcher import ConsumedBatch, Prefetcher
from strandline.client.reading import Place
from strandline.client.retry import RetrySchedule
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
from strandline.protocol.wire import INT64_MAX
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

Partitions = frozenset[PartitionName]
OnAssigned = Callable[["Consumer", Partitions], None]
OnRevoked = Callable[["Consumer", Partitions], None]


class Options(NamedTuple):
    """How a consumer consumes.

    Attributes:
        start: where to begin in partitions without a position: ``"earliest"``, ``"latest"`` or a
            time; also where the log ends before the position. A group that has fallen behind
            retention goes on at the first record kept, whatever it says. Partitions that a stream
            got after the group had begun with it are begun at their beginning.
        commit_interval_s: positions are committed in a ``poll`` once so much time has passed; None:
            only by ``commit``. Where a member begins that does not start ``"earliest"`` is
            committed at once.
        instance: name of a static member: coming back within its session it finds its partitions.
        session_timeout_s: a member that is not heard of for so long loses its partitions.
        poll_interval_max_s: a consumer that does not poll for so long leaves the group.
        on_assigned: called with partitions that are new, before any record of them.
        on_revoked: called with partitions that go, after the last record of them.
        positions: where positions are kept; by default in the log.
    """

    start: Place = "earliest"
    commit_interval_s: float | None = 5.0
    instance: str = ""
    session_timeout_s: float = 10.0
    poll_interval_max_s: float = 300.0
    on_assigned: OnAssigned | None = None
    on_revoked: OnRevoked | None = None
    positions: PositionStore | None = None


class Consumer:
    """A member of a consumer group. Use it as a context, or ``close`` it.

    Args:
        source: where records come from.
        coordinator: of the group.
        group: its name.
        streams: what to consume.
        options: how.

    Raises:
        UnknownStreamError: there is no such stream.
        StrandlineError: the coordinator refuses, or cannot be reached.
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
                f"start is {options.start!r}; give 'earliest', 'latest' or a datetime"
            )
        if options.commit_interval_s is not None:
            check_number(options.commit_interval_s, "commit_interval_s")
        check_number(options.poll_interval_max_s, "poll_interval_max_s")
        self.group = text(group, "a group")
        self._source = source
        self._options = options
        self._store = options.positions or LogPositions(coordinator)
        self._next: dict[PartitionName, int] = {}
        """The next record to hand out, of each partition we have."""
        self._ahead = Prefetcher(source, self._next, restart=options.start)
        self._paused: set[PartitionName] = set()
        self._beginning = RetrySchedule()
        """When to look for positions again while they cannot be had."""
        self._is_interrupted = threading.Event()
        self._is_closed = False
        self._has_left = False
        self._membership = Membership(
            coordinator,
            group,
            [text(stream, "a stream") for stream in streams],
            instance=text(options.instance, "an instance"),
            keeps=options.positions is not None,
            session_s=options.session_timeout_s,
            poll_interval_max_s=options.poll_interval_max_s,
            on_change=self._ahead.wake,
        )
        self._commits = OffsetCommitter(
            group,
            self._membership,
            self._next,
            tell=self._store.commit,
            interval_s=options.commit_interval_s,
        )
        self._membership.join()

    # Records

    def poll(self, timeout_s: float = 1.0) -> list[ConsumedBatch]:
        """Records, as soon as there are any; what was polled before counts as processed.

        Args:
            timeout_s: the longest wait.

        Returns:
            Batches of one partition each, in order; none if nothing came in time.

        Raises:
            MemberFencedError: another consumer took the place of this static member.
            DisconnectedError: it was closed.
            InvalidRequestError: ``timeout_s`` is no number.
            StrandlineError: a partition cannot be read on, at every poll until it is paused or
                sought past; or a callback's error.
        """
        if self._is_closed:
            raise DisconnectedError("this consumer is closed; make another")
        deadline_s = time.monotonic() + wait(timeout_s, "timeout_s")
        while True:
            self._settle()
            self._ahead.raise_failure()
            if self._is_interrupted.is_set():
                return []
            # Partitions that could not be begun are tried again within the poll, too.
            batches = self._ahead.take(min(deadline_s, self._beginning.not_before_s or deadline_s))
            if batches or time.monotonic() >= deadline_s:
                return batches

    def interrupt(self) -> None:
        """Let the poll that is under way end, from any thread; ``unread`` has to follow."""
        self._is_interrupted.set()
        self._ahead.wake()

    def unread(self, batches: Iterable[ConsumedBatch]) -> None:
        """What the last poll returned has reached nobody: the next returns it again."""
        self._is_interrupted.clear()
        self._ahead.unread(batches)

    # What we have

    def assignment(self) -> Partitions:
        """The partitions of this member."""
        return frozenset(self._next)

    def positions(self) -> dict[PartitionName, int]:
        """The next record to be handed out, of each partition of this member."""
        return dict(self._next)

    def seek(self, stream: str, partition: int, to: Place) -> None:
        """Go on elsewhere in a partition.

        Args:
            stream: its name.
            partition: which, one of this member's.
            to: an offset, ``"earliest"``, ``"latest"`` or a time.

        Raises:
            InvalidRequestError: not one of this member's partitions, or no place in one.
            StrandlineError: the place cannot be found.
        """
        name = self._own(stream, partition)
        if isinstance(to, str | datetime):
            at = self._source.offsets(stream, to)[name.partition]
        else:
            at = whole_number(to, "an offset")
        if not 0 <= at <= INT64_MAX:
            size = "negative" if at < 0 else "too large"
            raise OffsetOutOfRangeError(f"offset {at} is {size}; they go from 0 to {INT64_MAX}")
        self._next[name] = at
        self._ahead.begin_anew(name)

    def pause(self, stream: str, partition: int) -> None:
        """Hand out no records of a partition until ``resume``; it stays this member's.

        Raises:
            InvalidRequestError: not one of this member's partitions.
        """
        name = self._own(stream, partition)
        self._paused.add(name)
        self._ahead.stop([name])

    def resume(self, stream: str, partition: int) -> None:
        """Hand out records of a partition again, from where it was paused.

        Raises:
            InvalidRequestError: not one of this member's partitions.
        """
        name = self._own(stream, partition)
        if name in self._paused:
            self._paused.discard(name)
            self._ahead.begin([name])

    def lag(self) -> dict[PartitionName, int]:
        """How many offsets each partition of this member has that were not handed out yet.

        Raises:
            StrandlineError: a leader cannot be asked.
        """
        ends = {stream: self._source.offsets(stream) for stream in {n.stream for n in self._next}}
        return {
            name: max(0, ends[name.stream].get(name.partition, 0) - at)
            for name, at in sorted(self._next.items())
        }

    # Positions

    def commit(self, offsets: Mapping[PartitionName, int] | None = None) -> None:
        """Note how far the group has come; others begin there.

        Args:
            offsets: the next record to consume of some partitions; by default everything that was
                handed out is processed.

        Raises:
            InvalidRequestError: these are no offsets of partitions.
            DisconnectedError: it was closed.
            UnknownMemberError: this is no member any more; others consume those records again.
            StaleMemberError: one of the partitions is somebody else's by now.
            StrandlineError: whether they were noted is unknown; commit again.
        """
        self._check_open()
        if offsets is None:
            offsets = self._commits.pending(self._next)
        self._commits.commit(offsets_by_partition(offsets))

    def commit_in_transaction(self, tell: Tell, offsets: Offsets) -> None:
        """Have offsets noted by a transaction of ours; what ``Transaction`` calls.

        Args:
            tell: notes the offsets of a group for the member that this is.
            offsets: the next record to consume of some partitions.

        Raises:
            InvalidRequestError: this consumer commits by itself, or keeps positions elsewhere.
            StrandlineError: as ``commit``.
        """
        options = self._options
        if options.commit_interval_s is not None or options.positions is not None:
            raise InvalidRequestError(
                f"positions of group {self.group!r} are to be committed by a transaction: let the "
                "consumer have commit_interval_s=None, and no store of its own"
            )
        self._commits.commit(offsets, tell)

    # Partitions come and go

    def _settle(self) -> None:
        """Do what the coordinator decided since the last poll."""
        self._ahead.awoken()
        self._membership.polled()
        view = self._membership.view()
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
        """Give partitions up: stop, commit, tell the user, tell the coordinator."""
        ours = going & self._next.keys()
        self._ahead.stop(ours)
        if ours:
            self._commits.commit_softly(ours)
            if self._options.on_revoked is not None:
                self._options.on_revoked(self, ours)
            self._forget(ours)
        self._membership.give_up(going)

    def _assign(self, coming: Partitions, view: MemberAssignment) -> None:
        """Begin with partitions where the group has come to."""
        try:
            starts = self._starts(coming, view)
        except StrandlineError as error:
            has_moved = isinstance(error, StaleMemberError | UnknownMemberError)
            # A stream that is gone is the coordinator's to take away.
            is_gone = isinstance(error, UnknownStreamError)
            if not (error.retriable or has_moved or is_gone):
                raise
            now_s = time.monotonic()
            self._beginning.failed(now_s)
            if self._beginning.is_news(now_s):
                logger.warning("group %s: cannot begin yet: %s", self.group, error)
            if has_moved:
                self._membership.beat_soon()  # and look again at the next poll
            return
        self._beginning.succeeded()
        self._next |= starts
        try:
            if self._options.on_assigned is not None:
                self._options.on_assigned(self, coming)
        except BaseException:
            self._forget(coming)  # the next poll begins with them again
            raise
        self._ahead.begin(coming - self._paused)

    def _starts(self, coming: Partitions, view: MemberAssignment) -> dict[PartitionName, int]:
        """Where to begin.

        Raises:
            StrandlineError: positions or offsets cannot be had now.
        """
        if self._options.positions is None:
            starts = {name: view.starts[name] for name in coming if name in view.starts}
        else:
            starts = self._store.claim(self.group, coming, view.owner)
        self._commits.found(starts)
        fresh = coming - starts.keys()
        counts = view.began_with
        added = frozenset(name for name in fresh if name.partition >= counts.get(name.stream, inf))
        late = self._places(fresh - added)
        if late and self._options.start != "earliest":
            # Or whoever came after us would begin later than we, and leave out what we were given.
            self._commits.commit(late)
        return starts | self._places(added, "earliest") | late

    def _places(self, names: Partitions, at: Place | None = None) -> dict[PartitionName, int]:
        """The offsets of a place, by default where members start.

        Raises:
            StrandlineError: they cannot be had now.
        """
        found: dict[PartitionName, int] = {}
        for stream in {name.stream for name in names}:
            offsets = self._source.offsets(stream, self._options.start if at is None else at)
            for name in names:
                if name.stream == stream:
                    if name.partition not in offsets:  # added a moment ago
                        raise UnavailableError(f"the broker does not know {name} yet")
                    found[name] = offsets[name.partition]
        return found

    def _lose(self) -> None:
        """Not a member any more: others consume what we had, so begin anew."""
        ours = self.assignment()
        self._ahead.stop(ours)
        if ours and self._options.on_revoked is not None:
            self._options.on_revoked(self, ours)
        self._forget(ours)
        self._membership.give_up_all()

    def _forget(self, partitions: Partitions) -> None:
        for name in partitions:
            self._next.pop(name, None)
            self._paused.discard(name)
        self._commits.forget(partitions)

    def _own(self, stream: str, partition: int) -> PartitionName:
        self._check_open()
        name = PartitionName(stream, whole_number(partition, "a partition"))
        if name not in self._next:
            raise InvalidRequestError(f"{name} is not assigned to this consumer")
        return name

    # Life

    def _check_open(self) -> None:
        """Refuse what a consumer that has left cannot do; ``on_revoked`` is called before that.

        Raises:
            DisconnectedError: it has left.
        """
        if self._has_left:
            raise DisconnectedError("this consumer is closed; make another")

    def close(self, *, commit: bool = True) -> None:
        """Leave the group; harmless when repeated.

        Args:
            commit: note what was handed out as processed, if positions are committed periodically.

        Raises:
            StrandlineError: positions cannot be committed, or a callback's error.
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
            self._has_left = True
            self._ahead.close()
            self._membership.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What failed was not processed: it is for whoever comes next.
        self.close(commit=kind is None)

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

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import pyarrow as pa

from strandline.client.fetching import INBOX_BATCHES, Fetch, Fetched, Inbox, Source
from strandline.client.membership import Membership, View
from strandline.client.office import Office
from strandline.client.positions import LogPositions, Offsets, Owner, PositionStore
from strandline.client.reading import Place
from strandline.client.results import Record
from strandline.client.subscription import records_of
from strandline.errors import (
    InvalidRequestError,
    StaleMemberError,
    StrandlineError,
    UnknownMemberError,
    UnknownStreamError,
)
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

Partitions = frozenset[PartitionName]
OnAssigned = Callable[["Consumer", Partitions], None]
OnRevoked = Callable[["Consumer", Partitions], None]
COMMIT_ATTEMPTS = 5
POLL_BYTES = 8 << 20
"""About as much as one poll hands out."""


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """Records of one partition, in order."""

    stream: str
    partition: int
    records: pa.RecordBatch
    """Columns partition, offset, timestamp, subject, key, value, headers."""

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return int(self.records.column("offset")[-1].as_py()) + 1

    def __iter__(self) -> Iterator[Record]:
        """The records as Python objects."""
        return records_of(self.records, self.stream)


class Options(NamedTuple):
    """How a consumer consumes.

    Attributes:
        start: where to begin in partitions without a position: ``"earliest"``, ``"latest"`` or a
            time; also where the log does not hold the position any more.
        commit_interval_s: positions are committed in a ``poll`` once so much time has passed; None:
            only by ``commit``.
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
        coordinator: Office,
        group: str,
        *,
        streams: Iterable[str],
        options: Options,
    ) -> None:
        if options.start not in ("earliest", "latest") and isinstance(options.start, str | int):
            raise InvalidRequestError(
                f"start is {options.start!r}; give 'earliest', 'latest' or a datetime"
            )
        self.group = group
        self._source = source
        self._options = options
        self._store = options.positions or LogPositions(coordinator)
        self._inbox: Inbox = queue.Queue(INBOX_BATCHES)
        self._changed = threading.Event()
        self._fetches: dict[PartitionName, Fetch] = {}
        """Who reads each partition; those that are paused are read by nobody."""
        self._failed: dict[Fetch, StrandlineError] = {}
        self._next: dict[PartitionName, int] = {}
        """The next record to hand out, of each partition we have."""
        self._committed: dict[PartitionName, int] = {}
        self._paused: set[PartitionName] = set()
        self._committed_s = time.monotonic()
        self._is_closed = False
        self._membership = Membership(
            coordinator,
            group,
            streams,
            instance=options.instance,
            session_s=options.session_timeout_s,
            poll_interval_max_s=options.poll_interval_max_s,
            on_change=self._notice,
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
            StrandlineError: a partition cannot be read on, at every poll until it is paused or
                sought past; or a callback's error.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._settle()
            self._raise_failure()
            batches = self._taken(deadline_s)
            if batches or time.monotonic() >= deadline_s:
                return batches

    def _taken(self, deadline_s: float) -> list[ConsumedBatch]:
        """What has been read; waits for the first, or for a change of what we have."""
        found: list[ConsumedBatch] = []
        size = 0
        while size < POLL_BYTES and not self._changed.is_set():
            left_s = 0.0 if found else max(0.0, deadline_s - time.monotonic())
            try:
                fetched = self._inbox.get(timeout=left_s) if left_s else self._inbox.get_nowait()
            except queue.Empty:
                break
            batch = self._accepted(fetched)
            if batch is not None:
                found.append(batch)
                size += batch.records.nbytes
        return found

    def _accepted(self, fetched: Fetched | None) -> ConsumedBatch | None:
        """A batch to hand out; None if there is none, or it is not ours any more."""
        if fetched is None:
            return None
        if fetched.batch is None:
            assert fetched.error is not None, "no batch, so an error"
            # Told by the next poll: this one may have batches, which must not be lost.
            self._failed[fetched.fetch] = fetched.error
            self._changed.set()
            return None
        name = PartitionName(fetched.fetch.stream, fetched.partition)
        if self._fetches.get(name) is not fetched.fetch:
            return None
        batch = ConsumedBatch(name.stream, name.partition, fetched.batch)
        self._next[name] = batch.next_offset
        return batch

    def _raise_failure(self) -> None:
        """Tell of a read that has ended while it was wanted.

        Raises:
            StrandlineError: why it has.
        """
        in_use = set(self._fetches.values())
        self._failed = {fetch: e for fetch, e in self._failed.items() if fetch in in_use}
        for error in self._failed.values():
            raise error

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
            InvalidRequestError: not one of this member's partitions.
            StrandlineError: the place cannot be found.
        """
        name = self._own(stream, partition)
        at = to if isinstance(to, int) else self._source.offsets(stream, to)[partition]
        self._next[name] = at
        if name in self._fetches:
            self._stop([name])
            self._fetch([name])

    def pause(self, stream: str, partition: int) -> None:
        """Hand out no records of a partition until ``resume``; it stays this member's.

        Raises:
            InvalidRequestError: not one of this member's partitions.
        """
        name = self._own(stream, partition)
        self._paused.add(name)
        self._stop([name])

    def resume(self, stream: str, partition: int) -> None:
        """Hand out records of a partition again, from where it was paused.

        Raises:
            InvalidRequestError: not one of this member's partitions.
        """
        name = self._own(stream, partition)
        if name in self._paused:
            self._paused.discard(name)
            self._fetch([name])

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
            UnknownMemberError: this is no member any more; others consume those records again.
            StaleMemberError: one of the partitions is somebody else's by now.
            StrandlineError: whether they were noted is unknown; commit again.
        """
        if offsets is None:
            offsets = {n: at for n, at in self._next.items() if self._committed.get(n) != at}
        self._commit(self._store.commit, offsets)

    def commit_by(self, tell: Callable[[str, Offsets, Owner], None], offsets: Offsets) -> None:
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
        self._commit(tell, offsets)

    def _commit(self, tell: Callable[[str, Offsets, Owner], None], offsets: Offsets) -> None:
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            if not offsets:
                break
            try:
                tell(self.group, offsets, self._owner())
            except StaleMemberError:
                # Something else of ours has moved: hear of it, and commit under the new epoch.
                self._membership.beat()
                held = self._membership.view().held
                if attempt == COMMIT_ATTEMPTS or not held.issuperset(offsets):
                    raise
            else:
                self._committed |= offsets
                break
        self._committed_s = time.monotonic()

    def _owner(self) -> Owner:
        view = self._membership.view()
        if view.is_lost:
            raise UnknownMemberError(
                f"this consumer is no member of group {self.group!r} any more; it joins again"
            )
        return view.owner

    def _commit_if_due(self) -> None:
        """Commit what was handed out before this poll, once in a while."""
        interval_s = self._options.commit_interval_s
        if interval_s is None or time.monotonic() - self._committed_s < interval_s:
            return
        self._commit_softly(self._next)

    def _commit_softly(self, partitions: Collection[PartitionName]) -> None:
        """Commit, but go on if it cannot be: the records are consumed again by whoever is next."""
        offsets = {
            name: self._next[name]
            for name in partitions
            if self._committed.get(name) != self._next[name]
        }
        try:
            self.commit(offsets)
        except (UnknownMemberError, StaleMemberError) as error:
            logger.warning("group %s: not committed: %s", self.group, error)
        except StrandlineError as error:
            if not error.retriable:
                raise
            logger.warning("group %s: not committed, will try again: %s", self.group, error)

    # Partitions come and go

    def _notice(self) -> None:
        """Something changed: wake who polls."""
        self._changed.set()
        with contextlib.suppress(queue.Full):  # then nobody waits for it
            self._inbox.put_nowait(None)

    def _settle(self) -> None:
        """Do what the coordinator decided since the last poll."""
        self._changed.clear()
        self._membership.polled()
        view = self._membership.view()
        if view.is_lost:
            self._lose()
            return
        self._commit_if_due()
        going = view.held - view.assigned
        if going:
            self._revoke(going)
        coming = view.assigned - self._next.keys()
        if coming:
            self._assign(coming, view)

    def _revoke(self, going: Partitions) -> None:
        """Give partitions up: stop, commit, tell the user, tell the coordinator."""
        ours = going & self._next.keys()
        self._stop(ours)
        if ours:
            if self._options.commit_interval_s is not None:
                self._commit_softly(ours)
            if self._options.on_revoked is not None:
                self._options.on_revoked(self, ours)
            self._forget(ours)
        self._membership.give_up(going)

    def _assign(self, coming: Partitions, view: View) -> None:
        """Begin with partitions where the group has come to."""
        try:
            starts = self._starts(coming, view)
        except StaleMemberError:
            self._membership.beat()  # something else has moved: look again at the next poll
            return
        except StrandlineError as error:
            # A stream that is gone is the coordinator's to take away.
            if not error.retriable and not isinstance(error, UnknownStreamError):
                raise
            logger.warning("group %s: cannot begin yet: %s", self.group, error)
            return
        self._next |= starts
        if self._options.on_assigned is not None:
            self._options.on_assigned(self, coming)
        self._fetch(coming - self._paused)

    def _starts(self, coming: Partitions, view: View) -> dict[PartitionName, int]:
        """Where to begin.

        Raises:
            StrandlineError: positions or offsets cannot be had now.
        """
        if self._options.positions is None:
            starts = {name: view.starts[name] for name in coming if name in view.starts}
        else:
            starts = self._store.claim(self.group, coming, view.owner)
        self._committed |= starts
        for stream in {name.stream for name in coming if name not in starts}:
            fresh = self._source.offsets(stream, self._options.start)
            for name in coming:
                if name.stream == stream and name not in starts:
                    starts[name] = fresh[name.partition]
        return starts

    def _lose(self) -> None:
        """Not a member any more: others consume what we had, so begin anew."""
        ours = self.assignment()
        self._stop(ours)
        if ours and self._options.on_revoked is not None:
            self._options.on_revoked(self, ours)
        self._forget(ours)
        self._membership.give_up_all()

    def _forget(self, partitions: Iterable[PartitionName]) -> None:
        for name in partitions:
            self._next.pop(name, None)
            self._committed.pop(name, None)
            self._paused.discard(name)

    # Reading ahead

    def _fetch(self, partitions: Collection[PartitionName]) -> None:
        """Read partitions from where they are."""
        for stream in sorted({name.stream for name in partitions}):
            names = [name for name in sorted(partitions) if name.stream == stream]
            fetch = Fetch(
                self._source,
                stream,
                {name.partition: self._next[name] for name in names},
                inbox=self._inbox,
                restart=self._options.start,
            )
            self._fetches |= dict.fromkeys(names, fetch)

    def _stop(self, partitions: Iterable[PartitionName]) -> None:
        """Read partitions no more; what their reads were also reading goes on."""
        worn: set[Fetch] = set()
        for name in partitions:
            fetch = self._fetches.pop(name, None)
            if fetch is not None:
                fetch.wanted.discard(name.partition)
                if 2 * len(fetch.wanted) < fetch.begun_with:
                    worn.add(fetch)
        for fetch in worn:
            # Most of what it reads is for nobody: read the rest without it.
            fetch.cancel()
            rest = [PartitionName(fetch.stream, number) for number in fetch.wanted]
            self._fetch(rest)

    def _own(self, stream: str, partition: int) -> PartitionName:
        name = PartitionName(stream, partition)
        if name not in self._next:
            raise InvalidRequestError(f"{name} is not assigned to this consumer")
        return name

    # Life

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
            self._stop(ours)
            if commit and self._options.commit_interval_s is not None:
                self._commit_softly(ours)
            if ours and self._options.on_revoked is not None:
                self._options.on_revoked(self, ours)
        finally:
            for fetch in set(self._fetches.values()):
                fetch.cancel()
            self._membership.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What failed was not processed: it is for whoever comes next.
        self.close(commit=kind is None)

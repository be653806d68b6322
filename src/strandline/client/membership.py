"""Membership of a consumer group: heartbeats beside the consumer's own work.

A thread tells the coordinator that the consumer lives and what it holds, and hears what it may
consume; the consumer looks at that when it polls, gives up what it lost and begins what it got.

Rules:
- what the coordinator gave counts as held from that moment, whether the consumer has begun or not;
  it stays held until the consumer has given it up;
- a consumer that does not poll for ``poll_interval_max_s`` leaves: whoever is stuck holds nothing;
- once it is no member any more everything is lost, and it joins again, with another id, when the
  consumer has given up everything.

Must not know records, nor what positions are for.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from strandline.client.arguments import milliseconds
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.positions import Owner, by_name
from strandline.errors import MemberFencedError, StrandlineError, UnknownMemberError
from strandline.protocol import groups as wire
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

BEATS_PER_SESSION = 4
BEAT_S_MAX = 1.0
"""However long the session: a member hears of what it is to give up with a heartbeat."""
WAITING_BEAT_S = 0.2
"""While others still have what is meant for it."""
JOIN_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 5.0


class MemberAssignment(NamedTuple):
    """What a member has, at one moment."""

    owner: Owner
    assigned: frozenset[PartitionName]
    """What it may consume."""
    held: frozenset[PartitionName]
    """What it has not given up yet."""
    starts: dict[PartitionName, int]
    """What was committed where it begins."""
    began_with: dict[str, int]
    """How many partitions each stream had when the group began with it."""
    is_lost: bool
    """It is no member any more: others consume what it had."""


class Membership:
    """A member of a group, from ``join`` to ``leave``.

    Args:
        coordinator: whom to tell.
        group: its name.
        streams: what to consume.
        instance: name of a static member; empty for others.
        keeps: whether the group has its positions elsewhere, and so stays without members.
        session_s: the coordinator gives a member up that it does not hear of for so long.
        poll_interval_max_s: a consumer that does not poll for so long leaves.
        on_change: called, on any thread, when there is something to look at.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        group: str,
        streams: Sequence[str],
        *,
        instance: str,
        keeps: bool,
        session_s: float,
        poll_interval_max_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        self._streams = tuple(streams)
        self._instance = instance
        self._keeps = keeps
        self._session_s = session_s
        self._poll_interval_max_s = poll_interval_max_s
        self._on_change = on_change
        self._lock = threading.Lock()
        self._beating = threading.Lock()
        self._member = ""
        self._epoch = 0
        self._assigned: frozenset[PartitionName] = frozenset()
        self._held: frozenset[PartitionName] = frozenset()
        self._starts: dict[PartitionName, int] = {}
        self._began_with: dict[str, int] = {}
        self._is_lost = False
        self._is_waiting = False
        self._error: StrandlineError | None = None
        self._polled_s = time.monotonic()
        self._wake = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-member", daemon=True)

    # For the consumer

    def join(self) -> None:
        """Become a member, and stay one.

        Raises:
            UnknownStreamError: there is no such stream.
            StrandlineError: the coordinator refuses, or cannot be reached.
        """
        self._join()
        self._thread.start()

    def polled(self) -> None:
        """The consumer is not stuck.

        Raises:
            MemberFencedError: another consumer took the instance's place: this one ends.
            StrandlineError: the coordinator refuses for good.
        """
        self._polled_s = time.monotonic()
        if self._error is not None:
            raise self._error

    def view(self) -> "MemberAssignment":
        """What there is to do."""
        with self._lock:
            owner = Owner(self._member, self._epoch)
            if self._is_lost:
                return MemberAssignment(owner, frozenset(), frozenset(), {}, {}, is_lost=True)
            starts, began_with = dict(self._starts), dict(self._began_with)
            return MemberAssignment(
                owner, self._assigned, self._held, starts, began_with, is_lost=False
            )

    def give_up(self, partitions: Collection[PartitionName]) -> None:
        """The consumer consumes these no more, and has committed what it wanted to."""
        with self._lock:
            self._held -= frozenset(partitions)
            for name in partitions:
                self._starts.pop(name, None)
        self._wake.set()

    def give_up_all(self) -> None:
        """The consumer consumes nothing; after that a lost membership is taken up again."""
        with self._lock:
            self._is_lost = False
            self._member, self._held = "", frozenset()
        self._wake.set()

    def beat(self) -> None:
        """Tell the coordinator, and hear, now.

        Raises:
            StrandlineError: as ``CoordinatorClient.ask``.
        """
        with self._beating:
            if self._member and not self._is_lost:
                self._heartbeat()

    def beat_soon(self) -> None:
        """Tell the coordinator, and hear, without waiting for it."""
        self._wake.set()

    def leave(self) -> None:
        """End it; a static member only falls silent, so that it finds its partitions again."""
        self._is_over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_TIMEOUT_S)
        if self._member and not self._instance:
            body = wire.LeaveGroup(group=self._group, member=self._member)
            try:
                self._coordinator.tell(wire.LEAVE_GROUP, body, timeout_s=LEAVE_TIMEOUT_S)
            except StrandlineError as error:
                logger.warning("group %s: could not say goodbye: %s", self._group, error)

    # The thread

    def _run(self) -> None:
        interval_s = min(BEAT_S_MAX, self._session_s / BEATS_PER_SESSION)
        while not self._is_over.is_set():
            self._wake.wait(min(interval_s, WAITING_BEAT_S) if self._is_waiting else interval_s)
            self._wake.clear()
            if self._is_over.is_set():
                return
            try:
                with self._beating:
                    self._once()
            except StrandlineError as error:
                if not error.retriable:
                    self._end(error)
                    return
                logger.warning("group %s: no heartbeat: %s", self._group, error)
            except Exception as bug:
                # Or the consumer would go on with what others have been given meanwhile.
                logger.exception("group %s: a bug ended the membership", self._group)
                self._end(StrandlineError(f"the membership ended: {bug!r}"))
                return

    def _once(self) -> None:
        if self._is_lost:
            return
        is_stuck = time.monotonic() - self._polled_s > self._poll_interval_max_s
        if is_stuck and self._member:
            logger.warning(
                "group %s: nothing was polled for %g s, leaving",
                self._group,
                self._poll_interval_max_s,
            )
            body = wire.LeaveGroup(group=self._group, member=self._member)
            self._coordinator.tell(wire.LEAVE_GROUP, body, timeout_s=self._session_s)
            self._lose()
        elif self._member:
            self._heartbeat()
        elif not is_stuck:
            self._join()

    def _join(self) -> None:
        member = secrets.token_hex(8)
        body = wire.JoinGroup(
            group=self._group,
            member=member,
            streams=self._streams,
            session_ms=milliseconds(self._session_s, "session_timeout_s"),
            instance=self._instance,
            keeps=self._keeps,
        )
        [answer] = self._coordinator.ask(
            wire.JOIN_GROUP,
            body,
            wire.Assignment,
            timeout_s=JOIN_TIMEOUT_S,
            streams=self._streams,
        )
        with self._lock:
            self._member = member
        self._told(answer)

    def _heartbeat(self) -> None:
        with self._lock:
            body = wire.GroupHeartbeat(
                group=self._group,
                member=self._member,
                epoch=self._epoch,
                held=_numbers(self._held),
                instance=self._instance,
            )
        try:
            [answer] = self._coordinator.ask(
                wire.GROUP_HEARTBEAT, body, wire.Assignment, timeout_s=self._session_s
            )
        except UnknownMemberError as error:
            logger.warning("group %s: %s", self._group, error)
            self._lose()
        else:
            self._told(answer)

    def _told(self, answer: wire.Assignment) -> None:
        assigned = frozenset(
            PartitionName(stream, number)
            for stream, numbers in answer.partitions.items()
            for number in numbers
        )
        with self._lock:
            is_new = answer.epoch != self._epoch or not assigned <= self._held
            self._epoch, self._assigned = answer.epoch, assigned
            self._held |= assigned
            self._starts |= by_name(answer.positions)
            self._began_with |= answer.began_with
            self._is_waiting = answer.is_waiting
        if is_new:
            self._on_change()

    def _lose(self) -> None:
        with self._lock:
            self._is_lost = True
            self._epoch, self._assigned, self._starts = 0, frozenset(), {}
        self._on_change()

    def _end(self, error: StrandlineError) -> None:
        """Nothing more can be done: the consumer is told at its next poll."""
        self._lose()
        self._error = error
        if not isinstance(error, MemberFencedError):
            logger.error("group %s: %s", self._group, error)
        self._on_change()


def _numbers(names: Iterable[PartitionName]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for stream, number in sorted(names):
        found[stream] = (*found.get(stream, ()), number)
    return found

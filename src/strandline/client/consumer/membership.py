"""The membership in a consumer group: joins, sends heartbeats, receives the assignment.

A thread reports to the coordinator which partitions the consumer holds, and receives which ones it
may consume. When the consumer polls, it looks at the assignment, releases revoked partitions and
begins added ones.

Rules:
- an assigned partition is held from the assignment until the consumer has released it, even if the
  consumer has not begun to read it;
- a consumer that does not poll for ``poll_interval_max_s`` leaves, so that a hanging one holds no
  partitions;
- a member that was removed has lost all partitions; it joins again under another id once the
  consumer has released them.

Must not know records, nor the meaning of offsets.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from strandline.api import groups as wire
from strandline.client.arguments import milliseconds
from strandline.client.consumer.offset_store import Owner, by_name
from strandline.client.coordinator_client import CoordinatorClient
from strandline.errors import MemberFencedError, StrandlineError, UnknownMemberError
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

HEARTBEATS_PER_SESSION = 4
HEARTBEAT_INTERVAL_S_MAX = 1.0
"""The longest interval of heartbeats: their answers tell which partitions to release."""
WAITING_HEARTBEAT_S = 0.2
"""The interval while other members still hold partitions assigned to this one."""
JOIN_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 5.0


class MemberAssignment(NamedTuple):
    """The assignment of a member at one moment."""

    owner: Owner
    assigned: frozenset[PartitionName]
    """Partitions that the member may consume."""
    held: frozenset[PartitionName]
    """Partitions that the member has not released yet."""
    starts: dict[PartitionName, int]
    """The committed offsets of the partitions that the member begins."""
    began_with: dict[str, int]
    """The number of partitions of each stream when the group began to consume it."""
    is_lost: bool
    """Whether the membership is lost, so that others consume its partitions."""


class GroupMembership:
    """A member of a group, from ``join`` to ``leave``.

    Args:
        coordinator: the coordinator of the group.
        group: the group's name.
        streams: the streams to consume.
        instance: the name of a static member; empty for other members.
        keeps: offsets are stored elsewhere, so the group stays without members.
        session_s: the coordinator removes a member that sends no heartbeat for so long.
        poll_interval_max_s: a consumer that does not poll for so long leaves.
        on_change: called, on any thread, when the assignment has changed.
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
        self._heartbeat_lock = threading.Lock()
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

    # Called by the consumer

    def join(self) -> None:
        """Join the group and start sending heartbeats.

        Raises:
            UnknownStreamError: there is no such stream.
            StrandlineError: the coordinator rejects the member, or cannot be reached.
        """
        self._join()
        self._thread.start()

    def polled(self) -> None:
        """Note a poll; raise the error that has ended the membership, if there is one.

        Raises:
            MemberFencedError: another consumer has taken over this static member.
            StrandlineError: the coordinator rejected the member permanently.
        """
        self._polled_s = time.monotonic()
        if self._error is not None:
            raise self._error

    def assignment(self) -> "MemberAssignment":
        """Return the current assignment."""
        with self._lock:
            owner = Owner(self._member, self._epoch)
            if self._is_lost:
                return MemberAssignment(owner, frozenset(), frozenset(), {}, {}, is_lost=True)
            starts, began_with = dict(self._starts), dict(self._began_with)
            return MemberAssignment(
                owner, self._assigned, self._held, starts, began_with, is_lost=False
            )

    def release(self, partitions: Collection[PartitionName]) -> None:
        """Note that the consumer has stopped reading and has committed these partitions."""
        with self._lock:
            self._held -= frozenset(partitions)
            for name in partitions:
                self._starts.pop(name, None)
        self._wake.set()

    def release_all(self) -> None:
        """Note that the consumer has stopped reading; a lost member then joins again."""
        with self._lock:
            self._is_lost = False
            self._member, self._held = "", frozenset()
        self._wake.set()

    def heartbeat(self) -> None:
        """Send a heartbeat and apply its answer now.

        Raises:
            StrandlineError: as for ``CoordinatorClient.ask``.
        """
        with self._heartbeat_lock:
            if self._member and not self._is_lost:
                self._heartbeat()

    def heartbeat_soon(self) -> None:
        """Send a heartbeat soon, without waiting for it."""
        self._wake.set()

    def leave(self) -> None:
        """Leave the group; a static member only stops its heartbeats, to keep its partitions."""
        self._is_over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_TIMEOUT_S)
        if self._member and not self._instance:
            body = wire.LeaveGroupRequest(group=self._group, member=self._member)
            try:
                self._coordinator.ask(wire.LEAVE_GROUP, body, timeout_s=LEAVE_TIMEOUT_S)
            except StrandlineError as error:
                logger.warning(
                    "group %s: could not leave; the session will expire: %s", self._group, error
                )

    # The thread

    def _run(self) -> None:
        interval_s = min(HEARTBEAT_INTERVAL_S_MAX, self._session_s / HEARTBEATS_PER_SESSION)
        while not self._is_over.is_set():
            self._wake.wait(
                min(interval_s, WAITING_HEARTBEAT_S) if self._is_waiting else interval_s
            )
            self._wake.clear()
            if self._is_over.is_set():
                return
            try:
                with self._heartbeat_lock:
                    self._once()
            except StrandlineError as error:
                if not error.retriable:
                    self._end(error)
                    return
                logger.warning("group %s: heartbeat failed, will retry: %s", self._group, error)
            except Exception as bug:
                # Without an error the consumer would go on with partitions that others are
                # assigned.
                logger.exception("group %s: a bug ended the membership", self._group)
                self._end(StrandlineError(f"the membership ended: {bug!r}"))
                return

    def _once(self) -> None:
        if self._is_lost:
            return
        is_stuck = time.monotonic() - self._polled_s > self._poll_interval_max_s
        if is_stuck and self._member:
            logger.warning(
                "group %s: leaving, since the consumer has not polled for %g s",
                self._group,
                self._poll_interval_max_s,
            )
            body = wire.LeaveGroupRequest(group=self._group, member=self._member)
            self._coordinator.ask(wire.LEAVE_GROUP, body, timeout_s=self._session_s)
            self._lose()
        elif self._member:
            self._heartbeat()
        elif not is_stuck:
            self._join()

    def _join(self) -> None:
        member = secrets.token_hex(8)
        body = wire.JoinGroupRequest(
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
            timeout_s=JOIN_TIMEOUT_S,
            partitions=[(stream, 0) for stream in self._streams],
        )
        with self._lock:
            self._member = member
        self._apply_assignment(answer)

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
            [answer] = self._coordinator.ask(wire.GROUP_HEARTBEAT, body, timeout_s=self._session_s)
        except UnknownMemberError as error:
            logger.warning("group %s: %s", self._group, error)
            self._lose()
        else:
            self._apply_assignment(answer)

    def _apply_assignment(self, answer: wire.Assignment) -> None:
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
        """End the membership; the consumer's next poll raises the error."""
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

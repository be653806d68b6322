"""The controller: decides the next proposals from the image and the brokers' last heartbeats.

Pure: ``decide`` returns proposals and changes nothing. It works on the image as its own commands
will leave it, so fencing a broker and electing its successors are two commands in one step, for any
number of partitions.

Rules, in this order:
1. a broker is fenced after ``session_ms`` without a heartbeat, or ``disconnected_ms`` after its
   connections broke; one that sends heartbeats again is unfenced;
2. a partition without a leader gets one if a replica may lead without losing records, else none;
3. brokers that stop, are drained or whose disk rejects writes hand their leaderships to others in
   the ISR; one that stops and no longer leads is fenced, so that no commit waits for it, and one
   with an impaired disk leaves the ISR for the same reason;
4. reassignments whose new replicas are in sync are finished, then more begin, a few at a time: off
   brokers that are drained, and to give internal streams more replicas when brokers have joined;
5. leaders are balanced once the set of brokers in service has not changed for
   ``reshare_delay_ms``, so that a short absence moves nothing.

Invariant: on the resulting image, with the same view, there is nothing left to decide. Time alone
changes only which brokers are late or back, and whether leaders may be balanced. So the controller
looks at partitions again only when one of these, or the image, has changed. It looks at unsettled
partitions, and at all only if a broker that stops, is drained or has an impaired disk leads some:
the cost of an idle cluster and of creating a stream does not grow with the number of partitions.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.commands import (
    BrokerRun,
    Command,
    ElectionReason,
    ElectLeader,
    Fence,
    FinishReassignment,
    LeaderChange,
    ReassignReplicas,
    Unfence,
)
from strandline.core.metadata.election import (
    LogEnds,
    at,
    choose_leader,
    leader_change,
    led_partitions,
)
from strandline.core.metadata.image import BrokerImage, MetadataImage, PartitionImage
from strandline.core.metadata.internal_streams import widen_plan
from strandline.core.metadata.partitions import why_move_waits
from strandline.core.metadata.placement import drain_plan, rebalance_leaders
from strandline.types import BrokerId

ROUNDS_MAX = 20


class ControllerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's timeouts, and the most partitions to move at once."""

    session_ms: float = 2_000
    """A broker without a heartbeat for this long counts as dead."""
    disconnected_ms: float = 600
    """A broker whose connections broke counts as dead after this time. They break when its process
    ends, but not when it pauses."""
    reshare_delay_ms: float = 10_000
    """How long the set of brokers must be stable before leaders are balanced."""
    moves_max: int = 5
    """The most partitions to move at once."""


class LastHeartbeat(msgspec.Struct, frozen=True):
    """The last heartbeat of a broker."""

    incarnation: str
    at_ms: float
    stored_index: int = 0
    """The last entry of the metadata log that is committed and on its disk, as it reported."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision besides the image."""

    now_ms: float
    heartbeats: Mapping[BrokerId, LastHeartbeat]
    listening_since_ms: float
    """A broker without a heartbeat since then counts as if it had sent one at that time."""
    settled_since_ms: float
    """When the set of brokers in service last changed."""
    log_ends: LogEnds = msgspec.field(default_factory=dict)
    disconnected: Mapping[BrokerId, float] = msgspec.field(default_factory=dict)
    """When each disconnected broker lost its connections, in ms."""


def decide(
    image: MetadataImage, view: View, limits: ControllerLimits | None = None
) -> tuple[Command, ...]:
    """Return the commands to propose, in order; none if nothing is to be done."""
    plan = _Plan(image, view, limits or ControllerLimits())
    plan.fence_and_unfence()
    # A step may enable an earlier one: when a reassignment ends another may begin, and one that is
    # redirected may end at once. So repeat until nothing is left.
    for _ in range(ROUNDS_MAX):
        known = len(plan.commands)
        plan.elect()
        plan.hand_over()
        plan.fence_stopped()
        plan.finish_moves()
        plan.begin_moves()
        if len(plan.commands) == known:
            break
    plan.share_leaders()
    return tuple(plan.commands)


def is_late(broker: BrokerImage, view: View, limits: ControllerLimits) -> bool:
    """Whether a broker's session timed out; heartbeats of an earlier run do not count."""
    if is_disconnected(broker, view, limits):
        return True
    last = view.heartbeats.get(broker.id)
    if last is None or last.incarnation != broker.incarnation:
        return view.now_ms - view.listening_since_ms > limits.session_ms
    return view.now_ms - max(last.at_ms, view.listening_since_ms) > limits.session_ms


def is_disconnected(broker: BrokerImage, view: View, limits: ControllerLimits) -> bool:
    """Whether a broker has been disconnected for longer than ``disconnected_ms``."""
    since_ms = view.disconnected.get(broker.id)
    return since_ms is not None and view.now_ms - since_ms > limits.disconnected_ms


def is_back(broker: BrokerImage, view: View, limits: ControllerLimits) -> bool:
    """Whether a fenced broker is alive: this incarnation of it has just sent a heartbeat."""
    last = view.heartbeats.get(broker.id)
    if not broker.incarnation or broker.is_stopping:
        return False  # its directory was forgotten, or it is stopping: it has to register first
    if last is None or last.incarnation != broker.incarnation:
        return False
    is_recent = view.now_ms - last.at_ms <= limits.session_ms
    return is_recent and not is_disconnected(broker, view, limits)


def reported_index(broker: BrokerImage, last: LastHeartbeat | None) -> int:
    """Return the last entry that this run reported on its disk; see ``brokers.check_not_older``."""
    if last is None or last.incarnation != broker.incarnation:
        return 0
    return last.stored_index


def came_and_went(
    image: MetadataImage, view: View, limits: ControllerLimits
) -> tuple[list[BrokerImage], list[BrokerImage]]:
    """Return the brokers to fence and to unfence."""
    known = [image.brokers[broker] for broker in sorted(image.brokers)]
    dead = [b for b in known if not b.is_fenced and is_late(b, view, limits)]
    back = [b for b in known if b.is_fenced and is_back(b, view, limits)]
    return dead, back


def may_share_leaders(view: View, limits: ControllerLimits) -> bool:
    """Whether the set of brokers has been stable for long enough to balance leaders."""
    return view.now_ms - view.settled_since_ms >= limits.reshare_delay_ms


class _Plan:
    """The commands so far, and the image as they will leave it."""

    def __init__(self, image: MetadataImage, view: View, limits: ControllerLimits) -> None:
        self.image = image
        self.view = view
        self.limits = limits
        self.commands: list[Command] = []

    def propose(self, command: Command) -> None:
        """Add a command, which must apply: one that does not is a bug here."""
        self.image, outcome = apply_entry(self.image, command)
        assert outcome.is_applied, outcome
        assert not outcome.rejected, outcome
        self.commands.append(command)

    def fence_and_unfence(self) -> None:
        """Rule 1."""
        dead, back = came_and_went(self.image, self.view, self.limits)
        if dead:
            self.propose(Fence(_runs(dead), self._stored(dead)))
        if back:
            self.propose(Unfence(_runs(back), self._stored(back)))

    def _stored(self, brokers: list[BrokerImage]) -> tuple[int, ...]:
        found = tuple(reported_index(b, self.view.heartbeats.get(b.id)) for b in brokers)
        return found if any(found) else ()

    def elect(self) -> None:
        """Rule 2."""
        led = led_partitions(self.image)
        changes = []
        for name, partition in self.image.unsettled():
            if partition.leader is None and partition.replicas:
                leader = choose_leader(
                    partition, self.image.brokers, led=led, log_ends=self.view.log_ends
                )
                if leader is not None:
                    changes.append(leader_change(name, partition, leader, led=led))
        self._elect(changes, "leader_lost")

    def hand_over(self) -> None:
        """Rule 3, and move leaderships off replicas that a reassignment removes."""
        image = self.image
        led = led_partitions(image)
        handed: list[LeaderChange] = []
        moved: list[LeaderChange] = []
        failed: list[LeaderChange] = []
        # A broker may drain or have disk faults for long, so look at settled partitions only while
        # such a broker leads some.
        is_any_leaving = any(count and is_leaving(image.brokers[b]) for b, count in led.items())
        for name, partition in image.partitions() if is_any_leaving else image.unsettled():
            min_isr = image.streams[name.stream].config.min_isr
            among = successors(partition, image.brokers, min_isr=min_isr)
            if not among or partition.leader is None:
                continue
            leader = choose_leader(
                partition, image.brokers, led=led, log_ends=self.view.log_ends, among=among
            )
            if leader is not None and may_hand_to(partition, leader):
                change = leader_change(name, partition, leader, led=led)
                if partition.leader in partition.removing:
                    moved.append(change)
                elif image.brokers[partition.leader].is_impaired:
                    failed.append(change)
                else:
                    handed.append(change)
        self._elect(failed, "leader_failed")
        self._elect(handed, "handover")
        self._elect(moved, "reassignment")

    def fence_stopped(self) -> None:
        """Rule 3: fence brokers that stop and lead nothing."""
        led = led_partitions(self.image)
        done = [
            broker
            for _, broker in sorted(self.image.brokers.items())
            if broker.is_stopping and not broker.is_fenced and not led[broker.id]
        ]
        if done:
            self.propose(Fence(_runs(done), self._stored(done)))

    def finish_moves(self) -> None:
        """Rule 4: finish reassignments."""
        done = []
        for name, partition in self.image.unsettled():
            if partition.is_moving:
                min_isr = self.image.streams[name.stream].config.min_isr
                if not why_move_waits(partition, min_isr=min_isr):
                    done.append(at(name, partition))
        if done:
            self.propose(FinishReassignment(tuple(done)))

    def begin_moves(self) -> None:
        """Rule 4: begin reassignments."""
        for plan in (drain_plan, widen_plan):
            moves = plan(self.image, moves_max=self.limits.moves_max)
            if moves:
                self.propose(ReassignReplicas(moves))

    def share_leaders(self) -> None:
        """Rule 5."""
        if may_share_leaders(self.view, self.limits):
            command = rebalance_leaders(self.image)
            if command is not None:
                self.propose(command)

    def _elect(self, changes: list[LeaderChange], reason: ElectionReason) -> None:
        if changes:
            self.propose(ElectLeader(tuple(changes), reason))


def successors(
    partition: PartitionImage, brokers: Mapping[BrokerId, BrokerImage], *, min_isr: int
) -> tuple[BrokerId, ...]:
    """Return replicas that should lead instead of the present leader; none if it may stay.

    A leadership passes only from a broker that stops to others, from one that leaves the partition
    to those that stay, from one with an impaired disk to those without (if enough are in sync to
    accept records), and from one being drained to the rest. It never passes back, so it settles.
    """
    if partition.leader is None:
        return ()
    leader = brokers[partition.leader]
    if leader.is_stopping:
        return partition.replicas
    if leader.id in partition.removing:
        return partition.target
    healthy = tuple(b for b in partition.target if not brokers[b].is_impaired)
    if leader.is_impaired:
        able = [b for b in partition.isr if b in healthy and brokers[b].may_lead]
        return healthy if len(able) >= min_isr else ()
    if leader.is_draining:
        return tuple(b for b in healthy if not brokers[b].is_draining)
    return ()


def is_leaving(broker: BrokerImage) -> bool:
    """Whether others should lead this broker's partitions, even settled ones."""
    return broker.is_stopping or broker.is_impaired or broker.is_draining


def may_hand_to(partition: PartitionImage, leader: BrokerId) -> bool:
    """Whether a working leadership may pass to this broker: only if it is in sync."""
    return leader in partition.isr


def _runs(brokers: list[BrokerImage]) -> tuple[BrokerRun, ...]:
    return tuple(BrokerRun(b.id, b.incarnation) for b in brokers)


class _Done(NamedTuple):
    """The inputs of a decision that left nothing to do for partitions.

    Attributes:
        image: the image object that was examined.
        shares: whether leaders were to be balanced.
    """

    image: MetadataImage
    shares: bool


class Controller:
    """The controller of one term, on the broker that holds the role.

    It is created for each term and dropped when the role is lost. All times come from one clock. A
    process that was paused has received no heartbeats and must not count all brokers as dead: after
    a gap between decisions, all waits start again.

    Args:
        now_ms: the time.
        limits: timeouts.
        disconnected: when each disconnected broker lost its connections with this one, in ms.
    """

    def __init__(
        self,
        now_ms: float,
        limits: ControllerLimits | None = None,
        disconnected: Mapping[BrokerId, float] | None = None,
    ) -> None:
        self.limits = limits or ControllerLimits()
        self._listening_since_ms = now_ms
        self._decided_ms = now_ms
        self._settled_since_ms = now_ms
        self._heartbeats: dict[BrokerId, LastHeartbeat] = {}
        self._disconnected = dict(disconnected or {})
        self._serving: frozenset[BrokerRun] | None = None
        self._done: _Done | None = None

    @property
    def interval_ms(self) -> float:
        """The longest time between two decisions, in ms; after twice that it counts as a gap."""
        return self.limits.session_ms / 4

    def heartbeat(self, run: BrokerRun, now_ms: float, stored_index: int = 0) -> None:
        """Note a broker's heartbeat; the controller's own broker sends heartbeats too.

        Args:
            run: the present run of the broker.
            now_ms: the time.
            stored_index: the last entry of the metadata log that is committed and on its disk.
        """
        self._heartbeats[run.broker] = LastHeartbeat(run.incarnation, now_ms, stored_index)

    def lost(self, broker: BrokerId, now_ms: float) -> None:
        """Note that the connections with a broker broke."""
        self._disconnected[broker] = now_ms

    def found(self, broker: BrokerId) -> None:
        """Note that a broker is connected again."""
        self._disconnected.pop(broker, None)

    def decide(
        self,
        image: MetadataImage,
        now_ms: float,
        log_ends: LogEnds | None = None,
    ) -> tuple[Command, ...]:
        """Return the commands to propose now.

        Args:
            image: the newest image that is applied here.
            now_ms: from the clock of the heartbeats.
            log_ends: log ends of partitions that lost their leader, from the brokers that answered.
        """
        self._note_changes(image, now_ms)
        view = View(
            now_ms=now_ms,
            heartbeats=self._heartbeats,
            listening_since_ms=self._listening_since_ms,
            settled_since_ms=self._settled_since_ms,
            log_ends=log_ends or {},
            disconnected=self._disconnected,
        )
        done = _Done(image, may_share_leaders(view, self.limits))
        if self._is_done(done) and not any(came_and_went(image, view, self.limits)):
            return ()
        commands = decide(image, view, self.limits)
        self._done = None if commands else done
        return commands

    def _is_done(self, done: _Done) -> bool:
        """Whether nothing was left to do; images are large and are compared by identity."""
        known = self._done
        return known is not None and known.image is done.image and known.shares == done.shares

    def _note_changes(self, image: MetadataImage, now_ms: float) -> None:
        """Restart the waits after a gap, and when the set of brokers changed."""
        if now_ms - self._decided_ms > 2 * self.interval_ms:
            self._listening_since_ms = now_ms
            self._disconnected = dict.fromkeys(self._disconnected, now_ms)
        self._decided_ms = now_ms
        serving = frozenset(_runs([b for b in image.brokers.values() if b.may_take_replicas]))
        if serving != self._serving:
            self._serving = serving
            self._settled_since_ms = now_ms
        self._heartbeats = {b: last for b, last in self._heartbeats.items() if b in image.brokers}

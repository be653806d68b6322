"""Operators' commands to a cluster, on any broker: each is one or two metadata commands.

Rules: a command returns when it is decided. The controller, on whichever broker, does the lasting
work, such as copying, since the image has all that this needs. A decision on an outdated image is
made again. Must not know who the caller is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from strandline.broker.cluster.membership import ClusterMembership
from strandline.core.metadata.commands import (
    AddPartitions,
    AdmitBroker,
    Command,
    Drain,
    ElectionReason,
    ElectLeader,
    ForgetDirectory,
    LeaderChange,
    Move,
    ReassignReplicas,
    RemoveBroker,
    Replicas,
)
from strandline.core.metadata.election import at, choose_leader, leader_change, led_partitions
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.core.metadata.outcome import CommandOutcome
from strandline.core.metadata.placement import Loads, place, rebalance_plan, rotated, well_placed
from strandline.errors import InvalidRequestError, NotLeaderError, UnavailableError
from strandline.types import BrokerId, PartitionName

logger = logging.getLogger(__name__)

CHANGE_TIMEOUT_S = 30.0
ATTEMPTS_MAX = 20
RETRY_S = 0.1
REBALANCE_MOVES_MAX = 5
"""Partitions that one rebalance command moves; the operator repeats the command."""
Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Operations:
    """Commands to the cluster.

    Args:
        membership: this broker's membership.
        until: waits until a decision is applied on this broker.
    """

    def __init__(self, membership: ClusterMembership, until: Until) -> None:
        self._membership = membership
        self._until = until

    @property
    def _image(self) -> MetadataImage:
        return self._membership.machine.image

    # Brokers

    async def admit(self, broker: BrokerId, peer_address: str) -> None:
        """Admit a new broker at an address.

        Raises:
            InvalidRequestError: the id is in use, or was.
            UnavailableError: the cluster cannot decide now; likewise for all commands of this
                class.
        """
        await self._propose(AdmitBroker(broker, peer_address))

    async def drain(self, broker: BrokerId, *, is_on: bool) -> None:
        """Move all replicas off a broker, or stop doing so.

        Raises:
            InvalidRequestError: no such broker.
        """
        await self._propose(Drain(broker, is_on))
        logger.warning("broker %d is %s drained", broker, "being" if is_on else "no longer")

    async def remove(self, broker: BrokerId) -> None:
        """Remove a broker without replicas; return once it has left the quorum.

        Raises:
            InvalidRequestError: the broker is in use (the message says how), or is this broker.
        """
        if broker == self._membership.me:
            raise InvalidRequestError(
                f"broker {broker} cannot remove itself; send the command to another broker "
                "(--server)"
            )
        await self._propose(RemoveBroker(broker))
        logger.warning("broker %d is removed", broker)
        await self._until(lambda: broker not in self._membership.quorum.members.everybody)

    async def replace_disk(self, broker: BrokerId) -> None:
        """Forget a stopped broker's disk; return once the broker may start with another disk.

        That is when its vote was withdrawn: on another disk the broker does not know its votes.

        Raises:
            InvalidRequestError: the broker is not stopped, or has the only copy of a partition.
        """
        await self._propose(ForgetDirectory(broker))
        logger.warning("the disk of broker %d is forgotten; it may start with another one", broker)
        await self._until(lambda: broker not in self._membership.quorum.members.voters)

    # Partitions

    async def reassign(self, stream: str, partition: int | None, to: Replicas) -> int:
        """Start to move a partition, or all of a stream; return how many partitions move.

        Args:
            stream: the stream's name.
            partition: the partition's number; None: all partitions.
            to: the brokers, preferred leader first; empty: placed like a new stream.

        Raises:
            InvalidRequestError: no such stream, partition or broker, or too few brokers.
        """
        return await self._begin_moves(lambda: _moves(self._image, stream, partition, to=to))

    async def rebalance(self) -> int:
        """Start to move replicas to brokers with fewer; return how many partitions move."""
        return await self._begin_moves(
            lambda: rebalance_plan(self._image, moves_max=REBALANCE_MOVES_MAX)
        )

    async def _begin_moves(self, plan: Callable[[], tuple[Move, ...]]) -> int:
        command = await self.decide(lambda: ReassignReplicas(found) if (found := plan()) else None)
        return len(command.moves) if isinstance(command, ReassignReplicas) else 0

    async def elect(self, name: PartitionName, leader: BrokerId, *, is_unclean: bool) -> None:
        """Elect a replica and make it the preferred leader, so that balancing does not undo it.

        Args:
            name: the name of the partition.
            leader: the new leader.
            is_unclean: elect it even if it may lack committed records; those are then lost.

        Raises:
            InvalidRequestError: the broker has no replica, is not in service, or may lack records.
        """
        copies = self._image.partition(*name).target
        if leader not in copies:
            raise InvalidRequestError(
                f"broker {leader} keeps no copy of {name}, or is to lose it; those that stay are "
                f"{', '.join(map(str, copies))}. If their disks are lost, 'cluster replace-disk' "
                "one of them, start it empty and elect it, or delete the stream"
            )

        def prefer() -> ReassignReplicas | None:
            found = self._image.partition(*name)
            target = (leader, *(broker for broker in found.target if broker != leader))
            is_first = found.target == target
            return None if is_first else ReassignReplicas((Move(at(name, found), target),))

        def elect() -> ElectLeader | None:
            found = self._image.partition(*name)
            if found.leader == leader:
                return None
            reason: ElectionReason = "unclean" if is_unclean else "operator"
            return ElectLeader((LeaderChange(at(name, found), leader),), reason)

        if is_unclean:
            logger.critical(
                "an operator orders an unclean election: broker %d is to lead %s, and records that "
                "it lacks are lost",
                leader,
                name,
            )
        await self.decide(elect)
        await self.decide(prefer)

    async def release_leadership(self, names: Sequence[PartitionName]) -> None:
        """Transfer the leadership of partitions that this broker cannot serve to replicas in sync.

        This broker leaves their ISRs, so that no commit waits for it. Partitions without another
        candidate are left as they are.

        Raises:
            UnavailableError: the cluster cannot decide now.
        """
        me = self._membership.me

        def release() -> ElectLeader | None:
            image = self._image
            led = led_partitions(image)
            changes = []
            for name, partition in image.partitions():
                if name in names and partition.leader == me:
                    others = [broker for broker in partition.isr if broker != me]
                    leader = choose_leader(partition, image.brokers, led=led, among=others)
                    if leader is not None:
                        changes.append(leader_change(name, partition, leader, led=led))
            return ElectLeader(tuple(changes), "leader_failed") if changes else None

        await self.decide(release)

    async def add_partitions(self, stream: str, count: int) -> None:
        """Add partitions to a stream, placed like those of a new stream.

        Raises:
            InvalidRequestError: no such stream, or too many partitions.
        """
        found = self._image.stream(stream)
        assignment = place(self._image, partitions=count, replicas=found.config.replicas)
        await self._propose(AddPartitions(stream, count, assignment))

    # Deciding

    async def decide(self, decision: Callable[[], Command | None]) -> Command | None:
        """Propose a decision made on the newest image; decide and propose again if it was outdated.

        Returns:
            The accepted command; None if there was nothing to do.

        Raises:
            InvalidRequestError: the command was rejected; the message has the reason.
            UnavailableError: other changes came first in every attempt.
        """
        for _ in range(ATTEMPTS_MAX):
            command = decision()
            if command is None:
                return None
            outcome = await self.outcome(command)
            if not _is_stale(outcome):
                return command
            await asyncio.sleep(RETRY_S)
        raise UnavailableError("concurrent changes of the partition were first; retry")

    async def _propose(self, command: Command) -> None:
        outcome = await self.outcome(command)
        outcome.raise_if_rejected()

    async def outcome(self, command: Command) -> CommandOutcome:
        """Propose a command and return its outcome.

        Raises:
            UnavailableError: the cluster cannot decide now.
        """
        membership = self._membership
        if not membership.is_registered:
            raise NotLeaderError("this broker has not joined the cluster yet; retry at another")
        return await membership.admin.propose(command, timeout_s=CHANGE_TIMEOUT_S)


def _is_stale(outcome: CommandOutcome) -> bool:
    """Whether a command was rejected only because a partition has changed meanwhile.

    Raises:
        InvalidRequestError: the command was rejected for another reason.
    """
    for rejection in outcome.rejected:
        if rejection.reason != "stale_partition":
            others = "; the other partitions have begun to move" if outcome.is_applied else ""
            raise InvalidRequestError(rejection.message + others)
    if not outcome.rejected:
        outcome.raise_if_rejected()
    return bool(outcome.rejected)


def _moves(
    image: MetadataImage, stream: str, partition: int | None, *, to: Replicas
) -> tuple[Move, ...]:
    """Return the moves that a command requires; none for partitions that are placed so already.

    Raises:
        UnknownStreamError, UnknownPartitionError: no such partition.
        UnavailableError: too few brokers are in service.
        InvalidConfigError: a broker would have more partitions than it can.
    """
    found = image.stream(stream)
    numbers = range(len(found.partitions)) if partition is None else [partition]
    loads = Loads(image)
    moves: list[Move] = []
    for number in numbers:
        here: PartitionImage = image.partition(stream, number)
        if to:
            target = to if partition is not None else rotated(to, number)
        else:
            target = well_placed(image, here, replicas=found.config.replicas, loads=loads)
        if target != here.target:
            loads.remove(here.target)
            loads.add(target)
            moves.append(Move(at(PartitionName(stream, number), here), target))
    before = [found.partitions[move.at.partition].target for move in moves]
    loads.check_room([move.target for move in moves], before)
    return tuple(moves)

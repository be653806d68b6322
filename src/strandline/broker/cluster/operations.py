"""Operators' commands to a cluster, sent to any of its brokers: each one or two metadata commands.

Rules: a command is decided here and returns; its long part (copying, above all) is carried on by
the controller, whichever broker that is by then, since all of it is in the image. A decision on an
image that has changed meanwhile is made again. Must not know who asks.
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
"""Partitions that are copied at once to fill up a broker; whoever orders it orders it again."""
Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Operations:
    """Orders to the cluster.

    Args:
        membership: this broker's.
        until: waits until something that was decided is known here.
    """

    def __init__(self, membership: ClusterMembership, until: Until) -> None:
        self._membership = membership
        self._until = until

    @property
    def _image(self) -> MetadataImage:
        return self._membership.machine.image

    # Brokers

    async def admit(self, broker: BrokerId, peer_address: str) -> None:
        """Expect a new broker at an address.

        Raises:
            InvalidRequestError: the number is used, or was.
            UnavailableError: the cluster cannot decide it now; so with every order here.
        """
        await self._propose(AdmitBroker(broker, peer_address))

    async def drain(self, broker: BrokerId, *, is_on: bool) -> None:
        """Move everything off a broker, or stop doing so.

        Raises:
            InvalidRequestError: no such broker.
        """
        await self._propose(Drain(broker, is_on))
        logger.warning("broker %d is %s drained", broker, "being" if is_on else "no longer")

    async def remove(self, broker: BrokerId) -> None:
        """Let go of a broker that keeps nothing; returns once the quorum does without it.

        Raises:
            InvalidRequestError: it is in use (the message says by what), or is this one.
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
        """Count nothing of what a stopped broker had; returns once it may come with another disk.

        That is when its vote is withdrawn: it has forgotten whom it voted for.

        Raises:
            InvalidRequestError: it is not stopped, or has the only copy of something.
        """
        await self._propose(ForgetDirectory(broker))
        logger.warning("what broker %d had is given up; it may come with another disk", broker)
        await self._until(lambda: broker not in self._membership.quorum.members.voters)

    # Partitions

    async def reassign(self, stream: str, partition: int | None, to: Replicas) -> int:
        """Move a partition, or all of a stream; returns how many have begun to move.

        Args:
            stream: which.
            partition: which; None for all.
            to: brokers, preferred leader first; empty: as the rules for new streams have it.

        Raises:
            InvalidRequestError: no such stream, partition or broker, or too few of these.
        """
        return await self._begin_moves(lambda: _moves(self._image, stream, partition, to=to))

    async def rebalance(self) -> int:
        """Begin to fill up brokers that keep less than their share; how many partitions move."""
        return await self._begin_moves(
            lambda: rebalance_plan(self._image, moves_max=REBALANCE_MOVES_MAX)
        )

    async def _begin_moves(self, plan: Callable[[], tuple[Move, ...]]) -> int:
        command = await self.decide(lambda: ReassignReplicas(found) if (found := plan()) else None)
        return len(command.moves) if isinstance(command, ReassignReplicas) else 0

    async def elect(self, name: PartitionName, leader: BrokerId, *, is_unclean: bool) -> None:
        """Let a replica lead, and be preferred from now on, or leaders shared again would undo it.

        Args:
            name: of the partition.
            leader: who.
            is_unclean: also if it may lack committed records, which are lost then.

        Raises:
            InvalidRequestError: it keeps no copy, is not in service, or may lack records.
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
                "an operator orders an unclean election: broker %d is to lead %s, and what only "
                "others have is lost",
                leader,
                name,
            )
        await self.decide(elect)
        await self.decide(prefer)

    async def release_leadership(self, names: Sequence[PartitionName]) -> None:
        """Let others in sync lead partitions that this broker leads and cannot serve.

        It leaves their ISRs, so that no commit waits for it. What no other broker can take stays.

        Raises:
            UnavailableError: the cluster cannot decide it now.
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
        """Give a stream more partitions, placed as those of a new stream.

        Raises:
            InvalidRequestError: no such stream, or too many partitions.
        """
        found = self._image.stream(stream)
        assignment = place(self._image, partitions=count, replicas=found.config.replicas)
        await self._propose(AddPartitions(stream, count, assignment))

    # Deciding

    async def decide(self, decision: Callable[[], Command | None]) -> Command | None:
        """Propose what is decided on the newest image known here, again if that was not the newest.

        Returns:
            What was accepted in the end; None if there was nothing to do.

        Raises:
            InvalidRequestError: refused; the message says why.
            UnavailableError: others were quicker, again and again.
        """
        for _ in range(ATTEMPTS_MAX):
            command = decision()
            if command is None:
                return None
            outcome = await self.outcome(command)
            if not _is_stale(outcome):
                return command
            await asyncio.sleep(RETRY_S)
        raise UnavailableError("the partition is changed by others all the time; retry")

    async def _propose(self, command: Command) -> None:
        outcome = await self.outcome(command)
        outcome.raise_if_rejected()

    async def outcome(self, command: Command) -> CommandOutcome:
        """Propose a command and return its outcome.

        Raises:
            UnavailableError: the cluster cannot decide it now.
        """
        membership = self._membership
        if not membership.is_registered:
            raise NotLeaderError("this broker has not joined the cluster yet; retry at another")
        return await membership.admin.propose(command, timeout_s=CHANGE_TIMEOUT_S)


def _is_stale(outcome: CommandOutcome) -> bool:
    """Whether a decision came too late for a partition, and for no other reason.

    Raises:
        InvalidRequestError: for another reason.
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
    """The moves that an order comes to; none for partitions that are where they should be.

    Raises:
        UnknownStreamError, UnknownPartitionError: no such partition.
        UnavailableError: too few brokers are in service.
        InvalidConfigError: a broker would keep more than it can.
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

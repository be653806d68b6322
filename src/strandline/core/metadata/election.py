"""Leader election: choices made before they are proposed; applying them checks the invariants.

Rules, in this order: a replica in the ISR before one that is last known safe, never any other
(an operator orders that by name, elsewhere); one whose disk takes records; one that stays, before
one that a reassignment removes and one that is being drained; the most up to date, if the ends of
their logs were asked; the one that leads least; the smallest id.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from strandline.core.metadata.commands import Command, ElectLeader, Fence, LeaderChange, PartitionAt
from strandline.core.metadata.image import BrokerImage, MetadataImage, PartitionImage
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset, PartitionName

LogEnd = tuple[LeaderEpoch, Offset]
"""The epoch of the last batch and the log end offset: in this order they tell who is further."""
LogEnds = Mapping[LogId, Mapping[BrokerId, LogEnd]]
Led = Counter[BrokerId]
_NOT_ASKED: LogEnd = (LeaderEpoch(-1), Offset(-1))


def led_partitions(image: MetadataImage) -> Led:
    """Return how many partitions each broker leads; the caller may go on counting."""
    return image.table.led.copy()


def candidates(
    partition: PartitionImage, brokers: Mapping[BrokerId, BrokerImage]
) -> tuple[BrokerId, ...]:
    """Replicas that may lead without a loss; those that are last known safe only if need be."""
    in_sync = tuple(b for b in partition.isr if brokers[b].may_lead)
    return in_sync or tuple(b for b in partition.last_known_safe if brokers[b].may_lead)


def choose_leader(
    partition: PartitionImage,
    brokers: Mapping[BrokerId, BrokerImage],
    *,
    led: Led,
    log_ends: LogEnds | None = None,
    among: Iterable[BrokerId] | None = None,
) -> BrokerId | None:
    """The best candidate, or None if nobody may lead now.

    Args:
        partition: as it is.
        brokers: by id.
        led: how many partitions each leads.
        log_ends: what is known of the ends of logs, by log id and broker; may lack any.
        among: if given, others are no candidates.
    """
    ends = (log_ends or {}).get(partition.log_id, {})
    allowed = candidates(partition, brokers)
    if among is not None:
        wanted = set(among)
        allowed = tuple(b for b in allowed if b in wanted)

    def merit(broker: BrokerId) -> tuple[bool, bool, bool, int, int, int, BrokerId]:
        epoch, end = ends.get(broker, _NOT_ASKED)
        is_leaving, is_draining = broker in partition.removing, brokers[broker].is_draining
        is_impaired = brokers[broker].is_impaired
        return (is_impaired, is_leaving, is_draining, -epoch, -end, led[broker], broker)

    return min(allowed, key=merit, default=None)


def at(name: PartitionName, partition: PartitionImage) -> PartitionAt:
    """The partition as it is now, for a decision about it."""
    return PartitionAt(name.stream, name.partition, partition.log_id, partition.version)


def leader_change(
    name: PartitionName, partition: PartitionImage, leader: BrokerId, *, led: Led
) -> LeaderChange:
    """The change to a leader, counted at once so that the next choice sees it."""
    led[leader] += 1
    if partition.leader is not None:
        led[partition.leader] -= 1
    return LeaderChange(at(name, partition), leader)


def brokers_to_ask(
    image: MetadataImage, commands: Iterable[Command]
) -> dict[BrokerId, tuple[LogId, ...]]:
    """Return the replicas whose log ends would improve the choice of a new leader.

    Those of every candidate, where there are several; no brokers that the commands fence.
    """
    brokers = dict(image.brokers)
    logs: dict[BrokerId, list[LogId]] = {}
    for command in commands:
        if isinstance(command, Fence):
            for run in command.runs:
                brokers[run.broker] = replace(brokers[run.broker], is_fenced=True)
        elif isinstance(command, ElectLeader) and command.reason == "leader_lost":
            for change in command.changes:
                partition = image.partition(*change.at.name)
                among = candidates(partition, brokers)
                for broker in among if len(among) > 1 else ():
                    logs.setdefault(broker, []).append(partition.log_id)
    return {broker: tuple(log_ids) for broker, log_ids in logs.items()}


def unclean_election(image: MetadataImage, name: PartitionName, leader: BrokerId) -> LeaderChange:
    """Return the command for an unclean election that an operator ordered by name.

    Raises:
        UnknownStreamError, UnknownPartitionError: no such partition.
    """
    return LeaderChange(at(name, image.partition(*name)), leader)

"""Leader election: the choice to propose; applying the command checks the invariants.

Rules, in this order: a replica in the ISR before one that is last known safe, and no other (only
an operator may choose another, by name); one whose disk accepts writes; one that stays, before one
that a reassignment removes or that is being drained; the longest log, where log ends are known; the
one that leads fewest partitions; the smallest id.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from strandline.core.metadata.commands import Command, ElectLeader, Fence, LeaderChange, PartitionAt
from strandline.core.metadata.image import BrokerImage, MetadataImage, PartitionImage
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset, PartitionName

LogEnd = tuple[LeaderEpoch, Offset]
"""The epoch of the last batch and the log end offset: compared in this order."""
LogEnds = Mapping[LogId, Mapping[BrokerId, LogEnd]]
Led = Counter[BrokerId]
_NOT_ASKED: LogEnd = (LeaderEpoch(-1), Offset(-1))


def led_partitions(image: MetadataImage) -> Led:
    """Return how many partitions each broker leads; the caller may update the counts."""
    return image.table.led.copy()


def candidates(
    partition: PartitionImage, brokers: Mapping[BrokerId, BrokerImage]
) -> tuple[BrokerId, ...]:
    """Return replicas that may lead without losing records; last known safe ones if no others."""
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
    """Return the best candidate, or None if no replica may lead now.

    Args:
        partition: as it is.
        brokers: by id.
        led: how many partitions each leads.
        log_ends: known log end offsets by log id and broker; any may be missing.
        among: if given, the only candidates.
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
    """Return the partition's present version, for a decision about it."""
    return PartitionAt(name.stream, name.partition, partition.log_id, partition.version)


def leader_change(
    name: PartitionName, partition: PartitionImage, leader: BrokerId, *, led: Led
) -> LeaderChange:
    """Return a change of leader, and count it, so that the next choice includes it."""
    led[leader] += 1
    if partition.leader is not None:
        led[partition.leader] -= 1
    return LeaderChange(at(name, partition), leader)


def brokers_to_ask(
    image: MetadataImage, commands: Iterable[Command]
) -> dict[BrokerId, tuple[LogId, ...]]:
    """Return the replicas whose log ends would improve the choice of a new leader.

    These are the candidates of partitions with several, without brokers that the commands fence.
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

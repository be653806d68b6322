"""Changes of one partition: leadership, ISR and replicas, each checked and counted.

Rules:
- every change raises the version; a change of leader, also to none, raises the leader epoch;
- the ISR is never emptied: if none of its members is in service, it stays as it is, because one of
  them has to return before a leader can have everything that was committed;
- while the ISR is smaller than ``min_isr`` nothing is committed. So a replica that leaves it then
  (or was already safe) has everything that is committed: it is *last known safe* and may lead if no
  member of the ISR can (KIP-966). With ``min_isr`` members in the ISR, commits go on and replicas
  outside it are no longer safe;
- a reassignment adds replicas first and removes others last, so it never lowers their number;
- a replica that is added, or whose disk was lost, is *filling* until it is in the ISR: others may
  have removed null values meanwhile that it lacks;
- the log start offset only grows, except in an unclean election: the new leader's log may end
  before it, and records it then accepts at those offsets must not count as deleted.

Must not know streams, brokers' addresses or who asks; rejections are ``CommandRejectedError``.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from strandline.core.metadata.commands import Replicas
from strandline.core.metadata.image import BrokerImage, PartitionImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.types import BrokerId, LeaderEpoch, Offset

Brokers = Mapping[BrokerId, BrokerImage]
OFFSET_MAX = (1 << 63) - 1


def new_partition(
    partition: PartitionImage, replicas: Replicas, brokers: Brokers
) -> PartitionImage:
    """Return a new partition without records: every replica in service is in sync.

    A replica whose disk rejects writes is left out of the ISR if there is another: commits would
    wait for it.
    """
    able = sorted(b for b in replicas if brokers[b].may_take_replicas)
    isr = tuple(b for b in able if not brokers[b].is_impaired) or tuple(able)
    leader = next((b for b in replicas if b in isr), None)
    if replicas and leader is None:
        raise CommandRejectedError(
            "not_eligible", f"none of the brokers {_list(replicas)} is in service"
        )
    return msgspec.structs.replace(partition, replicas=replicas, leader=leader, isr=isr)


def fence(partition: PartitionImage, gone: Collection[BrokerId], *, min_isr: int) -> PartitionImage:
    """Return the partition after brokers went out of service; unchanged if it does not use them."""
    isr = remaining_isr(partition.isr, gone)
    leader = None if partition.leader in gone else partition.leader
    if isr == partition.isr and leader == partition.leader:
        return partition
    return _changed(partition, isr, leader=leader, min_isr=min_isr)


def remaining_isr(isr: Replicas, gone: Collection[BrokerId]) -> Replicas:
    """Return the ISR without brokers out of service; unchanged if it would become empty."""
    return tuple(b for b in isr if b not in gone) or isr


def change_isr(
    partition: PartitionImage, wanted: Replicas, *, brokers: Brokers, min_isr: int
) -> PartitionImage:
    """Return the partition with the ISR that its leader proposes.

    Raises:
        CommandRejectedError: the ISR is not valid.
    """
    isr = tuple(sorted(set(wanted)))
    if len(isr) != len(wanted) or not set(isr) <= set(partition.replicas):
        raise CommandRejectedError("not_eligible", f"ISR {_list(wanted)} is not a set of replicas")
    if partition.leader not in isr:
        raise CommandRejectedError("not_eligible", f"ISR {_list(wanted)} lacks the leader")
    for broker in sorted(set(isr) - set(partition.isr)):
        check_may_join_isr(brokers[broker])
    return _changed(partition, isr, leader=partition.leader, min_isr=min_isr)


def check_may_join_isr(broker: BrokerImage) -> None:
    """Check that a broker is in service, since commits wait for every member of the ISR.

    Raises:
        CommandRejectedError: the broker is fenced or stopping.
    """
    if not broker.may_lead:
        raise CommandRejectedError("not_eligible", f"broker {broker.id} is {broker.state}")


def elect(
    partition: PartitionImage,
    leader: BrokerId,
    *,
    brokers: Brokers,
    min_isr: int,
    is_unclean: bool = False,
    has_failed: bool = False,
) -> PartitionImage:
    """Return the partition under a new leader, with only live members in its ISR.

    Args:
        partition: as it is.
        leader: the new one.
        brokers: by id.
        min_isr: the ``min_isr`` of the stream.
        is_unclean: whether the new leader may lack committed records.
        has_failed: whether the old leader cannot store records and so leaves the ISR.

    Raises:
        CommandRejectedError: this broker may not lead the partition.
    """
    if leader == partition.leader:
        raise CommandRejectedError("not_eligible", f"broker {leader} leads it already")
    if leader not in partition.replicas or not brokers[leader].may_lead:
        raise CommandRejectedError("not_eligible", f"broker {leader} is no replica in service")
    if leader in partition.isr:
        failed = partition.leader if has_failed else None
        isr = tuple(b for b in partition.isr if not brokers[b].is_fenced and b != failed)
        return _changed(partition, isr, leader=leader, min_isr=min_isr)
    if is_safe(partition, leader):
        return _changed(partition, (leader,), leader=leader, min_isr=min_isr)
    if not is_unclean:
        raise CommandRejectedError("not_in_sync", f"broker {leader} may lack committed records")
    # Which other replicas have everything was known for another log than this leader's.
    forgotten = msgspec.structs.replace(
        partition,
        isr=(leader,),
        last_known_safe=(),
        log_start_offset=log_start_after_loss(partition),
        unclean_epoch=next_epoch(partition.leader_epoch),
    )
    return _changed(forgotten, (leader,), leader=leader, min_isr=min_isr)


def log_start_after_loss(_partition: PartitionImage) -> Offset:
    """Return the log start offset for a leader that may lack records."""
    return Offset(0)


def move_log_start(partition: PartitionImage, offset: Offset) -> PartitionImage:
    """Return the partition with a higher log start offset; unchanged if it is not higher.

    Raises:
        CommandRejectedError: the offset is negative.
    """
    if not 0 <= offset <= OFFSET_MAX:
        raise CommandRejectedError("limit", f"an offset must not be negative, got {offset}")
    if offset <= partition.log_start_offset:
        return partition
    version = next_version(partition.version)
    return msgspec.structs.replace(partition, log_start_offset=offset, version=version)


def is_safe(partition: PartitionImage, broker: BrokerId) -> bool:
    """Whether a replica outside the ISR is known to have all committed records."""
    return broker in partition.last_known_safe


def forget_replica(partition: PartitionImage, broker: BrokerId) -> PartitionImage:
    """Return the partition after a fenced replica lost its disk.

    The version rises even if the replica was in no set: a change that adds it, decided before the
    loss, must not apply after it.

    Raises:
        CommandRejectedError: it is the only member of the ISR, so no other replica surely has all
            committed records.
    """
    isr = tuple(b for b in partition.isr if b != broker)
    if partition.isr and not isr:
        raise CommandRejectedError("last_replica", "it is the last in-sync replica")
    safe = tuple(b for b in partition.last_known_safe if b != broker)
    return msgspec.structs.replace(
        partition,
        isr=isr,
        last_known_safe=safe,
        filling=filling_with(partition, (broker,)),
        version=next_version(partition.version),
    )


def filling_with(partition: PartitionImage, new: Iterable[BrokerId]) -> Replicas:
    """Return the replicas that are filling, including new ones."""
    return tuple(sorted({*partition.filling, *new}))


def begin_move(partition: PartitionImage, target: Replicas) -> PartitionImage:
    """Return the partition with the replicas of ``target`` being added and the others leaving.

    A replica that an earlier reassignment is still adding stays if ``target`` has it, else it
    leaves.
    """
    leaving = tuple(b for b in partition.replicas if b not in target)
    adding = tuple(b for b in target if b not in partition.replicas or b in partition.adding)
    new = [b for b in target if b not in partition.replicas]
    replicas = target + leaving
    if (replicas, adding, leaving) == (partition.replicas, partition.adding, partition.removing):
        return partition
    return msgspec.structs.replace(
        partition,
        replicas=replicas,
        adding=adding,
        removing=leaving,
        filling=filling_with(partition, new),
        version=next_version(partition.version),
    )


def why_move_waits(partition: PartitionImage, *, min_isr: int) -> str:
    """Return the reason why a reassignment cannot finish yet; empty if it can."""
    staying = [b for b in partition.isr if b in partition.target]
    late = [b for b in partition.adding if b not in partition.isr]
    if late:
        return f"{_list(late)} not in sync yet"
    # Removing replicas must not block appends that are possible now.
    if len(staying) < max(1, min(min_isr, len(partition.isr))):
        return f"only {len(staying)} of the replicas that stay are in sync"
    if partition.leader is not None and partition.leader not in staying:
        return f"broker {partition.leader} still leads"
    return ""


def finish_move(partition: PartitionImage, *, min_isr: int) -> PartitionImage:
    """Return the partition without the replicas that were leaving.

    Raises:
        CommandRejectedError: no reassignment is in progress, or it cannot finish yet.
    """
    if not partition.is_moving:
        raise CommandRejectedError("not_ready", "no reassignment is in progress")
    if why := why_move_waits(partition, min_isr=min_isr):
        raise CommandRejectedError("not_ready", why)
    target = partition.target
    isr = tuple(b for b in partition.isr if b in target)
    filling = tuple(b for b in partition.filling if b in target)
    kept = msgspec.structs.replace(
        partition, replicas=target, adding=(), removing=(), filling=filling
    )
    return _changed(kept, isr, leader=kept.leader, min_isr=min_isr)


def safe_outside(partition: PartitionImage, isr: Replicas, *, min_isr: int) -> Replicas:
    """Return replicas outside a new ISR that have all committed records (KIP-966)."""
    if len(isr) >= min_isr:
        return ()
    known = {*partition.isr, *partition.last_known_safe}
    return tuple(sorted((known & set(partition.replicas)) - set(isr)))


def _changed(
    partition: PartitionImage, isr: Replicas, *, leader: BrokerId | None, min_isr: int
) -> PartitionImage:
    """Raise the version, and the epoch if the leader changes."""
    is_new = leader != partition.leader
    return msgspec.structs.replace(
        partition,
        isr=isr,
        leader=leader,
        last_known_safe=safe_outside(partition, isr, min_isr=min_isr),
        filling=tuple(b for b in partition.filling if b not in isr),
        leader_epoch=next_epoch(partition.leader_epoch) if is_new else partition.leader_epoch,
        version=next_version(partition.version),
    )


def next_epoch(epoch: LeaderEpoch) -> LeaderEpoch:
    """Return the next leader epoch."""
    return LeaderEpoch(epoch + 1)


def next_version(version: int) -> int:
    """Return the version after a change."""
    return version + 1


def _list(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(str(broker) for broker in brokers) or "nobody"

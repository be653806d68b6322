"""Changes of one partition: leadership, ISR and replicas, each checked and counted.

Rules:
- every change raises the version, and a new leader, or none, also raises the leader epoch;
- the ISR is never emptied: if none of its members is left in service, it stays as it was, because
  one of them has to come back before anybody can lead with everything that was committed;
- while the ISR is smaller than ``min_isr`` nothing is committed, so who leaves it then (or was
  already safe) keeps everything that is committed: it becomes *last known safe* and may lead if
  nobody in the ISR can (KIP-966). With ``min_isr`` members in the ISR commits go on, and whoever is
  outside is safe no longer;
- a reassignment adds first and removes last, so that it never lowers the number of copies;
- a replica that is added, or whose disk was lost, is *filling* until it is in the ISR: others may
  have removed null values meanwhile that it lacks;
- the log start offset only grows, but for an unclean election: the new leader may not have come so
  far, and what it then takes must not be deleted for having the offset of something older.

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
    """A partition without records: every replica in service is in sync.

    One whose disk takes no records is left out, if another is there: commits would wait for it.
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
    """The partition after some brokers went out of service; itself if that does not concern it."""
    isr = remaining_isr(partition.isr, gone)
    leader = None if partition.leader in gone else partition.leader
    if isr == partition.isr and leader == partition.leader:
        return partition
    return _changed(partition, isr, leader=leader, min_isr=min_isr)


def remaining_isr(isr: Replicas, gone: Collection[BrokerId]) -> Replicas:
    """The ISR without brokers that went out of service, unless nobody else is in it."""
    return tuple(b for b in isr if b not in gone) or isr


def change_isr(
    partition: PartitionImage, wanted: Replicas, *, brokers: Brokers, min_isr: int
) -> PartitionImage:
    """The partition with the ISR its leader wants.

    Raises:
        CommandRejectedError: not a possible ISR.
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
    """Refuse those on which a commit would wait in vain.

    Raises:
        CommandRejectedError: it is fenced or stopping.
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
    """The partition under a new leader; its ISR becomes those members of it that are in service.

    Args:
        partition: as it is.
        leader: the new one.
        brokers: by id.
        min_isr: of the stream.
        is_unclean: whether it may lack committed records.
        has_failed: whether the old leader leaves the ISR, as commits would wait for it in vain.

    Raises:
        CommandRejectedError: this broker may not lead it.
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
    # Nobody is known to have what this leader has, or lacks: all that was known is void.
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
    """The partition without the records before an offset; itself if they are gone already.

    Raises:
        CommandRejectedError: an impossible offset.
    """
    if not 0 <= offset <= OFFSET_MAX:
        raise CommandRejectedError("limit", f"{offset} is no offset")
    if offset <= partition.log_start_offset:
        return partition
    version = next_version(partition.version)
    return msgspec.structs.replace(partition, log_start_offset=offset, version=version)


def is_safe(partition: PartitionImage, broker: BrokerId) -> bool:
    """Whether a broker outside the ISR is known to have all that is committed."""
    return broker in partition.last_known_safe


def forget_replica(partition: PartitionImage, broker: BrokerId) -> PartitionImage:
    """The partition after a (fenced) replica lost its disk.

    The version grows even where the replica was in no set: a change that would add it, decided
    before the loss, must not apply after it.

    Raises:
        CommandRejectedError: it alone is in the ISR, so nobody else surely has what was committed.
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
    """Return the replicas that are catching up, with those that begin now."""
    return tuple(sorted({*partition.filling, *new}))


def begin_move(partition: PartitionImage, target: Replicas) -> PartitionImage:
    """The partition with the replicas of ``target`` coming and the others leaving.

    What an earlier move is still adding remains being added if it is wanted, and leaves if not.
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
    """Return what keeps a reassignment from finishing; empty if nothing does."""
    staying = [b for b in partition.isr if b in partition.target]
    late = [b for b in partition.adding if b not in partition.isr]
    if late:
        return f"{_list(late)} not in sync yet"
    # Removing must not stop appends that are possible now.
    if len(staying) < max(1, min(min_isr, len(partition.isr))):
        return f"only {len(staying)} of the replicas that stay are in sync"
    if partition.leader is not None and partition.leader not in staying:
        return f"broker {partition.leader} still leads"
    return ""


def finish_move(partition: PartitionImage, *, min_isr: int) -> PartitionImage:
    """The partition without the replicas that were leaving.

    Raises:
        CommandRejectedError: no move is under way, or it has to wait.
    """
    if not partition.is_moving:
        raise CommandRejectedError("not_ready", "no reassignment is under way")
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
    """Return replicas outside a new ISR that have everything committed (KIP-966)."""
    if len(isr) >= min_isr:
        return ()
    known = {*partition.isr, *partition.last_known_safe}
    return tuple(sorted((known & set(partition.replicas)) - set(isr)))


def _changed(
    partition: PartitionImage, isr: Replicas, *, leader: BrokerId | None, min_isr: int
) -> PartitionImage:
    """The next version, and the next epoch if the leader is another one or none."""
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
    """The epoch of the next leadership, or of the time without one."""
    return LeaderEpoch(epoch + 1)


def next_version(version: int) -> int:
    """The version of a partition after a change of it."""
    return version + 1


def _list(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(str(broker) for broker in brokers) or "nobody"

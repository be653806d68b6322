"""Forced recovery: make one surviving broker the only voter after most voters are lost.

Works offline, on the survivor's data directory. Rules: this broker's metadata log becomes the
committed one, including entries that the lost voters had not acknowledged, and without entries that
only they had. Records and replicas are not changed. The lost voters must never return with their
disks, since they would be a majority without this broker.
"""

from pathlib import Path
from typing import NamedTuple

from strandline.broker.cluster.local_metadata import load_local_metadata
from strandline.broker.cluster.opening import opened_offline
from strandline.broker.quorum_store import LOG_ID, QuorumStore
from strandline.core.metadata.commands import BrokerRun, Fence, encode_entry
from strandline.core.metadata.image import MetadataImage
from strandline.core.raft.messages import Members, Snapshot
from strandline.errors import InvalidRequestError
from strandline.storage.disk import Disk
from strandline.types import BrokerId, PartitionName


class ForcedRecovery(NamedTuple):
    """The result of a forced recovery.

    Attributes:
        broker: the only voter from now on.
        voters: the voters before the recovery.
        in_doubt: partitions whose replica on this broker may lack acknowledged records.
        without_copy: partitions without a replica on this broker.
    """

    broker: BrokerId
    voters: tuple[BrokerId, ...]
    in_doubt: tuple[PartitionName, ...]
    without_copy: tuple[PartitionName, ...]


def force_recover(data_dir: Path, *, disk: Disk) -> ForcedRecovery:
    """Make the broker of a data directory the only voter.

    Raises:
        InvalidConfigError: no broker of a cluster has used the directory.
        InvalidRequestError: the broker is the only voter already, or was never a voter.
        DataDirLockedError: the broker is running.
        CorruptBatchError: the broker's copy of the metadata is corrupt.
        UnavailableError: a file cannot be read or written; nothing changed.
    """
    with opened_offline(data_dir, disk=disk) as (identity, storage):
        store = QuorumStore(data_dir, disk=disk, log=storage.logs[LOG_ID])
        return _decide_alone(store, identity.broker, founders=identity.founders or ())


def _decide_alone(
    store: QuorumStore, me: BrokerId, *, founders: tuple[BrokerId, ...]
) -> ForcedRecovery:
    """Replace the metadata log by a snapshot of everything that this broker has."""
    machine, members, index, term = load_local_metadata(store, Members(founders))
    if me not in members.voters:
        raise InvalidRequestError(
            f"broker {me} was not a voter; recover from a broker that was one"
        )
    if members.voters == (me,):
        raise InvalidRequestError(f"broker {me} is the only voter already; start it")
    unsafe = unsafe_partitions(machine.image, me)
    # The others are fenced: if they were, this broker's next start would remove it from ISRs.
    others = (broker for broker in machine.image.brokers.values() if broker.id != me)
    lost = Fence(tuple(BrokerRun(broker.id, broker.incarnation) for broker in others))
    fenced = machine.apply(encode_entry(lost))
    assert fenced.is_applied, fenced
    store.save_snapshot(Snapshot(index, term, Members((me,)), machine.snapshot()))
    return ForcedRecovery(me, members.voters, *unsafe)


def unsafe_partitions(
    image: MetadataImage, me: BrokerId
) -> tuple[tuple[PartitionName, ...], tuple[PartitionName, ...]]:
    """Return partitions whose replica here may lack records, and those without a replica here."""
    in_doubt, without_copy = [], []
    for name, partition in image.partitions():
        if me not in partition.replicas:
            without_copy.append(name)
        elif me not in partition.isr and me not in partition.last_known_safe:
            in_doubt.append(name)
    return tuple(in_doubt), tuple(without_copy)

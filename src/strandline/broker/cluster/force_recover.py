"""Rescue: when most voters are lost for ever, one that is left decides alone from now on.

Offline, on its data directory. Rules: what this broker has of the metadata becomes what is true:
also what the lost had not agreed to, and without what only they had heard of. Records and copies
are not touched: who may lead follows from the metadata, as ever. The lost must never come back with
their disks, for they could decide without this one.
"""

from pathlib import Path
from typing import NamedTuple

from strandline.broker.cluster.identity import load_identity
from strandline.broker.cluster.opening import open_all_logs
from strandline.broker.cluster.remembered import remembered
from strandline.broker.lock import DataDirLock
from strandline.broker.quorum_store import LOG_ID, QuorumStore
from strandline.config import JournalConfig
from strandline.consensus.messages import Members, Snapshot
from strandline.errors import InvalidConfigError, InvalidRequestError
from strandline.metadata.commands import BrokerRun, Fence, encode_entry
from strandline.metadata.image import MetadataImage
from strandline.storage.disk import Disk
from strandline.types import BrokerId, PartitionName


class Rescued(NamedTuple):
    """What became of a cluster.

    Attributes:
        broker: who decides alone now.
        voters: who decided before.
        in_doubt: partitions whose copy here is known to lack records, perhaps acknowledged ones.
        without_copy: partitions without a copy here.
    """

    broker: BrokerId
    voters: tuple[BrokerId, ...]
    in_doubt: tuple[PartitionName, ...]
    without_copy: tuple[PartitionName, ...]


def rescue(data_dir: Path, *, disk: Disk) -> Rescued:
    """Make the broker of a data directory the only voter.

    Raises:
        InvalidConfigError: no broker of a cluster has used the directory.
        InvalidRequestError: it decides alone already, or never had a vote.
        DataDirLockedError: the broker is running.
        CorruptBatchError: what it has of the metadata is damaged.
        UnavailableError: a file cannot be read or written; nothing changed.
    """
    identity = load_identity(data_dir, disk=disk)
    if identity is None:
        raise InvalidConfigError(
            f"{data_dir} is not the data directory of a broker of a cluster; name another one"
        )
    lock = DataDirLock(data_dir)
    try:
        storage = open_all_logs(data_dir, disk=disk, file_bytes=JournalConfig().file_bytes)
        try:
            store = QuorumStore(data_dir, disk=disk, log=storage.logs[LOG_ID])
            return _decide_alone(store, identity.broker, founders=identity.founders or ())
        finally:
            storage.journal.close()
            for log in storage.logs.values():
                log.close()
    finally:
        lock.release()


def _decide_alone(store: QuorumStore, me: BrokerId, *, founders: tuple[BrokerId, ...]) -> Rescued:
    """Put a snapshot of everything that is known here in the place of the log."""
    machine, members, index, term = remembered(store, Members(founders))
    if me not in members.voters:
        raise InvalidRequestError(f"broker {me} has no vote; rescue a broker that took part")
    if members.voters == (me,):
        raise InvalidRequestError(f"broker {me} decides alone already; start it")
    left = what_is_left(machine.image, me)
    # Were they taken to be in service, this broker's next start would put it out of sync.
    others = (broker for broker in machine.image.brokers.values() if broker.id != me)
    lost = Fence(tuple(BrokerRun(broker.id, broker.incarnation) for broker in others))
    fenced = machine.apply(encode_entry(lost))
    assert fenced.is_applied, fenced
    store.save_snapshot(Snapshot(index, term, Members((me,)), machine.snapshot()))
    return Rescued(me, members.voters, *left)


def what_is_left(
    image: MetadataImage, me: BrokerId
) -> tuple[tuple[PartitionName, ...], tuple[PartitionName, ...]]:
    """Partitions of which the copy here may lack records, and those that have none here."""
    in_doubt, without_copy = [], []
    for name, partition in image.partitions():
        if me not in partition.replicas:
            without_copy.append(name)
        elif me not in partition.isr and me not in partition.last_known_safe:
            in_doubt.append(name)
    return tuple(in_doubt), tuple(without_copy)

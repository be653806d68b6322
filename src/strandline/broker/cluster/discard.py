"""Discards a broker's corrupt copy of the metadata, which the other brokers still have.

Works offline, on the broker's data directory; records are kept. Rule: without the metadata log the
broker does not know its votes, so it returns as a broker that joins. The others must have withdrawn
its vote before (``replace-disk``); otherwise they reject it, because it lacks entries that it has
acknowledged.
"""

from pathlib import Path

import msgspec

from strandline.broker.cluster.identity import save_identity
from strandline.broker.cluster.opening import QUORUM_NAME, opened_offline
from strandline.broker.quorum_store import LOG_ID, SNAPSHOT_NAME, VOTE_NAME
from strandline.errors import CorruptBatchError
from strandline.storage.disk import Disk
from strandline.storage.log_directory import delete_log_directory
from strandline.storage.log_generation import write_generation
from strandline.storage.twin_file import remove_with_twin
from strandline.types import BrokerId


def corrupt_metadata(
    error: CorruptBatchError, broker: BrokerId, data_dir: Path
) -> CorruptBatchError:
    """Return the error with advice on what to do."""
    return CorruptBatchError(
        f"{error.message}: this broker's copy of the metadata is corrupt, and the others have it. "
        f"Run 'strandline cluster replace-disk {broker}' at another broker, then 'strandline "
        f"cluster discard-metadata --data-dir {data_dir}' here, and start this one again: its "
        "records are kept. If no other broker is left, restore the directory from a backup"
    )


def discard_metadata(data_dir: Path, *, disk: Disk) -> BrokerId:
    """Remove a broker's copy of the metadata; at its start it fetches a new one from the others.

    Returns:
        The broker's id.

    Raises:
        InvalidConfigError: no broker of a cluster has used the directory.
        DataDirLockedError: the broker is running.
        UnavailableError: a file cannot be read or written.
    """
    with opened_offline(data_dir, disk=disk) as (identity, storage):
        # First: a founder with an empty log would start a new cluster.
        save_identity(data_dir, msgspec.structs.replace(identity, founders=()), disk=disk)
        storage.logs.pop(LOG_ID).close()
        delete_log_directory(data_dir / QUORUM_NAME, disk=disk)
        write_generation(data_dir / QUORUM_NAME, storage.journal.sync(), disk=disk)
        for name in (VOTE_NAME, SNAPSHOT_NAME):
            remove_with_twin(data_dir / name, disk=disk)
    return identity.broker

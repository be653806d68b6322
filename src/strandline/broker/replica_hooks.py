"""The interface between a partition with its group commits and its replica in a cluster."""

from typing import Protocol

from strandline.broker.write_path.pending import Chunk
from strandline.record.batch import Buffer
from strandline.types import Offset


class ReplicaHooks(Protocol):
    """A partition's replica, notified of the partition's group commits."""

    def journaled(self, chunk: Chunk, batch: Buffer) -> None:
        """The batch is in the log and in the journal, not yet synced."""
        ...

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """The batch, which ends at ``next_offset``, is on this disk."""
        ...

    def log_start_moved(self) -> None:
        """Retention has removed records."""
        ...

    def corruption_found(self, first_offset: Offset, next_offset: Offset) -> None:
        """The batches from ``first_offset`` to ``next_offset`` (exclusive) cannot be read here."""
        ...

    @property
    def is_gathering(self) -> bool:
        """Whether new records should gather, since enough is in flight to other replicas."""
        ...

    @property
    def min_replica_offset(self) -> Offset:
        """The offset below which records are committed and every replica has them."""
        ...

"""A partition's place in a cluster, as the partition and the turn see it."""

from typing import Protocol

from strandline.broker.write_path.pending import Chunk
from strandline.types import Offset


class ReplicaHooks(Protocol):
    """A partition's place in a cluster; told by the turn what became of its chunks."""

    def journaled(self, chunk: Chunk, batch: bytearray) -> None:
        """The chunk is in the log and in the journal, not yet synced."""
        ...

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """The chunk, which ends at ``next_offset``, is on this disk."""
        ...

    def log_start_moved(self) -> None:
        """Retention has removed records."""
        ...

    def corruption_found(self, first_offset: Offset, next_offset: Offset) -> None:
        """Batches of this range (its end exclusive) cannot be read here."""
        ...

    @property
    def is_gathering(self) -> bool:
        """Whether enough is on its way to other replicas: what comes now is better gathered."""
        ...

    @property
    def min_replica_offset(self) -> Offset:
        """Records below are committed, and every replica has them."""
        ...

"""Distinct types for integers and names with different meanings.

Rules: no logic, no imports from Strandline. Offsets are dense, start at 0, and every range of them
is half-open: ``log_start_offset <= high_watermark <= log_end_offset``, the last two exclusive.
"""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Number of a record in its partition, from 0."""

Position = NewType("Position", int)
"""Position of a byte in a file, from 0."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a partition's leadership, from 0; never reused."""

LogId = NewType("LogId", int)
"""The number by which the journal knows a partition's log; never reused within a data directory."""

BrokerId = NewType("BrokerId", int)
"""The number of a broker in its cluster, from 1; given by the operator, kept in its directory."""

TimestampNs = NewType("TimestampNs", int)
"""Unix time in nanoseconds."""


class ProducerStamp(NamedTuple):
    """The identity of an idempotent producer's batch, by which duplicates are recognised."""

    producer_id: int
    """Unique in the cluster."""
    epoch: int
    """The producer's epoch; a larger one fences all smaller ones."""
    sequence: int
    """Number of the first record among those of this producer, epoch and partition, from 0."""


class WrappedKey(NamedTuple):
    """A data key of a stream, encrypted by a master key."""

    number: int
    """Number of the key within its stream, from 1; batches contain it."""
    master: str
    """Id of the master key."""
    wrapped: bytes
    fingerprint: str
    """A hash of the data key itself, which does not change when the key is wrapped again."""


class PartitionName(NamedTuple):
    """The name of a partition."""

    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

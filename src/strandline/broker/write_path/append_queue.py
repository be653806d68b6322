"""The queue of partitions with accepted batches; a group commit takes as many as its limits allow.

While two batches of a partition are in flight to other replicas, its new records are gathered in a
larger batch: each group commit costs a replica as much as dozens of records do (docs/adr/0032).

Rules: loop thread. A partition with batches left stays in the queue. A partition that is gathering
returns to the queue when a batch of it was committed, or after ``GATHERING_MS_MAX``.
"""

import asyncio

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import Chunk

GATHERING_MS_MAX = 20.0
"""Longer than most commits take; after it, a group commit no longer waits for a slow replica."""

BATCH_OVERHEAD_BYTES = 512
"""The overhead of a batch in the journal: its header, a subject, and padding."""
RECORD_OVERHEAD_BYTES = 128
"""The overhead of a record: its entries in the columns, and perhaps its own subject."""


DrainedBatch = tuple[Partition, list[Chunk]]
"""A partition, and the batches drained from it; a batch that is rejected leaves the list."""


class AppendQueue:
    """The partitions that wait for a group commit.

    Args:
        loop: the broker's event loop.
        admission: its list ``dirty`` holds the queue.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, admission: Admission[Partition]) -> None:
        self._loop = loop
        self._admission = admission
        self._gathering: set[Partition] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no partition has anything for a group commit."""
        gathering = any(partition.pending.batches for partition in self._gathering)
        return not (self._admission.dirty or gathering)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that may have batches, now or soon."""
        return (*self._admission.dirty, *self._gathering)

    @property
    def bytes_max(self) -> int:
        """The limit of bytes of the next group commit; very long subjects may exceed it."""
        overhead = BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES
        return self._admission.pending_bytes + self._admission.limits.commit_records * overhead

    def bytes_ahead(self) -> int:
        """Return an upper estimate of the next group commit's bytes."""
        limits = self._admission.limits
        size = records = total = 0
        for partition in self._admission.dirty:
            for chunk in partition.pending.batches:
                size, records = size + chunk.size, records + chunk.count
                total += chunk.size + BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES * chunk.count
                if size > limits.commit_bytes or records > limits.commit_records:
                    return total
        return total

    def take(self) -> list[DrainedBatch]:
        """Drain batches for one group commit, up to its limits of bytes and records."""
        admission = self._admission
        dirty, admission.dirty = admission.dirty, []
        room = admission.limits.commit_bytes
        records = admission.limits.commit_records
        taken = []
        for index, partition in enumerate(dirty):
            if room <= 0 or records <= 0:
                admission.dirty = dirty[index:] + admission.dirty
                break
            if partition.replica_hooks is not None and partition.is_gathering:
                self._gathering.add(partition)
                self._loop.call_later(GATHERING_MS_MAX / 1e3, self.go_on_with, partition)
                continue
            chunks, taken_bytes, taken_records = partition.take(room, records)
            room -= taken_bytes
            records -= taken_records
            taken.append((partition, chunks))
            if partition.pending.batches:
                admission.dirty.append(partition)
        return taken

    def go_on_with(self, partition: Partition) -> None:
        """Stop gathering: a batch was committed, or the time is over."""
        if partition in self._gathering:
            self._gathering.remove(partition)
            self._admission.dirty.append(partition)
            self._admission.wake()

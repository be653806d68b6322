"""The log start offsets of a partition's replicas: the metadata decides, this broker deletes.

Rules: a replica deletes records when the image says so, never by itself, so that every replica, and
the next leader, has the same log start offset. Only committed records are deleted, and only the
leader surely knows which are. The leader proposes the new start with the partition's version, so
that neither a stream created again nor a newer leader is affected. A replica that has not committed
so far waits. A replica whose log ends before the start begins again at the leader's log start
offset (``replication``).
"""

import logging
from collections.abc import Iterable

from strandline.broker.cluster.operations import Operations
from strandline.broker.cluster.pending_proposals import PendingProposals
from strandline.broker.cluster.replicas import Replicas
from strandline.broker.maintenance.cleaner import counted_removal
from strandline.broker.maintenance.reclaimer import SpaceReclaimer
from strandline.broker.write_path.partition import Partition
from strandline.core.metadata.commands import LogStart, MoveLogStarts, PartitionAt
from strandline.core.metadata.election import at
from strandline.core.metadata.image import MetadataImage
from strandline.errors import OffsetOutOfRangeError, StrandlineError
from strandline.telemetry import Telemetry
from strandline.types import Offset

logger = logging.getLogger(__name__)


class LogStarts:
    """The log start offsets of this broker's replicas.

    Args:
        replicas: this broker's replicas.
        operations: proposes to the metadata.
        reclaimer: deletes the records.
        telemetry: counters.
    """

    def __init__(
        self,
        replicas: Replicas,
        operations: Operations,
        *,
        reclaimer: SpaceReclaimer,
        telemetry: Telemetry,
    ) -> None:
        self._replicas = replicas
        self._operations = operations
        self._reclaimer = reclaimer
        self._telemetry = telemetry
        self._deletions: PendingProposals[tuple[Partition, Offset]] = PendingProposals()
        self._wanted: PendingProposals[LogStart] = PendingProposals()

    def follow(self, image: MetadataImage, partitions: Iterable[Partition]) -> None:
        """Schedule deletions up to the image's log starts, as far as committed on this broker."""
        for partition in partitions:
            if partition.replica_hooks is None:
                continue
            stream, number = image.streams.get(partition.name.stream), partition.name.partition
            if stream is None or number >= len(stream.partitions):
                continue
            wanted = stream.partitions[number]
            if partition.log_id != wanted.log_id:
                continue
            offset = min(wanted.log_start_offset, partition.high_watermark)
            if offset > partition.log_start_offset:
                self._deletions.put(partition.log_id, (partition, offset))

    async def delete_records(self) -> None:
        """Delete the records below the log starts, until cancelled."""
        while True:
            for partition, offset in await self._deletions.taken():
                await self._delete(partition, offset)

    async def _delete(self, partition: Partition, offset: Offset) -> None:
        log = partition.log
        try:
            with counted_removal(log, self._telemetry):
                await self._reclaimer.delete_before(log, min(offset, log.log_end_offset))
        except StrandlineError as error:
            logger.warning("records of %s cannot be removed, will retry: %s", partition.name, error)
        else:
            if partition.replica_hooks is not None and partition.log is log:
                partition.replica_hooks.log_start_moved()

    def propose_deletion(self, partition: Partition, start: Offset) -> None:
        """Have all replicas delete expired records, if this broker leads the partition."""
        if self._leads(partition):
            self._wanted.put(partition.log_id, self._change(partition, start))

    async def run(self) -> None:
        """Propose the deletions that retention wants, until cancelled."""
        while True:
            wanted = await self._wanted.taken()
            try:
                # A rejected change is outdated; the next round of the cleaner proposes it again.
                await self._operations.outcome(MoveLogStarts(tuple(wanted)))
            except StrandlineError as error:
                logger.warning("expired records cannot be deleted yet, will retry: %s", error)

    async def delete_before(self, partition: Partition, offset: Offset) -> None:
        """Have all replicas delete the records before an offset.

        Raises:
            NotLeaderError: another broker leads the partition; the message names it.
            OffsetOutOfRangeError: the records are not committed.
            UnavailableError: the cluster cannot decide now.
        """

        def decision() -> MoveLogStarts | None:
            if not self._leads(partition):
                raise self._replicas.not_leader(partition)
            if not 0 <= offset <= partition.high_watermark:
                raise OffsetOutOfRangeError(
                    f"cannot delete records of {partition.name} below {offset}: its high "
                    f"watermark is {partition.high_watermark}; give at most that"
                )
            is_done = offset <= partition.log_start_offset
            return None if is_done else MoveLogStarts((self._change(partition, offset),))

        await self._operations.decide(decision)

    def led_partition(self, partition: Partition) -> PartitionAt:
        """Return the partition in the version assigned to its leader here, for a proposal.

        Raises:
            NotLeaderError: another broker leads the partition; the message names it.
        """
        if not self._leads(partition):
            raise self._replicas.not_leader(partition)
        assigned = self._replicas.assigned(partition.log_id)
        assert assigned is not None, "it is led here"
        return at(partition.name, assigned)

    def _leads(self, partition: Partition) -> bool:
        """Whether this broker leads the partition in the newest epoch assigned to it."""
        driver = self._replicas.drivers.get(partition.log_id)
        assigned = self._replicas.assigned(partition.log_id)
        if driver is None or assigned is None or driver.replica.leader is None:
            return False
        return assigned.leader_epoch == driver.replica.epoch

    def _change(self, partition: Partition, offset: Offset) -> LogStart:
        return LogStart(self.led_partition(partition), offset)

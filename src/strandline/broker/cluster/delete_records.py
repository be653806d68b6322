"""The log start offsets of a partition's replicas: decided by metadata, followed here.

Rules: a replica deletes records when the image says so, never by itself, so that every replica, and
the next leader, has the same log start. Only committed records are deleted, and only the leader
surely knows which are. It proposes the new start with the partition's version, so that a stream
created again or a newer leader is not affected. A replica that is not that far yet waits; one whose
log ends before the start begins again at the leader's log start (``replication``).
"""

import logging
from collections.abc import Iterable

from strandline.broker.cluster.operations import Operations
from strandline.broker.cluster.replicas import Replicas
from strandline.broker.cluster.wanted import PendingProposals
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
        replicas: the replicas of this broker.
        operations: proposes to the metadata.
        reclaimer: removes records.
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
        self._given_up: PendingProposals[tuple[Partition, Offset]] = PendingProposals()
        self._wanted: PendingProposals[LogStart] = PendingProposals()

    def follow(self, image: MetadataImage, partitions: Iterable[Partition]) -> None:
        """Move log starts to the image's, as far as records are known here to be committed."""
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
                self._given_up.put(partition.log_id, (partition, offset))

    async def shorten(self) -> None:
        """Remove records below the log starts, until cancelled."""
        while True:
            for partition, offset in await self._given_up.taken():
                await self._shorten(partition, offset)

    async def _shorten(self, partition: Partition, offset: Offset) -> None:
        log = partition.log
        try:
            with counted_removal(log, self._telemetry):
                await self._reclaimer.delete_before(log, min(offset, log.log_end_offset))
        except StrandlineError as error:
            logger.warning("records of %s cannot be removed, will retry: %s", partition.name, error)
        else:
            if partition.replica_hooks is not None and partition.log is log:
                partition.replica_hooks.log_start_moved()

    def want_deleted(self, partition: Partition, start: Offset) -> None:
        """Have all replicas delete expired records, if this broker leads the partition."""
        if self._leads(partition):
            self._wanted.put(partition.log_id, self._change(partition, start))

    async def run(self) -> None:
        """Propose what retention wants deleted, until cancelled."""
        while True:
            wanted = await self._wanted.taken()
            try:
                # A rejected change is outdated; the next round of the cleaner proposes it again.
                await self._operations.outcome(MoveLogStarts(tuple(wanted)))
            except StrandlineError as error:
                logger.warning("retention could not be decided, will retry: %s", error)

    async def truncate(self, partition: Partition, offset: Offset) -> None:
        """Have all replicas delete the records before an offset.

        Raises:
            NotLeaderError: another broker leads the partition; the message names it.
            OffsetOutOfRangeError: the records are not committed.
            UnavailableError: the cluster cannot decide it now.
        """

        def decision() -> MoveLogStarts | None:
            if not self._leads(partition):
                raise self._replicas.not_leader(partition)
            if not 0 <= offset <= partition.high_watermark:
                raise OffsetOutOfRangeError(
                    f"cannot truncate {partition.name} before {offset}: its high watermark is "
                    f"{partition.high_watermark}"
                )
            is_done = offset <= partition.log_start_offset
            return None if is_done else MoveLogStarts((self._change(partition, offset),))

        await self._operations.decide(decision)

    def led(self, partition: Partition) -> PartitionAt:
        """Return the partition as metadata last assigned it to its leader here, for a decision.

        Raises:
            NotLeaderError: another broker leads it; the message names it.
        """
        if not self._leads(partition):
            raise self._replicas.not_leader(partition)
        given = self._replicas.given(partition.log_id)
        assert given is not None, "it is led here"
        return at(partition.name, given)

    def _leads(self, partition: Partition) -> bool:
        """Whether this broker leads the partition according to the newest metadata."""
        driver = self._replicas.drivers.get(partition.log_id)
        given = self._replicas.given(partition.log_id)
        if driver is None or given is None or driver.replica.leader is None:
            return False
        return given.leader_epoch == driver.replica.epoch

    def _change(self, partition: Partition, offset: Offset) -> LogStart:
        return LogStart(self.led(partition), offset)

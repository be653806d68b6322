"""Where logs start, the same for all copies of a partition: decided by metadata, followed here.

Rules: a copy lets go of records when the image says so, never by itself, so that readers find the
same at every replica, and at the next leader. The leader's copy decides what retention takes; what
is deleted is committed, and a copy that does not know that yet waits. One that is behind what is
left starts anew at the leader's log start (``replication``).
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import NoReturn

from strandline.broker.cleaner import counted_removal
from strandline.broker.cluster.operations import Operations
from strandline.broker.cluster.replicas import Replicas
from strandline.broker.partition import Partition
from strandline.errors import OffsetOutOfRangeError, StrandlineError
from strandline.metadata.image import MetadataImage
from strandline.telemetry import Telemetry
from strandline.types import Offset

logger = logging.getLogger(__name__)


class LogStarts:
    """The log starts of this broker's copies.

    Args:
        replicas: of this broker.
        operations: lets metadata decide.
        telemetry: counters.
    """

    def __init__(self, replicas: Replicas, operations: Operations, *, telemetry: Telemetry) -> None:
        self._replicas = replicas
        self._operations = operations
        self._telemetry = telemetry
        self._wanted: dict[Partition, Offset] = {}
        self._is_wanted = asyncio.Event()

    def follow(self, image: MetadataImage, partitions: Iterable[Partition]) -> None:
        """Let go of what the image has given up, as far as it is known here to be committed."""
        here = {partition.name: partition for partition in partitions}
        for name, wanted in image.partitions():
            partition = here.get(name)
            if partition is None or partition.seat is None or partition.log_id != wanted.log_id:
                continue
            offset = min(wanted.log_start_offset, partition.high_watermark)
            if offset > partition.log_start_offset:
                self._shorten(partition, offset)

    def _shorten(self, partition: Partition, offset: Offset) -> None:
        assert partition.seat is not None, "it has other copies"
        try:
            with counted_removal(partition.log, self._telemetry):
                partition.log.truncate_before(offset)
        except StrandlineError as error:
            logger.warning("%s cannot be shortened, will try again: %s", partition.name, error)
        else:
            partition.seat.log_start_moved()

    def expired(self, partition: Partition, start: Offset) -> None:
        """Retention gives up what is before ``start``; the leader's word counts."""
        if self._leads(partition):
            self._wanted[partition] = start
            self._is_wanted.set()

    async def run(self) -> None:
        """Propose what retention gives up, until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            wanted, self._wanted = self._wanted, {}
            try:
                await self._operations.move_log_starts(
                    {partition.name: start for partition, start in wanted.items()}
                )
            except StrandlineError as error:  # the next round of the cleaner asks again
                logger.warning("retention could not be decided, will try again: %s", error)

    def refuse(self, partition: Partition, offset: Offset) -> NoReturn:
        """Say why records up to an offset cannot be deleted here.

        Raises:
            OffsetOutOfRangeError: beyond what is committed.
            NotLeaderError: the leader knows whether it is.
        """
        if offset >= 0 and not self._leads(partition):
            raise self._replicas.not_leader(partition)
        raise OffsetOutOfRangeError(
            f"cannot truncate {partition.name} before {offset}: its high watermark is "
            f"{partition.high_watermark}"
        )

    def _leads(self, partition: Partition) -> bool:
        driver = self._replicas.drivers.get(partition.log_id)
        return driver is not None and driver.replica.leader is not None

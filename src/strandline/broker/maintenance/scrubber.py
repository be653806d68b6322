"""Reads every log from time to time, to find corruption while other replicas have a copy.

Rules: reads slowly, on a thread, one log at a time. If recovery found corruption, the first round
starts at once, otherwise after one interval. Corruption is only reported. A log that is closed,
reopened or truncated during its round is left to the next round.
"""

import asyncio
import logging
from collections.abc import Callable

from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.broker.write_path.partition import Partition
from strandline.errors import CorruptBatchError, OffsetOutOfRangeError, UnavailableError
from strandline.storage.log import Log
from strandline.telemetry import Telemetry
from strandline.types import Offset

logger = logging.getLogger(__name__)

FIRST_AFTER_S = 60.0
STEP_BYTES = 1 << 20


class Scrubber:
    """Searches all logs for corruption.

    Args:
        partitions: called in every round; returns the current partitions.
        reports: receives the corruption found.
        telemetry: counters.
        interval_ms: the time between two rounds.
        bytes_per_s: the highest rate of reading.
    """

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        reports: CorruptionReports,
        *,
        telemetry: Telemetry,
        interval_ms: int,
        bytes_per_s: int,
    ) -> None:
        self._partitions = partitions
        self._reports = reports
        self._telemetry = telemetry
        self._interval_s = interval_ms / 1000
        self._bytes_per_s = bytes_per_s
        self._is_urgent = asyncio.Event()

    def hurry(self) -> None:
        """Start a round soon, because corruption is likely."""
        self._is_urgent.set()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        await self._pause(min(FIRST_AFTER_S, self._interval_s))
        while True:
            self._reports.forget()
            await self.scrub()
            await self._pause(self._interval_s)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_urgent.wait()
        except TimeoutError:
            pass  # the pause ended without ``hurry``
        self._is_urgent.clear()

    async def scrub(self) -> None:
        """Run one round."""
        for partition in self._partitions():
            try:
                await self._scrub(partition, partition.log)
            except (OffsetOutOfRangeError, UnavailableError) as error:
                logger.debug("%s is left to the next round: %s", partition.name, error)

    async def _scrub(self, partition: Partition, log: Log) -> None:
        """Read one log up to its current end.

        Raises:
            OffsetOutOfRangeError: the log was truncated meanwhile.
            UnavailableError: the log was closed.
        """
        offset, end = log.log_start_offset, log.log_end_offset
        may_have_gaps = partition.config.has_gaps and partition.replica_hooks is None
        read = log.read if may_have_gaps else log.read_dense
        while offset < end and partition.log is log and not partition.closed:
            size = 0
            try:
                found = await asyncio.to_thread(read, offset, STEP_BYTES, below=end)
            except OffsetOutOfRangeError:
                if offset >= log.log_start_offset:
                    raise
                offset = log.log_start_offset  # retention deleted the records meanwhile
            except CorruptBatchError as corruption:
                partition.committed.report_corruption(corruption)
                offset = Offset(max(corruption.next_offset, offset + 1))
            else:
                size, offset = len(found.buffer), found.next_offset
                del found  # otherwise the segment stays mapped
            self._telemetry.scrubbed_bytes += size
            await asyncio.sleep(size / self._bytes_per_s)

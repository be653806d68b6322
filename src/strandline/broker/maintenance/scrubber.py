"""Reads every log again from time to time, so that corruption is found while others have a copy.

Rules: slowly, beside the loop, one log at a time; a broker whose recovery met corruption looks at
once, another when it has run for a while. What is found is only reported. A log that is closed,
reopened or cut meanwhile is left to the next round.
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
    """Looks for corruption in all logs.

    Args:
        partitions: asked at every round for the partitions there are.
        reports: told of corruption.
        telemetry: counters.
        interval_ms: between two rounds.
        bytes_per_s: how much is read, at most.
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
        """Begin a round soon: there is reason to expect corruption."""
        self._is_urgent.set()

    async def run(self) -> None:
        """Round after round, for ever."""
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
            pass  # nothing was urgent
        self._is_urgent.clear()

    async def scrub(self) -> None:
        """One round."""
        for partition in self._partitions():
            try:
                await self._scrub(partition, partition.log)
            except (OffsetOutOfRangeError, UnavailableError) as error:
                logger.debug("scrubbing %s ends: %s", partition.name, error)

    async def _scrub(self, partition: Partition, log: Log) -> None:
        """Read one log as far as it goes now.

        Raises:
            OffsetOutOfRangeError: it was cut behind us.
            UnavailableError: it was closed.
        """
        offset, end = log.log_start_offset, log.log_end_offset
        may_have_gaps = partition.config.compact and partition.replica_hooks is None
        read = log.read if may_have_gaps else log.read_dense
        while offset < end and partition.log is log and not partition.closed:
            size = 0
            try:
                found = await asyncio.to_thread(read, offset, STEP_BYTES, below=end)
            except OffsetOutOfRangeError:
                if offset >= log.log_start_offset:
                    raise
                offset = log.log_start_offset  # retention was quicker
            except CorruptBatchError as corruption:
                partition.committed.report_corruption(corruption)
                offset = Offset(max(corruption.next_offset, offset + 1))
            else:
                size, offset = len(found.buffer), found.next_offset
                del found  # or the segment stays mapped
            self._telemetry.scrubbed_bytes += size
            await asyncio.sleep(size / self._bytes_per_s)

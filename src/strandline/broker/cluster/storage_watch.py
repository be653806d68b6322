"""Reports to the cluster whether this broker's disk accepts writes.

Rules: a fault is a failed write (no space) or a poisoned storage. A single failed write is ignored
if a probe then succeeds; repeated ones are reported. A disk counts as healthy again after
``HEALTHY_S`` without a failed write or probe, so that leaderships do not move back and forth.
Without a fault this costs a comparison at intervals. Must not know who leads next: the controller
decides.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from strandline.broker.cluster.membership import ClusterMembership
from strandline.clock import Clock
from strandline.errors import DiskFullError, StrandlineError
from strandline.storage.disk import Disk
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
REPEATED_S: Final = 3.0
"""Faults found by two checks within this time are reported without a probe."""
HEALTHY_S: Final = 30.0
"""The time that a disk must work before its broker may lead again."""
PROBE_S: Final = 3.0
PROBE_BYTES: Final = 64 << 10
PROBE_NAME: Final = "disk-probe"


class StorageWatch:
    """Watches one broker's disk.

    Args:
        directory: the broker's data directory.
        disk: the file system.
        membership: the broker's membership.
        telemetry: records writes that failed for lack of space, and successful probes.
        clock: the source of time.
        free_bytes_min: after a failed write, a disk with less space than this counts as full.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        membership: ClusterMembership,
        *,
        telemetry: Telemetry,
        clock: Clock,
        free_bytes_min: int,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._membership = membership
        self._telemetry = telemetry
        self._times_full = 0
        self._clock = clock
        self._free_bytes_min = free_bytes_min
        self._has_failed = self._is_due = False
        self._fault_ms: float | None = None
        self._probed_ms = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        has_failed, self._has_failed = self._has_failed, False
        if has_failed or self._has_met_full_disk():
            is_certain = has_failed or self._seconds_since_fault(now_ms) < REPEATED_S
            self._fault_ms = now_ms
            self._is_due = self._is_due or is_certain or not await self._probe()
        if self._membership.is_impaired:
            self._is_due = False
            await self._look_whether_it_works(now_ms)
        elif self._is_due:
            await self._report(is_impaired=True)

    def storage_failed(self) -> None:
        """Note that a write or a sync failed, so that the storage has to be reopened."""
        self._has_failed = True

    def _has_met_full_disk(self) -> bool:
        before, self._times_full = self._times_full, self._telemetry.disk_full_writes
        return before != self._times_full

    async def _look_whether_it_works(self, now_ms: float) -> None:
        if self._fault_ms is None:
            self._fault_ms = now_ms  # an earlier run of the broker has reported the fault
        if now_ms - self._probed_ms >= PROBE_S * 1e3:
            self._probed_ms = now_ms
            if await self._probe():
                self._telemetry.disk_full = 0  # an idle broker has no commit that resets it
            else:
                self._fault_ms = now_ms
        if self._seconds_since_fault(now_ms) >= HEALTHY_S:
            await self._report(is_impaired=False)

    def _seconds_since_fault(self, now_ms: float) -> float:
        return float("inf") if self._fault_ms is None else (now_ms - self._fault_ms) / 1e3

    async def _probe(self) -> bool:
        """Return whether the disk accepts a write now; tries it on a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, self._probe_now)

    def _probe_now(self) -> bool:
        path = self._directory / PROBE_NAME
        try:
            if self._disk.free_bytes(self._directory) < self._free_bytes_min:
                raise DiskFullError(f"less than {self._free_bytes_min} bytes are free")
            self._disk.write_durably(path, bytes(PROBE_BYTES))
            self._disk.unlink(path)
        except StrandlineError as error:
            logger.debug("the disk of %s does not work: %s", self._directory, error)
            return False
        return True

    async def _report(self, *, is_impaired: bool) -> None:
        if not self._membership.is_registered:
            return  # it leads nothing yet; the report follows once it is registered
        if is_impaired:
            logger.error(
                "the disk of %s rejects writes: other brokers lead what they can, until it has "
                "worked for %.0f s",
                self._directory,
                HEALTHY_S,
            )
        else:
            logger.warning("the disk of %s works again: this broker may lead", self._directory)
        try:
            await self._membership.report_storage(is_impaired=is_impaired)
        except StrandlineError as error:
            logger.warning("the state of the disk was not reported, will retry: %s", error)

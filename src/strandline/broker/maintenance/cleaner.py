"""Retention, compaction and subject indexes of every partition, on a timer.

Rules: the loop decides what is removed and changes the log in memory, in microseconds; everything
that reads or writes files runs on a thread. Segments are rewritten one partition at a time, and
never while a stream is being deleted. Removal is durable. So the newer records that replace the
removed ones must be durable before, even if they were acknowledged from memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from strandline.api.put import PRODUCER_MEMORY_S
from strandline.broker.read_path.transaction_visibility import is_visible
from strandline.broker.write_path.partition import Partition
from strandline.clock import Clock, SteadyTime
from strandline.config import StreamConfig
from strandline.errors import StrandlineError, UnavailableError
from strandline.record.subjects import has_wildcard
from strandline.storage.compaction import Compactor
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.retention import (
    RetentionPolicy,
    WriteTimes,
    retention_start,
    seal_if_old,
)
from strandline.telemetry import Telemetry
from strandline.types import Offset

logger = logging.getLogger(__name__)


class Cleaner:
    """Removes the records that streams no longer keep.

    Args:
        partitions: called in every round; returns the current partitions.
        commit_finished: waits for the group commit in progress, which may still be undone.
        sync: waits likewise, then syncs records that were acknowledged without a sync.
        delete_before: deletes expired records before an offset. In a cluster the metadata decides
            it, and all replicas of the partition delete.
        lock: held while a partition is compacted, and while streams are deleted.
        disk: the file system for compacted segments.
        clock: gives the age of records.
        telemetry: counters.
        interval_ms: the time between two rounds.
    """

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        *,
        commit_finished: Callable[[], Awaitable[None]],
        sync: Callable[[], Awaitable[object]],
        delete_before: Callable[[Partition, Offset], Awaitable[None]],
        lock: asyncio.Lock,
        disk: Disk,
        clock: Clock,
        telemetry: Telemetry,
        interval_ms: int,
    ) -> None:
        self._partitions = partitions
        self._commit_finished = commit_finished
        self._sync = sync
        self._delete_before = delete_before
        self._lock = lock
        self._disk = disk
        self._clock = clock
        self._telemetry = telemetry
        self._interval_s = interval_ms / 1000
        self._compactors: dict[Log, Compactor] = {}
        self._steady = SteadyTime(clock)
        self._write_times: dict[Log, WriteTimes] = {}
        self._indexed: dict[Log, int] = {}
        """The offset up to which the subjects of each log are indexed."""

    async def run(self) -> None:
        """Clean until cancelled; failures are logged and retried in the next round."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.clean()

    async def clean(self) -> None:
        """Run one round."""
        for partition in self._partitions():
            await self._commit_finished()
            if partition.closed or partition.remote_error is not None:
                continue
            try:
                await self._retain(partition)
                if partition.config.has_gaps:
                    await self._compact(partition)
                if has_wildcard(partition.config.subject) and partition.key_error is None:
                    await self._index(partition.log)
            except UnavailableError as error:
                logger.warning(
                    "cleaning %s failed and will be tried again: %s", partition.name, error
                )
            except StrandlineError as error:
                logger.error(  # noqa: TRY400  no trace
                    "cleaning %s failed: %s", partition.name, error
                )
        live = {partition.log for partition in self._partitions()}
        self._compactors = {log: c for log, c in self._compactors.items() if log in live}
        self._write_times = {log: t for log, t in self._write_times.items() if log in live}
        self._indexed = {log: o for log, o in self._indexed.items() if log in live}

    async def _retain(self, partition: Partition) -> None:
        """Delete committed records that exceed the limits of age, size or number."""
        policy = retention_policy(partition.config)
        if not any(policy):
            return
        log = partition.log
        now_ns = int(self._clock.monotonic_ms() * 1e6)
        times = self._write_times.setdefault(log, WriteTimes())
        times.note(log, wall_ns=self._clock.now_ns(), monotonic_ns=now_ns)
        seal_if_old(log, policy, now_ns=now_ns, written_ns=times.of)
        start = await asyncio.to_thread(
            retention_start, log, policy, now_ns=now_ns, written_ns=times.of
        )
        if start is None or partition.log is not log:
            return
        start = min(start, partition.high_watermark)
        await self._delete_before(partition, start)

    async def _compact(self, partition: Partition) -> None:
        """Rewrite sealed segments so that only the newest record of each key remains."""
        log = partition.log
        compactor = self._compactors.get(log)
        if compactor is None:
            compactor = Compactor(
                log,
                disk=self._disk,
                tombstone_delay_ms=partition.config.tombstone_delay_ms,
                ids_ms=partition.config.dedup_window_ms,
                numbers_ms=PRODUCER_MEMORY_S * 1000,
                records_per_subject=partition.config.max_records_per_subject,
            )
            self._compactors[log] = compactor
        # A null value that is removed too early cannot be restored, so the earlier time counts.
        now_ns = min(self._clock.now_ns(), self._steady.now_ns())
        if not compactor.is_due(now_ns=now_ns, tombstones_below=_seen_by_all(partition)):
            return
        async with self._lock:
            await self._sync()
            if partition.closed or partition.log is not log:
                return
            started_ms = self._clock.monotonic_ms()
            prepared = await asyncio.to_thread(
                compactor.prepare,
                below=partition.last_stable_offset,
                tombstones_below=_seen_by_all(partition),
                now_ns=now_ns,
                is_committed=lambda header: is_visible(partition.transaction_index, header),
            )
            if partition.log is not log:
                return  # the log was reopened meanwhile, which removed the prepared files
            await asyncio.to_thread(compactor.apply, prepared)
            self._indexed.pop(log, None)
        self._telemetry.compaction_records += prepared.records_removed
        seconds = (self._clock.monotonic_ms() - started_ms) / 1e3
        self._telemetry.compaction_seconds.observe(seconds)

    async def _index(self, log: Log) -> None:
        """Index the subjects of sealed segments."""
        self._indexed[log] = await asyncio.to_thread(log.index_subjects, self._indexed.get(log, 0))


def _seen_by_all(partition: Partition) -> Offset:
    """Return the offset below which null values are on the disks of all replicas."""
    replica_hooks = partition.replica_hooks
    return (
        partition.last_stable_offset if replica_hooks is None else replica_hooks.min_replica_offset
    )


@contextmanager
def counted_removal(log: Log, telemetry: Telemetry) -> Iterator[None]:
    """Count the records that the block removes from a log."""
    segments, size = len(log.segments), log.size_bytes
    yield
    telemetry.retention_segments += max(0, segments - len(log.segments))
    telemetry.retention_bytes += max(0, size - log.size_bytes)


def retention_policy(config: StreamConfig) -> RetentionPolicy:
    """Return the retention policy for a stream's settings."""
    return RetentionPolicy(
        age_ms=config.retention_age_ms,
        bytes_max=config.retention_bytes,
        records_max=config.retention_records,
    )

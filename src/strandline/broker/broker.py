"""The broker: owns the data directory, the turn and the streams; front ends plug into it.

Rules: one asyncio loop; every method is called on its thread unless it says otherwise. Opening is
recovery: there is no other way to open, so a crash and a clean stop take the same road.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from strandline.broker.checkpointer import CheckpointSchedule
from strandline.broker.cleaner import Cleaner
from strandline.broker.lock import DataDirLock
from strandline.broker.metadata_store import MetadataStore
from strandline.broker.opening import log_plan, open_storage
from strandline.broker.partition import Admission, Partition
from strandline.broker.stream import Stream
from strandline.broker.syncer import Syncer
from strandline.broker.turn import Turn
from strandline.clock import Clock, SystemClock
from strandline.config import BrokerConfig, StreamConfig
from strandline.errors import (
    LogPoisonedError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.metadata.commands import CreateStream, DeleteStream
from strandline.metadata.image import StreamImage, unknown_stream_message
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.recovery import Recovered
from strandline.telemetry import Telemetry
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName

logger = logging.getLogger(__name__)

HEAL_INTERVAL_S = 1.0
T = TypeVar("T")


class Broker:
    """One broker on one data directory.

    Args:
        config: settings.
        clock: where the time comes from.
        disk: the door to the file system; tests inject faults here.
        telemetry: counters; a fresh set if not given.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.disk = disk or Disk()
        self.telemetry = telemetry or Telemetry()
        self.data_dir = Path(config.data_dir)
        self.is_ready = False
        self._streams: dict[str, Stream] = {}
        self._stream_callbacks: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._admin = asyncio.Lock()

    # Life

    async def start(self) -> None:
        """Recover the data directory and begin to accept records.

        Raises:
            DataDirLockedError: another broker uses the directory.
            CorruptBatchError: the metadata file is damaged.
        """
        self._loop = asyncio.get_running_loop()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = DataDirLock(self.data_dir)
        self._store = MetadataStore(self.data_dir, self.disk)
        self.admission = Admission(self.config.limits, self._wake)
        self.admission.now_ns = self.clock.now_ns()
        self.turn = Turn(
            self._loop,
            admission=self.admission,
            clock=self.clock,
            telemetry=self.telemetry,
            on_poisoned=self._on_poisoned,
        )
        self._syncer = Syncer(self._loop, self.disk.fdatasync)
        self._checkpoints = CheckpointSchedule(
            self.config.journal,
            clock=self.clock,
            telemetry=self.telemetry,
            on_poisoned=self.turn.poison,
        )
        self._storage = self._open()
        for name, image in self._store.image.streams.items():
            self._streams[name] = self._make_stream(image)
        cleaner = Cleaner(
            self.partitions,
            lock=self._admin,
            disk=self.disk,
            clock=self.clock,
            telemetry=self.telemetry,
            interval_ms=self.config.cleaner_interval_ms,
        )
        self._tasks = [
            asyncio.create_task(self._checkpoints.run(), name="checkpoints"),
            asyncio.create_task(cleaner.run(), name="cleaner"),
        ]
        self._count_streams()
        self.is_ready = True

    async def stop(self) -> None:
        """Refuse new records, finish the turn, checkpoint and let go of the directory."""
        self.is_ready = False
        if self.admission.refusal is None:
            self.admission.refusal = ShuttingDownError("the broker is stopping; retry later")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.quiesce()
        for partition in self.partitions():
            partition.close()
        try:
            if not self._storage.journal.poisoned:
                await self._checkpoints.checkpoint()
        except StrandlineError as error:
            logger.warning("no checkpoint at the stop, the journal will be replayed: %s", error)
        self._syncer.close()
        self._close_storage()
        self._lock.release()

    async def quiesce(self) -> None:
        """Wait until no turn is between write and answer and nothing waits for one."""
        while not self.turn.is_idle:
            await asyncio.sleep(0.001)

    # Streams

    def streams(self) -> list[Stream]:
        """All streams, by name."""
        return [self._streams[name] for name in sorted(self._streams)]

    def stream(self, name: str) -> Stream:
        """The stream called ``name``; from any thread.

        Raises:
            UnknownStreamError: there is none.
        """
        try:
            return self._streams[name]
        except KeyError:
            message = unknown_stream_message(name, self._store.image.streams)
            raise UnknownStreamError(message) from None

    def partitions(self) -> list[Partition]:
        """Every partition of every stream."""
        return [partition for stream in self.streams() for partition in stream.partitions]

    async def create_stream(self, config: StreamConfig) -> Stream:
        """Create a stream and bind it.

        Raises:
            InvalidRequestError: the settings are wrong or the name is taken.
            UnavailableError: the broker cannot store it now.
        """
        async with self._admin:
            self._check_available()
            command = CreateStream(config=config, now_ns=self.clock.now_ns())
            image = self._store.apply(command).streams[config.name]
            stream = self._make_stream(image)
            self._streams = {**self._streams, config.name: stream}
            self._announce()
            self._count_streams()
            logger.info("created stream %s on subject %s", config.name, config.subject)
            return stream

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records.

        Raises:
            UnknownStreamError: there is none.
        """
        async with self._admin:
            stream = self.stream(name)
            self._store.apply(DeleteStream(name=name))
            self._streams = {key: s for key, s in self._streams.items() if key != name}
            self._announce()
            gone = UnknownStreamError(f"stream {name!r} was deleted")
            for partition in stream.partitions:
                partition.reject_from((), gone)
                partition.close()
            await self.quiesce()
            async with self._checkpoints.lock:
                for partition in stream.partitions:
                    self._storage.logs.pop(LogId(partition.log_id), None)
                    partition.log.delete()
            self._count_streams()
            logger.info("deleted stream %s", name)

    async def truncate_before(self, name: str, partition: int, offset: Offset) -> Offset:
        """Delete records below ``offset``; returns the new log start offset.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
            OffsetOutOfRangeError: beyond the high watermark.
        """
        async with self._admin:
            target = self.stream(name).partition(partition)
            if offset > target.high_watermark or offset < 0:
                raise OffsetOutOfRangeError(
                    f"cannot truncate {target.name} before {offset}: its high watermark is "
                    f"{target.high_watermark}"
                )
            target.log.truncate_before(offset)
            return target.log_start_offset

    # Front ends

    def on_streams_changed(self, callback: Callable[[], None]) -> None:
        """Call back, on the loop, after streams were created or deleted."""
        self._stream_callbacks.append(callback)

    def on_turn_end(self, callback: Callable[[], None]) -> None:
        """Call back, on the loop, after the responders of each turn."""
        self.turn.turn_end_callbacks.append(callback)

    def call_soon(self, function: Callable[..., None], *args: object) -> None:
        """Run a function on the loop; from any thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; from any thread but the loop's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # Inside

    def _wake(self) -> None:
        self.turn.wake()

    def _check_available(self) -> None:
        if self.admission.refusal is not None:
            raise self.admission.refusal

    def _announce(self) -> None:
        for callback in self._stream_callbacks:
            callback()

    def _count_streams(self) -> None:
        self.telemetry.streams = len(self._streams)
        self.telemetry.partitions = len(self.partitions())

    def _open(self) -> Recovered:
        """Recover the logs of the streams in the image and attach the journal to the turn."""
        started_ms = self.clock.monotonic_ms()
        storage = open_storage(self.data_dir, self._store.image, self.config, disk=self.disk)
        seconds = (self.clock.monotonic_ms() - started_ms) / 1e3
        report = storage.report
        logger.info(
            "recovered %d records (%d bytes) from the journal in %.2f s, cut %d torn bytes",
            report.records_replayed,
            report.bytes_replayed,
            seconds,
            report.torn_bytes,
        )
        for damage in report.damage:
            logger.error("damage in %s at byte %d: %s", *damage)
        self.telemetry.recovery_seconds = seconds
        self.telemetry.recovery_records = report.records_replayed
        self.telemetry.recovery_torn_bytes = report.torn_bytes
        self.telemetry.damaged_batches += len(report.damage)
        self.turn.attach(storage.journal, self._syncer)
        self._checkpoints.attach(storage)
        return storage

    def _make_stream(self, image: StreamImage) -> Stream:
        """The stream of an image, its logs opened (or made)."""
        config = image.config
        partitions = []
        for number, item in enumerate(image.partitions):
            log_id = LogId(item.log_id)
            log = self._storage.logs.get(log_id)
            if log is None:
                plan = log_plan(self.data_dir, log_id, config)
                log = Log.open(
                    plan.directory,
                    disk=self.disk,
                    segment_bytes=plan.segment_bytes,
                    segment_age_ms=plan.segment_age_ms,
                )
                self._storage.logs[log_id] = log
            partitions.append(
                Partition(
                    PartitionName(config.name, number),
                    config,
                    log,
                    log_id=log_id,
                    leader_epoch=LeaderEpoch(item.leader_epoch),
                    admission=self.admission,
                )
            )
        return Stream(config, image.created_ns, partitions)

    def _close_storage(self) -> None:
        """Let go of all files; a journal that cannot be synced any more is only let go."""
        try:
            self._storage.journal.close()
        except LogPoisonedError as error:
            logger.warning("closing the journal: %s", error)
        for log in self._storage.logs.values():
            log.close()

    def _on_poisoned(self, error: StrandlineError) -> None:
        """Try to reopen until the disk works again."""
        logger.error("storage failed, refusing appends until it is reopened: %s", error)
        self._tasks.append(asyncio.create_task(self._heal(), name="heal"))

    async def _heal(self) -> None:
        """Reopen the data directory as after a crash, verifying it; repeat until it works."""
        while True:
            await asyncio.sleep(HEAL_INTERVAL_S)
            async with self._admin, self._checkpoints.lock:
                try:
                    self._close_storage()
                    self._storage = self._open()
                except StrandlineError as error:
                    logger.error("storage is still failing: %s", error)
                    continue
                for partition in self.partitions():
                    partition.rebind(self._storage.logs[LogId(partition.log_id)])
            self.admission.refusal = None
            self.telemetry.journal_poisoned = 0
            logger.warning("storage was reopened and verified; accepting appends again")
            return

"""The base of every broker: its parts, its logs on disk, and its listeners.

Rules: the broker opens its files by recovery, both at the start and after a failure of the disk.
Must not know where the metadata comes from, nor how streams are created and deleted.
"""

import asyncio
import concurrent.futures
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from strandline.broker.maintenance.checkpoint_schedule import CheckpointSchedule
from strandline.broker.maintenance.cleaner import Cleaner
from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.broker.maintenance.reclaimer import SpaceReclaimer
from strandline.broker.maintenance.scrubber import Scrubber
from strandline.broker.monitor import BrokerMonitor
from strandline.broker.opening import check_restored
from strandline.broker.routing import RouteTable
from strandline.broker.stream import Stream
from strandline.broker.stream_keys import StreamKeys
from strandline.broker.write_path.group_commit import GroupCommitter
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import AckSink
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock, SystemClock
from strandline.config import BrokerConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage, unknown_stream_message
from strandline.core.metadata.internal_streams import is_internal
from strandline.encryption.master_keys import MasterKeys
from strandline.errors import (
    DiskFullError,
    InvalidConfigError,
    LogPoisonedError,
    ShuttingDownError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.storage.descriptors import current_shares
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.storage.recovery import Recovered
from strandline.storage.reserve import Reserve
from strandline.telemetry import Telemetry
from strandline.types import BrokerId, LogId, Offset

logger = logging.getLogger(__name__)

HEAL_INTERVAL_S = 1.0
BIND_TIMEOUT_S = 5.0
IDLE_INTERVAL_S = 10.0
"""Seconds between two sweeps; a sweep unmaps the segments not read since the one before."""
DESCRIPTORS_MIN = 32
"""The free descriptors of a ready broker; with fewer, connections or segments may not open."""
T = TypeVar("T")


class BrokerBase(ABC):
    """One broker on its data directory: its parts, and the callbacks of its front ends.

    Args:
        config: settings.
        clock: the source of time.
        disk: makes all file-system calls; tests inject faults here.
        telemetry: counters; a fresh set if not given.
        masters: the master keys of encrypted streams; none if not given.
    """

    _loop: asyncio.AbstractEventLoop
    _storage: Recovered
    _syncer: SyncPolicy

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        telemetry: Telemetry | None = None,
        master_keys: MasterKeys | None = None,
    ) -> None:
        self.config = config
        self.keys = StreamKeys(master_keys or MasterKeys(), lambda: self._image)
        self.clock = clock or SystemClock()
        self.disk = disk or Disk()
        self.telemetry = telemetry or Telemetry()
        self.data_dir = Path(config.data_dir)
        self.is_ready = False
        self._streams: dict[str, Stream] = {}
        self.routes = RouteTable()
        """The routes from subjects to this broker's streams; changed only by ``_announce``."""
        self._stream_callbacks: list[Callable[[Collection[str]], None]] = []
        self._bound_callbacks: list[Callable[[str], Awaitable[None]]] = []
        self._creation_checks: list[Callable[[StreamConfig], Awaitable[None]]] = []
        self._image_callbacks: list[Callable[[], None]] = []
        self._leading_callbacks: list[Callable[[Collection[str]], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._admin = asyncio.Lock()
        self._opening_lock = asyncio.Lock()
        """Held while a thread opens new logs, so that no recovery opens the same files, and no stop
        releases the directory."""
        self._producer_ids: dict[str, range] = {}
        """Reserved and not yet allocated ids, by owner."""
        self._producer_lock = asyncio.Lock()

    # Start and stop

    def _assemble(self) -> None:
        """Create the parts and load the metadata; the logs are opened later."""
        self.reclaimer = SpaceReclaimer()
        self._reserve = Reserve(self.data_dir, self.disk)
        check_restored(self.data_dir, disk=self.disk)
        self._load_metadata()
        self._corruption = CorruptionReports(self.call_soon, telemetry=self.telemetry)
        self.committer = GroupCommitter(
            self._loop,
            self.config.limits,
            clock=self.clock,
            telemetry=self.telemetry,
            on_poisoned=self._on_poisoned,
            corruption=self._corruption,
        )
        self.admission = self.committer.admission
        self._checkpoints = CheckpointSchedule(
            self.config.journal,
            clock=self.clock,
            telemetry=self.telemetry,
            on_poisoned=self.committer.poison,
        )
        self._scrubber = Scrubber(
            self.partitions,
            self._corruption,
            telemetry=self.telemetry,
            interval_ms=self.config.scrub_interval_ms,
            bytes_per_s=self.config.scrub_bytes_per_s,
        )
        self._cleaner = Cleaner(
            self.partitions,
            commit_finished=self.committer.passed,
            sync=self.committer.sync,
            delete_before=self._delete_expired,
            lock=self._admin,
            disk=self.disk,
            clock=self.clock,
            telemetry=self.telemetry,
            interval_ms=self.config.cleaner_interval_ms,
        )

        self.monitor = BrokerMonitor(self)

    async def _unmap_idle(self) -> None:
        """Unmap segments that nobody reads, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_INTERVAL_S)
            await asyncio.to_thread(MAPPED_SEGMENTS.sweep)

    async def quiesce(self) -> None:
        """Wait until no record is pending and no group commit is in progress."""
        # Polls, to keep bookkeeping out of the hot path.
        while self.admission.held or not self.committer.is_idle:  # noqa: ASYNC110  see above
            await asyncio.sleep(0.001)

    # Health

    @property
    def why_not_ready(self) -> str:
        """Return why records cannot be stored or read here now; empty if they can."""
        if self.telemetry.journal_poisoned:
            return "storage failed: nothing is stored until it is reopened"
        if not self.is_ready:
            return self._why_not_serving
        if self.telemetry.disk_full:
            return "the disk is full: publishes are rejected"
        if self.disk.descriptors_left() < DESCRIPTORS_MIN:
            return "hardly any file descriptors are left: raise 'ulimit -n' and start it again"
        return self._why_not_encrypting

    @property
    def _why_not_serving(self) -> str:
        return "starting or stopping"

    @property
    def _why_not_encrypting(self) -> str:
        here = [partition for partition in self.partitions() if partition.remote_error is None]
        missing = [error for partition in here if (error := partition.key_error) is not None]
        if not missing:
            return ""
        return f"{len(missing)} partitions take no records; the first: {missing[0].message}"

    def refresh_telemetry(self) -> None:
        """Update gauges that are computed, not counted; called before each scrape."""
        telemetry = self.telemetry
        telemetry.ready = int(not self.why_not_ready)
        telemetry.pending_bytes = self.admission.pending_bytes
        telemetry.duplicates = self.admission.duplicates
        telemetry.rejects = self.admission.rejects
        telemetry.journal_bytes = self._storage.journal.bytes_since_recycle
        self._count_streams()

    # Streams

    def streams(self, names: Iterable[str] | None = None) -> list[Stream]:
        """Return the streams sorted by name: all, or those in ``names`` that exist."""
        streams = self._streams
        there = streams if names is None else [name for name in names if name in streams]
        return [streams[name] for name in sorted(there)]

    @property
    def stream_count(self) -> int:
        """Return the number of streams; any thread."""
        return len(self._streams)

    def stream(self, name: str) -> Stream:
        """Return the stream called ``name``; any thread.

        Raises:
            UnknownStreamError: no such stream; unless access is checked, the message lists the
                existing ones.
            UnavailableError: this broker does not know whether the stream exists, or has not opened
                it.
        """
        try:
            return self._streams[name]
        except KeyError:
            self.check_metadata()
            if name in self._image.streams:
                raise UnavailableError(f"stream {name!r} is not open here yet; retry") from None
            hides = self.config.auth.enabled or is_internal(name)
            others = [] if hides else [n for n in self._image.streams if not is_internal(n)]
            raise UnknownStreamError(unknown_stream_message(name, others)) from None

    @property
    def metadata_error(self) -> UnavailableError | None:
        """Why this broker does not know which streams exist and who leads them, or None."""
        return None

    def check_metadata(self) -> None:
        """Check that this broker knows which streams exist and who leads them.

        Any thread.

        Raises:
            UnavailableError: it does not; the message has the reason.
        """
        if (error := self.metadata_error) is not None:
            raise error

    def copy_of(self, name: str) -> Stream:
        """Return the stream with its records on this broker's disk; not on the loop's thread.

        Raises:
            UnknownStreamError, UnavailableError: as for ``stream``.
        """
        return self.stream(name)

    def partitions(self) -> list[Partition]:
        """Return every partition of every stream."""
        return [partition for stream in self.streams() for partition in stream.partitions]

    # Front ends

    def on_streams_changed(self, callback: Callable[[Collection[str]], None]) -> None:
        """Register a callback that gets the names of created, changed or deleted streams; loop."""
        self._stream_callbacks.append(callback)

    def on_image(self, callback: Callable[[], None]) -> None:
        """Register a callback for every change of the metadata; called on the loop."""
        self._image_callbacks.append(callback)

    def on_leading(self, callback: Callable[[Collection[str]], None]) -> None:
        """Register a callback that gets the streams of which this broker now leads a new partition.

        Called on the loop. Streams that this broker leads from the start, or creates alone, are
        left out.
        """
        self._leading_callbacks.append(callback)

    def on_stream_created(self, callback: Callable[[str], Awaitable[None]]) -> None:
        """Register a function that binds a new stream; awaited before the creation is answered."""
        self._bound_callbacks.append(callback)

    def on_creating_stream(self, check: Callable[[StreamConfig], Awaitable[None]]) -> None:
        """Register a check awaited before a stream is created; an error rejects the creation."""
        self._creation_checks.append(check)

    async def _check_creation(self, config: StreamConfig) -> None:
        for check in self._creation_checks:
            await check(config)

    def reads(self, ack_sink: AckSink) -> None:
        """Note that the loop's thread reads the publishes of this connection; loop thread."""
        self.committer.journal_sync.read_here.add(ack_sink)

    def on_answered(self, callback: Callable[[], None]) -> None:
        """Register a callback that sends queued acks; called on the loop when acks were queued."""
        self.committer.send_queue.add_answers(callback)

    def send_answers_soon(self) -> None:
        """Schedule the sending of acks that were queued outside a group commit; loop thread."""
        self.committer.send_queue.deliver_soon()

    def call_soon(self, function: Callable[..., None], *args: object) -> None:
        """Run a function on the loop; any thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; any thread but the loop's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # State

    @property
    def image(self) -> MetadataImage:
        """The newest metadata known here; any thread."""
        return self._image

    async def know_newest(self) -> None:
        """Wait until this broker knows everything that was decided before this call.

        Raises:
            UnavailableError: in a cluster, the controller cannot be reached.
        """
        return  # without a cluster this broker makes all decisions

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the cluster's controller."""
        return True

    @property
    def controller(self) -> BrokerId | None:
        """The controller; None while there is none, and without a cluster."""
        return None

    @property
    def flight_address(self) -> str:
        """This broker's client address; empty without a cluster."""
        return ""

    @property
    def flight_addresses(self) -> tuple[str, ...]:
        """The client addresses of the cluster's brokers; empty without a cluster."""
        return self._image.flight_addresses(sorted(self._image.brokers))

    @property
    def has_lease(self) -> bool:
        """Whether the rules and tokens known here may be used; any thread."""
        return True

    @property
    def metadata_index(self) -> int:
        """The index of the last metadata entry applied here; only rises; 0 without a cluster."""
        return 0

    def _check_available(self) -> None:
        if self.admission.write_error is not None:
            raise self.admission.write_error

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task until the broker stops; log a critical error if a bug ends the task."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                logger.critical("task %s died, please report", name, exc_info=task.exception())

        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _publish_image(self) -> None:
        for callback in self._image_callbacks:
            callback()

    def _announce(self, names: Collection[str]) -> None:
        """Update the routes, and notify front ends, of changed streams."""
        for name in names:
            self.routes.replace(name, self._streams.get(name))
        for callback in self._stream_callbacks:
            callback(names)

    async def _wait_until_bound(self, name: str) -> None:
        """Wait until the new stream receives what is published to its subjects.

        Waits for a limited time only, in case a NATS server is disconnected; the subscription then
        follows when the connection is back.
        follows when it is back.
        """
        try:
            async with asyncio.timeout(BIND_TIMEOUT_S):
                for callback in self._bound_callbacks:
                    await callback(name)
        except TimeoutError:
            logger.warning(
                "stream %s: the NATS server has not confirmed its subscription yet", name
            )

    def _count_streams(self) -> None:
        self.telemetry.streams = len(self._streams)
        self.telemetry.partitions = sum(len(s.partitions) for s in self._streams.values())

    def _recover_again(self) -> Recovered:
        """Close all files and recover them; on a thread."""
        self._close_storage()
        return self._recover()

    def _recover(self) -> Recovered:
        """Recover the logs of the streams in the image.

        Raises:
            UnavailableError: a file cannot be read or written.
            CorruptBatchError: a file that is needed is corrupt.
        """
        started_ms = self.clock.monotonic_ms()
        try:
            storage = self._open_storage()
        except DiskFullError as error:
            raise DiskFullError(
                f"no space left in {self.data_dir}: recovery writes records from the journal to "
                "their logs; free space or enlarge the file system, and the broker goes on"
            ) from error
        seconds = (self.clock.monotonic_ms() - started_ms) / 1e3
        self.telemetry.recovery_seconds = seconds
        report = storage.report
        logger.info(
            "recovered %d records (%d bytes) from the journal in %.2f s, discarded %d torn bytes",
            report.records_replayed,
            report.bytes_replayed,
            seconds,
            report.torn_bytes,
        )
        for corruption in report.corruption:
            logger.error("corruption in %s at byte %d: %s", *corruption)
        return storage

    def _attach(self, storage: Recovered) -> None:
        """Continue with the recovered logs."""
        report = storage.report
        if report.corruption:
            self._scrubber.hurry()
        self.telemetry.recovery_records = report.records_replayed
        self.telemetry.recovery_torn_bytes = report.torn_bytes
        self.telemetry.corrupt_batches += len(report.corruption)
        self.telemetry.disk_full = 0
        if not report.checkpointed:
            self.telemetry.count_full_disk()
        for log in storage.logs.values():
            log.reclaim_with(self.reclaimer.run)
        self.committer.attach(storage.journal, self._syncer)
        self._checkpoints.attach(storage)
        self._storage = storage

    def _check_descriptors(self, what: str, more: int, *, under_way: int = 0) -> None:
        """Check that the limit of open files allows more partitions.

        Args:
            what: the reason for more partitions, for the message.
            more: the number of partitions to add.
            under_way: the number of other partitions that are being opened.

        Raises:
            InvalidConfigError: they are too many; the message has the limit.
        """
        shares = current_shares()
        room = max(0, shares.partitions - len(self._storage.logs) - under_way)
        if more > room:
            raise InvalidConfigError(
                f"{what} needs {more} more partitions here, and there is room for {room}: of the "
                f"{shares.limit} files that this broker may have open, {shares.partitions} are for "
                "partitions; raise that with 'ulimit -n' (systemd: LimitNOFILE) and start it again"
            )

    def _keep(self, log_id: LogId, log: Log) -> None:
        """Add the log of a new partition to the open logs."""
        log.reclaim_with(self.reclaimer.run)
        self._storage.keep(log_id, log)

    def _close_storage(self) -> None:
        """Close all files, even if the journal cannot be synced."""
        try:
            self._storage.journal.close()
        except LogPoisonedError as error:
            logger.warning("the journal was closed without a sync: %s", error)
        for log in self._storage.logs.values():
            log.close()

    def _on_poisoned(self, error: StrandlineError) -> None:
        """Start reopening the data directory, after a write or sync failed."""
        logger.error("storage failed, rejecting appends until it is reopened: %s", error)
        self._spawn(self._heal(), "heal")

    async def _heal(self) -> None:
        """Reopen and verify the data directory, as after a crash; retry until that succeeds."""
        while True:
            await asyncio.sleep(HEAL_INTERVAL_S)
            async with self._admin, self._checkpoints.lock, self._opening_lock:
                await self.committer.passed()
                await self.reclaimer.drained()
                try:
                    self._attach(await asyncio.to_thread(self._recover_again))
                    self._reopened()
                except StrandlineError as error:
                    logger.error("storage is still failing: %s", error)  # noqa: TRY400  no trace
                    continue
            if not isinstance(self.admission.write_error, ShuttingDownError):
                self.admission.write_error = None
            self.telemetry.journal_poisoned = 0
            logger.warning("storage was reopened and verified; accepting appends again")
            return

    def _reopened(self) -> None:
        """Give the verified logs to the partitions."""
        for partition in self.partitions():
            partition.rebind(self._storage.logs[LogId(partition.log_id)])

    # Implemented by the kinds of broker

    @property
    @abstractmethod
    def _image(self) -> MetadataImage:
        """The current metadata."""

    @abstractmethod
    def _load_metadata(self) -> None:
        """Load the metadata."""

    @abstractmethod
    def _open_storage(self) -> Recovered:
        """Recover the logs of all streams."""

    @abstractmethod
    async def _delete_expired(self, partition: Partition, start: Offset) -> None:
        """Delete the records before ``start``, which retention no longer keeps."""

"""The broker: owns the data directory, the group committer and the streams.

Rules: one asyncio loop; every method is called on its thread unless it says otherwise. Every start
is a recovery, whether after a crash or a clean stop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import msgspec

from strandline.api.transactions import COORDINATOR_STREAM
from strandline.broker.base import BrokerBase
from strandline.broker.cluster.identity import load_identity
from strandline.broker.coordinators.consumers import ConsumerStore
from strandline.broker.coordinators.groups import GroupCoordinatorService
from strandline.broker.coordinators.transactions import TransactionCoordinatorService
from strandline.broker.locality_token import write_proof
from strandline.broker.lock import DataDirLock
from strandline.broker.maintenance.cleaner import counted_removal
from strandline.broker.metadata_store import MetadataStore
from strandline.broker.opening import log_plan, open_storage
from strandline.broker.stream import Stream, state_error
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.config import StreamConfig
from strandline.core.metadata.commands import (
    AllocateProducerIds,
    Command,
    CreateStream,
    DeleteStream,
)
from strandline.core.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.core.metadata.internal_streams import copies_wanted, with_copies
from strandline.core.transactions.effects import SendMarker
from strandline.core.transactions.state import TransactionPartition
from strandline.errors import (
    DiskFullError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    StrandlineError,
    StreamExistsError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.security.producer_ids import producer_id_of
from strandline.storage.log import Log
from strandline.storage.recovery import Recovered
from strandline.telemetry import GroupSample
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName

logger = logging.getLogger(__name__)

METADATA_INTERVAL_S = 2.0
PRODUCER_IDS = 1000
"""How many are reserved at a time; the rest is lost with a restart."""


class Broker(BrokerBase):
    """One broker on one data directory; arguments as for ``BrokerBase``."""

    # Start and stop

    async def start(self) -> None:
        """Recover the data directory and accept records.

        Raises:
            DataDirLockedError: another broker uses the directory.
            CorruptBatchError: the metadata file is corrupt.
            UnavailableError: the directory cannot be read or written; nothing is running then.
        """
        self._loop = asyncio.get_running_loop()
        self.lock = DataDirLock(self.data_dir)
        self.proof = write_proof(self.data_dir)
        self._syncer = SyncPolicy(self._loop, self.disk, self.clock)
        try:
            self._assemble()
            self.transactions = TransactionCoordinatorService(self)
            self.groups = GroupCoordinatorService(self)
            self.consumers = ConsumerStore(self.groups)
            self._attach(self._recover())
            self._begin()
        except BaseException:
            self._syncer.close()
            self.reclaimer.close()
            self.lock.release()
            raise
        self._spawn(self.transactions.run(), "transactions")
        self._spawn(self.groups.run(), "groups")
        self._spawn(self._checkpoints.run(), "checkpoints")
        self._spawn(self._cleaner.run(), "cleaner")
        self._spawn(self._unmap_idle(), "unmap-idle")
        self._spawn(self.monitor.run(), "monitor")
        if self.config.scrub_bytes_per_s:
            self._spawn(self._scrubber.run(), "scrubber")
        self._count_streams()
        self.is_ready = True

    def _load_metadata(self) -> None:
        """Load the metadata file."""
        identity = load_identity(self.data_dir, disk=self.disk)
        if identity is not None:
            raise InvalidConfigError(
                f"{self.data_dir} belongs to broker {identity.broker} of cluster "
                f"{identity.cluster!r}; start it as that broker, or choose another directory"
            )
        self._store = MetadataStore(self.data_dir, self.disk, self._reserve)

    def _begin(self) -> None:
        """Create the streams of the metadata."""
        self._spawn(self._keep_metadata_short(), "metadata")
        for name, image in self._store.image.streams.items():
            self._streams[name] = self._make_stream(image)
        self._block_partitions()
        for partition in self.partitions():
            self._keep_transaction_index(partition, partition.log_start_offset)
            partition.preload_ids()
        self._announce(self._streams.keys())

    async def prepare_stop(self) -> None:
        """Prepare the stop before the front ends stop; in a cluster, hand over leaderships."""

    async def stop(self) -> None:
        """Reject new records, finish the group commit, take a checkpoint and release the directory.

        Waits for work on threads: no other process may have the directory before.
        """
        stopping = ShuttingDownError("the broker is stopping; retry later")
        self.is_ready = False
        self.admission.write_error = stopping
        async with self._admin, self._checkpoints.lock, self._opening_lock:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.transactions.stop()
        await self.groups.stop()
        await self.quiesce()
        for partition in self.partitions():
            partition.close(stopping)
        try:
            if not self._storage.journal.poisoned:
                await self._checkpoints.checkpoint()
        except StrandlineError as error:
            logger.warning("no checkpoint at the stop, the journal will be replayed: %s", error)
        finally:
            self._syncer.close()
            self._close_storage()
            self.reclaimer.close()
            self.lock.release()

    def refresh_telemetry(self) -> None:
        """Refresh the gauges of the base class and the coordinators' gauges."""
        super().refresh_telemetry()
        self.telemetry.transactions_open = self.transactions.open_count

    def group_positions(self) -> list[GroupSample]:
        """Return the committed offsets of every group that is coordinated here."""
        return self.groups.samples()

    # Streams

    async def create_stream(self, config: StreamConfig) -> Stream:
        """Create a stream and bind its subjects.

        Raises:
            InvalidRequestError: the settings are wrong or the name is taken.
            UnavailableError: the broker cannot store it now.
        """
        await self._check_creation(config)
        async with self._admin:
            self._check_available()
            config = msgspec.structs.replace(config, acks=config.acks_in_force)
            keys = self.keys.first(config)
            command = CreateStream(config=config, now_ns=self.clock.now_ns(), keys=keys)
            image = self._store.preview(command).streams[config.name]
            self._check_descriptors(f"stream {config.name!r}", len(image.partitions))
            try:
                # Logs first: a stream in the metadata without logs could not be opened.
                await asyncio.to_thread(self._open_logs, image)
                stream = self._make_stream(image)
                self._apply(command)
            except StrandlineError:
                self._remove_logs(image.partitions)
                raise
            self._streams = {**self._streams, config.name: stream}
            self._keep_transaction_indexes(stream)
            self._announce((config.name,))
            self._publish_image()
            await self._wait_until_bound(config.name)
            logger.info("created stream %s on subject %s", config.name, config.subject)
            return stream

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records; pending records are rejected.

        Raises:
            UnknownStreamError: no such stream.
            UnavailableError: the broker cannot store it now.
        """
        async with self._admin:
            stream = self.stream(name)
            self._check_available()
            self._apply(DeleteStream(name=name))
            self._streams = {key: s for key, s in self._streams.items() if key != name}
            gone = UnknownStreamError(f"stream {name!r} was deleted")
            for partition in stream.partitions:
                partition.close(gone)
                partition.reject_from((), gone)
            self._announce((name,))
            self._publish_image()
            self._count_streams()
            await self.committer.passed()
            async with self._checkpoints.lock:
                self._remove_logs(stream.partitions)
        await self.reclaimer.drained()
        await asyncio.to_thread(self._reserve.renew)
        logger.info("deleted stream %s", name)

    def _remove_logs(self, partitions: Iterable[Partition | PartitionImage]) -> None:
        """Remove logs that are not in the metadata; their files are removed later."""
        log_ids = [LogId(partition.log_id) for partition in partitions]
        logs = [self._storage.logs.pop(log_id, None) for log_id in log_ids]
        self.reclaimer.delete(log for log in logs if log is not None)

    async def delete_before(self, name: str, partition: int, offset: Offset) -> Offset:
        """Delete records below ``offset``; return the new log start offset.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
            OffsetOutOfRangeError: beyond the high watermark.
            UnavailableError: the broker cannot store it now.
        """
        async with self._admin:
            target = self.stream(name).partition(partition)
            self._check_available()
            if offset > target.high_watermark or offset < 0:
                raise OffsetOutOfRangeError(
                    f"cannot truncate {target.name} before {offset}: its high watermark is "
                    f"{target.high_watermark}"
                )
            try:
                await self.reclaimer.delete_before(target.log, offset)
            except DiskFullError:
                await asyncio.to_thread(self._reserve.spend)
                await self.reclaimer.delete_before(target.log, offset)
            await self.reclaimer.drained()
            await asyncio.to_thread(self._reserve.renew)
            return target.log_start_offset

    async def _delete_expired(self, partition: Partition, start: Offset) -> None:
        log = partition.log
        await self.committer.sync()
        if partition.closed or partition.log is not log:
            return
        with counted_removal(log, self.telemetry):
            await self.reclaimer.delete_before(log, start)

    async def skip_to(self, name: str, partition: int, offset: Offset) -> None:
        """Delete all records and continue, empty, at ``offset`` beyond the end.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
            OffsetOutOfRangeError: the offset is not beyond the end.
            UnavailableError: the broker cannot store it now.
        """
        # The caller may be cancelled; the skip must still be completed.
        skipping = asyncio.create_task(self._skip(name, partition, offset))
        self._tasks.add(skipping)
        skipping.add_done_callback(self._tasks.discard)
        await asyncio.shield(skipping)

    async def _skip(self, name: str, partition: int, offset: Offset) -> None:
        async with self._admin:
            target = self.stream(name).partition(partition)
            self._check_available()
            target.block_writes(
                UnavailableError(f"the records of {target.name} are given up; retry")
            )
            try:
                await self.quiesce()
                if offset <= target.log_end_offset:
                    raise OffsetOutOfRangeError(
                        f"offset {offset} is not beyond the end of {target.name}, which is "
                        f"{target.log_end_offset}; give a higher one"
                    )
                await self._restart_log(target, offset)
            finally:
                target.block_writes(None)
                self._block_partitions()

    async def _restart_log(self, target: Partition, offset: Offset) -> None:
        log, restarted = target.log, self._loop.create_future()

        def done(error: StrandlineError | None) -> None:
            if error is None:
                target.move(offset)
            if restarted.done():
                return  # the broker stops
            if error is None:
                restarted.set_result(None)
            else:
                restarted.set_exception(error)

        self.committer.catch_up.change(log, lambda _: log.restart_at(offset), done)
        await restarted

    async def change(self, command: Command) -> None:
        """Apply a command that does not create or delete streams.

        Raises:
            InvalidRequestError: the command does not apply.
            UnavailableError: the broker cannot store it now.
        """
        async with self._admin:
            self._check_available()
            self._apply(command)
            self._block_partitions()
            self._publish_image()

    def _block_partitions(self, names: Iterable[str] | None = None) -> None:
        """Block or allow writes of partitions, and check values, according to the metadata.

        Args:
            names: the names of the streams that have changed; None: any may have.
        """
        streams = self._image.streams
        for stream in streams.values() if names is None else map(streams.__getitem__, names):
            known = self._streams.get(stream.config.name)
            if known is None:
                continue
            known.validate(stream.schema)
            partitions = known.partitions
            for number, state in stream.states.items():
                for partition in partitions[number : number + 1]:
                    partition.block_writes(state_error(partition.name, state))

    # Transactions

    async def create_internal_stream(self, config: StreamConfig) -> None:
        """Create an internal stream, unless it exists.

        Raises:
            UnavailableError: it cannot be stored now.
        """
        config = with_copies(config, copies_wanted(self._image))
        with contextlib.suppress(StreamExistsError):
            await self.create_stream(config)

    @property
    def is_alone(self) -> bool:
        """Whether this broker belongs to no cluster."""
        return not self.config.cluster.is_on

    def _keep_transaction_indexes(self, changed: Stream | None = None) -> None:
        """Add a transaction index to every partition, once there can be transactions.

        Only one stream has changed, if it is named. Records committed before that belong to no
        transaction and are not read.
        """
        is_alone = changed is not None and changed.name != COORDINATOR_STREAM
        for partition in changed.partitions if changed and is_alone else self.partitions():
            self._keep_transaction_index(partition, partition.high_watermark)

    def _keep_transaction_index(self, partition: Partition, start: Offset) -> None:
        """Add a transaction index to a partition from ``start`` on, if there can be transactions.

        An offset and not a time, since a clock may be set back.
        """
        is_used = COORDINATOR_STREAM in self._image.streams
        if is_used and partition.transaction_index is None and partition.remote_error is None:
            partition.committed.keep_transaction_index(start)

    def is_gone(self, place: TransactionPartition) -> bool:
        """Whether a partition that is not here was certainly deleted."""
        return place.log_id < self._image.next_log_id

    def mark_remote(
        self,
        mark: SendMarker,
        done: Callable[[StrandlineError | None], None],
    ) -> None:
        """Have another broker write a marker; a broker alone has none."""
        self._loop.call_soon(done, UnavailableError(f"{mark.place} takes no records now"))

    # Producers

    async def new_producer_id(self, owner: str = "") -> int:
        """Return a new id for an idempotent producer.

        Args:
            owner: the principal that it belongs to; empty where access is not checked.

        Raises:
            UnavailableError: the broker cannot store the allocation.
        """
        async with self._producer_lock:
            reserved = self._producer_ids.get(owner)
            if not reserved:
                first = await self._reserve_producer_ids(owner)
                reserved = range(first, first + PRODUCER_IDS)
            self._producer_ids[owner] = reserved[1:]
            return reserved[0]

    async def _reserve_producer_ids(self, owner: str) -> int:
        """Reserve ``PRODUCER_IDS`` consecutive ids for a principal; return the first."""
        async with self._admin:
            self._check_available()
            after = self._apply(AllocateProducerIds(PRODUCER_IDS, owner))
            number = after.next_producer_id - PRODUCER_IDS
            return producer_id_of(number, after.producer_owners.get(owner, 0))

    # Inside

    @property
    def _image(self) -> MetadataImage:
        return self._store.image

    def _apply(self, command: Command) -> MetadataImage:
        """Apply a metadata command; stop acknowledging if it is uncertain whether it was stored.

        Raises:
            InvalidRequestError, UnavailableError: as ``MetadataStore.apply``.
        """
        try:
            return self._store.apply(command)
        except UnavailableError as error:
            if isinstance(error, DiskFullError):  # clients begin to publish with such a command
                self.telemetry.count_full_disk()
            if not self._store.is_certain:
                self.committer.poison(error)
            raise

    async def _keep_metadata_short(self) -> None:
        """Rewrite the metadata file when its log is long, until cancelled."""
        while True:
            await asyncio.sleep(METADATA_INTERVAL_S)
            if not self._store.is_long or self.admission.write_error is not None:
                continue
            async with self._admin:
                try:
                    await asyncio.to_thread(self._store.rewrite)
                except UnavailableError as error:
                    logger.warning("the metadata file could not be rewritten: %s", error)
                    if not self._store.is_certain:
                        self.committer.poison(error)

    def _open_storage(self) -> Recovered:
        self._store.restore()
        return open_storage(self.data_dir, self._store.image, self.config, disk=self.disk)

    def _open_logs(self, image: StreamImage) -> None:
        """Create the logs of a new stream; any thread."""
        for item in image.partitions:
            plan = log_plan(self.data_dir, item.log_id, image.config)
            log = Log.open(
                plan.directory,
                disk=self.disk,
                segment_bytes=plan.segment_bytes,
                segment_age_ms=plan.segment_age_ms,
            )
            self._keep(item.log_id, log)

    def _make_stream(self, image: StreamImage) -> Stream:
        """Return the stream of an image, whose logs are open."""
        config = image.config
        partitions = []
        for number, item in enumerate(image.partitions):
            log_id = LogId(item.log_id)
            log = self._storage.logs[log_id]
            name = PartitionName(config.name, number)
            partitions.append(
                Partition(
                    name,
                    config,
                    log,
                    log_id=log_id,
                    leader_epoch=LeaderEpoch(item.leader_epoch),
                    admission=self.admission,
                    sealer=self.keys.sealer(name, config),
                )
            )
        return Stream(config, image.created_ns, partitions)

"""Applies the metadata image to this broker's streams, partitions and replicas.

Rules: the metadata decides what exists; this broker follows the image, even after its own
proposals. Logs that the image shows to be deleted are removed; logs with unknown ids are kept. A
partition that cannot be opened affects no other: the rest of its stream works, opening is retried,
and another replica leads it in the meantime.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable

from strandline.api.transactions import COORDINATOR_STREAM
from strandline.broker.broker import Broker
from strandline.broker.cluster.assignment import not_leader
from strandline.broker.cluster.delete_records import LogStarts
from strandline.broker.cluster.identity import DirectoryIdentity
from strandline.broker.cluster.local_metadata import load_local_metadata
from strandline.broker.cluster.membership import ClusterMembership
from strandline.broker.cluster.opening import LogToOpen, open_logs
from strandline.broker.cluster.operations import Operations
from strandline.broker.cluster.remote import RemotePartition
from strandline.broker.cluster.skips import Skips
from strandline.broker.cluster.watermark_file import save_watermarks
from strandline.broker.opening import log_plan
from strandline.broker.quorum_store import LOG_ID, QuorumStore
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.config import StreamConfig
from strandline.core.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.core.raft.messages import Members
from strandline.errors import StrandlineError, UnavailableError, UnknownStreamError
from strandline.storage.log import Log
from strandline.storage.recovery import LogPlan
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName

logger = logging.getLogger(__name__)

WATERMARK_INTERVAL_S = 5.0
RETRY_S = 1.0
REMEMBER_TIMEOUT_S = 30.0


class MetadataApplier(Broker):
    """A broker whose streams are those of the metadata log; arguments as for ``Broker``."""

    membership: ClusterMembership
    operations: Operations
    """The commands of operators."""
    log_starts: LogStarts
    _identity: DirectoryIdentity
    _store_of_quorum: QuorumStore
    skips: Skips
    _watermarks: dict[LogId, Offset]
    _saved_watermarks: dict[LogId, Offset]
    _has_swept: bool
    _removed_ids: set[LogId]
    """Ids of removed logs that the journal may still have entries of."""
    _has_followed: bool
    """Whether the metadata was applied since this broker's start."""
    _local_streams: dict[str, Stream]
    """Streams read from this broker's disk, for readers until the cluster sends its metadata."""
    _unopened: dict[LogId, UnavailableError]
    """The errors of this broker's partitions that cannot be opened."""
    _is_releasing: bool
    """Whether the leaderships of unopened partitions are being given to other brokers."""
    _is_stopping: bool
    _retry: asyncio.TimerHandle | None
    _followed: MetadataImage
    """The image that was last applied."""
    _has_moved_on: asyncio.Event
    """Set after an image was applied."""
    _unsettled: set[str]
    """Names of streams with partitions that are being opened, or cannot be opened."""
    _opening: dict[LogId, None]
    """Ids of logs that are being opened, or will be."""
    _to_open: list[LogToOpen]
    """The logs to open next."""
    _open_failures: dict[LogId, StrandlineError]
    """The errors of logs that could not be opened in the last attempt."""

    @property
    def _image(self) -> MetadataImage:
        return self.membership.machine.image

    # Applying the image

    def _follow(self, image: MetadataImage) -> None:
        """Create, change and remove streams and replicas to match the image."""
        names, deleted = self._names_to_follow(image)
        streams = dict(self._streams)
        for name in deleted:
            del streams[name]
        for name in names:
            made = self._stream_here(image.streams[name])
            if made is not None:
                streams[name] = made
            else:
                streams.pop(name, None)
        changed = {name for name in names if streams.get(name) is not self._streams.get(name)}
        changed |= deleted
        gone = [self._streams[name] for name in changed if name in self._streams]
        self._streams = streams
        shown = [
            partition for name in names if name in streams for partition in streams[name].partitions
        ]
        self._block_partitions(names)
        self._close_removed(gone, image)
        self._attach_replicas(shown)
        for partition in self.partitions() if COORDINATOR_STREAM in names else shown:
            self._keep_transaction_index(partition, partition.high_watermark)
        self.membership.replicas.assign(image, names)
        self.log_starts.follow(image, shown)
        changed |= self._describe(image, names)
        if changed:
            self._announce(changed)
        self._sweep(image)
        self._has_followed = True
        self._close_local_streams()
        self.is_ready = not self._is_stopping
        self._publish_image()
        here = self._log_ids_here(image) if self._unopened else set()
        self._unopened = {log_id: why for log_id, why in self._unopened.items() if log_id in here}
        self._followed = image
        self._note_unsettled(image, names)
        self._has_moved_on.set()
        if self._unopened and self._retry is None:
            self._release_unopened(image)
            self._retry = self._loop.call_later(RETRY_S, self._follow_again)

    def _names_to_follow(self, image: MetadataImage) -> tuple[list[str], set[str]]:
        """Return the streams that may have to change on this broker, and those to remove.

        All streams are compared only if brokers have changed, since that takes time per stream.
        """
        before, there = self._followed, image.streams
        if image.brokers is not before.brokers or self._is_stopping:
            return list(there), self._streams.keys() - there.keys()
        changed = image.table.changed_since(before.table) | self._unsettled
        gone = {name for name in changed if name not in there and name in self._streams}
        return sorted(name for name in changed if name in there), gone

    def _note_unsettled(self, image: MetadataImage, names: Collection[str]) -> None:
        """Remember the streams to examine again even if the image does not change."""
        waiting = self._opening.keys() | self._unopened.keys()
        self._unsettled = {
            name
            for name in names
            if waiting and any(p.log_id in waiting for p in image.streams[name].partitions)
        }

    # Before the cluster has sent its metadata

    @property
    def metadata_error(self) -> UnavailableError | None:
        """The error while the cluster has not sent its metadata, or no controller is known.

        A controller election of the usual length causes no error.
        """
        if not self._has_followed:
            return UnavailableError(
                f"broker {self.membership.me} has not heard from the cluster which streams there "
                "are; retry, or ask another broker. Are most of the cluster's brokers up? What "
                "this broker has on its disk can be read with replica='this'"
            )
        if not self.membership.has_controller:
            return UnavailableError(
                "this broker has lost the majority of its cluster and does not know who leads "
                "now; ask another broker. Are most of the cluster's brokers up?"
            )
        return None

    def copy_of(self, name: str) -> Stream:
        """Return a stream of the metadata or, until the cluster has sent it, of the local disk.

        Raises:
            UnavailableError: the disk has no such stream, or cannot be read.
        """
        if self._has_followed:
            return self.stream(name)
        return self.run_coroutine(self._remember(name)).result(REMEMBER_TIMEOUT_S)

    async def _remember(self, name: str) -> Stream:
        """Build a stream, for reads only, from the metadata and replicas on this disk."""
        if self._has_followed:
            return self.stream(name)
        known = self._local_streams.get(name)
        if known is not None:
            return known
        founders = Members(self._identity.founders or ())
        image = load_local_metadata(self._store_of_quorum, founders).machine.image
        found = image.streams.get(name)
        if found is None:
            self.check_metadata()
            return self.stream(name)
        partitions = [
            self._local_partition(PartitionName(name, number), item, image)
            for number, item in enumerate(found.partitions)
        ]
        stream = self._local_streams[name] = Stream(found.config, found.created_ns, partitions)
        return stream

    def _local_partition(
        self, name: PartitionName, item: PartitionImage, image: MetadataImage
    ) -> Partition:
        """Return a partition without a known leader, with its log if this broker has one."""
        config, log = image.streams[name.stream].config, self._storage.logs.get(item.log_id)
        if log is None or self.membership.me not in item.replicas:
            remote = self._remote_partition(name, config, item)
            remote.describe(UnavailableError(f"this broker has no copy of {name}; ask another one"))
            return remote
        copy = Partition(
            name,
            config,
            log,
            log_id=item.log_id,
            leader_epoch=LeaderEpoch(item.leader_epoch),
            admission=self.admission,
            sealer=self.keys.of(lambda: image).sealer(name, config),
            high_watermark=self._stored_watermark(item.log_id, log),
            is_led=False,
        )
        if COORDINATOR_STREAM in image.streams:
            copy.committed.keep_transaction_index(copy.log_start_offset)
        return copy

    def _close_local_streams(self) -> None:
        """Close the streams read from the disk, since the cluster has sent its metadata."""
        streams, self._local_streams = self._local_streams, {}
        for stream in streams.values():
            for partition in stream.partitions:
                partition.close(UnavailableError(f"{partition.name} is in service again; retry"))

    def _block_partitions(self, names: Iterable[str] | None = None) -> None:
        super()._block_partitions(names)
        self.skips.block_writes(self.partitions)

    def _follow_again(self) -> None:
        self._retry = None
        if self.membership.is_registered:
            self._follow(self._image)

    def _is_same(self, stream: Stream, wanted: StreamImage) -> bool:
        """Whether a stream here is the one in the image, with the same replicas on this broker."""
        if stream.config != wanted.config:
            return False
        have = [(p.log_id, not isinstance(p, RemotePartition)) for p in stream.partitions]
        return have == [(p.log_id, self.membership.me in p.replicas) for p in wanted.partitions]

    def _stream_here(self, image: StreamImage) -> Stream | None:
        """Return the stream of an image; the existing object if nothing about it has changed.

        While logs of new partitions are being opened, return the stream before the change, or None.
        """
        before = self._streams.get(image.config.name)
        if before is not None and self._is_same(before, image):
            return before
        is_known = before is not None and before.created_ns == image.created_ns
        shown = before.partitions if before is not None and is_known else []
        known = {partition.log_id: partition for partition in shown}
        is_whole = True
        partitions: list[Partition] = []
        for number, item in enumerate(image.partitions):
            found = known.get(item.log_id)
            is_opened = found is not None and not isinstance(found, RemotePartition)
            if found is None or not is_opened or self.membership.me not in item.replicas:
                name = PartitionName(image.config.name, number)
                found = self._try_partition(name, image.config, item) or found
                if found is None and item.log_id in self._opening and number >= len(shown):
                    is_whole = False
                    continue
                if found is None:  # a remote partition until the log can be opened
                    found = self._remote_partition(name, image.config, item)
            found.config = image.config
            partitions.append(found)
        if not is_whole:
            if before is None or not shown:
                return None
            return Stream(before.config, image.created_ns, partitions[: len(shown)])
        if before is not None and before.config == image.config and before.partitions == partitions:
            return before
        return Stream(image.config, image.created_ns, partitions)

    def _try_partition(
        self, name: PartitionName, config: StreamConfig, image: PartitionImage
    ) -> Partition | None:
        """Return the partition; None while its log is being opened, or if it cannot be."""
        try:
            return self._make_partition(name, config, image)
        except StrandlineError as error:
            self._note_unopened(name, image.log_id, error)
            return None

    def _remote_partition(
        self, name: PartitionName, config: StreamConfig, image: PartitionImage
    ) -> RemotePartition:
        return RemotePartition(name, config, log_id=image.log_id, admission=self.admission)

    def _note_unopened(
        self, name: PartitionName, log_id: LogId, error: StrandlineError
    ) -> UnavailableError:
        """Keep the reason why a partition cannot be opened, and log it if it is new."""
        why = UnavailableError(
            f"broker {self.membership.me} cannot open its copy of {name}: {error.message}; it "
            "tries again, and another replica leads meanwhile if one is in sync; retry"
        )
        known = self._unopened.get(log_id)
        if known is None or known.message != why.message:
            logger.error("%s cannot be opened here: %s", name, error.message)
        self._unopened[log_id] = why
        return why

    def _release_unopened(self, image: MetadataImage) -> None:
        """Let other replicas lead the partitions that this broker leads and cannot open."""
        led = [
            name
            for name, partition in image.partitions()
            if partition.leader == self.membership.me and partition.log_id in self._unopened
        ]
        if led and not self._is_releasing:
            self._is_releasing = True
            self._spawn(self._release(led), "release-leadership")

    async def _release(self, names: list[PartitionName]) -> None:
        try:
            await self.operations.release_leadership(names)
        except StrandlineError as error:
            logger.warning("partitions that cannot be opened here have no new leader: %s", error)
        finally:
            self._is_releasing = False

    def _make_partition(
        self, name: PartitionName, config: StreamConfig, image: PartitionImage
    ) -> Partition | None:
        """Return a partition with its log, or a remote one; None while the log is being opened."""
        if self.membership.me not in image.replicas:
            return self._remote_partition(name, config, image)
        plan = log_plan(self.data_dir, image.log_id, config)
        log = self._log_here(name, plan, image)
        if log is None:
            return None
        log.segment_bytes, log.segment_age_ms = plan.segment_bytes, plan.segment_age_ms
        made = Partition(
            name,
            config,
            log,
            log_id=image.log_id,
            leader_epoch=LeaderEpoch(image.leader_epoch),
            admission=self.admission,
            sealer=self.keys.sealer(name, config),
            # The log may end with records that were never committed, and readers may come at once.
            high_watermark=self._stored_watermark(image.log_id, log),
            is_led=False,  # until its replica is assigned
        )
        self._keep_transaction_index(made, made.log_start_offset)
        return made

    def _log_here(self, name: PartitionName, plan: LogPlan, image: PartitionImage) -> Log | None:
        """Return a partition's log; None while a thread opens it (which syncs directories).

        Raises:
            StrandlineError: the log cannot be opened.
        """
        log, start = self._storage.logs.get(image.log_id), image.log_start_offset
        if log is not None and log in self.committer.catch_up.changing:
            raise UnavailableError("its log is still being truncated for an earlier assignment")
        if log is not None and not log.log_start_offset == log.log_end_offset < start:
            return log
        failure = self._open_failures.pop(image.log_id, None)
        if failure is not None:
            raise failure
        if image.log_id not in self._opening:
            if log is None:
                self._check_descriptors(f"the copy of {name}", 1, under_way=len(self._opening))
            was_used = image.log_id in self._removed_ids
            self._opening[image.log_id] = None
            self._to_open.append(LogToOpen(image.log_id, plan, log, start, was_used))
            if len(self._opening) == 1:  # else the thread in progress also opens this one
                self._spawn(self._open_on_thread(), "open-logs")
        return None

    async def _open_on_thread(self) -> None:
        """Open pending logs on a thread, then apply the image again."""
        while self._to_open:
            async with self._opening_lock:
                storage = self._storage
                queued, self._to_open = self._to_open, []
                # A recovery may have opened some of these logs, and closed their objects.
                wanted = [each for each in queued if each.log is storage.logs.get(each.log_id)]
                try:
                    # Only the journal entries of an older log with the same id have to be durable.
                    was_used = any(each.was_used for each in wanted)
                    sequence = await self.committer.sync() if was_used else 0
                    outcomes = await asyncio.to_thread(
                        open_logs, wanted, disk=self.disk, synced_sequence=sequence
                    )
                except StrandlineError as error:
                    outcomes = dict.fromkeys((each.log_id for each in wanted), error)
                for each in queued:
                    del self._opening[each.log_id]
                for log_id, outcome in outcomes.items():
                    if isinstance(outcome, StrandlineError):
                        self._open_failures[log_id] = outcome
                    elif log_id not in storage.logs:
                        self._keep(log_id, outcome)
            if self.membership.is_registered:
                self._follow(self._image)
                unwanted = outcomes.keys() - self.membership.replicas.drivers.keys()
                if unwanted & storage.logs.keys():  # ``_remove`` skips logs that are wanted again
                    self._spawn(self._remove(unwanted), "remove-logs")

    def _stored_watermark(self, log_id: LogId, log: Log) -> Offset:
        """Return the stored high watermark, for use until the replica learns a newer one."""
        stored = self._watermarks.get(log_id, Offset(0))
        return min(max(stored, log.log_start_offset), log.log_end_offset)

    def _attach_replicas(self, partitions: Iterable[Partition]) -> None:
        """Create the replicas that are missing."""
        drivers = self.membership.replicas.drivers
        for partition in partitions:
            if isinstance(partition, RemotePartition) or partition.log_id in drivers:
                continue
            stored = self._stored_watermark(partition.log_id, partition.log)
            if partition.replica_hooks is not None:
                stored = max(stored, partition.high_watermark)
            try:
                self.membership.replicas.add(partition, stored)
            except StrandlineError as error:
                # Without a replica the partition would commit records by itself.
                partition.set_write_error(
                    self._note_unopened(partition.name, partition.log_id, error)
                )
            else:
                self._unopened.pop(partition.log_id, None)

    def _close_removed(self, gone: list[Stream], image: MetadataImage) -> None:
        """Close partitions that were deleted or moved away, and remove their logs on a thread."""
        if not gone:
            return
        kept = {partition for s in self._streams.values() for partition in s.partitions}
        closing = [p for stream in gone for p in stream.partitions if p not in kept]
        by_log_id = {partition.log_id: partition for _, partition in image.partitions()}
        for partition in closing:
            error: StrandlineError = UnknownStreamError(
                f"stream {partition.name.stream!r} was deleted"
            )
            if partition.log_id in by_log_id:
                error = not_leader(image, partition.name, by_log_id[partition.log_id])
            elif partition.name.stream in image.streams:
                error = UnavailableError(f"the records of {partition.name} were given up; retry")
            if not isinstance(partition, RemotePartition):
                self.membership.replicas.drop(partition.log_id, error)
            partition.close(error)
            partition.reject_from((), error)
        gone_ids = {p.log_id for p in closing if not isinstance(p, RemotePartition)}
        if gone_ids:
            self._spawn(self._remove(gone_ids), "remove-logs")
        for stream in gone:
            if stream.name not in image.streams:
                logger.info("stream %s was deleted", stream.name)

    def _log_ids_here(self, image: MetadataImage) -> set[LogId]:
        """Return the ids of the logs that this broker should have according to the image."""
        return {p.log_id for _, p in image.partitions() if self.membership.me in p.replicas}

    async def _remove(self, log_ids: set[LogId]) -> None:
        """Remove logs that the metadata no longer places on this broker, unless they came back.

        A replica that has moved away may return with the same log id. After a checkpoint without
        the old log, recovery cannot confuse it with the new one; until then ``log_generation``
        prevents that.
        """
        async with self._admin:
            await self.committer.passed()
            async with self._checkpoints.lock:
                here = {p.log_id for p in self.partitions() if not isinstance(p, RemotePartition)}
                removed = log_ids - here - self._log_ids_here(self._image)
                self._removed_ids |= removed
                logs = [self._storage.logs.pop(log_id, None) for log_id in sorted(removed)]
                for log_id in removed:
                    self._watermarks.pop(log_id, None)
                self.reclaimer.delete(log for log in logs if log is not None)
            try:
                await self._checkpoints.checkpoint()
                self._removed_ids -= removed
            except StrandlineError as error:
                logger.warning("no checkpoint after logs were removed: %s", error)

    def _describe(self, image: MetadataImage, names: Iterable[str]) -> set[str]:
        """Pass leaders and addresses to partitions; return streams whose queue groups changed."""
        moved, begun = set[str](), set[str]()
        for name, partition in image.partitions(names):
            stream = self._streams.get(name.stream)
            if stream is None:
                continue
            if name.partition >= len(stream.partitions):
                continue  # the partition is being opened
            here = stream.partitions[name.partition]
            order = sorted(partition.replicas, key=lambda b: (b != partition.leader, b))
            leader = image.brokers.get(partition.leader) if partition.leader else None
            is_ours = partition.leader == self.membership.me
            unopened = self._unopened.get(partition.log_id)
            if unopened is None and partition.log_id in self._opening:
                unopened = UnavailableError(f"{name} is being opened here; retry")
            if is_ours and unopened is not None:
                leader = None  # clients that are redirected to this broker would come back at once
            here.locate(
                image.flight_addresses(order),
                in_sync=image.flight_addresses(partition.isr),
                leader=leader.flight_address if leader is not None else "",
            )
            is_led = is_ours and unopened is None and not self._is_stopping
            if is_led != here.is_led and here.config.queue_group:
                moved.add(name.stream)
            if is_led and not here.is_led:
                begun.add(name.stream)
            here.set_led(is_led=is_led)
            if isinstance(here, RemotePartition):
                remote = not_leader(image, name, partition)
                here.describe(remote if leader is not None or unopened is None else unopened)
        if begun:
            for callback in self._leading_callbacks:
                callback(begun)
        return moved

    def _sweep(self, image: MetadataImage) -> None:
        """Remove, once, the logs of streams that were deleted while this broker was down."""
        if self._has_swept:
            return
        self._has_swept = True
        unknown = self._storage.logs.keys() - self._log_ids_here(image) - {LOG_ID}
        for log_id in sorted(unknown):
            if log_id >= image.next_log_id:
                logger.error("log %d belongs to an unknown stream; it is kept", log_id)
        deleted = {log_id for log_id in unknown if log_id < image.next_log_id}
        if deleted:
            self._spawn(self._remove(deleted), "remove-logs")

    # Watermarks

    async def _keep_watermarks(self) -> None:
        """Store the high watermarks at intervals, until cancelled."""
        while True:
            await asyncio.sleep(WATERMARK_INTERVAL_S)
            await self._note_watermarks()
            # A replica may have committed up to a log start that it has to follow.
            self.log_starts.follow(self._image, self.partitions())

    async def _note_watermarks(self) -> None:
        offsets = dict(self.membership.replicas.high_watermarks())
        if not offsets or offsets == self._saved_watermarks:
            return
        self._watermarks = dict(offsets)
        try:
            await asyncio.to_thread(save_watermarks, self.data_dir, offsets, disk=self.disk)
            self._saved_watermarks = offsets
        except UnavailableError as error:
            logger.warning("high watermarks could not be stored: %s", error)

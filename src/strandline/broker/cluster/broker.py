"""A broker of a cluster: its start and stop, and its commands to the cluster.

Rules: recovery opens every log in the directory, because the metadata, which names the streams, is
in one of them. Clients' commands are proposed to the quorum; they return when the result is applied
here.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from strandline.api.groups import GROUPS_STREAM
from strandline.broker.broker import PRODUCER_IDS
from strandline.broker.cluster import cluster_metrics
from strandline.broker.cluster.channels import StreamOpenRequest
from strandline.broker.cluster.delete_records import LogStarts
from strandline.broker.cluster.discard import corrupt_metadata
from strandline.broker.cluster.identity import DirectoryIdentity, begin_incarnation
from strandline.broker.cluster.membership import CUT_OFF_MS, ClusterMembership, ListenerAddresses
from strandline.broker.cluster.metadata_applier import MetadataApplier
from strandline.broker.cluster.opening import open_all_logs
from strandline.broker.cluster.operations import Operations
from strandline.broker.cluster.remote import RemotePartition
from strandline.broker.cluster.skips import Skips
from strandline.broker.cluster.storage_watch import StorageWatch
from strandline.broker.cluster.watermark_file import load_watermarks
from strandline.broker.coordinators.transactions import MarkerDone
from strandline.broker.metadata_store import FILE_NAME as ALONE_NAME
from strandline.broker.quorum_store import LOG_ID, QuorumStore
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.config import StreamConfig, bracketed
from strandline.core.metadata.commands import (
    AllocateProducerIds,
    Command,
    CreateStream,
    DeleteStream,
)
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.placement import place
from strandline.core.metadata.streams import check_stream_config
from strandline.core.transactions.effects import SendMarker
from strandline.errors import (
    CorruptBatchError,
    InvalidConfigError,
    RequestTimeoutError,
    ShuttingDownError,
    StrandlineError,
    UnavailableError,
)
from strandline.storage.recovery import Recovered
from strandline.types import BrokerId, Offset

CHANGE_TIMEOUT_S = 30.0
POLL_S = 0.01
COMMIT_WAIT_S = 5.0


class ClusterBroker(MetadataApplier):
    """One broker of a cluster; arguments as for ``Broker``."""

    _flight_address = ""

    # Start and stop

    async def start(self) -> None:
        """Recover, and join the cluster; clients are served after ``announce``.

        Raises:
            InvalidConfigError: the data directory belongs to another broker.
            StrandlineError: as ``Broker.start``, or the peer port cannot be bound.
        """
        await super().start()
        self.is_ready = False
        self._spawn(self._keep_watermarks(), "watermarks")
        self._spawn(self.log_starts.run(), "log-starts")
        self._spawn(self._storage_watch.run(), "storage-watch")
        self._spawn(self.log_starts.shorten(), "shorten-logs")
        try:
            await self.membership.start()
        except BaseException:
            await self.stop()
            raise

    def announce(self, flight_port: int, *, grpc_address: str = "", beam_address: str = "") -> None:
        """Register the addresses of this broker's listeners with the cluster."""
        host = self.config.cluster.client_host
        self._flight_address = f"{bracketed(host)}:{flight_port}"
        addresses = ListenerAddresses(self._flight_address, grpc_address, beam_address)
        self.membership.announce(addresses)

    async def know_newest(self) -> None:
        """See ``BrokerBase``."""
        await self.membership.newest.know()

    @property
    def is_controller(self) -> bool:
        """Whether this broker leads the metadata quorum."""
        return self.membership.quorum.is_leading

    @property
    def controller(self) -> BrokerId | None:
        """The controller as this broker knows it; None while there is none."""
        return self.membership.quorum.leader

    @property
    def flight_address(self) -> str:
        """The address at which clients reach this broker; empty until its servers listen."""
        return self._flight_address

    @property
    def flight_addresses(self) -> tuple[str, ...]:
        """The cluster's client addresses, at least this broker's.

        Raises:
            UnavailableError: this broker's servers are still starting.
        """
        if found := super().flight_addresses:
            return found
        if not self._flight_address:
            raise UnavailableError("this broker does not know the brokers' addresses yet; retry")
        return (self._flight_address,)

    @property
    def has_lease(self) -> bool:
        """Whether the quorum was in contact in the last ``CUT_OFF_MS``."""
        return self.clock.monotonic_ms() - self.membership.quorum.contact_ms < CUT_OFF_MS

    @property
    def metadata_index(self) -> int:
        """The index of the last metadata entry that is applied to streams here."""
        return self.membership.image_index

    def _load_metadata(self) -> None:
        if self.disk.exists(self.data_dir / ALONE_NAME):
            raise InvalidConfigError(
                f"{self.data_dir} belongs to a broker without a cluster; a broker of a cluster "
                "needs a data directory of its own"
            )
        self._identity = self._begin_incarnation()
        self._watermarks = load_watermarks(self.data_dir, disk=self.disk)
        self._saved_watermarks = self._watermarks

    def _begin_incarnation(self) -> DirectoryIdentity:
        cluster = self.config.cluster
        founders = () if cluster.join else tuple(map(BrokerId, sorted(cluster.peer_addresses)))
        broker = BrokerId(cluster.broker_id)
        return begin_incarnation(
            self.data_dir, cluster.name, broker, disk=self.disk, founders=founders
        )

    def _open_storage(self) -> Recovered:
        file_bytes = self.config.journal.file_bytes
        return open_all_logs(self.data_dir, disk=self.disk, file_bytes=file_bytes)

    def _begin(self) -> None:
        self._store_of_quorum = QuorumStore(
            self.data_dir, disk=self.disk, log=self._storage.logs[LOG_ID]
        )
        try:
            self.membership = ClusterMembership(
                self.config,
                self._store_of_quorum,
                self.committer,
                identity=self._identity,
                clock=self.clock,
                telemetry=self.telemetry,
                on_image=self._follow,
                on_removed=self._removed,
                is_opening=lambda: bool(self._opening),
                until_open=self._until_open,
                write_marker=self.transactions.mark_here,
                groups=self.groups,
                group_coordinator=self._group_coordinator,
            )
        except CorruptBatchError as error:
            raise corrupt_metadata(error, self._identity.broker, self.data_dir) from error
        self.consumers = self.membership.consumers
        self._storage_watch = StorageWatch(
            self.data_dir,
            self.disk,
            self.membership,
            telemetry=self.telemetry,
            clock=self.clock,
            free_bytes_min=self.config.journal.file_bytes,
        )
        self.operations = Operations(self.membership, self._until)
        self.log_starts = LogStarts(
            self.membership.replicas,
            self.operations,
            reclaimer=self.reclaimer,
            telemetry=self.telemetry,
        )
        self.skips = Skips(self.log_starts, self.operations, settle=self._block_partitions)
        self._has_swept = self._is_stopping = self._is_releasing = False
        self._has_followed = False
        self._unopened, self._remembered = {}, {}
        self._parted = set()
        self._followed, self._unsettled = MetadataImage(), set()
        self._has_moved_on = asyncio.Event()
        self._opening, self._to_open, self._open_failures = {}, [], {}
        self._retry = None

    async def prepare_stop(self) -> None:
        """Hand over this broker's leaderships."""
        self._is_stopping, self.is_ready = True, False
        await self._leave_queue_groups()
        await self.membership.hand_over()

    async def _leave_queue_groups(self) -> None:
        """Leave NATS queue groups, and store what they delivered, before others lead."""
        leaving = [p for p in self.partitions() if p.is_led and p.config.queue_group]
        for partition in leaving:
            partition.set_led(is_led=False)
        if leaving:
            self._announce({partition.name.stream for partition in leaving})
            await self._wait_until_bound(leaving[0].name.stream)

    async def stop(self) -> None:
        """Hand over leaderships, leave the cluster, and stop."""
        self._is_stopping = True
        if self._retry is not None:
            self._retry.cancel()
        await self.quiesce()
        await self._note_watermarks()
        await self.membership.stop(ShuttingDownError("the broker is stopping; retry at another"))
        await super().stop()

    async def quiesce(self) -> None:
        """Wait for the group commit, and a limited time for other replicas' acks."""
        await super().quiesce()
        deadline_ms = self.clock.monotonic_ms() + COMMIT_WAIT_S * 1e3
        while self.membership.replicas.has_waiting and self.clock.monotonic_ms() < deadline_ms:  # noqa: ASYNC110  no bookkeeping in the hot path for this
            await asyncio.sleep(POLL_S)

    async def _delete_expired(self, partition: Partition, start: Offset) -> None:
        self.log_starts.want_deleted(partition, start)

    # Health

    @property
    def why_not_ready(self) -> str:
        """Return why the broker is not ready; in a cluster also if replicas here lag behind."""
        if (why := super().why_not_ready) or not self._unopened:
            return why or cluster_metrics.why_behind(self.membership.replicas)
        first = next(iter(self._unopened.values()))
        return f"{len(self._unopened)} copies here cannot be opened; the first: {first.message}"

    @property
    def _why_not_serving(self) -> str:
        if self.membership.is_removed:
            me = self.membership.me
            return f"broker {me} was removed from the cluster: stop it, its data is of no use"
        if self._is_stopping:
            return "stopping"
        if self.membership.why_refused:
            return f"the cluster rejects this broker: {self.membership.why_refused}"
        return (
            "it has not joined the cluster since its start: no broker that leads the metadata "
            "was reached. Are most of the cluster's brokers up?"
        )

    def refresh_telemetry(self) -> None:
        """Refresh the gauges of ``Broker`` and those of the cluster."""
        super().refresh_telemetry()
        cluster_metrics.refresh(self.telemetry, self.membership)

    # Failing storage

    def _on_poisoned(self, error: StrandlineError) -> None:
        for log in self._storage.logs.values():
            log.poisoned = True  # their logs are known only after reopening
        self._watermarks.update(self.membership.replicas.high_watermarks())
        self._storage_watch.storage_failed()
        self.membership.fail(error)
        super()._on_poisoned(error)

    def _reopened(self) -> None:
        """Start a new incarnation on the verified logs; replicas follow after registration."""
        logs = self._storage.logs
        self._identity = self._begin_incarnation()
        self._followed = MetadataImage()  # every replica starts again
        self._store_of_quorum.log = logs[LOG_ID]
        for partition in self.partitions():
            if not isinstance(partition, RemotePartition):
                log = logs[partition.log_id]
                partition.rebind(log, min(partition.high_watermark, log.log_end_offset))
        self.membership.begin_again(self._identity)

    def _removed(self) -> None:
        self.is_ready = False

    # Streams

    async def create_stream(self, config: StreamConfig) -> Stream:
        """Have the cluster create a stream, and wait until it is open.

        Raises:
            InvalidRequestError: the settings are wrong or the name is taken.
            UnavailableError: the cluster cannot decide it now.
        """
        self._check_member()
        config = msgspec.structs.replace(config, acks=config.acks_in_force)
        check_stream_config(config, is_cluster=True)
        await self._check_creation(config)
        now_ns = self.clock.now_ns()
        assignment = place(self._image, partitions=config.partitions, replicas=config.replicas)
        keys = self.keys.first(config)
        command = CreateStream(config=config, now_ns=now_ns, assignment=assignment, keys=keys)
        outcome = await self.membership.admin.propose(command, timeout_s=CHANGE_TIMEOUT_S)
        outcome.raise_if_rejected()
        await self._until_open_everywhere(config.name, now_ns, config.partitions)
        return self.stream(config.name)

    async def _until_open_everywhere(self, name: str, created_ns: int, partitions: int) -> None:
        """Wait until a stream is open here and at its leaders.

        A publish or read right after the creation would find no leader otherwise.
        """
        found = self._image.streams.get(name)
        leaders = {each.leader for each in found.partitions if each.leader} if found else set()
        await asyncio.gather(
            self._until_open(StreamOpenRequest(0, name, created_ns, partitions)),
            self.membership.opening.wait(
                leaders - {self.membership.me}, name, created_ns=created_ns, partitions=partitions
            ),
        )

    async def _until_open(self, question: StreamOpenRequest) -> None:
        """Wait until a stream is open here and its publishes are received."""

        def is_open() -> bool:
            stream = self._streams.get(question.name)
            return (
                stream is not None
                and stream.created_ns == question.created_ns
                and len(stream.partitions) >= question.partitions
            )

        await self._until(is_open)
        await self._wait_until_bound(question.name)

    def _created_ns(self, name: str) -> int | None:
        stream = self._streams.get(name)
        return stream.created_ns if stream is not None else None

    async def skip_to(self, name: str, partition: int, offset: Offset) -> None:
        """Delete all records, on every replica, and continue at ``offset`` beyond the end.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
            NotLeaderError: another broker leads it; the message names it.
            OffsetOutOfRangeError: the offset is not beyond the end.
            UnavailableError: such a request is in progress.
        """
        self._check_member()
        target = self.stream(name).partition(partition)
        # The caller may be cancelled; the outcome must still become known.
        skipping = asyncio.create_task(self.skips.skip(target, offset, quiesce=self.quiesce))
        self._tasks.add(skipping)
        skipping.add_done_callback(self._tasks.discard)
        await asyncio.shield(skipping)

        def is_done() -> bool:
            found = self.stream(name).partition(partition)
            return found is not target and found.remote_error is None

        await self._until(is_done)

    async def change(self, command: Command) -> None:
        """Have the cluster apply a command, and wait until it is applied here.

        Raises:
            InvalidRequestError: the command does not apply.
            UnavailableError: the cluster cannot decide it now.
        """
        self._check_member()
        outcome = await self.membership.admin.propose(command, timeout_s=CHANGE_TIMEOUT_S)
        outcome.raise_if_rejected()
        await self._until(lambda: self.membership.is_fresh)

    async def delete_stream(self, name: str) -> None:
        """Have the cluster delete a stream and its records.

        Raises:
            UnknownStreamError: no such stream.
            UnavailableError: the cluster cannot decide it now.
        """
        self._check_member()
        known = self._created_ns(self.stream(name).name)
        outcome = await self.membership.admin.propose(
            DeleteStream(name=name), timeout_s=CHANGE_TIMEOUT_S
        )
        outcome.raise_if_rejected()
        await self._until(lambda: self._created_ns(name) != known)

    async def add_partitions(self, name: str, count: int) -> Stream:
        """Have the cluster add partitions to a stream, and wait until they are known here.

        Raises:
            InvalidRequestError: no such stream, or too many partitions.
            UnavailableError: the cluster cannot decide it now.
        """
        self._check_member()
        known = len(self.stream(name).partitions)
        await self.operations.add_partitions(name, count)
        created_ns = self.stream(name).created_ns
        await self._until_open_everywhere(name, created_ns, known + count)
        return self.stream(name)

    async def delete_before(self, name: str, partition: int, offset: Offset) -> Offset:
        """Delete records below ``offset`` on every replica; return the new log start offset.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
            OffsetOutOfRangeError: beyond the high watermark.
            NotLeaderError: another broker leads it.
            UnavailableError: the cluster cannot decide it now.
        """
        self._check_member()
        target = self.stream(name).partition(partition)
        await self.log_starts.truncate(target, offset)
        await self._until(lambda: target.log_start_offset >= offset)
        return target.log_start_offset

    def mark_remote(self, mark: SendMarker, done: MarkerDone) -> None:
        """Have the leader of a partition write a marker."""
        stream = self._image.streams.get(mark.place.stream)
        numbers = stream.partitions if stream is not None else ()
        leader = next((p.leader for p in numbers if p.log_id == mark.place.log_id), None)
        if leader is None or leader == self.membership.me:
            super().mark_remote(mark, done)
        else:
            self.membership.markers.order(leader, mark, done)

    def _group_coordinator(self) -> BrokerId | None:
        """Return the broker that leads the internal stream of groups."""
        groups = self._image.streams.get(GROUPS_STREAM)
        return groups.partitions[0].leader if groups is not None else None

    async def _reserve_producer_ids(self, owner: str) -> int:
        self._check_member()
        command = AllocateProducerIds(PRODUCER_IDS, owner)
        outcome = await self.membership.admin.propose(command, timeout_s=CHANGE_TIMEOUT_S)
        outcome.raise_if_rejected()
        if owner:  # the client will use it here at once, so wait until it is applied
            await self._until(lambda: owner in self._image.producer_owners)
        return outcome.value

    def _check_member(self) -> None:
        self._check_available()
        if not self.is_ready:
            raise UnavailableError("this broker has not joined the cluster yet; retry")

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a decision is applied here.

        Raises:
            RequestTimeoutError: it takes too long.
        """
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S):
                while not condition():
                    self._has_moved_on.clear()
                    # Some conditions change without the image, such as deleted files.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._has_moved_on.wait(), POLL_S)
        except TimeoutError:
            raise RequestTimeoutError(
                "it was decided, but is not applied on this broker yet"
            ) from None

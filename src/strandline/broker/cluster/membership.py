"""A broker's membership in its cluster: links, quorum, controller, registration, replicas.

Rules: everything runs on the loop. An image is not passed to streams or replicas if it is older
than one already applied (a member that restarted begins at its snapshot), or lacks the registration
of this start. A malformed frame is dropped and never stops this broker.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from strandline.broker.cluster import channels
from strandline.broker.cluster.channels import (
    BrokerHeartbeat,
    ConsumerRequest,
    LogEndsRequest,
    Propose,
    ReadIndexRequest,
    Request,
    StreamOpenRequest,
    WriteMarker,
)
from strandline.broker.cluster.controller import ControllerRunner
from strandline.broker.cluster.handover import hand_over
from strandline.broker.cluster.identity import DirectoryIdentity
from strandline.broker.cluster.markers import RemoteMarkers
from strandline.broker.cluster.peer_registry import PeerRegistry
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.cluster.read_barrier import MetadataReadBarrier
from strandline.broker.cluster.remote_consumers import ClusterConsumerStore
from strandline.broker.cluster.replica_status import ReplicaStatusQuery
from strandline.broker.cluster.replicas import Incarnation, Replicas
from strandline.broker.cluster.replication_throttle import ReplicationThrottle
from strandline.broker.cluster.requests import Requests, Session
from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.cluster.stream_opening import StreamOpening
from strandline.broker.cluster.trace import open_trace, take_clock
from strandline.broker.coordinators.groups import GroupCoordinatorService
from strandline.broker.coordinators.transactions import MarkerDone
from strandline.broker.peers.frame import Frame
from strandline.broker.quorum import Quorum
from strandline.broker.quorum_store import QuorumStore
from strandline.broker.write_path.group_commit import GroupCommitter
from strandline.clock import Clock
from strandline.config import BrokerConfig, bracketed
from strandline.core.metadata.commands import BrokerRun, RegisterBroker, ReportStorage
from strandline.core.metadata.image import MetadataImage
from strandline.core.raft.messages import Envelope, Members
from strandline.core.replication.messages import Session as StreamSession
from strandline.core.transactions.effects import SendMarker
from strandline.errors import StrandlineError, UnavailableError
from strandline.storage.descriptors import current_shares
from strandline.telemetry import Telemetry
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.3
REGISTER_TIMEOUT_S = 10.0
REGISTER_RETRY_S = 1.0
CUT_OFF_MS = 3_000.0
"""A broker considers itself isolated after so long without contact to a controller."""
SESSION_BITS = 32
"""The bits of a session number that count the sessions within one run of the broker."""


class ListenerAddresses(NamedTuple):
    """Addresses of a broker's listeners for clients; empty if there is no such listener."""

    flight: str
    grpc: str = ""
    beam: str = ""


class ClusterMembership:
    """One broker's membership in its cluster.

    Args:
        config: the broker's settings.
        store: the durable state of the quorum's member.
        committer: writes batches and entries.
        identity: the identity of the data directory.
        clock: the source of time.
        telemetry: counters.
        on_image: called with each image that streams and replicas may apply.
        on_removed: called when the cluster has removed this broker.
        is_opening: whether logs in the image are being opened.
        until_open: waits until a stream is open on this broker, and what is published to it
            arrives.
        write_marker: writes a transaction's marker to a partition that this broker leads.
        groups: this broker's group coordinator.
        group_coordinator: returns the broker that coordinates groups, or None.
    """

    why_refused = ""
    """Why the cluster rejects this broker's registration; empty as long as it does not."""
    is_removed = False
    """Whether the cluster has removed this broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: QuorumStore,
        committer: GroupCommitter,
        *,
        identity: DirectoryIdentity,
        clock: Clock,
        telemetry: Telemetry,
        on_image: Callable[[MetadataImage], None],
        on_removed: Callable[[], None],
        is_opening: Callable[[], bool],
        until_open: Callable[[StreamOpenRequest], Awaitable[None]],
        write_marker: Callable[[SendMarker, MarkerDone], None],
        groups: GroupCoordinatorService,
        group_coordinator: Callable[[], BrokerId | None],
    ) -> None:
        self.me = BrokerId(config.cluster.broker_id)
        self._config = config
        self._store = store
        self._on_image = on_image
        self._on_removed = on_removed
        self.trace = open_trace(config.cluster.trace, f"broker-{self.me}.{identity.starts}")
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._registering: asyncio.Task[None] | None = None
        self._is_image_pending = False
        self._seen_index = self._image_index = 0
        self._clock = clock
        self._controller_seen_ms = 0.0
        self.incarnation = ""
        self._identity = identity
        self._addresses = ListenerAddresses("")
        self.machine = MetadataMachine(self._image_changed)
        self.quorum = Quorum(
            self.me,
            Members(voters=identity.founders or ()),
            store=store,
            machine=self.machine,
            committer=committer,
            clock=clock,
            send=self._send_envelope,
        )
        machine, quorum, trace = self.machine, self.quorum, self.trace
        self._peers = PeerRegistry(
            config, self, identity=identity, machine=machine, quorum=quorum, trace=trace
        )
        self._links = self._peers.links
        self._rpc = rpc = PeerRpc(self._send_request)
        self._requests = Requests(self.quorum, rpc)
        self.admin = Session(self._requests)
        self.newest = MetadataReadBarrier(
            self.quorum, rpc, is_fresh=lambda: self.is_fresh and not is_opening()
        )
        self.opening = StreamOpening(rpc, until_open)
        self.markers = RemoteMarkers(rpc, write_marker)
        self.consumers = ClusterConsumerStore(groups, rpc, group_coordinator)
        self.replicas = Replicas(
            self._links,
            committer,
            clock=clock,
            telemetry=telemetry,
            session=Session(self._requests),
            move_rate=_move_rate(config),
            trace=self.trace,
        )
        self.replica_status = status = ReplicaStatusQuery(self.replicas, rpc)
        self.controller = ControllerRunner(self.quorum, self._newest, status.ask, clock=clock)
        self.quorum.on_leadership.append(self._note_leadership)

    # Start and stop

    async def start(self) -> None:
        """Join the cluster, without serving clients yet.

        Raises:
            UnavailableError: the peer port cannot be bound.
        """
        self._begin_incarnation()
        await self._links.start()
        self._spawn(self.quorum.run(), "quorum")
        self._spawn(self.controller.run(), "controller")
        self._spawn(self.replicas.run_timers(), "replication-timers")
        self._spawn(self.replicas.isrs.run(), "isr-proposals")

    def _begin_incarnation(self) -> None:
        self.incarnation = secrets.token_hex(8)
        self._controller_seen_ms = self._clock.monotonic_ms()
        session = StreamSession(self._identity.starts << SESSION_BITS)
        self.replicas.begin(Incarnation(self.me, self.incarnation, session))

    def _note_leadership(self) -> None:
        if self.trace is not None:
            self.trace.note("leads the quorum" + ("" if self.quorum.is_leading else " no more"))

    def renew_tls(self) -> None:
        """Reload the certificate for connections with other brokers.

        Raises:
            InvalidConfigError: a file cannot be used.
        """
        self._links.renew_tls()

    def announce(self, addresses: ListenerAddresses) -> None:
        """Register with the cluster and start heartbeats; the front ends are listening."""
        self._addresses = addresses
        self._registering = self._spawn(self._stay_in_touch(), "registration")

    def begin_again(self, identity: DirectoryIdentity) -> None:
        """Start a new incarnation, because the storage was reopened.

        Raises:
            StrandlineError: the quorum's log cannot be read.
        """
        self._identity = identity
        self._begin_incarnation()
        self.quorum.restart()
        if self._registering is not None:
            self._registering.cancel()
            self.announce(self._addresses)

    def fail(self, error: StrandlineError) -> None:
        """Stop sending and acknowledging until the storage, which failed, is reopened."""
        self.incarnation = ""  # matches no registration, so that no image is applied
        self.quorum.fail(error)
        self.replicas.drop_all(error)

    @property
    def is_impaired(self) -> bool:
        """Whether the metadata has this broker's disk as failing."""
        known = self.machine.image.brokers.get(self.me)
        return known is not None and known.is_impaired

    async def report_storage(self, *, is_impaired: bool) -> None:
        """Report to the cluster whether this broker's disk accepts writes.

        Raises:
            UnavailableError: the cluster cannot decide now.
        """
        command = ReportStorage(self.run, is_impaired)
        outcome = await self._requests.propose(command, timeout_s=REGISTER_TIMEOUT_S)
        if not outcome.is_applied:
            logger.warning("the state of the disk was not recorded: %s", outcome.message)

    async def hand_over(self) -> None:
        """Transfer this broker's leaderships to others, as many as possible in the time allowed."""
        if self.is_registered:
            await hand_over(
                self.run,
                self.quorum,
                machine=self.machine,
                replicas=self.replicas,
                session=self.admin,
            )

    async def stop(self, error: StrandlineError) -> None:
        """Stop all tasks, links and replicas of this broker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._requests.stop()
        await self.consumers.stop()
        await self.newest.stop()
        await self.opening.stop()
        await self._links.stop()
        self.replicas.drop_all(error)
        self.quorum.stop(error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(_report)
        self._tasks.append(task)
        return task

    # Registration

    @property
    def run(self) -> BrokerRun:
        """The current run of this broker."""
        return BrokerRun(self.me, self.incarnation)

    @property
    def is_registered(self) -> bool:
        """Whether the metadata has the registration of this incarnation."""
        known = self.machine.image.brokers.get(self.me)
        return known is not None and known.incarnation == self.incarnation != ""

    async def _stay_in_touch(self) -> None:
        """Register, then send heartbeats, until cancelled."""
        await self._register()
        while not self.is_removed:
            leader = self.quorum.leader
            if self.quorum.is_leading:
                self.controller.heartbeat(self.run, self.quorum.stored_index)
            elif leader is not None:
                self._send_request(leader, BrokerHeartbeat(self.run, self.quorum.stored_index))
            self._peers.link()  # disconnects a removed broker once the quorum has dropped it
            self._look_for_controller()
            await asyncio.sleep(HEARTBEAT_S)

    def _look_for_controller(self) -> None:
        """Note since when there was no contact to a controller."""
        if self.quorum.leader is not None:
            self._controller_seen_ms = self._clock.monotonic_ms()
        self.replicas.note_cut_off(has_controller=self.has_controller)

    @property
    def has_controller(self) -> bool:
        """Whether this broker was in contact with a controller a moment ago; any thread."""
        if self.quorum.leader is not None:
            return True
        return self._clock.monotonic_ms() - self._controller_seen_ms < CUT_OFF_MS

    @property
    def image_age_ms(self) -> int:
        """The time in ms since the last contact to a controller, if that is long; else 0."""
        if self.has_controller:
            return 0
        return int(self._clock.monotonic_ms() - self._controller_seen_ms)

    @property
    def image_index(self) -> int:
        """The last metadata entry that streams and replicas have applied; any thread."""
        return self._image_index

    async def _register(self) -> None:
        cluster = self._config.cluster
        host, port = cluster.peer_addresses[self.me]
        command = RegisterBroker(
            broker=self.me,
            directory_id=self._identity.directory_id,
            incarnation=self.incarnation,
            peer_address=f"{bracketed(host)}:{port}",
            flight_address=self._addresses.flight,
            grpc_address=self._addresses.grpc,
            rack=cluster.rack,
            beam_address=self._addresses.beam,
            stored_index=self.quorum.index_at_start,
            partitions_max=current_shares().partitions - 1,  # one file is for the metadata log
        )
        while not self.is_removed:
            try:
                outcome = await self._requests.propose(command, timeout_s=REGISTER_TIMEOUT_S)
            except UnavailableError as error:
                logger.warning("this broker is not registered yet: %s%s", error, self._join_advice)
                await asyncio.sleep(REGISTER_RETRY_S)
                continue
            if outcome.is_applied:
                logger.info("broker %d is registered", self.me)
                return
            logger.critical("the cluster rejects this broker: %s", outcome.message)
            self.why_refused = outcome.message
            if outcome.reason == "older_copy":
                # The broker has lost its votes, so it must not vote again.
                self.quorum.stop(UnavailableError(outcome.message))
                return
            await asyncio.sleep(REGISTER_TIMEOUT_S)

    @property
    def _join_advice(self) -> str:
        """A hint for the log of a broker that waits to join a cluster, or an empty string."""
        if self.quorum.members.everybody:
            return ""
        return (
            " This one has joined and was told nothing yet: 'strandline cluster add' lets it in, "
            "and its cluster.peers must name all brokers of today, for it lets no others tell it"
        )

    # The image

    def _newest(self) -> MetadataImage:
        return self.machine.image

    @property
    def is_fresh(self) -> bool:
        """Whether streams and replicas have the newest image that the quorum's member applied."""
        return not self._is_image_pending

    def _image_changed(self) -> None:
        """Publish a new image once all entries at hand are applied."""
        if not self._is_image_pending:
            self._is_image_pending = True
            self._loop.call_soon(self._publish_image)

    def _publish_image(self) -> None:
        self._is_image_pending = False
        if self.quorum.applied_index < self._seen_index:
            return
        self._seen_index = self.quorum.applied_index
        self.controller.image_changed()
        image = self.machine.image
        self._peers.link()
        if self.me in image.removed:
            self._note_removal()
        elif self.is_registered:
            self._on_image(image)
            self._image_index = self._seen_index

    def _note_removal(self) -> None:
        if not self.is_removed:
            self.is_removed = True
            logger.critical(
                "broker %d was removed from the cluster: stop it; its data is not used", self.me
            )
            self._on_removed()
            self._peers.leave_all()

    # PeerEvents

    def on_frame(self, peer: BrokerId, frame: Frame) -> None:
        """Handle a frame of a peer."""
        try:
            if frame.channel == channels.TRACE:
                if self.trace is not None:
                    take_clock(self.trace, frame)
            elif frame.channel == channels.REPLICATION:
                self.replicas.received(peer, frame)
            elif frame.channel == channels.CONSENSUS:
                self.quorum.receive(channels.decode_envelope(frame, peer, self.me))
            else:
                self._take_request(peer, channels.decode_request(frame))
        except StrandlineError as error:
            logger.warning("a frame of broker %d is ignored: %s", peer, error)

    def _take_request(self, peer: BrokerId, request: Request) -> None:
        match request:
            case BrokerHeartbeat(run, stored_index):
                if run.broker == peer:
                    self.controller.heartbeat(run, stored_index)
            case Propose():
                self._requests.serve(peer, request)
            case WriteMarker():
                self.markers.serve(peer, request)
            case ConsumerRequest():
                self.consumers.serve(peer, request)
            case LogEndsRequest():
                self.replica_status.serve(peer, request)
            case ReadIndexRequest():
                self.newest.serve(peer, request)
            case StreamOpenRequest():
                self.opening.serve(peer, request)
            case _:
                self._rpc.answered(peer, request)

    def on_peer_back(self, peer: BrokerId) -> None:
        """Handle the connection of a peer."""
        self.controller.peer_connected(peer)
        self.replicas.peer_connected(peer)

    def on_peer_lost(self, peer: BrokerId) -> None:
        """Handle the loss of a peer's connection: frames to the peer may be lost."""
        self.controller.peer_disconnected(peer)
        self._rpc.peer_disconnected(peer)
        self.replicas.peer_disconnected(peer)

    def _send_envelope(self, envelope: Envelope) -> None:
        header = channels.encode_envelope(envelope)
        self._links.send(envelope.receiver, channels.CONSENSUS, header)

    def _send_request(self, broker: BrokerId, request: Request) -> bool:
        return self._links.send(broker, channels.REQUESTS, channels.encode_request(request))


def _move_rate(config: BrokerConfig) -> ReplicationThrottle | None:
    bytes_per_s = config.cluster.move_bytes_per_s
    return ReplicationThrottle(bytes_per_s) if bytes_per_s else None


def _report(task: "asyncio.Task[None]") -> None:
    """Log a critical error if a task ended by itself, which is a bug."""
    if not task.cancelled() and task.exception() is not None:
        logger.critical("task %s died, please report", task.get_name(), exc_info=task.exception())

"""The service of Liftbridge's API: the table of its rpcs, and its background tasks."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final

from strandline.broker.access import Access
from strandline.broker.broker import Broker
from strandline.config import bracketed
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.health import HealthService
from strandline.servers.grpc.liftbridge.activity import Activity
from strandline.servers.grpc.liftbridge.cursors import CursorCalls
from strandline.servers.grpc.liftbridge.describe import DescribeCalls
from strandline.servers.grpc.liftbridge.groups import GroupCalls
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.liftbridge.idle import AutoPause
from strandline.servers.grpc.liftbridge.internal import ensure_streams
from strandline.servers.grpc.liftbridge.permissions import NEEDS, checked
from strandline.servers.grpc.liftbridge.publish import PublishCalls
from strandline.servers.grpc.liftbridge.streams import LiftbridgeStreamCalls
from strandline.servers.grpc.liftbridge.subscribe import SubscribeCalls
from strandline.servers.grpc.listener import GrpcListener
from strandline.servers.grpc.methods import Method, server_stream, unary
from strandline.servers.metering import Metering
from strandline.servers.tasks import end_task, start_task

if TYPE_CHECKING:
    # The forwarder imports the client, which a broker alone does not need.
    from strandline.servers.forward import Forwarder

NAME = "proto.API"
DECIDED: Final = (
    "CreateStream",
    "DeleteStream",
    "PauseStream",
    "SetStreamReadonly",
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "ReportConsumerGroupCoordinator",
)
"""The rpcs that change the metadata and therefore need a controller."""


class LiftbridgeService:
    """Liftbridge's API on a port of its own.

    Args:
        broker: the broker that is served.
        pool: the threads to read on.
        metering: the meters of principals.
        forwarder: forwards publishes to other leaders; None for a broker alone.
    """

    def __init__(
        self, broker: Broker, pool: Executor, metering: Metering, *, forwarder: "Forwarder | None"
    ) -> None:
        self._metering = metering
        self._forwarder = forwarder
        self._host = Host(broker, pool)
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: GrpcListener | None = None
        self._is_ready = False

    @property
    def port(self) -> int:
        """The port of the listener."""
        return self._host.port

    @property
    def address(self) -> str:
        """The address to which clients connect."""
        host, port = self._host.address
        return f"{bracketed(host)}:{port}"

    async def start(self) -> None:
        """Create the internal streams, then listen.

        Raises:
            InvalidConfigError: the port is not available.
            StrandlineError: a stream cannot be created.
        """
        host, broker = self._host, self._host.broker
        activity = Activity(host) if host.config.activity else None
        groups, subscribing = GroupCalls(host), SubscribeCalls(host)
        publishing = PublishCalls(host, self._forwarder)
        health = HealthService((NAME,), lambda: self._is_ready and broker.is_ready)
        methods = {
            **_methods(host, groups, subscribing, publishing=publishing),
            **health.methods(),
        }
        access = Access(broker.config, broker)
        self._listener = GrpcListener(methods, broker.telemetry, access, metering=self._metering)
        await self._listener.start(broker.config, host.config.port, key="grpc.port")
        host.port = self._listener.port
        broker.on_answered(self._listener.shared.send_answers)
        if not broker.config.cluster.is_on:
            await ensure_streams(host)
        self._tasks = [
            start_task(self._keep(activity), "liftbridge-streams"),
            start_task(groups.expire(), "liftbridge-groups"),
            start_task(AutoPause(host, subscribing.subscribers).run(), "liftbridge-idle"),
        ]
        self._is_ready = True

    async def _keep(self, activity: Activity | None) -> None:
        """Create the internal streams, then write activity events until cancelled."""
        await ensure_streams(self._host)
        if activity is not None:
            await activity.run()

    async def stop(self) -> None:
        """End all calls, then the background tasks."""
        self._is_ready = False
        if self._listener is not None:
            await self._listener.stop()
        for task in self._tasks:
            await end_task(task)
        self._tasks = []


def _decided(
    host: Host, run: Callable[[Any, Call], Awaitable[Any]]
) -> Callable[[Any, Call], Awaitable[Any]]:
    """Return a handler that first waits until a controller is known."""

    async def run_decided(request: Any, call: Call) -> Any:
        await host.know_controller()
        return await run(request, call)

    return run_decided


def _methods(
    host: Host, groups: GroupCalls, subscribing: SubscribeCalls, *, publishing: PublishCalls
) -> dict[bytes, Method]:
    """Return the rpcs of the API, by path."""
    streams, describing = LiftbridgeStreamCalls(host), DescribeCalls(host)
    cursors = CursorCalls(host)
    one: dict[str, tuple[type[Any], Callable[[Any, Call], Awaitable[Any]]]] = {
        "CreateStream": (pb.CreateStreamRequest, streams.create),
        "DeleteStream": (pb.DeleteStreamRequest, streams.delete),
        "PauseStream": (pb.PauseStreamRequest, streams.pause),
        "SetStreamReadonly": (pb.SetStreamReadonlyRequest, streams.set_readonly),
        "FetchMetadata": (pb.FetchMetadataRequest, describing.metadata),
        "FetchPartitionMetadata": (pb.FetchPartitionMetadataRequest, describing.partition),
        "Publish": (pb.PublishRequest, publishing.publish),
        "PublishToSubject": (pb.PublishToSubjectRequest, publishing.publish_to_subject),
        "SetCursor": (pb.SetCursorRequest, cursors.set),
        "FetchCursor": (pb.FetchCursorRequest, cursors.fetch),
        "JoinConsumerGroup": (pb.JoinConsumerGroupRequest, groups.join),
        "LeaveConsumerGroup": (pb.LeaveConsumerGroupRequest, groups.leave),
        "FetchConsumerGroupAssignments": (pb.FetchConsumerGroupAssignmentsRequest, groups.fetch),
        "ReportConsumerGroupCoordinator": (
            pb.ReportConsumerGroupCoordinatorRequest,
            groups.report,
        ),
    }
    for name in DECIDED:
        kind, run = one[name]
        one[name] = kind, _decided(host, run)
    methods = {name: unary(kind, checked(name, run)) for name, (kind, run) in one.items()}
    methods["Subscribe"] = server_stream(
        pb.SubscribeRequest, checked("Subscribe", subscribing.subscribe)
    )
    methods["PublishAsync"] = Method(publishing.publish_many)
    assert set(methods) == set(NEEDS), "of every rpc it is known who may call it"
    return {f"/{NAME}/{name}".encode(): method for name, method in methods.items()}

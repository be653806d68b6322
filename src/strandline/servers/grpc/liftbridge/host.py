"""The broker and the settings of the Liftbridge API, shared by all its calls."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final

from strandline.broker.broker import Broker
from strandline.broker.cluster.broker import ClusterBroker
from strandline.broker.internal import is_internal
from strandline.broker.routing import PartitionPort
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.config import GrpcConfig
from strandline.core.metadata.activity import ACTIVITY_STREAM
from strandline.core.metadata.commands import PausePartitions
from strandline.core.metadata.image import PartitionImage, PartitionState
from strandline.errors import (
    PausedError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.servers.grpc.address import advertised_host
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import BrokerId

CURSORS: Final = "__cursors"
ACTIVITY: Final = ACTIVITY_STREAM
RESERVED: Final = frozenset((CURSORS, ACTIVITY))
CONTROLLER_WAIT_S: Final = 3.0
"""Long enough for the election of a controller."""
CONTROLLER_POLL_S: Final = 0.05


class Host:
    """The broker and the settings of the API, with look-ups.

    Args:
        broker: the broker that is served.
        pool: the threads to read on.
    """

    def __init__(self, broker: Broker, pool: Executor) -> None:
        self.broker = broker
        self.pool = pool
        self.config: GrpcConfig = broker.config.grpc
        self.port = 0
        """The port of the API's listener; 0 before it listens."""

    @property
    def me(self) -> BrokerId:
        """This broker's id; 0 for a broker alone."""
        return BrokerId(self.broker.config.cluster.broker_id)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to which clients connect."""
        return advertised_host(self.broker.config), self.config.advertised_port or self.port

    def stream(self, name: str) -> Stream | None:
        """Return a stream; None if it does not exist or is internal to another component."""
        if is_internal(name) and name not in RESERVED:
            return None
        try:
            return self.broker.stream(name)
        except (UnknownStreamError, UnavailableError):  # ``know`` tells the two apart
            return None

    async def know(self, stream: str, numbers: Iterable[int] = ()) -> None:
        """Fetch the newest metadata if a stream or partition is unknown here.

        Raises:
            UnavailableError: the newest metadata cannot be read.
        """
        found = self.stream(stream)
        if found is None or max(numbers, default=0) >= len(found.partitions):
            await self.know_newest()

    async def know_newest(self) -> None:
        """Wait for all metadata changes that were committed before this call.

        Raises:
            UnavailableError: the newest metadata cannot be read.
        """
        await self.broker.know_newest()

    def partition(self, stream: str, number: int) -> Partition | None:
        """Return a partition; None if it does not exist."""
        found = self.stream(stream)
        try:
            return found.partition(number) if found is not None else None
        except UnknownPartitionError:
            return None

    def state(self, partition: Partition) -> PartitionState:
        """Return the state of a partition: readonly, paused, both or neither."""
        stream = self.broker.image.streams.get(partition.name.stream)
        states = stream.states if stream is not None else {}
        return states.get(partition.name.partition, PartitionState())

    def leader(self, partition: PartitionPort) -> BrokerId | None:
        """Return a partition's leader; None if it has none or has just been deleted."""
        if not isinstance(self.broker, ClusterBroker):
            return self.me
        image = self._image_of(partition)
        return image.leader if image is not None else None

    def replicas(self, partition: Partition) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
        """Return the replicas and the in-sync replicas; both empty for a deleted partition."""
        if not isinstance(self.broker, ClusterBroker):
            return (self.me,), (self.me,)
        image = self._image_of(partition)
        return (image.replicas, image.isr) if image is not None else ((), ())

    def _image_of(self, partition: PartitionPort) -> PartitionImage | None:
        """Return a partition of the local metadata image; None if it has been deleted."""
        try:
            return self.broker.image.partition(partition.name.stream, partition.name.partition)
        except (UnknownStreamError, UnknownPartitionError):
            return None

    async def know_controller(self) -> None:
        """Wait until a controller is known, for at most ``CONTROLLER_WAIT_S``.

        Raises:
            RpcError: no controller is known; clients retry after this status and text.
        """
        if not isinstance(self.broker, ClusterBroker):
            return
        quorum = self.broker.membership.quorum
        for _ in range(round(CONTROLLER_WAIT_S / CONTROLLER_POLL_S)):
            if quorum.leader is not None:
                return
            await asyncio.sleep(CONTROLLER_POLL_S)
        raise RpcError(GrpcStatus.INTERNAL, "no known metadata leader")

    async def wake(self, partition: Partition) -> None:
        """Resume a paused partition."""
        if isinstance(partition.blocked_by, PausedError):
            await self.pause(partition.name.stream, (partition.name.partition,), is_on=False)

    async def pause(
        self, stream: str, partitions: Iterable[int], *, is_on: bool, resumes_all: bool = False
    ) -> None:
        """Pause partitions, or resume them.

        Raises:
            StrandlineError: a partition does not exist, or the metadata cannot be changed now.
        """
        now_ns = self.broker.clock.now_ns()
        numbers = tuple(partitions)
        await self.broker.change(PausePartitions(stream, numbers, is_on, now_ns, resumes_all))

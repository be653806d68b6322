"""The rpcs of consumer groups: membership, assignment and liveness of members.

Rules: the metadata has the members and the epoch. Only the group's coordinator knows when each
member was last seen. It removes members after a timeout, which starts again when the coordinator
changes. A fetch of the assignment serves as heartbeat.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

from strandline.api.groups import GROUP_BYTES_MAX
from strandline.broker.cluster.broker import ClusterBroker
from strandline.core.metadata.commands import JoinGroup, LeaveGroup, MoveGroup
from strandline.core.metadata.groups import assignments
from strandline.core.metadata.image import GroupImage
from strandline.errors import InvalidRequestError, StrandlineError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.liftbridge.host import Host
from strandline.servers.grpc.liftbridge.reports import Reports
from strandline.servers.grpc.status import GrpcStatus, RpcError
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

SWEEPS_PER_TIMEOUT: Final = 10
NS_PER_MS: Final = 1_000_000
ID_BYTES_MAX: Final = GROUP_BYTES_MAX
"""The limit of the names of groups and members, because every broker keeps them in memory."""


class GroupCalls:
    """The rpcs for consumer groups.

    Args:
        host: the broker and the settings of the API.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._last_seen_ms: dict[tuple[str, str], float] = {}
        """(Group, member) → time of its last request, for groups that this broker coordinates."""
        self._reports = Reports(timeout_ms=host.config.coordinator_timeout_ms)

    async def join(
        self, request: pb.JoinConsumerGroupRequest, call: Call
    ) -> pb.JoinConsumerGroupResponse:
        """Add a member to a group; create the group with its first member."""
        _check_ids(request.groupId, request.consumerId)
        if not request.streams:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "No streams provided")
        coordinator = self._candidate()
        if coordinator is None:
            raise RpcError(GrpcStatus.INTERNAL, "no known metadata leader")
        command = JoinGroup(
            request.groupId,
            request.consumerId,
            tuple(dict.fromkeys(request.streams)),
            coordinator,
            owner=call.caller.principal.name,
        )
        try:
            await self._host.broker.change(command)
        except InvalidRequestError as error:
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, error.message) from error
        group = self._group(request.groupId)
        self._mark_seen(request.groupId, request.consumerId)
        config = self._host.config
        return pb.JoinConsumerGroupResponse(
            coordinator=str(group.coordinator),
            epoch=group.epoch,
            consumerTimeout=config.consumer_timeout_ms * NS_PER_MS,
            coordinatorTimeout=config.coordinator_timeout_ms * NS_PER_MS,
        )

    async def leave(
        self, request: pb.LeaveConsumerGroupRequest, call: Call
    ) -> pb.LeaveConsumerGroupResponse:
        """Remove a member from a group."""
        _check_ids(request.groupId, request.consumerId)
        group = await self._known(request.groupId, member=request.consumerId)
        check_member(group, request.consumerId, call)
        try:
            await self._host.broker.change(LeaveGroup(request.groupId, request.consumerId))
        except InvalidRequestError as error:
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, error.message) from error
        return pb.LeaveConsumerGroupResponse()

    async def fetch(
        self, request: pb.FetchConsumerGroupAssignmentsRequest, call: Call
    ) -> pb.FetchConsumerGroupAssignmentsResponse:
        """Return the partitions assigned to a member; the call is its heartbeat."""
        _check_ids(request.groupId, request.consumerId)
        group = await self._known(request.groupId, epoch=request.epoch)
        if group.coordinator != self._host.me:
            text = "broker is not the consumer group coordinator"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
        if request.epoch != group.epoch:
            text = "client-provided group epoch differs from broker group epoch"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
        check_member(group, request.consumerId, call)
        self._mark_seen(request.groupId, request.consumerId)
        counts = {s.name: len(s.partitions) for s in self._host.broker.streams()}
        mine = assignments(group, counts)[request.consumerId]
        return pb.FetchConsumerGroupAssignmentsResponse(
            epoch=group.epoch,
            assignments=[
                pb.PartitionAssignment(stream=stream, partitions=numbers)
                for stream, numbers in mine.items()
            ],
        )

    async def report(
        self, request: pb.ReportConsumerGroupCoordinatorRequest, call: Call
    ) -> pb.ReportConsumerGroupCoordinatorResponse:
        """Count a member's report of a lost coordinator.

        The coordinator is replaced when most members have reported it, or at the first report
        if its broker is fenced. Each broker counts the reports that it receives.
        """
        _check_ids(request.groupId, request.consumerId)
        if not request.coordinator:
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, "No coordinator provided")
        try:
            group = await self._known(request.groupId, epoch=request.epoch)
        except RpcError as unknown:
            text = f"No such consumer group {request.groupId}"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text) from unknown
        if request.coordinator != str(group.coordinator) or request.epoch != group.epoch:
            text = "the group has another coordinator or epoch now; fetch its metadata"
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
        check_member(group, request.consumerId, call)
        candidate = self._candidate(but=group.coordinator)
        if candidate is None:
            raise RpcError(GrpcStatus.FAILED_PRECONDITION, "No group coordinator candidates")
        now_ms = self._host.broker.clock.monotonic_ms()
        who = self._reports.add(request.groupId, group.epoch, request.consumerId, now_ms=now_ms)
        if who > len(group.members) // 2 or not self._is_live(group.coordinator):
            try:
                await self._host.broker.change(MoveGroup(request.groupId, candidate, group.epoch))
            except InvalidRequestError as error:
                raise RpcError(GrpcStatus.FAILED_PRECONDITION, error.message) from error
        return pb.ReportConsumerGroupCoordinatorResponse()

    async def expire(self) -> None:
        """Remove members after their timeout, until cancelled."""
        timeout_ms = self._host.config.consumer_timeout_ms
        while True:
            await asyncio.sleep(timeout_ms / 1e3 / SWEEPS_PER_TIMEOUT)
            for group, member in self._silent(timeout_ms):
                try:
                    await self._host.broker.change(LeaveGroup(group, member, has_expired=True))
                    logger.info(
                        "removed consumer %s of group %s: no heartbeat in time", member, group
                    )
                except StrandlineError as error:
                    logger.warning("cannot remove consumer %s of %s yet: %s", member, group, error)

    def _silent(self, timeout_ms: int) -> list[tuple[str, str]]:
        """Return the members of groups coordinated here that have been silent for too long."""
        now_ms = self._host.broker.clock.monotonic_ms()
        members = [
            (name, member)
            for name, group in self._host.broker.image.groups.items()
            if group.coordinator == self._host.me
            for member in group.members
        ]
        self._last_seen_ms = {each: self._last_seen_ms.get(each, now_ms) for each in members}
        self._reports.keep({(n, g.epoch) for n, g in self._host.broker.image.groups.items()})
        return [
            each for each, seen_ms in self._last_seen_ms.items() if now_ms - seen_ms > timeout_ms
        ]

    def _mark_seen(self, group: str, member: str) -> None:
        self._last_seen_ms[(group, member)] = self._host.broker.clock.monotonic_ms()

    async def _known(self, name: str, *, epoch: int = 0, member: str | None = None) -> GroupImage:
        """Return a group; first fetch the newest metadata if the caller knows a newer state.

        Args:
            name: the group's name.
            epoch: the group's epoch that the caller knows.
            member: a member that must be in the group by the caller's knowledge.

        Raises:
            RpcError: the group does not exist.
            UnavailableError: the newest metadata cannot be read.
        """
        group = self._host.broker.image.groups.get(name)
        if group is None or group.epoch < epoch or member not in (None, *group.members):
            await self._host.know_newest()
        return self._group(name)

    def _group(self, name: str) -> GroupImage:
        group = self._host.broker.image.groups.get(name)
        if group is None:
            raise RpcError(GrpcStatus.NOT_FOUND, "consumer group does not exist")
        return group

    def _candidate(self, *, but: BrokerId | None = None) -> BrokerId | None:
        """Return the broker that coordinates the fewest groups; among equals, the lowest id."""
        image = self._host.broker.image
        if not isinstance(self._host.broker, ClusterBroker):
            return self._host.me if but is None else None
        counts = Counter(group.coordinator for group in image.groups.values())
        live = [b.id for b in image.brokers.values() if b.may_lead and b.id != but]
        return min(live, key=lambda b: (counts[b], b), default=None)

    def _is_live(self, broker: BrokerId) -> bool:
        known = self._host.broker.image.brokers.get(broker)
        return known is None or not known.is_fenced


def _check_ids(group: str, consumer: str) -> None:
    if not group:
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, "No groupId provided")
    if not consumer:
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, "No consumerId provided")
    if max(len(group.encode()), len(consumer.encode())) > ID_BYTES_MAX:
        text = f"groupId and consumerId have at most {ID_BYTES_MAX} bytes"
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)


def check_member(group: GroupImage, consumer: str, call: Call) -> None:
    """Check that a consumer is a member of a group and was joined by the caller's principal.

    Raises:
        RpcError: the consumer is not a member, or another principal has joined it.
    """
    if consumer not in group.members:
        text = "consumer is not a member of the consumer group"
        raise RpcError(GrpcStatus.FAILED_PRECONDITION, text)
    if call.caller.is_checked and group.owners.get(consumer, "") != call.caller.principal.name:
        text = f"consumer {consumer!r} was joined by another principal; use an id of your own"
        raise RpcError(GrpcStatus.PERMISSION_DENIED, text)

"""Handlers of the consumer group commands, which ask the group coordinator."""

from collections.abc import Iterable, Mapping

from strandline.api import groups as wire
from strandline.core.groups.effects import GroupAssignment
from strandline.core.groups.state import GroupMember, Partitions
from strandline.core.groups.transactions import PendingOffsets
from strandline.servers.flight.actions import ActionContext, handles
from strandline.types import PartitionName


@handles(wire.JOIN_GROUP)
def _join(context: ActionContext, request: wire.JoinGroupRequest) -> list[wire.Assignment]:
    assigned = context.run(
        context.broker.groups.join(
            request.group,
            request.member,
            request.streams,
            session_ms=request.session_ms,
            instance=request.instance,
            keeps=request.keeps,
            owner=context.owner,
        )
    )
    return [_assignment(assigned)]


@handles(wire.GROUP_HEARTBEAT)
def _heartbeat(context: ActionContext, request: wire.GroupHeartbeat) -> list[wire.Assignment]:
    assigned = context.run(
        context.broker.groups.heartbeat(
            request.group,
            request.member,
            epoch=request.epoch,
            held=_names(request.held),
            instance=request.instance,
            owner=context.owner,
        )
    )
    return [_assignment(assigned)]


@handles(wire.LEAVE_GROUP)
def _leave(context: ActionContext, request: wire.LeaveGroupRequest) -> list[None]:
    context.run(context.broker.groups.leave(request.group, request.member, owner=context.owner))
    return []


@handles(wire.COMMIT_OFFSETS)
def _commit(context: ActionContext, request: wire.CommitOffsets) -> list[None]:
    ref = request.transaction
    context.run(
        context.broker.groups.commit(
            request.group,
            request.positions,
            member=request.member,
            epoch=request.epoch,
            number=request.number,
            transaction=None if ref is None else PendingOffsets(ref.producer_id, ref.epoch),
            owner=context.owner,
            metadata=request.metadata,
        )
    )
    return []


@handles(wire.GROUP_INFO)
def _info(context: ActionContext, request: wire.GroupRef) -> list[wire.GroupInfo]:
    group = context.run(
        context.broker.groups.describe(request.group, must_be_decided=request.decided)
    )
    undecided: dict[str, dict[int, int]] = {}
    for (stream, number), (_transaction, offset) in sorted(group.undecided.items()):
        undecided.setdefault(stream, {})[number] = offset
    return [
        wire.GroupInfo(
            group=request.group,
            epoch=group.epoch,
            members=tuple(_member(member) for _, member in sorted(group.members.items())),
            positions=group.positions,
            undecided=undecided,
            metadata=group.metadata,
        )
    ]


@handles(wire.LIST_GROUPS)
def _list(context: ActionContext, _: None) -> list[wire.GroupSummary]:
    found = context.run(context.broker.groups.groups())
    return [wire.GroupSummary(group=name, members=n) for name, n in sorted(found.items())]


@handles(wire.DELETE_GROUP)
def _delete(context: ActionContext, request: wire.GroupRef) -> list[None]:
    context.run(context.broker.consumers.delete_group(request.group))
    return []


def _assignment(assigned: GroupAssignment) -> wire.Assignment:
    return wire.Assignment(
        epoch=assigned.epoch,
        partitions=_by_stream(assigned.partitions),
        positions=assigned.positions,
        began_with=assigned.began_with,
        is_waiting=assigned.is_waiting,
    )


def _member(member: GroupMember) -> wire.MemberInfo:
    return wire.MemberInfo(
        member=member.id,
        instance=member.instance,
        streams=member.streams,
        epoch=member.epoch,
        session_ms=member.session_ms,
        assigned=_by_stream(member.assigned),
        revoking=_by_stream(member.revoking),
    )


def _by_stream(partitions: Iterable[PartitionName]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for stream, number in sorted(partitions):
        found[stream] = (*found.get(stream, ()), number)
    return found


def _names(by_stream: Mapping[str, Iterable[int]]) -> Partitions:
    return frozenset(
        PartitionName(stream, number) for stream, numbers in by_stream.items() for number in numbers
    )

"""Handlers of the consumer group actions, which ask the group coordinator.

Rules: see ``admin``, which runs them.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from strandline.api import groups as wire
from strandline.api.wire import decode, refuse_body
from strandline.broker.broker import Broker
from strandline.core.groups.effects import Assigned
from strandline.core.groups.state import GroupMember, Partitions
from strandline.core.groups.transactions import PendingOffsets
from strandline.servers.flight.actions import ActionContext, Handler
from strandline.types import PartitionName


class GroupActions:
    """Handlers of the consumer group actions.

    Args:
        broker: the broker that runs the coordinator.
        run: runs a coroutine on the loop and waits for it.
    """

    def __init__(self, broker: Broker, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._broker = broker
        self._run = run
        self.handlers: dict[str, Handler] = {
            wire.JOIN_GROUP: self._join,
            wire.GROUP_HEARTBEAT: self._heartbeat,
            wire.LEAVE_GROUP: self._leave,
            wire.COMMIT_OFFSETS: self._commit,
            wire.GROUP_INFO: self._info,
            wire.LIST_GROUPS: self._list,
            wire.DELETE_GROUP: self._delete,
        }

    def _join(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, wire.JoinGroupRequest, what=wire.JOIN_GROUP)
        assigned = self._run(
            self._broker.groups.join(
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

    def _heartbeat(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, wire.GroupHeartbeat, what=wire.GROUP_HEARTBEAT)
        assigned = self._run(
            self._broker.groups.heartbeat(
                request.group,
                request.member,
                epoch=request.epoch,
                held=_names(request.held),
                instance=request.instance,
                owner=context.owner,
            )
        )
        return [_assignment(assigned)]

    def _leave(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, wire.LeaveGroupRequest, what=wire.LEAVE_GROUP)
        self._run(self._broker.groups.leave(request.group, request.member, owner=context.owner))
        return []

    def _commit(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, wire.CommitOffsets, what=wire.COMMIT_OFFSETS)
        ref = request.transaction
        who = None if ref is None else PendingOffsets(ref.producer_id, ref.epoch)
        self._run(
            self._broker.groups.commit(
                request.group,
                request.positions,
                member=request.member,
                epoch=request.epoch,
                number=request.number,
                transaction=who,
                owner=context.owner,
            )
        )
        return []

    def _info(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.GroupRef, what=wire.GROUP_INFO)
        group = self._run(
            self._broker.groups.describe(request.group, must_be_decided=request.decided)
        )
        undecided: dict[str, dict[int, int]] = {}
        for (stream, number), (_transaction, offset) in sorted(group.undecided.items()):
            undecided.setdefault(stream, {})[number] = offset
        members = tuple(_member(member) for _, member in sorted(group.members.items()))
        return [
            wire.GroupInfo(
                group=request.group,
                epoch=group.epoch,
                members=members,
                positions=group.positions,
                undecided=undecided,
            )
        ]

    def _list(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, wire.LIST_GROUPS)
        found = self._run(self._broker.groups.groups())
        return [wire.GroupSummary(group=name, members=n) for name, n in sorted(found.items())]

    def _delete(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.GroupRef, what=wire.DELETE_GROUP)
        self._run(self._broker.groups.delete(request.group))
        return []


def _assignment(assigned: Assigned) -> wire.Assignment:
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

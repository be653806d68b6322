"""Consumer groups on the wire: names of DoAction actions, their bodies and answers.

| action | body | results |
|---|---|---|
| join_group | JoinGroup | Assignment |
| group_heartbeat | GroupHeartbeat | Assignment |
| leave_group | LeaveGroup | none |
| commit_offsets | CommitOffsets | none |
| group_info | GroupRef | GroupInfo |
| list_groups | empty | GroupSummary, one per group |
| delete_group | GroupRef | none |

The leader of ``GROUPS_STREAM`` serves these actions; other brokers answer ``not_leader``. Any
broker creates the stream if it does not exist. Each action may be retried when its answer was lost.

Rules: see ``admin``.
"""

from typing import Annotated

import msgspec

from strandline.api.wire import Count, Name, PartitionNumber, WireAnswer, WireMessage
from strandline.config import PARTITIONS_MAX

GROUPS_STREAM = "__groups"

JOIN_GROUP = "join_group"
GROUP_HEARTBEAT = "group_heartbeat"
LEAVE_GROUP = "leave_group"
COMMIT_OFFSETS = "commit_offsets"
GROUP_INFO = "group_info"
LIST_GROUPS = "list_groups"
DELETE_GROUP = "delete_group"

ACTIONS: dict[str, str] = {
    JOIN_GROUP: (
        "Be a member of a consumer group; body: {group, member, streams, session_ms, keeps}."
    ),
    GROUP_HEARTBEAT: "Stay a member of it; body: {group, member, epoch, held}.",
    LEAVE_GROUP: "Be a member no more; body: {group, member}.",
    COMMIT_OFFSETS: (
        "Note how far a group has come; body: {group, positions, member, epoch, transaction}."
    ),
    GROUP_INFO: "Members and positions of a group; body: {group, decided}.",
    LIST_GROUPS: "All consumer groups; no body.",
    DELETE_GROUP: "Forget a group without members and its positions; body: {group}.",
}
"""As ``admin.ACTIONS``."""

STREAMS_MAX = 1_000
"""Limit of the streams of a member or a commit."""
GROUP_BYTES_MAX = 400

GroupName = Annotated[str, msgspec.Meta(min_length=1, max_length=GROUP_BYTES_MAX)]
MemberName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Optional = Annotated[str, msgspec.Meta(max_length=200)]
_Numbers = Annotated[tuple[PartitionNumber, ...], msgspec.Meta(max_length=PARTITIONS_MAX)]
_Held = Annotated[dict[Name, _Numbers], msgspec.Meta(max_length=STREAMS_MAX)]
_Offsets = Annotated[dict[PartitionNumber, Count], msgspec.Meta(max_length=PARTITIONS_MAX)]
_Positions = Annotated[dict[Name, _Offsets], msgspec.Meta(min_length=1, max_length=STREAMS_MAX)]


class JoinGroupRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to join a group, or to change the streams of a member."""

    group: GroupName
    member: MemberName
    """A random id, new for each membership."""
    streams: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=STREAMS_MAX)]
    session_ms: Count
    """Time without a heartbeat after which the member is removed."""
    instance: _Optional = ""
    """A static member's name, which survives restarts."""
    keeps: bool = False
    """Whether offsets are stored elsewhere, so that the group stays until it is deleted."""


class GroupHeartbeat(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A heartbeat with the partitions that the member holds."""

    group: GroupName
    member: MemberName
    epoch: Count
    """The epoch of the last answer."""
    held: _Held = msgspec.field(default_factory=dict)
    """The partitions by stream that it consumes, or has not given up yet."""
    instance: _Optional = ""


class Assignment(WireAnswer, frozen=True, kw_only=True):
    """The partitions a member may consume; it must release all others."""

    epoch: int
    partitions: dict[str, tuple[int, ...]]
    positions: dict[str, dict[int, int]]
    """Committed offsets of partitions that the member does not hold yet."""
    began_with: dict[str, int] = msgspec.field(default_factory=dict)
    """How many partitions the streams of those had when the group began with them: further ones
    were added since, and are to be begun at their beginning."""
    is_waiting: bool = False
    """Whether other members have not given up partitions meant for it yet: ask again soon."""


class LeaveGroupRequest(WireMessage, frozen=True, kw_only=True):
    """A request to leave a group."""

    group: GroupName
    member: MemberName


class TransactionRef(WireMessage, frozen=True, array_like=True):
    """A transaction, identified by its producer."""

    producer_id: Count
    epoch: Count


class CommitOffsets(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to commit offsets of a group."""

    group: GroupName
    positions: _Positions
    """The next offset to consume, by stream and partition."""
    member: _Optional = ""
    """The owner; empty: none, which only a group without members allows."""
    epoch: Count = 0
    """The epoch of the member's last answer."""
    number: Count = 0
    """Number of the member's commit, from 1, the same in a repeat; 0: never repeated."""
    transaction: TransactionRef | None = None
    """The transaction that commits them; it has announced that it commits offsets."""


class GroupRef(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to a group."""

    group: GroupName
    decided: bool = False
    """Whether ``group_info`` is refused while transactions are about to commit offsets."""


class GroupSummary(WireAnswer, frozen=True, kw_only=True):
    """A group as it is listed."""

    group: str
    members: int


class MemberInfo(WireAnswer, frozen=True, kw_only=True):
    """A member of a group."""

    member: str
    instance: str
    streams: tuple[str, ...]
    epoch: int
    session_ms: int
    assigned: dict[str, tuple[int, ...]]
    revoking: dict[str, tuple[int, ...]]
    """Partitions it must give up and may still be consuming."""


class GroupInfo(WireAnswer, frozen=True, kw_only=True):
    """A group's members, assignment and committed offsets."""

    group: str
    epoch: int
    members: tuple[MemberInfo, ...]
    positions: dict[str, dict[int, int]]
    undecided: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Offsets that open transactions are about to commit."""

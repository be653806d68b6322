"""The consumer group commands.

The leader of ``GROUPS_STREAM`` serves them; other brokers answer ``not_leader``. Any broker creates
the stream if it does not exist. A command may be retried if its answer was lost.
"""

from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.command import AdminCommand, no_needs
from strandline.api.required_permissions import Need, group, known_group, stream
from strandline.api.wire import Count, Name, PartitionNumber, WireAnswer, WireMessage
from strandline.config import PARTITIONS_MAX

GROUPS_STREAM = "__groups"

STREAMS_MAX = 1_000
"""The most streams of a member or of a commit."""
GROUP_BYTES_MAX = 400
METADATA_MAX = 4096
"""The most characters, as in Kafka's ``offset.metadata.max.bytes``."""

GroupName = Annotated[str, msgspec.Meta(min_length=1, max_length=GROUP_BYTES_MAX)]
MemberName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Optional = Annotated[str, msgspec.Meta(max_length=200)]
_Numbers = Annotated[tuple[PartitionNumber, ...], msgspec.Meta(max_length=PARTITIONS_MAX)]
_Held = Annotated[dict[Name, _Numbers], msgspec.Meta(max_length=STREAMS_MAX)]
_Offsets = Annotated[dict[PartitionNumber, Count], msgspec.Meta(max_length=PARTITIONS_MAX)]
_Positions = Annotated[dict[Name, _Offsets], msgspec.Meta(max_length=STREAMS_MAX)]
_Metadata = Annotated[str, msgspec.Meta(max_length=METADATA_MAX)]


class JoinGroupRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to join a group, or to change the streams of a member."""

    group: GroupName
    member: MemberName
    """A random id, new for each membership."""
    streams: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=STREAMS_MAX)]
    session_ms: Count
    """The time without a heartbeat after which the member is removed."""
    instance: _Optional = ""
    """The name of a static member, which survives restarts."""
    keeps: bool = False
    """Whether offsets are stored elsewhere; the group then stays until it is deleted."""


class GroupHeartbeat(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A heartbeat, with the partitions that the member holds."""

    group: GroupName
    member: MemberName
    epoch: Count
    """The epoch in the last answer."""
    held: _Held = msgspec.field(default_factory=dict)
    """The partitions by stream that the member consumes or has not released yet."""
    instance: _Optional = ""


class Assignment(WireAnswer, frozen=True, kw_only=True):
    """The partitions that a member may consume; it must release all others."""

    epoch: int
    partitions: dict[str, tuple[int, ...]]
    positions: dict[str, dict[int, int]]
    """The committed offsets of partitions that the member does not hold yet."""
    began_with: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of partitions of each of these streams when the group started to consume it.
    Partitions with a higher number were added later, and are consumed from their start."""
    is_waiting: bool = False
    """Whether other members have not yet released partitions meant for this one: ask again soon."""


class LeaveGroupRequest(WireMessage, frozen=True, kw_only=True):
    """A request to leave a group."""

    group: GroupName
    member: MemberName


class TransactionRef(WireMessage, frozen=True, array_like=True):
    """A transaction, identified by its producer's id and epoch."""

    producer_id: Count
    epoch: Count


class CommitOffsets(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request to commit offsets of a group."""

    group: GroupName
    positions: _Positions
    """The next offset to consume, by stream and partition."""
    member: _Optional = ""
    """The member that commits; empty: none, which only a group without members accepts."""
    epoch: Count = 0
    """The epoch in the last answer to the member."""
    number: Count = 0
    """The member's number of this commit, from 1, the same in a repeat; 0: never repeated."""
    transaction: TransactionRef | None = None
    """The transaction that the offsets belong to; it has announced that it commits offsets."""
    metadata: _Metadata = ""
    """Text of the committer, such as why it stopped; shown until the next commit. Like ``metadata``
    in Kafka's OffsetCommit, but one text for the whole group."""


class GroupRef(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to a group."""

    group: GroupName
    decided: bool = False
    """Whether ``group_info`` fails while transactions may still commit offsets."""


class GroupSummary(WireAnswer, frozen=True, kw_only=True):
    """A group in a list."""

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
    """Partitions that the member has to release and may still be consuming."""


class GroupInfo(WireAnswer, frozen=True, kw_only=True):
    """A group's members, assignment and committed offsets."""

    group: str
    epoch: int
    members: tuple[MemberInfo, ...]
    positions: dict[str, dict[int, int]]
    undecided: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Offsets that open transactions may still commit."""
    metadata: str = ""
    """The text of the last commit, such as the error of a pipeline that stopped."""


def next_offset(committed: int, first: int, end: int) -> int:
    """Return the offset at which a member continues that would else start at the earliest record.

    Args:
        committed: the committed offset. It may be below the log start offset, if records were
            deleted, or beyond the end, if the stream was created again or its log was truncated.
        first: the log start offset.
        end: the high watermark.
    """
    return committed if first <= committed <= end else first


def _needs_to_join(request: JoinGroupRequest) -> Iterator[Need]:
    yield group(request.group)
    for name in request.streams:
        yield stream(name, "read")


def _producer_of(request: CommitOffsets) -> int | None:
    return None if request.transaction is None else request.transaction.producer_id


JOIN_GROUP: Final = AdminCommand(
    name="join_group",
    help="Join a consumer group, or change the streams of a member.",
    request=JoinGroupRequest,
    result=Assignment,
    needs=_needs_to_join,
)
GROUP_HEARTBEAT: Final = AdminCommand(
    name="group_heartbeat",
    help="Stay a member of a group.",
    request=GroupHeartbeat,
    result=Assignment,
    needs=lambda it: [group(it.group)],
)
LEAVE_GROUP: Final = AdminCommand(
    name="leave_group",
    help="Leave a group.",
    request=LeaveGroupRequest,
    result=NoneType,
    needs=lambda it: [group(it.group)],
)
COMMIT_OFFSETS: Final = AdminCommand(
    name="commit_offsets",
    help="Commit offsets of a group.",
    request=CommitOffsets,
    result=NoneType,
    needs=lambda it: [group(it.group)],
    producer=_producer_of,
)
GROUP_INFO: Final = AdminCommand(
    name="group_info",
    help="Describe a group's members and committed offsets.",
    request=GroupRef,
    result=GroupInfo,
    needs=lambda it: [group(it.group)],
)
LIST_GROUPS: Final = AdminCommand(
    name="list_groups",
    help="List all consumer groups.",
    request=NoneType,
    result=GroupSummary,
    needs=no_needs,
    visibility=lambda it: known_group(it.group),
)
DELETE_GROUP: Final = AdminCommand(
    name="delete_group",
    help="Delete a group without members, and its committed offsets; a NATS consumer with it.",
    request=GroupRef,
    result=NoneType,
    needs=lambda it: [group(it.group, "admin")],
)

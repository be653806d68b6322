"""Events of the group coordinator: requests, outcomes of entries, and time.

A request's ``token`` comes back with its answer. Rules: plain values.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from strandline.core.coordinator_effects import EntriesStored, Tick
from strandline.core.groups.state import GroupsState, Partitions, Positions
from strandline.core.groups.transactions import PendingOffsets, TransactionMark


class Join(msgspec.Struct, frozen=True):
    """Join the group, or change the subscription. Answered with ``effects.GroupAssignment``.

    Attributes:
        member: an id that the member chose, a new one for each start; joining again with the same
            id changes nothing.
        instance: name of a static member, which replaces the member of that name; empty for
            others.
        session_ms: the member is removed after this long without a heartbeat.
        keeps: keep the group when its last member has left, even without committed offsets.
        owner: the principal that joins, which alone may act for the member; empty where access is
            not checked.
    """

    token: object
    group: str
    member: str
    streams: tuple[str, ...]
    session_ms: int
    instance: str = ""
    keeps: bool = False
    owner: str = ""


class Heartbeat(msgspec.Struct, frozen=True):
    """Renew the session. Answered with ``effects.GroupAssignment``.

    Attributes:
        epoch: the epoch of the last answer.
        held: the partitions that the member consumes, or has not released yet.
        owner: the principal that asks.
    """

    token: object
    group: str
    member: str
    epoch: int
    held: Partitions
    instance: str = ""
    owner: str = ""


class Leave(msgspec.Struct, frozen=True):
    """Leave the group. Answered with None, also if it is not a member."""

    token: object
    group: str
    member: str
    owner: str = ""
    """The principal that asks."""


class Commit(msgspec.Struct, frozen=True):
    """Commit offsets. Answered with None.

    Attributes:
        member: the member that consumed; empty: none, which only a group without members allows.
        epoch: the epoch of the member's last answer.
        number: counts the member's commits from 1, and is the same in a repeat; 0: the commit is
            never repeated.
        transaction: the offsets count when it commits; it has to be open here.
        owner: the principal that asks.
    """

    token: object
    group: str
    positions: Positions
    member: str = ""
    epoch: int = 0
    number: int = 0
    transaction: PendingOffsets | None = None
    owner: str = ""
    metadata: str = ""


class MarkTransaction(msgspec.Struct, frozen=True):
    """Begin or end a transaction here: pending offsets count, or are dropped. Answered with None.

    It is never rejected, and a repeat has no effect: the transaction coordinator repeats it until
    it is answered.
    """

    token: object
    transaction: PendingOffsets
    mark: TransactionMark


class Delete(msgspec.Struct, frozen=True):
    """Delete a group without members, and its committed offsets.

    Answered with whether the group belonged to a NATS consumer.
    """

    token: object
    group: str


class KeepConsumer(msgspec.Struct, frozen=True):
    """Store the state of a NATS consumer, and its offsets. Answered with None.

    Attributes:
        positions: the offsets below which everything is acknowledged.
        consumer: settings and state, not interpreted here.
        is_new: whether this creates the consumer; else its group must exist.
        epoch: the leader epoch of the partition under which the consumer works.
    """

    token: object
    group: str
    positions: Positions
    consumer: str
    is_new: bool = False
    epoch: int = 0


class ClaimConsumers(msgspec.Struct, frozen=True):
    """Claim consumers for a leader epoch. Answered with their states by group.

    From then on, updates under an older epoch are rejected.

    Attributes:
        prefix: how the names of their groups begin.
        epoch: the leader epoch of the partition.
    """

    token: object
    prefix: str
    epoch: int


class QueryGroups(msgspec.Struct, frozen=True):
    """Query the state. Answered with the result of ``question``.

    Attributes:
        must_confirm: store an entry first, which proves that no other coordinator has taken over.
    """

    token: object
    question: Callable[[GroupsState], object]
    must_confirm: bool = False


Request = (
    Join
    | Heartbeat
    | Leave
    | Commit
    | MarkTransaction
    | Delete
    | KeepConsumer
    | ClaimConsumers
    | QueryGroups
)


class StreamsChanged(msgspec.Struct, frozen=True):
    """The streams changed.

    Attributes:
        partitions: how many each stream has now.
        created: when each was created.
        names: streams that may have changed, including deleted ones; None: any may have.
    """

    partitions: Mapping[str, int]
    created: Mapping[str, int]
    names: Collection[str] | None = None


Event = Request | StreamsChanged | EntriesStored | Tick

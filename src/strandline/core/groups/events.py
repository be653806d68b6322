"""Events of the group coordinator: requests, outcomes of entries, and time.

A request's ``token`` comes back with its answer. Rules: plain values.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strandline.core.coordinator_effects import EntriesStored, Tick
from strandline.core.groups.state import GroupsState, Partitions, Positions
from strandline.core.groups.transactions import PendingOffsets, TransactionMark


@dataclass(frozen=True, slots=True)
class Join:
    """Become a member, or change what one subscribes to. Answered with ``effects.GroupAssignment``.

    Attributes:
        member: an id that the member made up, another one in each life of it; asking again with
            the same id changes nothing.
        instance: name of a static member, which takes the place of the member of that name; empty
            for others.
        session_ms: it is removed when it was not heard of for so long.
        keeps: the group stays when its last member has left, though it has no positions here.
        owner: the principal that joins, which alone may speak for the member; empty where access
            is not checked.
    """

    token: object
    group: str
    member: str
    streams: tuple[str, ...]
    session_ms: int
    instance: str = ""
    keeps: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Still here. Answered with ``effects.GroupAssignment``.

    Attributes:
        epoch: of the last answer.
        held: what the member consumes, or has not given up yet.
        owner: the principal that asks.
    """

    token: object
    group: str
    member: str
    epoch: int
    held: Partitions
    instance: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """Be a member no more. Answered with None, also if it is none."""

    token: object
    group: str
    member: str
    owner: str = ""
    """The principal that asks."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Note positions. Answered with None.

    Attributes:
        member: who consumed up to there; empty: nobody, which only a group without members allows.
        epoch: of the member's last answer.
        number: of the commit among those of the member, from 1, the same in a repeat; 0: it is
            never repeated.
        transaction: the positions count when it is committed; it has to be open here.
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


@dataclass(frozen=True, slots=True)
class MarkTransaction:
    """Let a transaction commit positions, or let those count that wait for it. Answered with None.

    Never refused, and nothing the second time: whoever decides repeats it until it is answered.
    """

    token: object
    transaction: PendingOffsets
    mark: TransactionMark


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget a group without members and its positions. Answered with None."""

    token: object
    group: str


@dataclass(frozen=True, slots=True)
class KeepConsumer:
    """Keep the state of a NATS consumer, and its position. Answered with None.

    Attributes:
        positions: the offsets after the last one below which everything is acknowledged.
        consumer: settings and state, which mean nothing here.
        is_new: whether the consumer begins with this; else its group has to be there.
        epoch: the leader epoch of the partition under which the consumer works.
    """

    token: object
    group: str
    positions: Positions
    consumer: str
    is_new: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ClaimConsumers:
    """Let consumers work under a leader epoch. Answered with their states by group.

    From then on nothing is kept that was decided under an older one.

    Attributes:
        prefix: how the names of their groups begin.
        epoch: the leader epoch of the partition.
    """

    token: object
    prefix: str
    epoch: int


@dataclass(frozen=True, slots=True)
class QueryGroups:
    """Ask something. Answered with what ``question`` gives.

    Attributes:
        must_confirm: first make sure, by storing an entry, that nobody else coordinates now.
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


@dataclass(frozen=True, slots=True)
class StreamsChanged:
    """These are the streams there are now.

    Attributes:
        partitions: how many each has.
        created: when each was made.
        names: streams that may have changed, those that are gone included; None: any may have.
    """

    partitions: Mapping[str, int]
    created: Mapping[str, int]
    names: Collection[str] | None = None


Event = Request | StreamsChanged | EntriesStored | Tick

"""The image: the metadata at one moment, never changed in place.

A broker alone and a cluster share it. Alone, no broker is registered and partitions have no
replicas. In a cluster, brokers are registered and every partition names its replicas.

Invariants (``check.py`` states them as code):
- ids of logs, producers, clients, events and removed brokers are never reused, so journal entries
  of a deleted stream are never replayed into another;
- a stream has at least one partition, numbered from 0 without gaps;
- the leader epoch of a partition only grows; every change raises its version;
- the leader is in the ISR, and the ISR is part of the replicas. An ISR never becomes empty: its
  last member stays in it, alive or not, because only it surely has what was committed.
"""

import difflib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from strandline.config import StreamConfig
from strandline.core.metadata.commands import (
    CreateStream,
    DeleteStream,
    JoinGroup,
    LeaveGroup,
    PausePartitions,
    SetReadonly,
)
from strandline.core.metadata.outcome import CommandOutcome
from strandline.errors import UnknownPartitionError, UnknownStreamError
from strandline.security.acl import Rule
from strandline.security.quota import Quota
from strandline.security.tokens import Token
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset, PartitionName, WrappedKey
from strandline.values.schema import SchemaVersion

IMAGE_VERSION = 4
"""The version of the stored form. Version 1 had no brokers, 2 no ids of removed brokers, 3 no
rules, tokens, keys and events. All are read and become 4."""

INTERNAL_PREFIX: Final = "__"
"""The prefix of internal streams' names."""
CHANGES_KEPT: Final = 256
"""How many changes of streams a table remembers; for an older table all streams are compared."""
SIMILAR_MAX = 200
"""How many names are compared with an unknown one to suggest a similar one: that takes 5 ms."""
BrokerState = Literal["live", "fenced", "draining", "stopping", "impaired"]


class BrokerImage(msgspec.Struct, frozen=True, kw_only=True):
    """One broker: its identity, addresses and state."""

    id: BrokerId
    directory_id: str
    """A random id, created with the data directory. Empty: the broker was admitted, or lost its
    disk, and has not registered a directory yet."""
    incarnation: str
    """A random id of the broker's present run: messages of an earlier run are ignored."""
    peer_address: str = ""
    flight_address: str = ""
    grpc_address: str = ""
    """Address for Liftbridge clients; empty: it does not serve them."""
    beam_address: str = ""
    """Address for Beam clients; empty: it does not serve them."""
    rack: str = ""
    """Brokers of one rack fail together; without a label a broker is a rack of its own."""
    is_fenced: bool = True
    """Out of service: it leads nothing, and is in an ISR only as the last member."""
    is_draining: bool = False
    """All replicas are being moved off it; survives a restart."""
    is_stopping: bool = False
    """It is about to stop, and its leaderships are to be handed over first; reset at its next
    start."""
    stored_index: int = 0
    """The metadata log is on its disk at least up to this entry. If it registers with less, its
    data directory is an older copy, which lacks what it has acknowledged."""
    is_impaired: bool = False
    """Its disk rejects writes, so it leads only partitions that no other broker can lead. Kept
    across restarts, until the broker reports that its disk has worked again for a while."""

    partitions_max: int = 0
    """How many partitions it can open with its limit of files; 0: unknown."""

    @property
    def state(self) -> BrokerState:
        """The broker's state as one word for a person; the most important one if several apply."""
        if self.is_fenced:
            return "fenced"
        if self.is_stopping:
            return "stopping"
        if self.is_impaired:
            return "impaired"
        return "draining" if self.is_draining else "live"

    @property
    def may_lead(self) -> bool:
        """Whether the broker may become a leader; one that is drained may, if no other can."""
        return not self.is_fenced and not self.is_stopping

    @property
    def may_take_replicas(self) -> bool:
        """Whether new replicas may be placed on it."""
        return self.may_lead and not self.is_draining


class PartitionImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One partition: its log, replicas and leader."""

    log_id: LogId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    replicas: tuple[BrokerId, ...] = ()
    """In order of preference for the leadership; empty on a broker that runs alone."""
    leader: BrokerId | None = None
    isr: tuple[BrokerId, ...] = ()
    """Ascending."""
    last_known_safe: tuple[BrokerId, ...] = ()
    """Outside the ISR, but known to have all committed records (KIP-966); ascending."""
    version: int = 0
    """Rises with every change of the partition; a change must name the present one."""
    adding: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment adds; members of ``replicas``."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that leave once those being added are in sync; members of ``replicas``."""
    filling: tuple[BrokerId, ...] = ()
    """Replicas that have not been in sync since they were added or lost their disk; ascending.
    Their log is incomplete. If it is compacted, they must copy all of it from the leader of one
    epoch."""
    unclean_epoch: LeaderEpoch = LeaderEpoch(0)
    """The last epoch whose leader was elected uncleanly, by an operator's order, and may lack
    committed records. A replica from before it truncates its log to the leader's even below its own
    high watermark."""
    log_start_offset: Offset = Offset(0)
    """Records before it are deleted on every replica, also on one that comes back later."""

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas once the reassignment is finished."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    @property
    def is_settled(self) -> bool:
        """Whether its preferred leader leads it and it is not moving; true on a broker alone."""
        return (self.replicas[:1] == (self.leader,) and not self.is_moving) or not self.replicas


class PartitionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a partition is readonly or paused, and when that first and last changed; 0: never."""

    is_readonly: bool = False
    is_paused: bool = False
    resumes_all: bool = False
    """Resuming it resumes every other partition of the stream."""
    readonly_ns: tuple[int, int] = (0, 0)
    paused_ns: tuple[int, int] = (0, 0)


class StreamImage(msgspec.Struct, frozen=True, kw_only=True):
    """One stream."""

    config: StreamConfig
    created_ns: int
    partitions: tuple[PartitionImage, ...]
    states: dict[int, PartitionState] = {}
    """By number, of partitions that were ever readonly or paused."""
    keys: tuple[WrappedKey, ...] = ()
    """The data keys of an encrypted stream, numbered from 1, the newest last."""
    schema: tuple[SchemaVersion, ...] = ()
    """The versions of the schema of its values, ascending."""


class StreamTable(dict[str, StreamImage]):
    """The streams of an image by name, in the order of their creation; never changed in place.

    It also keeps totals over all streams, updated with each change, so that the cost of a creation
    or a decision does not grow with the number of streams. Snapshots hold the streams only.

    Args:
        streams: by name.

    Attributes:
        replicas: how many partition replicas each broker is to keep.
        preferred: of how many partitions each broker is the preferred leader.
        led: how many partitions each broker leads.
        unsettled: streams that the controller has to look at: those with a partition that is not
            settled, and internal streams, which may get more replicas.
        token: identifies this table.
    """

    __slots__ = ("_changes", "led", "preferred", "replicas", "token", "unsettled")

    def __init__(self, streams: Mapping[str, StreamImage]) -> None:
        super().__init__(streams)
        self.token = object()
        self.replicas, self.preferred = Counter[BrokerId](), Counter[BrokerId]()
        self.led, self.unsettled = Counter[BrokerId](), set[str]()
        self._changes: tuple[tuple[object, Collection[str]], ...] = ()
        if isinstance(streams, StreamTable):
            for name in ("replicas", "preferred", "led", "unsettled"):
                setattr(self, name, getattr(streams, name).copy())
            return
        for name, stream in streams.items():
            self._count(name, stream)

    def _count(self, name: str, stream: StreamImage, sign: int = 1) -> None:
        has_work = name.startswith(INTERNAL_PREFIX)
        for partition in stream.partitions:
            target = partition.target if partition.removing else partition.replicas
            for broker in target:
                self.replicas[broker] += sign
            for broker in target[:1]:
                self.preferred[broker] += sign
            if partition.leader is not None:
                self.led[partition.leader] += sign
            has_work = has_work or not partition.is_settled
        if has_work and sign > 0:
            self.unsettled.add(name)
        else:
            self.unsettled.discard(name)

    def changed(self, streams: Mapping[str, StreamImage | None]) -> "StreamTable":
        """Return the table with streams added or replaced, and without those given as None."""
        after = StreamTable(self)
        after._changes = (*self._changes[1 - CHANGES_KEPT :], (self.token, tuple(streams)))
        for name, stream in streams.items():
            if name in self:
                after._count(name, self[name], -1)
            if stream is not None:
                after[name] = stream
                after._count(name, stream)
            else:
                del after[name]
        return after

    def changed_since(self, before: "StreamTable") -> set[str]:
        """Return the names of streams that differ between an earlier table and this one."""
        names = set[str]()
        if before is self:
            return names
        for token, changed in reversed(self._changes):
            names.update(changed)
            if token is before.token:
                return names
        # The other table came from a snapshot, or is too old.
        names = {name for name, stream in self.items() if stream is not before.get(name)}
        return names | (before.keys() - self.keys())


class GroupImage(msgspec.Struct, frozen=True, kw_only=True):
    """A Liftbridge consumer group."""

    coordinator: BrokerId
    epoch: int = 0
    members: dict[str, tuple[str, ...]] = {}
    """Member → the streams it reads, ascending."""
    owners: dict[str, str] = {}
    """Member → the principal that joined as it, where access was checked."""


ReportedCommand = (
    CreateStream | DeleteStream | PausePartitions | SetReadonly | JoinGroup | LeaveGroup
)
"""Commands that the activity stream reports to Liftbridge clients."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A command that was applied, for the activity stream."""

    id: int
    command: ReportedCommand


class SessionImage(msgspec.Struct, frozen=True, kw_only=True):
    """A proposer's last command and its outcome, which answers a retry."""

    used: int
    """The count of proposals when it was last used; the session with the smallest is forgotten
    first."""
    sequence: int = 0
    outcome: CommandOutcome = CommandOutcome()


class MetadataImage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole metadata: streams by name, brokers and sessions by id, and the next free ids."""

    version: int = IMAGE_VERSION
    next_log_id: int = 1
    streams: dict[str, StreamImage] = {}
    brokers: dict[BrokerId, BrokerImage] = {}
    removed: tuple[BrokerId, ...] = ()
    """Ids of removed brokers, ascending; a broker with such an id is rejected."""
    next_producer_id: int = 1
    """The next number; a producer id combines it with the number of its owner."""
    producer_owners: dict[str, int] = {}
    """Principals with producer ids, each with the number that stands for it in the ids."""
    next_client_id: int = 1
    proposals: int = 0
    sessions: dict[int, SessionImage] = {}
    groups: dict[str, GroupImage] = {}
    next_group_epoch: int = 0
    events: tuple[Event, ...] = ()
    """Events that the activity stream has not stored yet, in order."""
    next_event_id: int = 1
    rules: tuple[Rule, ...] = ()
    """Access rules, each once and ascending; used where ``auth.enabled`` is set."""
    tokens: dict[str, Token] = {}
    """By id."""
    quotas: dict[str, Quota] = {}
    """The limits of principals, per broker."""

    def __post_init__(self) -> None:
        if not isinstance(self.streams, StreamTable):
            msgspec.structs.force_setattr(self, "streams", StreamTable(self.streams))

    @property
    def table(self) -> StreamTable:
        """The streams, with the totals over all of them."""
        assert isinstance(self.streams, StreamTable), "made one at the beginning"
        return self.streams

    def stream(self, name: str) -> StreamImage:
        """Return the stream called ``name``.

        Raises:
            UnknownStreamError: no such stream; the message lists the existing ones.
        """
        try:
            return self.streams[name]
        except KeyError:
            raise UnknownStreamError(unknown_stream_message(name, self.streams)) from None

    def partition(self, name: str, number: int) -> PartitionImage:
        """Return partition ``number`` of stream ``name``.

        Raises:
            UnknownStreamError: no such stream.
            UnknownPartitionError: no such partition.
        """
        partitions = self.stream(name).partitions
        if not 0 <= number < len(partitions):
            raise UnknownPartitionError(
                f"stream {name!r} has partitions 0 to {len(partitions) - 1}, not {number}"
            )
        return partitions[number]

    def partitions(
        self, names: Iterable[str] | None = None
    ) -> Iterator[tuple[PartitionName, PartitionImage]]:
        """Return every partition, or those of some streams, in the streams' order of creation."""
        for name in self.streams if names is None else names:
            for number, partition in enumerate(self.streams[name].partitions):
                yield PartitionName(name, number), partition

    def unsettled(self) -> Iterator[tuple[PartitionName, PartitionImage]]:
        """Return partitions of streams that the controller has to look at, in order of creation."""
        names = self.table.unsettled
        return self.partitions(sorted(names, key=lambda n: (self.streams[n].created_ns, n)))

    def with_streams(self, changed: Mapping[str, StreamImage | None]) -> "MetadataImage":
        """Return the image with streams added or replaced, and without those given as None."""
        return msgspec.structs.replace(self, streams=self.table.changed(changed))

    def with_partitions(self, changed: Mapping[PartitionName, PartitionImage]) -> "MetadataImage":
        """Return the image with some partitions replaced; each stream is copied once."""
        by_stream: dict[str, list[PartitionImage]] = {}
        for (name, number), partition in changed.items():
            parts = by_stream.setdefault(name, list(self.streams[name].partitions))
            parts[number] = partition
        return self.with_streams(
            {
                name: msgspec.structs.replace(self.streams[name], partitions=tuple(parts))
                for name, parts in by_stream.items()
            }
        )

    def flight_addresses(self, brokers: Iterable[BrokerId]) -> tuple[str, ...]:
        """Return the client addresses of brokers that are in service."""
        known = [self.brokers[broker] for broker in brokers if broker in self.brokers]
        return tuple(b.flight_address for b in known if b.flight_address and not b.is_fenced)

    def with_broker(self, broker: BrokerImage) -> "MetadataImage":
        """Return the image with one broker added or replaced."""
        return msgspec.structs.replace(self, brokers={**self.brokers, broker.id: broker})


def unknown_stream_message(name: str, streams: Collection[str]) -> str:
    """Return the error message for an unknown stream, with a remedy and the existing streams."""
    if not streams:
        return f"no stream {name!r}; create it with 'strandline stream create {name} --subject …'"
    similar = (s for s in streams if s[:1] == name[:1] and abs(len(s) - len(name)) <= 3)
    near = difflib.get_close_matches(name, itertools.islice(similar, SIMILAR_MAX), n=1)
    if near:
        return f"no stream {name!r}; did you mean {near[0]!r}?"
    some = ", ".join(sorted(streams)[:5])
    more = ", …" if len(streams) > 5 else ""
    return f"no stream {name!r}; there are: {some}{more}"

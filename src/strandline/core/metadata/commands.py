"""Commands: the only ways an image changes. Small, frozen, tagged values.

Rules: a command carries every decision in it (which replicas, which leader), so that applying it
needs no clock, no load figures and no luck. What was decided on an image that has changed since is
refused: partitions are named with their log id, which survives no deletion, and with the version
the decision was made on; brokers with their incarnation. Decoding is strict about types and caps
nothing: the log that carries commands limits their bytes.
"""

from typing import Literal

import msgspec

from strandline.config import StreamConfig
from strandline.core.metadata.access_commands import AddToken, Grant, Revoke, RevokeToken
from strandline.core.metadata.quota_commands import RemoveQuota, SetQuota
from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset, PartitionName, WrappedKey

Replicas = tuple[BrokerId, ...]
ElectionReason = Literal[
    "leader_lost", "leader_failed", "preferred", "handover", "reassignment", "operator", "unclean"
]


class CreateStream(msgspec.Struct, frozen=True, tag=True):
    """Add a stream; in a cluster with the replicas of each partition, preferred leader first."""

    config: StreamConfig
    now_ns: int
    assignment: tuple[Replicas, ...] = ()
    keys: tuple[WrappedKey, ...] = ()
    """Of an encrypted stream: its data key."""


class KeepStreamKeys(msgspec.Struct, frozen=True, tag=True):
    """Keep data keys of an encrypted stream: a new one, or some that were wrapped anew."""

    name: str
    keys: tuple[WrappedKey, ...]


class DeleteStream(msgspec.Struct, frozen=True, tag=True):
    """Remove a stream and, with it, its records."""

    name: str


class AddPartitions(msgspec.Struct, frozen=True, tag=True):
    """Give a stream more partitions; keys may then map to other partitions than before."""

    name: str
    count: int
    assignment: tuple[Replicas, ...] = ()


class AdmitBroker(msgspec.Struct, frozen=True, tag=True):
    """Let a new broker in: the others will link with it, and it may register."""

    broker: BrokerId
    peer_address: str


class RegisterBroker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A broker presents itself, at every start; it comes in fenced until it is heard regularly."""

    broker: BrokerId
    directory_id: str
    incarnation: str
    peer_address: str = ""
    flight_address: str = ""
    grpc_address: str = ""
    rack: str = ""
    beam_address: str = ""
    stored_index: int = 0
    """The last entry of the metadata log that the broker found on its disk at the start."""
    partitions_max: int = 0
    """How many partitions the broker can keep with the files that it may have open."""


class BrokerRun(msgspec.Struct, frozen=True, array_like=True):
    """One run of one broker."""

    broker: BrokerId
    incarnation: str


class Fence(msgspec.Struct, frozen=True, tag=True):
    """Take brokers out of service: no leadership, and out of each ISR that has others left."""

    runs: tuple[BrokerRun, ...]
    stored: tuple[int, ...] = ()
    """Of each run, the last entry of the metadata log that this run itself has reported as
    committed and on its disk, so that an older copy of its data directory is recognised; 0: none
    is known."""


class Unfence(msgspec.Struct, frozen=True, tag=True):
    """Take brokers into service."""

    runs: tuple[BrokerRun, ...]
    stored: tuple[int, ...] = ()
    """As ``Fence``."""


class BeginShutdown(msgspec.Struct, frozen=True, tag=True):
    """A broker is about to stop: it leads nothing new, and what it leads is handed over."""

    run: BrokerRun


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Move everything off a broker; with ``is_on`` false, stop doing so."""

    broker: BrokerId
    is_on: bool = True


class ReportStorage(msgspec.Struct, frozen=True, tag=True):
    """A broker reports that its disk takes no records (full, read-only, failing), or does again."""

    run: BrokerRun
    is_impaired: bool


class ForgetDirectory(msgspec.Struct, frozen=True, tag=True):
    """A fenced broker lost its disk: what it had counts no more, another directory may come."""

    broker: BrokerId


class RemoveBroker(msgspec.Struct, frozen=True, tag=True):
    """Let go of a broker that keeps no partition; its id is not used again."""

    broker: BrokerId


class PartitionAt(msgspec.Struct, frozen=True, array_like=True):
    """A partition as it was when something was decided about it."""

    stream: str
    partition: int
    log_id: LogId
    version: int

    @property
    def name(self) -> PartitionName:
        """The partition."""
        return PartitionName(self.stream, self.partition)


class IsrChange(msgspec.Struct, frozen=True, array_like=True):
    """The ISR as a leader of an epoch wants it."""

    at: PartitionAt
    leader_epoch: LeaderEpoch
    isr: Replicas


class ChangeIsr(msgspec.Struct, frozen=True, tag=True):
    """A leader shrinks or grows the ISR of partitions it leads."""

    leader: BrokerRun
    changes: tuple[IsrChange, ...]


class LeaderChange(msgspec.Struct, frozen=True, array_like=True):
    """One partition and its new leader."""

    at: PartitionAt
    leader: BrokerId


class ElectLeader(msgspec.Struct, frozen=True, tag=True):
    """Begin a new leadership of each partition.

    The reason ``unclean``, which only an operator gives, allows a leader that may lack committed
    records; every other reason forbids it. With ``leader_failed`` the old leader also leaves the
    ISR, because it cannot store records now; it joins again once it has caught up.
    """

    changes: tuple[LeaderChange, ...]
    reason: ElectionReason


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One partition and the replicas it is to have, preferred leader first."""

    at: PartitionAt
    target: Replicas


class ReassignReplicas(msgspec.Struct, frozen=True, tag=True):
    """Begin to move partitions: replicas are added first, the others leave when those are in sync.

    Moving back to the old replicas is how a move is called off.
    """

    moves: tuple[Move, ...]


class FinishReassignment(msgspec.Struct, frozen=True, tag=True):
    """The second half: drop the replicas that are leaving."""

    partitions: tuple[PartitionAt, ...]


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """One partition and the first offset that is kept of it."""

    at: PartitionAt
    offset: Offset


class MoveLogStarts(msgspec.Struct, frozen=True, tag=True):
    """Delete the records before an offset, on every replica.

    Decided by a broker that knows them to be committed; the version sees to it that nobody was
    elected since who may not have them.
    """

    changes: tuple[LogStart, ...]


class SkipTo(msgspec.Struct, frozen=True, tag=True):
    """Give up a partition's records and go on, empty, at an offset beyond their end.

    Decided by the leader, which takes no records meanwhile; the version sees to it that nobody else
    has come to lead.
    """

    at: PartitionAt
    offset: Offset


class AllocateProducerIds(msgspec.Struct, frozen=True, tag=True):
    """Reserve a block of producer ids for a principal; the outcome's value is the first id."""

    count: int
    owner: str = ""
    """Empty: access is not checked, and they belong to nobody."""


class SetReadonly(msgspec.Struct, frozen=True, tag=True):
    """Make partitions (none named: all) readonly, or writable again."""

    stream: str
    partitions: tuple[int, ...]
    is_on: bool
    now_ns: int


class PausePartitions(msgspec.Struct, frozen=True, tag=True):
    """Pause partitions (none named: all), or resume them.

    With ``resumes_all`` the first partition of the stream that is resumed resumes all of them.
    """

    stream: str
    partitions: tuple[int, ...]
    is_on: bool
    now_ns: int
    resumes_all: bool = False


class JoinGroup(msgspec.Struct, frozen=True, tag=True):
    """A consumer joins a group, which is made if there is none."""

    group: str
    member: str
    streams: tuple[str, ...]
    coordinator: BrokerId
    """Of a group that is made."""
    owner: str = ""
    """The principal that joins; empty where access is not checked."""


class LeaveGroup(msgspec.Struct, frozen=True, tag=True):
    """A consumer leaves a group, or has been silent for too long."""

    group: str
    member: str
    has_expired: bool = False


class MoveGroup(msgspec.Struct, frozen=True, tag=True):
    """A group gets another coordinator."""

    group: str
    coordinator: BrokerId
    epoch: int
    """Of the group when it was decided."""


class ForgetEvents(msgspec.Struct, frozen=True, tag=True):
    """The activity stream has the events up to this one."""

    through: int


class OpenSession(msgspec.Struct, frozen=True, tag=True):
    """Begin a session; the outcome's value is its client id.

    Ids are given out here and not chosen by the proposer: a retry in a session that was forgotten
    is then known as such, and can never be applied a second time.
    """


Command = (
    CreateStream
    | KeepStreamKeys
    | DeleteStream
    | AddPartitions
    | AdmitBroker
    | RegisterBroker
    | Fence
    | Unfence
    | BeginShutdown
    | Drain
    | ReportStorage
    | ForgetDirectory
    | RemoveBroker
    | ChangeIsr
    | ElectLeader
    | ReassignReplicas
    | FinishReassignment
    | MoveLogStarts
    | SkipTo
    | AllocateProducerIds
    | SetReadonly
    | PausePartitions
    | JoinGroup
    | LeaveGroup
    | MoveGroup
    | ForgetEvents
    | Grant
    | Revoke
    | AddToken
    | RevokeToken
    | SetQuota
    | RemoveQuota
    | OpenSession
)


class Proposed(msgspec.Struct, frozen=True, tag=True):
    """A command of a session: applied once, however often it is proposed.

    A session has one command under way at a time; the sequence grows with each and starts above 0.
    """

    client_id: int
    sequence: int
    command: Command


Entry = Command | Proposed
"""What an entry of the metadata log holds."""

_decoder = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """An entry as the metadata log carries it."""
    return msgspec.msgpack.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """The entry in some bytes.

    Raises:
        InvalidRecordError: it is not one; perhaps a later version wrote it.
    """
    try:
        entry: Entry = _decoder.decode(data)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a metadata command known here: {error}") from error
    return entry

"""Commands, the only ways to change an image: small, frozen, tagged values.

Rules: a command carries every decision (which replicas, which leader), so that applying it needs no
clock, no load figures and no randomness. A decision made on an outdated image is rejected:
partitions are named with their log id, which is new after a deletion, and with the version the
decision was made on; brokers are named with their incarnation. Decoding checks types strictly; the
log that carries commands limits their size. Only a token's hash is stored, so neither the log nor
its snapshots hold anything secret.
"""

from typing import Literal

import msgspec

from strandline.config import StreamConfig
from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.security.acl import Rule
from strandline.security.quota import Quota
from strandline.security.tokens import Token
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset, PartitionName, WrappedKey
from strandline.values.schema import SchemaVersion

Replicas = tuple[BrokerId, ...]
ElectionReason = Literal[
    "leader_lost", "leader_failed", "preferred", "handover", "reassignment", "operator", "unclean"
]


class CreateStream(msgspec.Struct, frozen=True, tag=True):
    """Create a stream; in a cluster with the replicas of each partition, preferred leader first."""

    config: StreamConfig
    now_ns: int
    assignment: tuple[Replicas, ...] = ()
    keys: tuple[WrappedKey, ...] = ()
    """The data key of an encrypted stream."""


class KeepStreamKeys(msgspec.Struct, frozen=True, tag=True):
    """Store data keys of an encrypted stream: a new key, or keys that were rewrapped."""

    name: str
    keys: tuple[WrappedKey, ...]


class AddSchema(msgspec.Struct, frozen=True, tag=True):
    """Add a version of a stream's schema, which was checked against the earlier ones."""

    name: str
    schema: SchemaVersion


class DeleteSchema(msgspec.Struct, frozen=True, tag=True):
    """Delete all versions of a stream's schema."""

    name: str


class UpdateStream(msgspec.Struct, frozen=True, tag=True):
    """Change the settings of a stream that may be changed."""

    name: str
    schema_validation: bool


class DeleteStream(msgspec.Struct, frozen=True, tag=True):
    """Delete a stream and its records."""

    name: str


class AddPartitions(msgspec.Struct, frozen=True, tag=True):
    """Add partitions to a stream; keys may then map to other partitions than before."""

    name: str
    count: int
    assignment: tuple[Replicas, ...] = ()


class AdmitBroker(msgspec.Struct, frozen=True, tag=True):
    """Admit a new broker: the others connect to it, and it may register."""

    broker: BrokerId
    peer_address: str


class RegisterBroker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Register a broker, at every start; it is fenced until its heartbeats arrive."""

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
    """Fence brokers: they lead nothing, and leave each ISR that has other members."""

    runs: tuple[BrokerRun, ...]
    stored: tuple[int, ...] = ()
    """For each run, the last entry of the metadata log that it reported as committed and on its
    disk; 0: unknown. By it an older copy of the data directory is recognised."""


class Unfence(msgspec.Struct, frozen=True, tag=True):
    """Unfence brokers."""

    runs: tuple[BrokerRun, ...]
    stored: tuple[int, ...] = ()
    """As in ``Fence``."""


class BeginShutdown(msgspec.Struct, frozen=True, tag=True):
    """A broker is about to stop: it gets no leaderships, and hands over those it has."""

    run: BrokerRun


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Move all replicas off a broker; with ``is_on`` false, stop doing so."""

    broker: BrokerId
    is_on: bool = True


class ReportStorage(msgspec.Struct, frozen=True, tag=True):
    """A broker reports that its disk rejects writes (full, read-only, failing), or no longer."""

    run: BrokerRun
    is_impaired: bool


class ForgetDirectory(msgspec.Struct, frozen=True, tag=True):
    """A fenced broker lost its disk: its replicas no longer count, and it may come with another."""

    broker: BrokerId


class RemoveBroker(msgspec.Struct, frozen=True, tag=True):
    """Remove a broker that has no replicas; its id is not used again."""

    broker: BrokerId


class PartitionAt(msgspec.Struct, frozen=True, array_like=True):
    """A partition with the version that a decision was based on."""

    stream: str
    partition: int
    log_id: LogId
    version: int

    @property
    def name(self) -> PartitionName:
        """The partition's name."""
        return PartitionName(self.stream, self.partition)


class IsrChange(msgspec.Struct, frozen=True, array_like=True):
    """A partition's new ISR, as proposed by the leader of an epoch."""

    at: PartitionAt
    leader_epoch: LeaderEpoch
    isr: Replicas


class ChangeIsr(msgspec.Struct, frozen=True, tag=True):
    """A leader shrinks or extends the ISR of partitions that it leads."""

    leader: BrokerRun
    changes: tuple[IsrChange, ...]


class LeaderChange(msgspec.Struct, frozen=True, array_like=True):
    """One partition and its new leader."""

    at: PartitionAt
    leader: BrokerId


class ElectLeader(msgspec.Struct, frozen=True, tag=True):
    """Begin a new leader epoch of each partition.

    The reason ``unclean``, which only an operator gives, allows a leader that may lack committed
    records; every other reason forbids it. With ``leader_failed`` the old leader also leaves the
    ISR, because it cannot store records now; it joins again once it has caught up.
    """

    changes: tuple[LeaderChange, ...]
    reason: ElectionReason


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One partition and its new replicas, preferred leader first."""

    at: PartitionAt
    target: Replicas


class ReassignReplicas(msgspec.Struct, frozen=True, tag=True):
    """Begin reassignments: replicas are added first; others leave once the new ones are in sync.

    A reassignment is cancelled by another one back to the old replicas.
    """

    moves: tuple[Move, ...]


class FinishReassignment(msgspec.Struct, frozen=True, tag=True):
    """Finish reassignments: drop the replicas that are leaving."""

    partitions: tuple[PartitionAt, ...]


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """One partition and its new log start offset."""

    at: PartitionAt
    offset: Offset


class MoveLogStarts(msgspec.Struct, frozen=True, tag=True):
    """Delete the records before an offset, on every replica.

    Proposed by a broker that knows them to be committed. The version ensures that no leader that
    may lack them was elected since.
    """

    changes: tuple[LogStart, ...]


class SkipTo(msgspec.Struct, frozen=True, tag=True):
    """Drop a partition's records and continue, empty, at an offset beyond their end.

    Proposed by the leader, which accepts no records meanwhile. The version ensures that no other
    leader was elected.
    """

    at: PartitionAt
    offset: Offset


class AllocateProducerIds(msgspec.Struct, frozen=True, tag=True):
    """Allocate a block of producer ids for a principal; the outcome's value is the first id."""

    count: int
    owner: str = ""
    """Empty: access is not checked, and the ids belong to nobody."""


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
    """A consumer joins a group, which is created if it does not exist."""

    group: str
    member: str
    streams: tuple[str, ...]
    coordinator: BrokerId
    """The coordinator of a new group."""
    owner: str = ""
    """The principal that joins; empty where access is not checked."""


class LeaveGroup(msgspec.Struct, frozen=True, tag=True):
    """A consumer leaves a group, or its session timed out."""

    group: str
    member: str
    has_expired: bool = False


class MoveGroup(msgspec.Struct, frozen=True, tag=True):
    """Move a group to another coordinator."""

    group: str
    coordinator: BrokerId
    epoch: int
    """The group's epoch at the time of the decision."""


class ForgetEvents(msgspec.Struct, frozen=True, tag=True):
    """The activity stream has stored the events up to this one."""

    through: int


class OpenSession(msgspec.Struct, frozen=True, tag=True):
    """Open a session; the outcome's value is its client id.

    The id is allocated here, not chosen by the proposer. So a retry in a forgotten session is
    recognized, and is never applied a second time.
    """


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Add rules; a rule that exists is left as it is."""

    rules: tuple[Rule, ...]


class Revoke(msgspec.Struct, frozen=True, tag=True):
    """Remove rules: all of them, or none if one does not exist."""

    rules: tuple[Rule, ...]


class AddToken(msgspec.Struct, frozen=True, tag=True):
    """Add a token for a principal, in place of its earlier one of the same id."""

    token: Token


class RevokeToken(msgspec.Struct, frozen=True, tag=True):
    """Revoke a token."""

    id: str


class SetQuota(msgspec.Struct, frozen=True, tag=True):
    """Set a principal's limits, in place of earlier ones."""

    principal: str
    quota: Quota


class RemoveQuota(msgspec.Struct, frozen=True, tag=True):
    """Remove a principal's limits."""

    principal: str


Command = (
    CreateStream
    | KeepStreamKeys
    | AddSchema
    | DeleteSchema
    | UpdateStream
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

    A session has one command in flight at a time; sequences start above 0 and grow.
    """

    client_id: int
    sequence: int
    command: Command


Entry = Command | Proposed
"""An entry of the metadata log."""

_decoder = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry for the metadata log."""
    return msgspec.msgpack.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """Decode an entry of the metadata log.

    Raises:
        InvalidRecordError: the bytes are not an entry; perhaps a later version wrote them.
    """
    try:
        entry: Entry = _decoder.decode(data)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a metadata command known here: {error}") from error
    return entry

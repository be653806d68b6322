"""Events: inputs of a replica. Times are milliseconds of the monotonic clock.

The broker's duties are written at each event; the safety of the protocol rests on them.
"""

import msgspec

from strandline.core.replication.messages import BatchRef, Buffer, Message, Session
from strandline.types import BrokerId, LeaderEpoch, Offset


class Assigned(msgspec.Struct, frozen=True):
    """Metadata gave the partition a leader, or takes it away.

    The broker hands over only assignments of a metadata image that holds its own registration
    since it started, and registering must end every leadership the broker had before. So a replica
    never leads again in an epoch in which it may have lost unsynced batches that a follower kept,
    and never follows an older epoch than before it stopped.
    """

    epoch: LeaderEpoch
    leader: BrokerId | None
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    version: int
    """The partition's version, for compare-and-set of the ISR."""
    min_isr: int = 1
    unclean: bool = False
    """An operator elected this leader by name: followers may drop committed records to agree."""
    filling: tuple[BrokerId, ...] = ()
    """Replicas of a compacted log that have not been in sync since they were added or lost their
    disk. No member of the ISR, in this version or a later one, is among them."""


class IsrChanged(msgspec.Struct, frozen=True):
    """Metadata changed the ISR within ``epoch``, on our proposal or without."""

    epoch: LeaderEpoch
    version: int
    isr: tuple[BrokerId, ...]


class IsrRejected(msgspec.Struct, frozen=True):
    """Metadata rejected a proposal. It must never be applied afterwards, not even by a repeat."""

    epoch: LeaderEpoch
    proposal: int


class Received(msgspec.Struct, frozen=True):
    """A message of another replica, as ``messages.decode`` returned it."""

    sender: BrokerId
    message: Message
    buffers: tuple[Buffer, ...] = ()


class Appended(msgspec.Struct, frozen=True):
    """Leader: batches were written to the log and the journal, not yet synced.

    Sent only after the journal accepted them: batches that a full disk undoes must not reach a
    follower.
    """

    batches: tuple[BatchRef, ...]
    buffers: tuple[Buffer, ...]


class Synced(msgspec.Struct, frozen=True):
    """A sync ended. ``offset``: the log end when it began, lowered by truncations since.

    Not sent if the log was reset since the sync began: the sync then proves nothing.
    """

    offset: Offset


class Undone(msgspec.Struct, frozen=True):
    """Follower: batches could not be stored (disk full); the log ends at ``log_end_offset``."""

    log_end_offset: Offset


class BatchesRead(msgspec.Struct, frozen=True):
    """Leader: answer to ``ReadLog``; no batches if they could not be read."""

    follower: BrokerId
    session: Session
    from_offset: Offset
    batches: tuple[BatchRef, ...]
    buffers: tuple[Buffer, ...]


class RangeRead(msgspec.Struct, frozen=True):
    """Answer to ``ReadRange``; sent only if the whole range could be read."""

    to: BrokerId
    first_offset: Offset
    batches: tuple[BatchRef, ...]
    buffers: tuple[Buffer, ...]


class CorruptionFound(msgspec.Struct, frozen=True):
    """Batches from ``first_offset`` to ``next_offset`` (exclusive) do not match their checksums."""

    first_offset: Offset
    next_offset: Offset


class LogStartMoved(msgspec.Struct, frozen=True):
    """Retention removed the records below ``log_start_offset``."""

    log_start_offset: Offset


class PeerDisconnected(msgspec.Struct, frozen=True):
    """The link to a broker broke. ``PeerConnected`` must follow once it works again.

    On both sides it comes before any message of a newer link: a session ends with its link.
    """

    broker: BrokerId


class PeerConnected(msgspec.Struct, frozen=True):
    """The link to a broker works (again); messages in flight before may be lost."""

    broker: BrokerId


class Resign(msgspec.Struct, frozen=True):
    """The broker wants to stop: accept no more records and hand over once all are safe."""


class Flush(msgspec.Struct, frozen=True):
    """Send pending messages: once per group commit after the journal write, and after a sync."""


class TimePassed(msgspec.Struct, frozen=True):
    """``deadline_ms`` is reached."""


Event = (
    Assigned
    | IsrChanged
    | IsrRejected
    | Received
    | Appended
    | Synced
    | Undone
    | BatchesRead
    | RangeRead
    | CorruptionFound
    | LogStartMoved
    | PeerDisconnected
    | PeerConnected
    | Resign
    | Flush
    | TimePassed
)

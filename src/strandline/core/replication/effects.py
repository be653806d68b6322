"""Effects: work that a replica asks for, as plain values that a broker executes in order.

Ordering rules, which the safety of the protocol rests on:

1. ``Append``, ``TruncateTo``, ``ResetTo`` and ``Repair`` change the log in the order given, and
   reach the journal in that order: a crash may undo the last of them, never one in the middle.
2. A sync covers every change made before it began, truncations too. Only then comes ``Synced``.
3. ``Send`` may leave at once. What must wait for a sync is not handed out before it: ``Acked`` only
   follows ``Synced``. ``Replicate`` leaves before the leader's own sync on purpose: the syncs of
   all replicas run side by side, and the leader counts itself only when its own has ended.
4. ``Committed`` may be checkpointed whenever convenient: an old one is safe.
5. ``ProposeIsr`` is retried until metadata has decided, and decided once: a proposal that was
   refused must not be applied from a repeat.
6. After a failed write or sync nothing more is stepped: the replica is dropped, and starts again
   from the reopened log and a new registration.
"""

from enum import StrEnum

import msgspec

from strandline.core.replication.messages import BatchRef, Buffer, Message, Session
from strandline.types import BrokerId, LeaderEpoch, Offset


class RejectReason(StrEnum):
    """Why a partition takes no records now."""

    NOT_LEADER = "not_leader"
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    RESIGNING = "resigning"
    CUT_OFF = "cut_off"
    """Said by the broker, which sees its links; a replica does not know."""


class DivergenceError(StrEnum):
    """Why a follower stands still until an operator or a new leader helps."""

    BELOW_HIGH_WATERMARK = "below_high_watermark"
    """The leader lacks records that were committed here; only an unclean election may drop them."""

    MISALIGNED = "misaligned"
    """The leader's batches or answers contradict each other: the log here is no part of its log."""


class Send(msgspec.Struct, frozen=True):
    """Send a message, with its batches, to the same partition's replica on another broker."""

    to: BrokerId
    message: Message
    buffers: tuple[Buffer, ...] = ()


class Append(msgspec.Struct, frozen=True):
    """Append batches as they are; they are contiguous with the log."""

    batches: tuple[BatchRef, ...]
    buffers: tuple[Buffer, ...]


class TruncateTo(msgspec.Struct, frozen=True):
    """Cut the log so that it ends at ``offset``, and its epochs with it."""

    offset: Offset


class ResetTo(msgspec.Struct, frozen=True):
    """Drop the log and let it start, empty, at ``offset``; then sync, even if nothing follows."""

    offset: Offset


class ReadLog(msgspec.Struct, frozen=True):
    """Read whole batches from ``from_offset``, at least one, and answer with ``BatchesRead``."""

    follower: BrokerId
    session: Session
    from_offset: Offset
    bytes_max: int


class ReadRange(msgspec.Struct, frozen=True):
    """Read the batches that cover a range and answer with ``RangeRead``, or not if corrupt."""

    to: BrokerId
    first_offset: Offset
    next_offset: Offset


class Repair(msgspec.Struct, frozen=True):
    """Put batches, once their checksums were found right, in the place of corrupt ones."""

    batches: tuple[BatchRef, ...]
    buffers: tuple[Buffer, ...]


class Committed(msgspec.Struct, frozen=True):
    """Records below ``offset`` are committed: ack and expose them."""

    offset: Offset


class ProposeIsr(msgspec.Struct, frozen=True):
    """Ask metadata to change the ISR if the partition is still at ``version``."""

    epoch: LeaderEpoch
    version: int
    isr: tuple[BrokerId, ...]
    proposal: int
    joining: tuple[tuple[BrokerId, str], ...] = ()
    """Who is new, with the incarnation that fetched. Metadata refuses unless it is the present one
    and not fenced: the disk we heard of may have been replaced since (KIP-903)."""


class RejectWrites(msgspec.Struct, frozen=True):
    """From now on records are refused for this reason; None: accepted.

    Who waits for an ack while there are not enough replicas is told so; whether the record will
    be committed is not known.
    """

    reason: RejectReason | None


class TransferLeadership(msgspec.Struct, frozen=True):
    """All records are committed and none are taken: one of ``candidates`` can lead at once."""

    candidates: tuple[BrokerId, ...]


class AskMetadata(msgspec.Struct, frozen=True):
    """Another replica knows of ``epoch``; the assignment here is old."""

    epoch: LeaderEpoch


class Halted(msgspec.Struct, frozen=True):
    """This follower cannot go on; alert somebody."""

    trouble: DivergenceError


Effect = (
    Send
    | Append
    | TruncateTo
    | ResetTo
    | ReadLog
    | ReadRange
    | Repair
    | Committed
    | ProposeIsr
    | RejectWrites
    | TransferLeadership
    | AskMetadata
    | Halted
)

"""Effects: work that a replica asks for, as plain values that a broker executes in order.

Ordering rules, which the safety of the protocol rests on:

1. ``Append``, ``TruncateTo``, ``ResetTo`` and ``Repair`` change the log in the order given, and
   reach the journal in that order: a crash may undo the last of them, never one in the middle.
2. A sync covers every change made before it began, truncations too. Only then comes ``Synced``.
3. ``Send`` may be executed at once. Messages that must wait for a sync are not returned before it:
   ``Acked`` only follows ``Synced``. ``Replicate`` is sent before the leader's own sync on purpose:
   the syncs of all replicas run in parallel, and the leader counts itself only after its own.
4. ``Committed`` may be checkpointed at any later time: an old value is safe.
5. ``ProposeIsr`` is retried until metadata has decided, and decided once: a repeat of a
   proposal that was rejected must not be applied.
6. After a failed write or sync the replica gets no more events. A new one starts from the reopened
   log, with a new registration.
"""

from enum import StrEnum

import msgspec

from strandline.core.replication.messages import BatchRef, Buffer, Message, Session
from strandline.types import BrokerId, LeaderEpoch, Offset


class RejectReason(StrEnum):
    """The reason for which a partition rejects records."""

    NOT_LEADER = "not_leader"
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    RESIGNING = "resigning"
    CUT_OFF = "cut_off"
    """The broker has lost contact with the controller; set by the broker, not by a replica."""


class DivergenceError(StrEnum):
    """The reason for which a follower halts until there is a new leader."""

    BELOW_HIGH_WATERMARK = "below_high_watermark"
    """The leader lacks records that are committed here; only an unclean election may drop them."""

    MISALIGNED = "misaligned"
    """The leader's batches or answers contradict each other, so the logs cannot be aligned."""


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
    """Truncate the log and its epochs to end at ``offset``."""

    offset: Offset


class ResetTo(msgspec.Struct, frozen=True):
    """Empty the log and let it start at ``offset``; then sync, even if nothing is appended."""

    offset: Offset


class ReadLog(msgspec.Struct, frozen=True):
    """Read whole batches from ``from_offset``, at least one, and answer with ``BatchesRead``."""

    follower: BrokerId
    session: Session
    from_offset: Offset
    bytes_max: int


class ReadRange(msgspec.Struct, frozen=True):
    """Read the batches that cover a range; answer with ``RangeRead`` unless they are corrupt."""

    to: BrokerId
    first_offset: Offset
    next_offset: Offset


class Repair(msgspec.Struct, frozen=True):
    """Verify the checksums of received batches and put them in the place of corrupt ones."""

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
    """New members, with the incarnation that fetched. Metadata rejects the proposal unless these
    are the current incarnations and not fenced: a disk may have been replaced since (KIP-903)."""


class RejectWrites(msgspec.Struct, frozen=True):
    """Reject records for this reason from now on; None: accept them.

    If there are not enough replicas, report that to publishers that wait for an ack: whether their
    records will be committed is unknown.
    """

    reason: RejectReason | None


class TransferLeadership(msgspec.Struct, frozen=True):
    """Hand the leadership to one of ``candidates``: they have all records that were accepted."""

    candidates: tuple[BrokerId, ...]


class AskMetadata(msgspec.Struct, frozen=True):
    """Ask for newer metadata: another replica has sent a message of ``epoch``."""

    epoch: LeaderEpoch


class Halted(msgspec.Struct, frozen=True):
    """Report that this follower cannot continue."""

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

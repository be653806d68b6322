"""Messages between the replicas of one partition, and their encoding in frames.

A follower opens with ``Fetch``. The leader checks its epoch and whether the logs agree. If they
diverge, it answers where (``Diverged``, ``StartAt``), else it streams ``Replicate``. The follower
answers ``Acked`` after its own sync. An idle partition sends nothing.

Rules: every message carries the sender's leader epoch; batches travel beside the message as raw
buffers, in the order of its ``BatchRef``s; a new field goes last, with a default, so that old and
new brokers understand each other.
"""

from itertools import pairwise
from typing import Annotated, NewType

import msgspec

from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.types import LeaderEpoch, Offset

Buffer = bytes | bytearray | memoryview
"""An encoded batch; a receiver must not change it."""

Session = NewType("Session", int)
"""Number of a session between a follower and its leader; the follower counts up."""

NO_EPOCH = LeaderEpoch(-1)
"""The last epoch of a log without batches."""

_NotNegative = msgspec.Meta(ge=0)
_At = Annotated[Offset, _NotNegative]
_Epoch = Annotated[LeaderEpoch, _NotNegative]
_EpochOrNone = Annotated[LeaderEpoch, msgspec.Meta(ge=-1)]
_Session = Annotated[Session, _NotNegative]


class BatchRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a batch's header that replication needs; ``next_offset`` is exclusive."""

    base_offset: _At
    next_offset: _At
    leader_epoch: _Epoch
    size: Annotated[int, _NotNegative]


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Follower to leader: my log ends here; send what follows."""

    epoch: _Epoch
    session: _Session
    end_offset: _At
    last_epoch: _EpochOrNone
    incarnation: str = ""
    """Incarnation of the follower's broker: messages of an earlier one prove nothing about its
    disk."""


class Fenced(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Receiver to a sender with an older epoch: there is a newer one, ``epoch``."""

    epoch: _Epoch


class Diverged(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Leader to follower: the logs differ; my last epoch that is not above yours ends there."""

    epoch: _Epoch
    session: _Session
    last_epoch: _Epoch
    end_offset: _At


class StartAt(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Leader to follower: your log cannot be compared with mine; start empty at this offset."""

    epoch: _Epoch
    session: _Session
    log_start_offset: _At


class Replicate(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Leader to follower: batches from ``base_offset`` on; none to send the high watermark only."""

    epoch: _Epoch
    session: _Session
    base_offset: _At
    high_watermark: _At
    batches: tuple[BatchRef, ...] = ()
    wants_ack: bool = False
    """Answer at once, even if nothing new became durable."""
    min_replica_offset: _At = Offset(0)
    """The offset below which records are on the disk of every replica, in sync or not."""


class Acked(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Follower to leader: everything below ``durable_offset`` is synced here."""

    epoch: _Epoch
    session: _Session
    durable_offset: _At
    high_watermark: _At
    """The largest high watermark that the follower has received; the leader does not repeat it."""


class FetchRange(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Replica to replica: my batches in this range are corrupt, send yours."""

    epoch: _Epoch
    first_offset: _At
    next_offset: _At


class Range(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replica to replica: the batches that were asked for."""

    epoch: _Epoch
    first_offset: _At
    batches: tuple[BatchRef, ...]


Message = Fetch | Fenced | Diverged | StartAt | Replicate | Acked | FetchRange | Range

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message as a frame's header; its batches are the frame's attachments."""
    return _encoder.encode(message)


def decode(header: Buffer, buffers: list[Buffer]) -> Message:
    """Decode a peer's message and check it against its attachments.

    Raises:
        InvalidRecordError: not a message, or its batches do not match the buffers.
    """
    try:
        message: Message = _decoder.decode(header)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a replication message: {error}") from error
    refs = message.batches if isinstance(message, Replicate | Range) else ()
    if [ref.size for ref in refs] != [len(buffer) for buffer in buffers]:
        raise InvalidRecordError(f"{len(buffers)} batches came with a message of {len(refs)}")
    if not in_row(refs):
        raise InvalidRecordError("the batches of a message are not contiguous")
    return message


def in_row(refs: tuple[BatchRef, ...]) -> bool:
    """Whether the batches are contiguous and their epochs ascend."""
    if any(ref.base_offset >= ref.next_offset for ref in refs):
        return False
    return all(
        a.next_offset == b.base_offset and a.leader_epoch <= b.leader_epoch
        for a, b in pairwise(refs)
    )

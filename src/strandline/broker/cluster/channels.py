"""The three channels of a peer link and the contents of their frames.

Channel 1 carries the messages of the consensus group. Channel 2 carries the messages of replicas:
the log id, then the message; batches are attachments. Channel 3 carries requests and their answers.

Rules: a new field goes last, with a default, so that old and new brokers understand each other. A
message that cannot be decoded is the peer's error.
"""

import struct
from typing import Annotated, Final, Literal

import msgspec

from strandline.broker.peers.frame import Frame
from strandline.core.metadata.commands import BrokerRun
from strandline.core.metadata.outcome import CommandOutcome
from strandline.core.raft.messages import Envelope
from strandline.core.replication import messages
from strandline.core.replication.events import Received
from strandline.core.replication.messages import Message, Range, Replicate
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer, TransactionPartition
from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.record.batch import read_header
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset

CONSENSUS: Final = 1
REPLICATION: Final = 2
REQUESTS: Final = 3
TRACE: Final = 4
"""The channel of vector clocks, if a trace is written: see ``trace``."""
_LOG_ID = struct.Struct("<Q")
TIMEOUT_MS_MAX: Final = 60_000


class Propose(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Asks the quorum's leader to propose an entry."""

    number: int
    entry: bytes
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=TIMEOUT_MS_MAX)]


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to ``Propose``: the outcome of the entry."""

    number: int
    outcome: CommandOutcome
    index: int = 0
    """An index of the quorum's log, at or after the entry, for the caller to wait for."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The answer to ``Propose`` if the entry was not decided here, or not in time."""

    number: int
    code: str
    message: str


class BrokerHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The heartbeat of a broker's run, for the quorum's leader."""

    run: BrokerRun
    stored_index: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The last entry of the metadata log that is committed and on this broker's disk."""


class WriteMarker(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Asks a partition's leader to write the beginning or the end of a transaction."""

    number: int
    place: TransactionPartition
    producer: TransactionalProducer
    kind: MarkerKind


class MarkerWritten(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The answer to ``WriteMarker``: the marker is committed, or, with a failure, may not be."""

    number: int
    failure: str


class LogEndsRequest(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Asks for the log end offsets of these logs' replicas; sent by the controller."""

    number: int
    log_ids: tuple[LogId, ...]


class LogEndsResponse(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The answer to ``LogEndsRequest``: of each log found, the last epoch and the end offset."""

    number: int
    ends: tuple[tuple[LogId, tuple[LeaderEpoch, Offset]], ...]


class ReadIndexRequest(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Asks the quorum's leader for the current commit index."""

    number: int


class ReadIndexResponse(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The answer to ``ReadIndexRequest``: the commit index; with a failure it is unknown."""

    number: int
    index: int
    failure: str = ""


class StreamOpenRequest(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Asks a leader to answer once a stream is open and what is published to it arrives."""

    number: int
    name: str
    created_ns: int
    partitions: int


class StreamOpened(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The answer to ``StreamOpenRequest``: the stream is open."""

    number: int


class ConsumerRequest(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Asks the group coordinator to store, delete, claim or list NATS consumers."""

    number: int
    what: Literal["keep", "new", "delete", "claim", "list"]
    group: str
    """The group of one consumer, or the common prefix of several."""
    positions: dict[str, dict[int, int]] = {}
    consumer: str = ""
    epoch: int = 0


class ConsumerResponse(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The answer to ``ConsumerRequest``: the result or, if there is a code, the error."""

    number: int
    consumers: dict[str, str] = {}
    code: str = ""
    message: str = ""


Answer = (
    Decided
    | Failed
    | MarkerWritten
    | LogEndsResponse
    | ReadIndexResponse
    | StreamOpened
    | ConsumerResponse
)
Request = (
    Propose
    | BrokerHeartbeat
    | WriteMarker
    | LogEndsRequest
    | ReadIndexRequest
    | StreamOpenRequest
    | ConsumerRequest
    | Answer
)

_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode a message of the consensus group as a frame's header."""
    return _encode(envelope)


def decode_envelope(frame: Frame, sender: BrokerId, me: BrokerId) -> Envelope:
    """Decode a message of the consensus group; check that it is from ``sender`` to ``me``.

    Raises:
        InvalidRecordError: it is not, or the frame has no such message.
    """
    try:
        envelope = _decode_envelope(frame.header)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a consensus message: {error}") from error
    if (envelope.sender, envelope.receiver) != (sender, me):
        raise InvalidRecordError(f"a message from {envelope.sender} to {envelope.receiver}")
    return envelope


def encode_request(request: Request) -> bytes:
    """Encode a request or an answer as a frame's header."""
    return _encode(request)


def decode_request(frame: Frame) -> Request:
    """Decode the request or answer in a frame.

    Raises:
        InvalidRecordError: the frame has no request or answer.
    """
    try:
        request: Request = _decode_request(frame.header)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a request: {error}") from error
    return request


def encode_replication(log_id: LogId, message: Message) -> bytes:
    """Encode a message between replicas as a frame's header."""
    return _LOG_ID.pack(log_id) + messages.encode(message)


def decode_replication(frame: Frame, sender: BrokerId) -> tuple[LogId, Received]:
    """Decode a replication frame into its log id and event.

    Raises:
        InvalidRecordError: the frame has no message, or its batches do not match the message.
        CorruptBatchError: a batch is corrupt.
    """
    if len(frame.header) < _LOG_ID.size:
        raise InvalidRecordError("a replication message is cut short")
    (log_id,) = _LOG_ID.unpack_from(frame.header)
    message = messages.decode(frame.header[_LOG_ID.size :], list(frame.attachments))
    if isinstance(message, Replicate | Range):
        for ref, batch in zip(message.batches, frame.attachments, strict=True):
            _check_batch(ref, batch)
    return LogId(log_id), Received(sender, message, frame.attachments)


def _check_batch(ref: messages.BatchRef, batch: memoryview) -> None:
    """Check that a batch is the one that the message names; the frame's CRC covers its bytes."""
    header = read_header(batch)
    found = header.base_offset, header.next_offset, header.leader_epoch, header.length
    if found != (ref.base_offset, ref.next_offset, ref.leader_epoch, len(batch)):
        raise InvalidRecordError(f"batch {found} was sent instead of {ref}")

"""Replies to publishers: JetStream's PubAck and error JSON, and Liftbridge's Ack.

Rules: a sequence is offset + 1, as everywhere in NATS. ``"partition"`` is added for partitions
above 0; standard clients ignore it. Replies are never parsed here. The error numbers are
nats-server's, so that standard clients raise their own exceptions; Strandline's stable code is in
``"code"`` of the outer object.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from strandline.broker.write_path.pending import ChunkAckSink
from strandline.clock import Clock
from strandline.errors import (
    DiskFullError,
    EncryptionKeyError,
    InvalidRequestError,
    NotLeaderError,
    RecordTooLargeError,
    RepeatedMessageError,
    RollupError,
    StrandlineError,
    StreamMismatchError,
    UnavailableError,
    WrongLastSequenceError,
)
from strandline.record import envelope
from strandline.servers.nats.backpressure import AckedRun, Reading
from strandline.speedups import ack_lines
from strandline.types import Offset, PartitionName

_ERROR_NUMBERS: tuple[tuple[type[StrandlineError], int, int], ...] = (
    # (class, HTTP-like code, nats-server's err_code); the first class that matches is used
    (WrongLastSequenceError, 400, 10071),
    (RecordTooLargeError, 400, 10054),
    (StreamMismatchError, 400, 10060),
    (RollupError, 500, 10111),
    (RepeatedMessageError, 400, 10201),
    (InvalidRequestError, 400, 10003),
    (DiskFullError, 503, 10023),
    (UnavailableError, 503, 10008),
    (StrandlineError, 500, 10077),
)
TTL_DISABLED = "per-message TTL is disabled"
COUNTERS_DISABLED = "message counters is disabled"
SCHEDULES_DISABLED = "message schedules is disabled"
_DISABLED_NUMBERS = {TTL_DISABLED: 10166, COUNTERS_DISABLED: 10168, SCHEDULES_DISABLED: 10188}
"""nats-server's text → its err_code, for features that are off."""
DESCRIPTION_MAX = 1000
"""The longest error text in characters; it may quote a publisher."""
_ENVELOPE_ERRORS: tuple[tuple[type[StrandlineError], envelope.AckError], ...] = (
    (WrongLastSequenceError, envelope.AckError.INCORRECT_OFFSET),
    (RecordTooLargeError, envelope.AckError.TOO_LARGE),
    (EncryptionKeyError, envelope.AckError.ENCRYPTION),
)


def pub_ack(partition: PartitionName, offset: Offset, *, duplicate: bool = False) -> bytes:
    """Encode JetStream's PubAck as JSON."""
    before, after = _pub_ack_around_sequence(partition)
    return before + b"%d" % (offset + 1) + after + (b',"duplicate":true}' if duplicate else b"}")


def _pub_ack_around_sequence(partition: PartitionName) -> tuple[bytes, bytes]:
    """Return the parts of a PubAck before and after its sequence, without the closing brace."""
    before = b'{"stream":%b,"seq":' % msgspec.json.encode(partition.stream)
    return before, b',"partition":%d' % partition.partition if partition.partition else b""


def error_reply(error: StrandlineError) -> bytes:
    """Encode JetStream's error response as JSON."""
    return msgspec.json.encode({"error": error_body(error), "code": error.code, "seq": 0})


def error_body(error: StrandlineError) -> dict[str, object]:
    """Return an error in the form that JetStream's responses use."""
    code, number = next(
        (code, number) for cls, code, number in _ERROR_NUMBERS if isinstance(error, cls)
    )
    number = _DISABLED_NUMBERS.get(error.message, number)
    return {"code": code, "err_code": number, "description": error.message[:DESCRIPTION_MAX]}


class PubAckLines:
    """An encoder for the lines with PubAcks on one listener's connections.

    Args:
        operation: the protocol's operation and a space.
    """

    def __init__(self, operation: bytes) -> None:
        self._operation = operation
        self._around: dict[PartitionName, tuple[bytes, bytes]] = {}

    def encode(self, acks: Iterable[AckedRun], sids: Sequence[bytes | None] | None = None) -> bytes:
        """Encode PubAcks.

        Args:
            acks: the runs of records to acknowledge.
            sids: the sid of the subscription that receives each reply, or None if there is none;
                None instead of the list where lines have no sids.
        """
        runs = []
        for partition, offset, replies in acks:
            around = self._around.get(partition)
            if around is None:
                before, after = _pub_ack_around_sequence(partition)
                around = self._around[partition] = before, after + b"}"
            before, after = around
            runs.append((before, after, offset + 1, replies))
        return ack_lines(self._operation, runs, sids)

    def clear(self) -> None:
        """Forget all partitions, because streams have changed."""
        self._around.clear()


class ReplySink(ChunkAckSink, Reading, Protocol):
    """The receiver of replies: a connection of the ingest listener, or that to nats-server.

    It is an ack sink that answers with PubAcks; an ack's token is the reply subject.
    """

    @property
    def is_alone(self) -> bool:
        """Whether no other broker receives the same messages, so that no other can answer."""
        ...

    @property
    def answers_leaderless(self) -> bool:
        """Whether this broker answers for partitions without a leader."""
        ...

    def deliver(self, to: bytes, payload: bytes) -> None:
        """Queue a message to the subject ``to``; never raises."""
        ...


def is_left_to_others(error: StrandlineError, sink: ReplySink) -> bool:
    """Return whether another broker, which received the message as well, answers it.

    That is the partition's leader. Without a leader it is the controller: it learns of a new
    leader first, so it does not reject a message that the new leader stores.
    """
    if sink.is_alone or not isinstance(error, NotLeaderError):
        return False
    return not (error.is_leaderless and sink.answers_leaderless)


class EnvelopeResponder:
    """An ack sink that answers one Liftbridge message on its ack inbox and reply subject.

    Args:
        message: the message in the envelope.
        sink: receives the replies.
        subject: the NATS subject of the message.
        stream_subject: the stream's subject.
        clock: the time of the commit.
    """

    __slots__ = ("_clock", "_message", "_received_ns", "_sink", "_stream_subject", "_subject")

    def __init__(
        self,
        message: envelope.EnvelopeMessage,
        sink: ReplySink,
        *,
        subject: str,
        stream_subject: str,
        clock: Clock,
    ) -> None:
        self._message = message
        self._sink = sink
        self._subject = subject
        self._stream_subject = stream_subject
        self._clock = clock
        self._received_ns = clock.now_ns()

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Send the ack, unless the policy is NONE; ``token`` is the reply subject or None."""
        if token is not None:
            self._sink.acked(token, partition, offset, duplicate=duplicate)
        if self._message.ack_policy in (envelope.AckPolicy.LEADER, envelope.AckPolicy.ALL):
            self._send(envelope.AckError.OK, stream=partition.stream, offset=offset)

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Send the reason, whatever the ack policy."""
        if token is not None:
            self._sink.rejected(token, error)
        if is_left_to_others(error, self._sink):
            return
        reason = next(
            (found for cls, found in _ENVELOPE_ERRORS if isinstance(error, cls)),
            envelope.AckError.UNKNOWN,
        )
        self._send(reason, stream=self._message.stream, offset=0)

    def _send(self, error: envelope.AckError, *, stream: str, offset: int) -> None:
        message = self._message
        if not message.ack_inbox:
            return
        ack = envelope.EnvelopeAck(
            stream=stream,
            partition_subject=self._stream_subject,
            message_subject=self._subject,
            offset=offset,
            ack_inbox=message.ack_inbox,
            correlation_id=message.correlation_id,
            ack_policy=message.ack_policy,
            reception_timestamp_ns=self._received_ns,
            commit_timestamp_ns=self._clock.now_ns(),
            error=error,
        )
        self._sink.deliver(message.ack_inbox.encode(), envelope.encode_ack(ack))

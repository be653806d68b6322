"""The Append rpc: replies in order, each sent when its proposals are durable.

A request that has one proposal and is one DATA frame is parsed by hand, and its reply is encoded by
hand, because protobuf costs as much as storing the record.

Invariants: the requests after ``_answered`` up to ``_sequence`` are in flight; ``_early`` holds
replies that wait for earlier ones. After a redirect, a full disk or a failure nothing more is sent.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.broker.write_path.partition import Partition
from strandline.config import LimitsConfig
from strandline.errors import DiskFullError, NotLeaderError, StrandlineError
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.grpc_messages import PREFIX_BYTES, framed
from strandline.servers.grpc.methods import parsed
from strandline.servers.grpc.status import GrpcStatus, OversizeError, RpcError, rpc_error
from strandline.types import Offset, PartitionName

COLUMNS_FROM: Final = 32
"""A request with at least this many proposals is appended as one Arrow batch, which is cheaper.
Smaller requests share a batch with others."""
DUE_MAX: Final = 1024
"""The limit of requests in flight on one stream."""
OFFSET_BYTES: Final = 4
"""The size of one value's end offset in an Arrow column."""
BATCH_SLACK_BYTES: Final = 1024
"""The limit of an Arrow batch's overhead besides its values and their end offsets."""
OVER: Final = RpcError(GrpcStatus.OK, "")


SHORT_HEAD: Final = b"\0\0\0%c%c\x08%b\x12%c"
LONG_HEAD: Final = SHORT_HEAD + b"%c"
"""The first bytes of a request with one proposal: gRPC's prefix, sequence, proposal's size.

``SHORT_HEAD`` is for proposals of up to ``SHORT_MAX`` bytes.
"""
SHORT_MAX: Final = 127
"""The largest proposal whose size is encoded in one byte."""
ONE_INDEX: Final = b"\0\0\0\0%c\x0a%c\x08%b\x12%c%b"
"""The reply to a request with one proposal: prefix, ok, sequence, one index."""


class Several(NamedTuple):
    """The ack token of a request with several proposals; that of a single one is the sequence."""

    sequence: int
    proposals: int
    before: int
    """How many proposals of the request precede the one whose offset is acknowledged."""


class Reply(NamedTuple):
    """An encoded reply to a request."""

    data: bytes
    ending: RpcError | None = None
    """The status that ends the stream after this reply; None if the stream continues."""


class AppendStream:
    """A stream of requests; it handles their messages and is the ack sink of their records.

    Args:
        call: the call.
        partition: the partition to append to.
        limits: the broker's limits.
        proposal_bytes_max: the limit of one proposal.
        is_leading: returns whether this broker leads the partition; raises RpcError to end the
            call.
        redirect: returns the leader's address.
    """

    def __init__(
        self,
        call: Call,
        partition: Partition,
        limits: LimitsConfig,
        *,
        proposal_bytes_max: int,
        is_leading: Callable[[Partition], bool],
        redirect: Callable[[], pb.Redirect],
    ) -> None:
        self._call = call
        self._partition = partition
        self._subject = partition.config.subject
        self._record_bytes_max = limits.record_bytes
        self._batch_bytes_max = limits.batch_bytes - BATCH_SLACK_BYTES
        self._proposal_bytes_max = max(
            min(proposal_bytes_max, self._batch_bytes_max), limits.record_bytes
        )
        self._is_leading = is_leading
        self._redirect = redirect
        self._sequence = self._answered = 0
        self._early: dict[int, Reply] = {}
        self._is_redirected = False

    @property
    def is_full(self) -> bool:
        """Whether the sender must wait, because too many requests are in flight."""
        return self._sequence - self._answered >= DUE_MAX

    def take(self, messages: list[bytes]) -> None:
        """Append the proposals of requests.

        Raises:
            RpcError: a message is not a request, or its sequence is wrong.
            OversizeError: a proposal is too large.
        """
        if self._is_redirected:
            return
        if self._is_leading(self._partition):
            for message in messages:
                if self._call.status is not None:
                    return  # a reply has ended the stream: ignore later requests
                self._append(parsed(pb.AppendRequest, message))
        else:
            self._is_redirected = True
            self._sequence += 1
            self._settle(self._sequence, pb.AppendReply(redirect=self._redirect()), OVER)

    def take_whole(self, buffer: bytes, start: int, end: int) -> bool:
        """Append a request that has one proposal; return False to leave any other to ``take``.

        Raises:
            RpcError: the caller may no longer append.
        """
        sequence = self._sequence + 1
        message_bytes = end - start - PREFIX_BYTES
        packed = varint(sequence)
        size = message_bytes - len(packed) - 3
        if size > SHORT_MAX:
            size -= 1
            head = LONG_HEAD % (
                message_bytes >> 8,
                message_bytes & 0xFF,
                packed,
                size & 0x7F | 0x80,
                size >> 7,
            )
        elif size >= 0:
            head = SHORT_HEAD % (0, message_bytes, packed, size)
        else:
            return False
        if (
            not buffer.startswith(head, start)
            or size > self._record_bytes_max
            or sequence - self._answered >= DUE_MAX
            or self._is_redirected
            or not self._is_leading(self._partition)
        ):
            return False
        self._sequence = sequence
        value = buffer[end - size : end]
        self._partition.append(value, subject=self._subject, ack_sink=self, token=sequence)
        return True

    def _append(self, request: pb.AppendRequest) -> None:
        proposals = request.proposals
        self._sequence += 1
        if request.sequence != self._sequence:
            text = f"sequence {request.sequence}; {self._sequence} is the next on this stream"
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
        sequence, count = self._sequence, len(proposals)
        largest = max(map(len, proposals), default=0)
        if largest > self._proposal_bytes_max:
            text = (
                f"proposal of {largest} bytes; at most {self._proposal_bytes_max} are taken: raise "
                "grpc.beam_record_bytes and limits.batch_bytes, or append smaller ones"
            )
            raise OversizeError(GrpcStatus.INVALID_ARGUMENT, text)
        if not count:
            self._settle(sequence, pb.AppendReply(ok=pb.AppendReply.OK(sequence=sequence)))
        elif count >= COLUMNS_FROM or largest > self._record_bytes_max:
            self._append_columns(sequence, proposals)
        else:
            append, subject = self._partition.append, self._subject
            for value in proposals[:-1]:
                append(value, subject=subject)
            due = sequence if count == 1 else Several(sequence, count, count - 1)
            append(proposals[-1], subject=subject, ack_sink=self, token=due)

    def _append_columns(self, sequence: int, proposals: Sequence[bytes]) -> None:
        """Append proposals in as few batches as their size allows."""
        first, size, sizes = 0, 0, [len(value) + OFFSET_BYTES for value in proposals]
        for number, more in enumerate(sizes):
            if size + more > self._batch_bytes_max and number > first:
                self._partition.append_arrow(_batch(proposals[first:number]))
                first, size = number, 0
            size += more
        token = Several(sequence, len(proposals), first)
        self._partition.append_arrow(_batch(proposals[first:]), ack_sink=self, token=token)

    def end_input(self) -> None:
        """Record that no more requests will come; the last reply then ends the stream."""
        if self._answered == self._sequence:
            self._call.finish(GrpcStatus.OK)

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002  there is only one
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  proposals have no ids
    ) -> None:
        """Queue the reply for stored proposals."""
        if isinstance(token, Several):
            first = offset - token.before
            indexes = range(first + 1, first + 1 + token.proposals)
            ok = pb.AppendReply.OK(sequence=token.sequence, indexes=indexes)
            self._settle(token.sequence, pb.AppendReply(ok=ok))
            return
        assert isinstance(token, int), "given with the record"
        reply, call = one_index(token, offset + 1), self._call
        if token != self._answered + 1:
            self._early[token] = Reply(reply)
            return
        self._answered = token
        call.answer(reply)
        if self._early or call.input_ended or call.held_bytes:
            self._send()

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Queue the reply for proposals that were rejected or whose outcome is unknown."""
        sequence = token.sequence if isinstance(token, Several) else token
        assert isinstance(sequence, int), "given with the records"
        if isinstance(error, NotLeaderError):
            self._settle(sequence, pb.AppendReply(redirect=self._redirect()), OVER)
        elif isinstance(error, DiskFullError):
            self._settle(sequence, pb.AppendReply(full=True), OVER)
        else:
            self._early[sequence] = Reply(b"", rpc_error(error))
            self._send()

    def _settle(self, sequence: int, reply: pb.AppendReply, ending: RpcError | None = None) -> None:
        """Store the reply to a request, and send all replies whose turn it is."""
        self._early[sequence] = Reply(framed(reply.SerializeToString()), ending)
        self._send()

    def _send(self) -> None:
        """Send the replies that do not wait for an earlier one."""
        call = self._call
        while (reply := self._early.pop(self._answered + 1, None)) is not None:
            self._answered += 1
            call.send_framed(reply.data)
            if reply.ending is not None:
                self._answered = self._sequence
                call.finish(reply.ending.status, reply.ending.text)
        under_way = self._sequence - self._answered
        if not under_way and call.input_ended:
            call.finish(GrpcStatus.OK)
        elif call.held_bytes and under_way <= DUE_MAX // 2:
            call.resume_sender()


def one_index(sequence: int, index: int) -> bytes:
    """Encode the reply to a request with one proposal, by hand: no message is more frequent."""
    first, packed = varint(sequence), varint(index)
    index_bytes = len(packed)
    size = len(first) + index_bytes + 3
    return ONE_INDEX % (size + 2, size, first, index_bytes, packed)


def varint(value: int) -> bytes:
    """Encode a number as a protobuf varint, in one expression for most values."""
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80)) + varint(value >> 14)


def _batch(values: Sequence[bytes]) -> pa.RecordBatch:
    """Return values as a column, without ``pa.array``, which imports pandas if installed."""
    ends = np.zeros(len(values) + 1, dtype="<i4")
    np.cumsum([len(value) for value in values], out=ends[1:])
    data = pa.py_buffer(b"".join(values))
    column = pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), data])
    return pa.RecordBatch.from_arrays([column], ["value"])

"""Append: requests as they come, replies in their order, none before its proposals are safe.

Invariant: ``_due`` holds the replies of all requests that are not answered, in order; its head is
the next to be sent. After a redirect, a full disk or a failure nothing more is sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from strandline.broker.partition import Partition
from strandline.config import LimitsConfig
from strandline.errors import DiskFullError, NotLeaderError, StrandlineError
from strandline.frontends.grpc._generated import logspec_pb2 as pb
from strandline.frontends.grpc.calls import Call, parsed
from strandline.frontends.grpc.framing import framed
from strandline.frontends.grpc.status import RpcError, Status, rpc_error
from strandline.types import Offset, PartitionName

COLUMNS_FROM: Final = 32
"""From so many proposals on a request goes in as one Arrow batch: cheaper, and a batch of its own,
while smaller ones share a batch with their neighbours."""
DUE_MAX: Final = 1024
"""Requests of one stream that may be under way."""
OVER: Final = RpcError(Status.OK, "")


class Due:
    """The reply to one request; a responder's token."""

    __slots__ = ("count", "ending", "is_first", "reply", "sequence")

    def __init__(self, sequence: int, count: int) -> None:
        self.sequence = sequence
        self.count = count
        self.is_first = False
        """Whether the responder is told the offset of the first proposal, not of the last."""
        self.reply: bytes | None = None
        """As it is sent, once it is known."""
        self.ending: RpcError | None = None
        """How the stream ends behind it."""


class AppendStream:
    """One stream of requests; takes its messages, and is the responder of its records.

    Args:
        call: the stream.
        partition: where proposals go.
        limits: the broker's.
        is_leading: whether the partition is led here.
        redirect: where it is led instead.
    """

    def __init__(
        self,
        call: Call,
        partition: Partition,
        limits: LimitsConfig,
        *,
        is_leading: Callable[[Partition], bool],
        redirect: Callable[[], pb.Redirect],
    ) -> None:
        self._call = call
        self._partition = partition
        self._subject = partition.config.subject
        self._record_bytes_max = limits.record_bytes
        self._is_leading = is_leading
        self._redirect = redirect
        self._due: deque[Due] = deque()
        self._sequence = 0

    @property
    def is_full(self) -> bool:
        """Whether so many requests are under way that the sender is to wait."""
        return len(self._due) >= DUE_MAX

    def take(self, messages: list[bytes]) -> None:
        """Append the proposals of requests.

        Raises:
            RpcError: no request, a wrong sequence, or a proposal that is too large.
        """
        if self._is_leading(self._partition):
            for message in messages:
                if self._call.status is not None:
                    return  # a reply has ended the stream: nothing counts behind it
                self._append(parsed(pb.AppendRequest, message))
        else:
            due = Due(0, 0)
            self._due.append(due)
            self._settle(due, pb.AppendReply(redirect=self._redirect()), OVER)

    def _append(self, request: pb.AppendRequest) -> None:
        proposals = request.proposals
        self._sequence += 1
        if request.sequence != self._sequence:
            text = f"sequence {request.sequence}; {self._sequence} is the next on this stream"
            raise RpcError(Status.INVALID_ARGUMENT, text)
        for value in proposals:
            if len(value) > self._record_bytes_max:
                text = (
                    f"proposal of {len(value)} bytes; limits.record_bytes is "
                    f"{self._record_bytes_max}"
                )
                raise RpcError(Status.INVALID_ARGUMENT, text)
        count = len(proposals)
        due = Due(self._sequence, count)
        self._due.append(due)
        if not count:
            self._settle(due, pb.AppendReply(ok=pb.AppendReply.OK(sequence=due.sequence)))
        elif count >= COLUMNS_FROM:
            due.is_first = True
            batch = pa.RecordBatch.from_arrays([_column(proposals)], ["value"])
            self._partition.append_arrow(batch, responder=self, token=due)
        else:
            append, subject = self._partition.append, self._subject
            for value in proposals[:-1]:
                append(value, subject=subject)
            append(proposals[-1], subject=subject, responder=self, token=due)

    def end_input(self) -> None:
        """No requests will come; the stream ends with the last reply."""
        if not self._due:
            self._call.finish(Status.OK)

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002  there is one
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  proposals have no ids
    ) -> None:
        """The proposals are safe."""
        assert isinstance(token, Due), "given with the records"
        if token.count == 1:
            token.reply = one_index(token.sequence, offset + 1)
            self._send()
            return
        first = offset if token.is_first else offset - token.count + 1
        indexes = range(first + 1, first + 1 + token.count)
        ok = pb.AppendReply.OK(sequence=token.sequence, indexes=indexes)
        self._settle(token, pb.AppendReply(ok=ok))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """They are not, or nobody knows."""
        assert isinstance(token, Due), "given with the records"
        if isinstance(error, NotLeaderError):
            self._settle(token, pb.AppendReply(redirect=self._redirect()), OVER)
        elif isinstance(error, DiskFullError):
            self._settle(token, pb.AppendReply(full=True), OVER)
        else:
            token.reply, token.ending = b"", rpc_error(error)
            self._send()

    def _settle(self, due: Due, reply: pb.AppendReply, ending: RpcError | None = None) -> None:
        """The reply to a request is known."""
        due.reply, due.ending = framed(reply.SerializeToString()), ending
        self._send()

    def _send(self) -> None:
        """Send the replies whose turn has come."""
        due, call = self._due, self._call
        while due and (reply := due[0].reply) is not None:
            call.send_framed(reply)
            ending = due.popleft().ending
            if ending is not None:
                due.clear()
                call.finish(ending.status, ending.text)
        if not due and call.input_ended:
            call.finish(Status.OK)
        elif call.held_bytes and len(due) <= DUE_MAX // 2:
            call.let_go()


def one_index(sequence: int, index: int) -> bytes:
    """The reply to a request of one proposal, by hand: it is the most frequent message there is."""
    first, packed = varint(sequence), varint(index)
    size = len(first) + len(packed) + 3
    head = bytes((0, 0, 0, 0, size + 2, 0x0A, size, 0x08))
    return b"%b%b\x12%c%b" % (head, first, len(packed), packed)


def varint(value: int) -> bytes:
    """A number as protobuf writes it; by hand as far as most of them go."""
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _column(values: Sequence[bytes]) -> pa.Array:
    """Values as Arrow has them; not ``pa.array``, which imports pandas first if it is there."""
    ends = np.zeros(len(values) + 1, dtype="<i4")
    np.cumsum([len(value) for value in values], out=ends[1:])
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), data])

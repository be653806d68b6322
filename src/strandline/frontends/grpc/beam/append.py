"""Append: requests as they come, replies in their order, none before its proposals are safe.

Invariant: ``_due`` holds the replies of all requests that are not answered, in order; its head is
the next to be sent. After a redirect, a full disk or a failure nothing more is sent.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from strandline.broker.partition import Partition
from strandline.config import LimitsConfig
from strandline.errors import DiskFullError, NotLeaderError, StrandlineError
from strandline.frontends.grpc._generated import logspec_pb2 as pb
from strandline.frontends.grpc.calls import Call
from strandline.frontends.grpc.status import RpcError, Status, rpc_error
from strandline.types import Offset, PartitionName

COLUMNS_FROM: Final = 32
"""From so many proposals on a request goes in as one Arrow batch: cheaper, and a batch of its own,
while smaller ones share a batch with their neighbours."""
DUE_MAX: Final = 1024
"""Requests of one stream that may be under way."""


class Due:
    """The reply to one request; a responder's token."""

    __slots__ = ("count", "is_first", "reply", "sequence")

    def __init__(self, sequence: int, count: int) -> None:
        self.sequence = sequence
        self.count = count
        self.is_first = False
        """Whether the responder is told the offset of the first proposal, not of the last."""
        self.reply: pb.AppendReply | None = None


class AppendStream:
    """One stream of requests; a responder.

    Args:
        call: the stream.
        partition: where proposals go.
        limits: the broker's.
    """

    def __init__(self, call: Call, partition: Partition, limits: LimitsConfig) -> None:
        self._call = call
        self._partition = partition
        self._limits = limits
        self._due: deque[Due] = deque()
        self._sequence = 0
        self._fewer: asyncio.Future[None] | None = None
        self._ended: RpcError | None = None
        self.is_over = False

    def take(self, request: pb.AppendRequest) -> None:
        """Append the proposals of a request.

        Raises:
            RpcError: a wrong sequence, or a proposal that is too large.
        """
        self._sequence += 1
        if request.sequence != self._sequence:
            text = f"sequence {request.sequence}; {self._sequence} is the next on this stream"
            raise RpcError(Status.INVALID_ARGUMENT, text)
        largest = max(map(len, request.proposals), default=0)
        if largest > self._limits.record_bytes:
            text = (
                f"proposal of {largest} bytes; limits.record_bytes is {self._limits.record_bytes}"
            )
            raise RpcError(Status.INVALID_ARGUMENT, text)
        count = len(request.proposals)
        due = Due(request.sequence, count)
        self._due.append(due)
        subject = self._partition.config.subject
        if not count:
            ok = pb.AppendReply.OK(sequence=request.sequence)
            due.reply = pb.AppendReply(ok=ok)
            self._send()
        elif count >= COLUMNS_FROM:
            due.is_first = True
            batch = pa.RecordBatch.from_arrays([_column(request.proposals)], ["value"])
            self._partition.append_arrow(batch, responder=self, token=due)
        else:
            for value in request.proposals[:-1]:
                self._partition.append(value, subject=subject)
            self._partition.append(
                request.proposals[-1], subject=subject, responder=self, token=due
            )

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
        first = offset if token.is_first else offset - token.count + 1
        indexes = range(first + 1, first + 1 + token.count)
        ok = pb.AppendReply.OK(sequence=token.sequence, indexes=indexes)
        token.reply = pb.AppendReply(ok=ok)
        self._send()

    def rejected(self, token: object, error: StrandlineError) -> None:
        """They are not, or nobody knows."""
        assert isinstance(token, Due), "given with the records"
        if isinstance(error, NotLeaderError):
            token.reply = pb.AppendReply(redirect=pb.Redirect())
        elif isinstance(error, DiskFullError):
            token.reply = pb.AppendReply(full=True)
        else:
            self._ended = self._ended or rpc_error(error)
        self._send()

    def _send(self) -> None:
        """Send the replies whose turn has come."""
        while self._due and not self.is_over and (reply := self._due[0].reply) is not None:
            self._due.popleft()
            self._call.send(reply)
            self.is_over = reply.WhichOneof("reply") != "ok"
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    async def below(self, limit: int) -> None:
        """Wait until fewer than ``limit`` requests are due.

        Raises:
            RpcError: one of them failed.
        """
        while len(self._due) >= limit and not self.is_over:
            if self._ended is not None:
                raise self._ended
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer


def _column(values: Sequence[bytes]) -> pa.Array:
    """Values as Arrow has them; not ``pa.array``, which imports pandas first if it is there."""
    ends = np.zeros(len(values) + 1, dtype="<i4")
    np.cumsum([len(value) for value in values], out=ends[1:])
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), data])

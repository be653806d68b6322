"""Outcomes of publishes in Liftbridge's codes."""

import asyncio
from types import SimpleNamespace

from strandline.clock import SystemClock
from strandline.errors import UnknownStreamError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.acks import AckStream, Receipt, refused
from strandline.servers.grpc.status import GrpcStatus


def test_a_publish_to_what_was_deleted_meanwhile_is_not_found():
    """As a moment later; other streams are not listed."""
    found = refused(UnknownStreamError("no stream 's'; there are: secret"), 0)
    assert found.code == pb.PublishAsyncError.NOT_FOUND
    assert found.status.status is GrpcStatus.NOT_FOUND
    assert "secret" not in found.text


async def test_a_stream_of_publishes_waits_while_too_many_have_no_outcome():
    """It begins with none; each outcome, of either kind, makes room for one."""
    sent = []
    stream = AckStream(SimpleNamespace(send=sent.append))
    async with asyncio.timeout(10):
        await stream.below(1)
        stream.unanswered = 2
        waiting = asyncio.create_task(stream.below(2))
        await asyncio.sleep(0)
        assert not waiting.done()
        request = pb.PublishRequest(stream="s", correlationId="a")
        host = SimpleNamespace(broker=SimpleNamespace(clock=SystemClock()))
        receipt = Receipt(request, host, subject="s", stream_subject="s")
        stream.rejected(receipt, UnknownStreamError("no stream 's'"))
        await waiting
    assert [each.correlationId for each in sent] == ["a"]

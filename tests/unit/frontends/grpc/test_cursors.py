"""Cursors while the leader of their partition changes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.frontends.grpc.liftbridge.cursors import CursorCalls
from strandline.frontends.grpc.status import RpcError, Status


async def test_a_leader_that_is_deposed_while_it_is_asked_sends_clients_away(led_anew):
    """It knows no end by then, and might answer with an older cursor than was acknowledged."""
    leaders = [1]
    with ThreadPoolExecutor(1) as pool:
        host = SimpleNamespace(
            me=1,
            pool=pool,
            stream=lambda _: SimpleNamespace(partitions=[led_anew]),
            leader=lambda _: leaders[-1],
        )
        request = pb.FetchCursorRequest(stream="s", partition=0, cursorId="c")
        asking = asyncio.create_task(CursorCalls(host).fetch(request, None))
        await asyncio.sleep(0)
        assert not asking.done(), "it waits for its followers to say how far they are"
        leaders.append(2)
        led_anew.is_led = False
        led_anew.follow()
        with pytest.raises(RpcError) as refused:
            await asking
    assert refused.value.status is Status.FAILED_PRECONDITION

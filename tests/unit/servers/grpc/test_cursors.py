"""Cursors while the leader of their partition changes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.record.codec import Stamp, encode_records
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.cursors import CursorCalls, cursor_key
from strandline.servers.grpc.status import GrpcStatus, RpcError


async def test_a_leader_that_is_deposed_while_it_is_asked_sends_clients_away(led_anew):
    """It no longer knows the end, and could answer with an outdated cursor."""
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
    assert refused.value.status is GrpcStatus.FAILED_PRECONDITION


def keeping(cursor, *, offset):
    """A copy of the cursors' partition that has one record."""
    value = pb.Cursor(stream="s", cursorId="c", offset=offset).SerializeToString()
    batch = encode_records([value], ["__cursors"], Stamp(0, 0, 1), keys=[cursor])
    return SimpleNamespace(
        log_id=7,
        knows_end=True,
        log_start_offset=0,
        last_stable_offset=1,
        read=lambda _offset, _bytes_max: pa.py_buffer(batch),
    )


async def test_a_copy_that_was_away_and_is_back_is_read_anew():
    """It has the log id of before, and the cursors that were stored meanwhile."""
    cursor = cursor_key("c", "s", 0)
    copies = [keeping(cursor, offset=3)]
    with ThreadPoolExecutor(1) as pool:
        host = SimpleNamespace(
            me=1,
            pool=pool,
            stream=lambda _: SimpleNamespace(partitions=copies[-1:]),
            leader=lambda _: 1,
        )
        calls = CursorCalls(host)
        request = pb.FetchCursorRequest(stream="s", partition=0, cursorId="c")
        assert (await calls.fetch(request, None)).offset == 3
        copies.append(keeping(cursor, offset=9))
        assert (await calls.fetch(request, None)).offset == 9

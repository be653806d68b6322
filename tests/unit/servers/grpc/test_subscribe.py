"""The end of a subscription, also while records are being replicated."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from strandline.errors import (
    NotLeaderError,
    ShuttingDownError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.subscribe import SubscribeCalls, check_open, extent_of
from strandline.servers.grpc.status import GrpcStatus, RpcError

LATEST = pb.SubscribeRequest(startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)


def test_the_latest_record_is_the_last_that_the_leader_has_acknowledged(led_anew):
    """An ack of policy LEADER comes before the commit, and acked records must be included."""
    assert (led_anew.high_watermark, led_anew.log_end_offset) == (1, 3)
    assert extent_of(LATEST, led_anew).stop == 3
    late = pb.SubscribeRequest(
        startPosition=pb.EARLIEST, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=1 << 62
    )
    assert extent_of(late, led_anew).stop == 3


def test_at_a_replica_it_is_the_last_that_is_committed(led_anew):
    """Later records of the replica may never be committed."""
    led_anew.is_led = False
    assert extent_of(LATEST, led_anew).stop == 1


async def test_a_leader_that_is_deposed_while_it_is_asked_sends_clients_away(led_anew):
    """Its log end may lack acknowledged records, so a subscription must not end there."""
    leaders = [1]
    host = SimpleNamespace(
        me=1,
        know=AsyncMock(),
        partition=lambda *_: led_anew,
        leader=lambda _: leaders[-1],
        replicas=lambda _: ((), ()),
    )
    asking = asyncio.create_task(SubscribeCalls(host).subscribe(LATEST, None))
    await asyncio.sleep(0)
    assert not asking.done(), "it waits for its followers to say how far they are"
    leaders.append(2)
    led_anew.is_led = False
    led_anew.follow()
    with pytest.raises(RpcError, match="Server not partition leader"):
        await asking


async def test_what_is_deleted_while_it_is_woken_is_no_partition(led_anew):
    """As a moment later; other streams are not listed."""
    host = SimpleNamespace(
        me=1,
        know=AsyncMock(),
        partition=lambda *_: led_anew,
        leader=lambda _: 1,
        wake=AsyncMock(side_effect=UnknownStreamError("no stream 's'; there are: secret")),
    )
    with pytest.raises(RpcError) as caught:
        await SubscribeCalls(host).subscribe(pb.SubscribeRequest(resume=True), None)
    assert (caught.value.status, caught.value.text) == (GrpcStatus.NOT_FOUND, "No such partition")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownStreamError("it was deleted"), GrpcStatus.NOT_FOUND),
        (NotLeaderError("other brokers keep it"), GrpcStatus.UNAVAILABLE),
        (UnavailableError("its records were given up"), GrpcStatus.UNAVAILABLE),
        (ShuttingDownError("the broker stops"), GrpcStatus.UNAVAILABLE),
    ],
)
def test_only_what_was_deleted_is_said_to_be(led_anew, error, status):
    """Clients give up deleted partitions, and look for moved ones."""
    check_open(led_anew)
    led_anew.close(error)
    with pytest.raises(RpcError) as ended:
        check_open(led_anew)
    assert ended.value.status is status

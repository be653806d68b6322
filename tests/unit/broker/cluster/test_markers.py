"""Markers of transactions elsewhere: each order is answered once, whatever becomes of its link."""

import asyncio

import pytest

from strandline.broker.cluster.channels import MarkerWritten
from strandline.broker.cluster.markers import RemoteMarkers
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.core.transactions.effects import MarkerKind, SendMarker
from strandline.core.transactions.state import TransactionalProducer, TransactionPartition
from strandline.errors import DiskFullError

MARK = SendMarker(
    "", TransactionalProducer(7, 1), TransactionPartition("s", 0, 5), MarkerKind.COMMIT
)


class Pair:
    """Broker 1, which orders, and broker 2, which leads the partition; 3 is not there."""

    def __init__(self):
        self.is_answering = True
        self.first = PeerRpc(self.to_second)
        self.second = PeerRpc(lambda _, answer: self.to_first(answer))
        self.orders = RemoteMarkers(self.first, self.write)
        self.leads = RemoteMarkers(self.second, self.write)
        self.written, self.failure = [], None
        self.outcomes = []

    def write(self, mark, done):
        self.written.append(mark)
        done(self.failure)

    def to_second(self, to, order):
        if to == 2:
            self.leads.serve(1, order)
        return to == 2

    def to_first(self, answer):
        if self.is_answering:
            self.first.answered(2, answer)
        return True

    async def order(self, leader=2):
        self.orders.order(leader, MARK, self.outcomes.append)
        await asyncio.sleep(0)
        return self.outcomes


@pytest.fixture
async def pair():
    return Pair()


async def test_the_leader_writes_what_was_ordered(pair):
    """It writes the requested marker, and notifies the requester."""
    assert await pair.order() == [None]
    assert pair.written == [MARK]


async def test_why_it_was_not_written_is_told(pair):
    """In the leader's words."""
    pair.failure = DiskFullError("no room")
    [failure] = await pair.order()
    assert failure.message == "no room"


async def test_a_leader_that_is_not_there_has_written_nothing(pair):
    """The order ends at once."""
    pair.orders.order(3, MARK, pair.outcomes.append)
    [failure] = pair.outcomes
    assert "broker 3 leads s/0 and is not reached" in failure.message


async def test_a_lost_link_ends_an_order_once(pair):
    """An answer that comes later is dropped."""
    pair.is_answering = False
    assert await pair.order() == []
    pair.first.peer_disconnected(2)
    await asyncio.sleep(0)
    [failure] = pair.outcomes
    assert "link to broker 2 broke" in failure.message
    pair.first.answered(2, MarkerWritten(1, ""))
    await asyncio.sleep(0)
    assert len(pair.outcomes) == 1

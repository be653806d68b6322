"""Publishes that are handed on: what a forwarder knows of them while they are under way."""

import asyncio
import queue
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from strandline.config import BrokerConfig
from strandline.errors import UnavailableError
from strandline.frontends.grpc.liftbridge import forward
from strandline.frontends.grpc.liftbridge.forward import Forwarder, Handed
from strandline.metadata.image import MetadataImage
from strandline.types import PartitionName

HERE, THERE = PartitionName("s", 0), PartitionName("s", 1)


class Outcomes:
    """A responder that waits for refusals."""

    def __init__(self):
        self.refused = asyncio.Queue()

    def rejected(self, token, error):
        self.refused.put_nowait((token, error))


@pytest.fixture
async def forwarder():
    """Of a broker that the cluster does not know yet, so that whatever it hands on is refused."""
    made = Forwarder(SimpleNamespace(config=BrokerConfig(), image=MetadataImage()), AsyncMock())
    yield made
    await made.stop()


@pytest.mark.parametrize("expects", [False, True])
async def test_a_partition_is_busy_until_its_last_publish_is_answered(forwarder, expects):
    """So that one which could be appended here meanwhile does not overtake it."""
    outcomes = Outcomes()
    for token in range(2):
        record = Handed(HERE, b"v", subject="s", key=None, headers=None, message_id=None)
        forwarder.append(record, responder=outcomes, token=token, expects=expects)
    assert forwarder.is_busy_with(HERE)
    assert not forwarder.is_busy_with(THERE)
    for expected in range(2):
        token, error = await asyncio.wait_for(outcomes.refused.get(), 60)
        assert token == expected
        assert isinstance(error, UnavailableError)
    assert not forwarder.is_busy_with(HERE)


async def test_there_is_room_again_when_publishes_are_answered(forwarder, monkeypatch):
    """Streams of publishes wait for it; whoever does not is refused."""
    monkeypatch.setattr(forward, "PENDING_MAX", 2)
    under_way = queue.Queue()
    monkeypatch.setattr(forwarder, "_send", lambda _, done: under_way.put(done))
    outcomes = Outcomes()
    await forwarder.room()
    for token in range(3):
        record = Handed(HERE, b"v", subject="s", key=None, headers=None, message_id=None)
        forwarder.append(record, responder=outcomes, token=token)
    assert outcomes.refused.get_nowait()[0] == 2
    waiting = asyncio.create_task(forwarder.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    done = await asyncio.to_thread(under_way.get)
    done(UnavailableError("the leader is away"))
    await asyncio.wait_for(waiting, 60)

"""Publishes that are handed on: what a forwarder knows of them while they are under way."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.config import BrokerConfig
from strandline.errors import UnavailableError
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
    made = Forwarder(SimpleNamespace(config=BrokerConfig(), image=MetadataImage()))
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

"""The time for which a broker applies rules and tokens without contact to the controller."""

import asyncio
from functools import partial

import pytest

from strandline.broker.cluster.membership import CUT_OFF_MS
from strandline.errors import UnavailableError
from tests.kit.waiting import until_async

until = partial(until_async, seconds=30)


async def test_a_broker_has_a_lease_while_it_is_in_touch_with_a_majority(cluster):
    """The leader of the metadata and its followers alike; it comes back with the others."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    await until(lambda: all(broker.has_lease for broker in cluster.brokers.values()))
    await cluster.kill(2)
    await asyncio.sleep(CUT_OFF_MS / 1e3)
    assert cluster.brokers[1].has_lease
    assert cluster.brokers[3].has_lease
    await cluster.kill(3)
    await until(lambda: not cluster.brokers[1].has_lease)
    await until(lambda: cluster.brokers[1].metadata_error is not None)
    with pytest.raises(UnavailableError, match="majority"):  # it may have been created meanwhile
        cluster.brokers[1].stream("unknown")
    await cluster.start(3)
    await until(lambda: cluster.brokers[1].has_lease)


async def test_a_broker_that_begins_alone_has_no_lease(cluster):
    """Its metadata on disk may be old."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    for number in (1, 2, 3):
        await cluster.kill(number)
    starting = asyncio.create_task(cluster.start(1))
    await until(lambda: 1 in cluster.brokers)
    for _ in range(20):  # while it stands for election again and again
        assert not cluster.brokers[1].has_lease
        await asyncio.sleep(0.1)
    await cluster.start(2)
    await until(lambda: cluster.brokers[1].has_lease)
    await starting

"""Answers about the end wait for a new leader to know it."""

import asyncio

import pytest

from strandline.errors import UnavailableError, UnknownStreamError
from strandline.frontends.grpc import leading
from strandline.frontends.grpc.leading import know_end


async def test_who_asks_for_the_end_waits_until_it_is_known(partition):
    """Not at the next commit, but at the one that covers all that was there."""
    asking = asyncio.create_task(know_end(partition))
    for offset in (2, 3):
        await asyncio.sleep(0)
        assert not asking.done()
        partition.commit(offset)
    await asyncio.wait_for(asking, 30)
    await know_end(partition)


async def test_nobody_waits_for_ever(partition, monkeypatch):
    """Where too few replicas are left to find out, asking ends with an error that says retry."""
    monkeypatch.setattr(leading, "PATIENCE_S", 0.01)
    with pytest.raises(UnavailableError, match="retry"):
        await know_end(partition)


async def test_a_partition_that_goes_away_ends_the_wait(partition):
    """The caller finds it closed."""
    asking = asyncio.create_task(know_end(partition))
    await asyncio.sleep(0)
    partition.close(UnknownStreamError("deleted"))
    await asyncio.wait_for(asking, 30)

"""Proposals that wait for a command: the newest of each log, all at once, none lost."""

import asyncio

import pytest

from strandline.broker.cluster.pending_proposals import PendingProposals


@pytest.fixture
def pending():
    return PendingProposals()


async def test_the_newest_of_each_log_is_taken_once(pending):
    """Who waits is woken by the first; nothing is left behind."""
    taking = asyncio.create_task(pending.taken())
    await asyncio.sleep(0)
    assert not taking.done()
    for log_id, wish in ((1, "old"), (2, "other"), (1, "new")):
        pending.put(log_id, wish)
    assert await asyncio.wait_for(taking, 5) == ["new", "other"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pending.taken(), 0.01)


async def test_what_is_put_back_replaces_nothing_newer(pending):
    """It wakes who waits, too: it is to be tried again."""
    pending.put_back(1, "rejected")
    assert await asyncio.wait_for(pending.taken(), 5) == ["rejected"]
    pending.put(1, "newer")
    pending.put_back(1, "rejected")
    assert await asyncio.wait_for(pending.taken(), 5) == ["newer"]

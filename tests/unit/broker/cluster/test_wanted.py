"""Pending proposals are taken together, and of each log the newest."""

import asyncio

from strandline.broker.cluster.wanted import PendingProposals


async def test_the_newest_wish_of_each_log_is_taken():
    """All at once, and each once."""
    wanted = PendingProposals()
    for log_id, wish in ((1, "old"), (2, "two"), (1, "new")):
        wanted.put(log_id, wish)
    assert sorted(await wanted.taken()) == ["new", "two"]
    taking = asyncio.create_task(wanted.taken())
    await asyncio.sleep(0)
    assert not taking.done(), "nothing is wanted any more"
    wanted.put(3, "three")
    assert await taking == ["three"]


async def test_what_is_put_back_gives_way_to_what_is_newer():
    """A wish that could not be decided is wanted still, unless another came meanwhile."""
    wanted = PendingProposals()
    wanted.put(1, "newer")
    wanted.put_back(1, "tried")
    wanted.put_back(2, "tried, too")
    assert sorted(await wanted.taken()) == ["newer", "tried, too"]

"""Replicas that begin where records were deleted, also within a batch, part of which is kept."""

import pytest


@pytest.mark.parametrize("settings", [{}, {"compression": "zstd"}])
async def test_a_new_copy_begins_within_a_batch(cluster, settings):
    """Whose first records were deleted: it gets the others, as a batch of their own."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=2, **settings)
    leader = await cluster.leader()
    answers = cluster.kit.Answers()
    cluster.kit.put(cluster.partition(leader), answers, *"abcde")
    await answers.wait(5)
    await cluster.put("f")
    await cluster.brokers[leader].delete_before("s", 0, 2)
    stays, mover = cluster.image().replicas
    other = next(n for n in (1, 2, 3) if n not in (stays, mover))
    await cluster.brokers[leader].operations.reassign("s", 0, (stays, other))
    await cluster.until_caught_up(other, 6)
    await cluster.put("g")
    await cluster.until_caught_up(other, 7)
    assert cluster.kit.values(cluster.partition(other)) == [b"c", b"d", b"e", b"f", b"g"]

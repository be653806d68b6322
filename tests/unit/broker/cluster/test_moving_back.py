"""A copy that moves away from a broker and back, which crashes before its next checkpoint."""

import errno

WORDS = [f"record-{number:03}" for number in range(20)]


async def test_a_copy_that_moved_back_is_not_mixed_with_the_one_that_left(cluster):
    """The journal still has the old replica's batches; only the new one's are recovered."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=2)
    await cluster.put(*WORDS[:10])
    stays, mover = cluster.image().replicas
    other = next(n for n in (1, 2, 3) if n not in (stays, mover))
    await cluster.until_caught_up(mover, 10)
    await cluster.brokers[mover]._checkpoints.checkpoint()
    await cluster.put(*WORDS[10:15])
    await cluster.until_caught_up(mover, 15)
    cluster.disks[mover].fail("create", "checkpoint.json.new", code=errno.ENOSPC)

    orders = cluster.brokers[stays].operations
    directory = cluster.partition(mover).log.directory
    await orders.reassign("s", 0, (stays, other))
    await cluster.kit.until(lambda: not directory.exists(), seconds=20)
    await cluster.put(*WORDS[15:])
    await orders.reassign("s", 0, (stays, mover))
    await cluster.kit.until(lambda: cluster.image().replicas == (stays, mover), seconds=20)
    await cluster.until_caught_up(mover, 20)

    await cluster.kill(mover)
    cluster.disks[mover].heal()
    await cluster.start(mover)
    assert cluster.brokers[mover]._storage.report.corruption == []
    await cluster.until_caught_up(mover, 20)
    assert cluster.kit.values(cluster.partition(mover)) == [word.encode() for word in WORDS]

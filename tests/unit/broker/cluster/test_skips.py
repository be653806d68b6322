"""Giving up a partition's records and going on beyond their end, on three brokers."""

import asyncio

import pytest

from strandline.errors import NotLeaderError, OffsetOutOfRangeError


async def skip(cluster, offset):
    """At the leader; its number."""
    leader = await cluster.leader()
    await cluster.brokers[leader].skip_to("s", 0, offset)
    return leader


async def agree_from(cluster, kit, first, values):
    """Until every broker that runs serves exactly these values from an offset on."""
    wanted = [value.encode() for value in values]
    for number in cluster.brokers:
        end = first + len(wanted)
        await kit.until(
            lambda n=number, e=end: cluster.partition(n).high_watermark == e, seconds=20
        )
        partition = cluster.partition(number)
        assert partition.log_start_offset == first
        assert kit.values(partition) == wanted


async def test_every_copy_continues_at_the_offset(cluster, kit):
    """Also one that was away, and the next leader; the old log is removed."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a", "b")
    away = next(n for n in (1, 2, 3) if n != cluster.image().leader)
    await cluster.kill(away)
    old = cluster.image().log_id
    leader = await skip(cluster, 100)
    await cluster.put("c")
    await agree_from(cluster, kit, 100, ["c"])
    await cluster.start(away)
    await cluster.isr(1, 2, 3)
    await agree_from(cluster, kit, 100, ["c"])
    await cluster.kill(leader)
    await cluster.put("d")
    await cluster.start(leader)
    await cluster.isr(1, 2, 3)
    await agree_from(cluster, kit, 100, ["c", "d"])
    for broker in cluster.brokers.values():
        logs = broker.data_dir / "logs"
        await kit.until(lambda logs=logs: not (logs / f"{old:08d}").exists())


async def test_only_beyond_the_end_and_only_at_the_leader(cluster, kit):
    """A rejected skip keeps the records, and more are accepted."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a", "b")
    leader = await cluster.leader()
    for number, broker in cluster.brokers.items():
        error = OffsetOutOfRangeError if number == leader else NotLeaderError
        with pytest.raises(error):
            await broker.skip_to("s", 0, 2)
    await cluster.put("c")
    await cluster.agree(["a", "b", "c"])


async def test_nothing_that_is_acked_beyond_the_offset_is_lost(cluster, kit):
    """Concurrent publishes are rejected for a moment, or are before or after the skip."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    leader = await cluster.leader()
    answers, is_over = kit.Answers(), asyncio.Event()

    async def publish():
        number = 0
        while not is_over.is_set():
            kit.put(cluster.partition(leader), answers, number)
            number += 1
            await asyncio.sleep(0.001)

    publishing = asyncio.create_task(publish())
    await answers.wait(20)
    offset = cluster.partition(leader).log_end_offset + 5
    while True:
        try:
            await cluster.brokers[leader].skip_to("s", 0, offset)
            break
        except OffsetOutOfRangeError:  # publishers were quicker
            offset = cluster.partition(leader).log_end_offset + 5
    behind = len([1 for found in answers.acks.values() if found >= offset])
    await kit.until(
        lambda: len([1 for found in answers.acks.values() if found >= offset]) > behind + 20
    )
    is_over.set()
    await publishing
    await cluster.brokers[leader].quiesce()
    partition = cluster.partition(leader)
    assert partition.log_start_offset == offset
    stored = kit.values(partition)
    for token, found in answers.acks.items():
        if found >= offset:
            assert stored[found - offset] == str(token).encode()

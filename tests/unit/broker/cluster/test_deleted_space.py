"""In a cluster, too, deletion frees space and descriptors at once."""

import pytest


async def fill(cluster, kit):
    """Put several sealed segments on every broker, and have a reader map them."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    leader = cluster.partition(await cluster.leader())
    answers = kit.Answers()
    for token in range(40):
        kit.put(leader, answers, token, value=bytes(16 << 10))
        await answers.wait(token + 1)
    assert len(answers.acks) == 40
    for number in (1, 2, 3):
        await cluster.until_caught_up(number, 40)
        partition = cluster.partition(number)
        await cluster.brokers[number]._checkpoints.checkpoint()
        offset = 0
        while offset < 40:
            offset = partition.log.read(offset, 1).next_offset
        assert len(partition.log.segments) > 5


def no_logs_left(cluster):
    """Whether no broker has a log of the stream any longer, under any name."""
    return not any(
        list((cluster.tmp_path / f"broker-{n}" / "logs").glob("*1*")) for n in cluster.brokers
    )


@pytest.mark.parametrize("has_reader", [False, True])
async def test_a_deleted_stream_takes_no_space(cluster, kit, has_reader):
    """Neither names nor descriptors nor maps of it stay, with a reader that waits for records."""
    await fill(cluster, kit)
    partitions = [cluster.partition(number) for number in (1, 2, 3)]
    if has_reader:
        for partition in partitions:
            partition.watch(kit.Answers()._changed)
    await cluster.brokers[2].delete_stream("s")
    await kit.until(lambda: no_logs_left(cluster))
    await kit.until(lambda: kit.held(cluster.tmp_path) == [], seconds=5)
    assert all(partition.closed for partition in partitions)


async def test_a_truncated_stream_takes_no_space(cluster, kit):
    """Every replica frees the space of deleted records."""
    await fill(cluster, kit)
    leader = await cluster.leader()
    paths = [cluster.partition(number).log.segments[0].path for number in (1, 2, 3)]
    await cluster.brokers[leader].delete_before("s", 0, 40)
    await kit.until(lambda: not any(path.exists() for path in paths))
    await kit.until(lambda: kit.held(cluster.tmp_path) == [], seconds=5)

"""Per-subject retention where a partition has several copies: all show the same records."""

import shutil

import pytest

from strandline.broker.write_path.pending import CommitWaiter
from strandline.core.metadata.commands import ForgetDirectory
from strandline.record.codec import decode_batches

PAD = b"." * 3000


def seen(partition):
    """The offsets and subjects that readers of a replica see."""
    found, offset, end = [], partition.log_start_offset, partition.high_watermark
    while offset < end:
        batches = partition.read(offset, 1 << 20)
        if not batches.size:
            break
        for rows in decode_batches(batches, columns=["offset", "subject"]):
            found += zip(*(column.to_pylist() for column in rows.columns), strict=True)
        offset = found[-1][0] + 1
    return found


@pytest.fixture
async def retained(cluster):
    """Three brokers with a stream that keeps one record of each subject, and helpers."""
    cluster.settings["cleaner_interval_ms"] = 3_600_000  # tests say when
    await cluster.start(1, 2, 3)
    await cluster.create(max_records_per_subject=1)
    await cluster.isr(1, 2, 3)

    async def put(*subjects, **options):
        """Append records at the leader; return which were acknowledged, and errors' codes."""
        answers = cluster.kit.Answers()
        partition = cluster.partition(await cluster.leader())
        for number, subject in enumerate(subjects):
            partition.append(PAD, subject=subject, ack_sink=answers, token=number, **options)
        await answers.wait(len(subjects))
        return [answers.acks.get(n, answers.codes.get(n)) for n in range(len(subjects))]

    async def purge(pattern):
        """Remove the records of a pattern."""
        partition, committed = cluster.partition(await cluster.leader()), CommitWaiter()
        end = partition.last_stable_offset
        partition.sequences.purge(pattern, end, ack_sink=committed, token=None)
        await committed.wait()

    async def clean(*numbers):
        """Seal the active segment, and compact on some brokers."""
        for number in numbers:
            broker = cluster.brokers[number]
            for _ in range(2):
                await broker.committer.passed()
                cluster.partition(number).log.roll()
                await broker._checkpoints.checkpoint()
                await broker._cleaner.clean()

    async def settled():
        """Until every broker has everything committed."""
        end = max(cluster.partition(n).log_end_offset for n in cluster.brokers)
        await cluster.kit.until(
            lambda: all(cluster.partition(n).high_watermark == end for n in cluster.brokers),
            seconds=20,
        )

    cluster.put, cluster.purge, cluster.clean, cluster.settled = put, purge, clean, settled
    return cluster


async def test_every_copy_shows_the_same(retained):
    """Whether it has compacted or not, and what was purged is gone everywhere."""
    await retained.put(*(f"s.{n % 5}" for n in range(60)))
    await retained.purge("s.3")
    await retained.settled()
    await retained.clean(2)
    wanted = [(55, "s.0"), (56, "s.1"), (57, "s.2"), (59, "s.4")]
    sizes = {n: retained.partition(n).log.size_bytes for n in (1, 2, 3)}
    assert sizes[2] < sizes[1] == sizes[3]
    for number in (1, 2, 3):
        assert seen(retained.partition(number)) == wanted


async def test_the_next_leader_knows_the_sequences_of_subjects(retained):
    """It refuses what expects an old one, and takes what expects the last one."""
    await retained.put("s.a", "s.b", "s.a")
    await retained.purge("s.b")
    await retained.settled()
    await retained.kill(await retained.leader())
    await retained.leader()
    expected = retained.put
    assert await expected("s.a", expected_subject_last=1) == ["wrong_last_sequence"]
    assert await expected("s.a", expected_subject_last=3) == [4]
    assert await expected("s.b", expected_subject_last=0) == [5]
    assert seen(retained.partition(await retained.leader())) == [(4, "s.a"), (5, "s.b")]


async def test_an_empty_disk_is_filled_from_a_compacted_log(retained):
    """A broker that lost its disk copies placeholders and purges, and shows the same."""
    await retained.put(*(f"s.{n % 4}" for n in range(80)))
    await retained.purge("s.1")
    await retained.settled()
    leader = await retained.leader()
    victim, other = (n for n in (1, 2, 3) if n != leader)
    await retained.kill(victim)
    await retained.isr(*sorted((leader, other)))
    await retained.clean(leader, other)
    shutil.rmtree(retained.tmp_path / f"broker-{victim}")
    broker = retained.brokers[leader]
    await retained.kit.until(lambda: broker._image.brokers[victim].is_fenced, seconds=20)
    forgotten = await broker.membership.admin.propose(ForgetDirectory(broker=victim), timeout_s=20)
    assert forgotten.is_applied
    await retained.start(victim)
    await retained.isr(1, 2, 3)
    await retained.put("s.0")
    await retained.settled()
    wanted = [(78, "s.2"), (79, "s.3"), (81, "s.0")]
    for number in (1, 2, 3):
        assert seen(retained.partition(number)) == wanted

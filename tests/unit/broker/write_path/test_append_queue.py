"""What a group commit takes: up to its limits, and nothing of a partition that is gathering."""

import asyncio

import pytest

from strandline.broker.write_path import append_queue as takes
from strandline.config import LimitsConfig, StreamConfig
from strandline.errors import LogPoisonedError

pytestmark = pytest.mark.usefixtures("without_spares")


@pytest.mark.parametrize(
    "limits",
    [LimitsConfig(commit_bytes=10_000), LimitsConfig(commit_records=10)],
    ids=["bytes", "records"],
)
async def test_a_group_commit_ends_at_its_limits(open_broker, make_stream, answers, kit, limits):
    """Records beyond them are left to the next group commits, in order, for every partition."""
    broker = await open_broker(limits=limits)
    one, two = await make_stream(broker, "one"), await make_stream(broker, "two")
    for number in range(4):
        for name, partition in (("one", one), ("two", two)):
            kit.put(partition, answers, f"{name} {number}", value=bytes(4000))
            kit.put(partition, answers, *(f"{name} {number}.{n}" for n in range(4)))
            partition.pending._open = None  # the next record begins another chunk
    await answers.wait(40)
    assert broker.telemetry.group_commits >= 3
    assert not answers.errors
    for name in ("one", "two"):
        told = [token for token in answers.order if token.startswith(name)]
        assert [answers.acks[token] for token in told] == list(range(20))


@pytest.mark.parametrize(
    ("limits", "chunks"),
    [
        (LimitsConfig(commit_bytes=10_000), 3),
        (LimitsConfig(commit_records=10), 2),
        (LimitsConfig(), 4),
    ],
    ids=["bytes", "records", "none"],
)
async def test_the_room_for_a_group_commit_is_that_of_what_it_takes(
    open_broker, make_stream, answers, kit, limits, chunks
):
    """Not of all that waits: the journal would get a file for what comes later."""
    broker = await open_broker(limits=limits)
    partition = await make_stream(broker)
    queue = broker.committer.append_queue
    for number in range(4):
        kit.put(partition, answers, *(f"{number}.{n}" for n in range(6)), value=bytes(700))
        partition.pending._open = None  # the next record begins another chunk
    sizes = [
        each.size + takes.BATCH_OVERHEAD_BYTES + 6 * takes.RECORD_OVERHEAD_BYTES
        for each in partition.pending.batches
    ]
    assert queue.bytes_ahead() == sum(sizes[:chunks]) <= queue.bytes_max
    await answers.wait(24)
    assert queue.bytes_ahead() == 0


class Gathering:
    """The hooks of a partition that has chunks on their way to other replicas, or has none."""

    def __init__(self, broker, partition):
        self.broker, self.partition = broker, partition
        self.is_gathering = True
        partition.replica_hooks = self

    def journaled(self, chunk, batch):
        pass

    def synced(self, chunk, next_offset):
        self.partition.commit(next_offset)
        for each in chunk.waiting:
            each.acked(self.partition.name)


async def test_what_is_gathered_is_committed_at_once(broker, partition, answers, kit, monkeypatch):
    """When something was committed; others do not wait for it, and the broker is not idle."""
    monkeypatch.setattr(takes, "GATHERING_MS_MAX", 60_000.0)
    other = await broker.create_stream(StreamConfig(name="other", subject="other"))
    replica_hooks, turns = Gathering(broker, partition), broker.telemetry.group_commits
    for number in range(3):
        kit.put(partition, answers, number)
        kit.put(other.partitions[0], answers, f"other {number}")
        await answers.wait(number + 1)
    assert answers.order == ["other 0", "other 1", "other 2"]
    assert not broker.committer.is_idle
    replica_hooks.is_gathering = False
    broker.committer.append_queue.go_on_with(partition)
    await answers.wait(6)
    assert answers.order[3:] == [0, 1, 2]
    assert broker.telemetry.group_commits == turns + 4
    assert broker.committer.is_idle


async def test_what_is_gathered_goes_after_a_moment_at_the_latest(
    broker, partition, answers, kit, monkeypatch
):
    """A slow or dead replica does not keep the leader's disk waiting."""
    monkeypatch.setattr(takes, "GATHERING_MS_MAX", 10.0)
    replica_hooks = Gathering(broker, partition)
    kit.put(partition, answers, 0)
    await asyncio.sleep(0.05)
    assert not answers.order
    replica_hooks.is_gathering = False
    await answers.wait(1)


async def test_what_is_gathered_is_rejected_if_the_disk_fails(broker, partition, answers, kit):
    """As records that wait for a group commit are."""
    Gathering(broker, partition)
    kit.put(partition, answers, 0)
    await kit.until(lambda: broker.committer.append_queue._gathering)
    broker.committer.poison(LogPoisonedError("the disk failed"))
    assert isinstance(answers.errors[0], LogPoisonedError)


async def test_the_bytes_ahead_count_what_each_record_costs(broker, partition, answers, kit):
    """An estimate that is too low lets the journal run out of room in the middle."""
    queue, limits = broker.committer.append_queue, broker.admission.limits
    assert queue.bytes_ahead() == 0
    for count in (1, 3):
        for number in range(count):
            kit.put(partition, answers, f"{count}.{number}", value=bytes(100))
        partition.pending._open = None
    sizes = [batch.size for batch in partition.pending.batches]
    costs = takes.BATCH_OVERHEAD_BYTES * 2 + takes.RECORD_OVERHEAD_BYTES * 4
    assert queue.bytes_ahead() == sum(sizes) + costs
    assert queue.bytes_max >= queue.bytes_ahead()
    assert limits.commit_records > 4
    await answers.wait(4)

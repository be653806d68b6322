"""Log start offsets: proposed by the leader, followed by every replica."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.broker.cluster.delete_records import LogStarts
from strandline.config import StreamConfig
from strandline.core.metadata.commands import LogStart, MoveLogStarts, PartitionAt
from strandline.core.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.errors import NotLeaderError, OffsetOutOfRangeError, UnavailableError
from strandline.telemetry import Telemetry
from strandline.types import PartitionName
from tests.kit.waiting import until_async


class FakePartition:
    """A replica here whose log has records 10 to 99, of which those before 80 are committed."""

    def __init__(self, number=0, log_id=5):
        self.name, self.log_id = PartitionName("s", number), log_id
        self.log_start_offset, self.high_watermark = 10, 80
        self.log = SimpleNamespace(log_end_offset=100, segments=[1, 2], size_bytes=50)
        self.told = []
        self.replica_hooks = SimpleNamespace(log_start_moved=lambda: self.told.append("moved"))


def image(*starts, log_id=5):
    """Stream ``s`` whose partitions have these log starts."""
    partitions = tuple(
        PartitionImage(
            log_id=log_id + n,
            replicas=(1,),
            leader=1,
            leader_epoch=4,
            version=9,
            log_start_offset=start,
        )
        for n, start in enumerate(starts)
    )
    stream = StreamImage(
        config=StreamConfig(name="s", subject="s"), created_ns=1, partitions=partitions
    )
    return MetadataImage().with_streams({"s": stream})


class World:
    """Replicas of which partition 0 is led here, operations and a reclaimer."""

    def __init__(self):
        self.drivers = {5: SimpleNamespace(replica=SimpleNamespace(leader=object(), epoch=4))}
        self.commands, self.truncated, self.error = [], [], None
        self.telemetry = Telemetry()
        self.starts = LogStarts(self, self, reclaimer=self, telemetry=self.telemetry)

    def given(self, log_id):
        return image(10).streams["s"].partitions[0] if log_id == 5 else None

    def not_leader(self, partition):
        return NotLeaderError("elsewhere")

    async def outcome(self, command):
        self.commands.append(command)
        if self.error is not None:
            raise self.error

    async def decide(self, decision):
        command = decision()
        if command is not None:
            self.commands.append(command)

    async def delete_before(self, log, offset):
        self.truncated.append(offset)
        if self.error is not None:
            raise self.error
        log.segments, log.size_bytes = [2], 20


@pytest.fixture
async def world():
    made = World()
    running = [asyncio.create_task(each) for each in (made.starts.run(), made.starts.shorten())]
    yield made
    for task in running:
        task.cancel()


AT = PartitionAt("s", 0, 5, 9)


@pytest.mark.parametrize(
    ("wanted", "done"), [(9, []), (10, []), (11, [11]), (80, [80]), (90, [80])]
)
async def test_a_replica_follows_as_far_as_it_knows_records_to_be_committed(world, wanted, done):
    """What is removed is counted, and the replica hears of it."""
    partition = FakePartition()
    world.starts.follow(image(wanted), [partition])
    await asyncio.sleep(0.02)
    assert world.truncated == done
    assert partition.told == ["moved"] * len(done)
    assert world.telemetry.retention_segments == len(done)
    assert world.telemetry.retention_bytes == 30 * len(done)


async def test_only_the_replica_of_the_same_log_follows(world):
    """Not one of a stream that was made again, or is gone, nor one without a replica."""
    again, unknown, without = FakePartition(log_id=6), FakePartition(number=1), FakePartition()
    gone = FakePartition()
    without.replica_hooks = None
    gone.name = PartitionName("t", 0)
    world.starts.follow(image(50), [again, unknown, without, gone, FakePartition()])
    await asyncio.sleep(0.02)
    assert world.truncated == [50]


async def test_a_log_that_ends_before_is_emptied_and_one_that_was_replaced_says_nothing(world):
    """The reclaimer removes no more than there is."""
    partition = FakePartition()
    partition.log.log_end_offset = 30
    log = partition.log
    world.starts.follow(image(50), [partition])
    partition.log = SimpleNamespace(log_end_offset=60, segments=[], size_bytes=0)
    await until_async(lambda: world.truncated)
    assert world.truncated == [50]
    assert partition.told == ["moved"]
    world.truncated.clear()
    partition.log = log
    world.starts.follow(image(50), [partition])
    await until_async(lambda: world.truncated)
    assert world.truncated == [30]


async def test_what_cannot_be_removed_is_logged(world, caplog):
    """The next look tries again."""
    partition, world.error = FakePartition(), UnavailableError("busy")
    world.starts.follow(image(50), [partition])
    await until_async(lambda: "cannot be removed, will retry: busy" in caplog.text)
    assert partition.told == []
    world.error = None
    world.starts.follow(image(50), [partition])
    await until_async(lambda: partition.told)
    assert world.truncated == [50, 50]


async def test_what_retention_wants_is_proposed_by_the_leader(world, caplog):
    """The newest wish, with the partition's version; one that fails is proposed again later."""
    world.starts.want_deleted(FakePartition(log_id=6), 40)
    world.starts.want_deleted(FakePartition(), 40)
    world.starts.want_deleted(FakePartition(), 45)
    await until_async(lambda: world.commands)
    assert world.commands == [MoveLogStarts((LogStart(AT, 45),))]
    world.error = UnavailableError("no quorum")
    world.starts.want_deleted(FakePartition(), 46)
    await until_async(lambda: "retention could not be decided" in caplog.text)
    world.error = None
    world.starts.want_deleted(FakePartition(), 47)
    await until_async(lambda: len(world.commands) == 3)
    assert world.commands[-1] == MoveLogStarts((LogStart(AT, 47),))


@pytest.mark.parametrize(
    ("offset", "outcome"),
    [(-1, "error"), (0, None), (10, None), (11, 11), (80, 80), (81, "error")],
)
async def test_an_operator_deletes_committed_records_only(world, offset, outcome):
    """What is gone already needs no decision."""
    if outcome == "error":
        with pytest.raises(OffsetOutOfRangeError, match="its high watermark is 80"):
            await world.starts.truncate(FakePartition(), offset)
    else:
        await world.starts.truncate(FakePartition(), offset)
    moved = [MoveLogStarts((LogStart(AT, outcome),))] if isinstance(outcome, int) else []
    assert world.commands == moved


@pytest.mark.parametrize("case", ["follower", "earlier epoch", "unknown"])
async def test_only_the_leader_of_the_newest_epoch_decides(world, case):
    """Others are sent to it."""
    replica = world.drivers[5].replica
    assert world.starts.led(FakePartition()) == AT
    if case == "follower":
        replica.leader = None
    elif case == "earlier epoch":
        replica.epoch = 3
    else:
        world.drivers.clear()
    with pytest.raises(NotLeaderError):
        world.starts.led(FakePartition())
    with pytest.raises(NotLeaderError):
        await world.starts.truncate(FakePartition(), 50)
    world.starts.want_deleted(FakePartition(), 50)
    await asyncio.sleep(0.01)
    assert world.commands == []

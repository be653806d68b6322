"""The journal of a group commit: room for its entry, and the sync, wherever it runs."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.broker.write_path.journal_sync import JournalSync
from strandline.clock import ManualClock
from strandline.errors import DiskFullError, LogPoisonedError, UnavailableError
from strandline.telemetry import Telemetry
from tests.kit.waiting import until_async


class FakeJournal:
    """A journal with so much room; everything done with it, in order."""

    def __init__(self, done, clock):
        self.done, self.clock, self.room = done, clock, 1000
        self.sync_error = self.file_error = None

    def has_room(self, length):
        return length <= self.room

    def allocate_spare(self, length):
        self.done.append(("file", length))
        if self.file_error is not None:
            raise self.file_error

    def begin_sync(self):
        self.done.append("begin")

    def sync(self):
        self.done.append("sync")
        self.clock.advance_ms(3)
        if self.sync_error is not None:
            raise self.sync_error

    def sync_target(self):
        return 5, 42

    def mark_synced(self, sequence):
        self.done.append(("synced", sequence))


class FakePolicy:
    """A policy that a test decides; keeps what it was asked."""

    def __init__(self, done):
        self.done, self.inline, self.asked, self.seen = done, True, [], []

    def is_inline(self, size, *, is_from_one, is_read_here):
        self.asked.append((size, is_from_one, is_read_here))
        return self.inline

    def submit(self, fd, synced):
        self.done.append(("submit", fd))
        self.synced = synced

    def observe(self, took_ms):
        self.seen.append(took_ms)


class Segments:
    """Segments that can be written meanwhile."""

    def __init__(self, done):
        self.done, self.logs = done, []

    def note(self, log):
        self.done.append(("note", log))

    def write(self):
        self.done.append("write")


class Source:
    """A connection; it can be referred to weakly."""


@pytest.fixture
async def world():
    done, clock = [], ManualClock()
    telemetry, segments = Telemetry(), Segments(done)
    peers = SimpleNamespace(has_peers=False)
    sync = JournalSync(
        asyncio.get_running_loop(),
        clock=clock,
        telemetry=telemetry,
        segments=segments,
        send_queue=peers,
    )
    journal, policy = FakeJournal(done, clock), FakePolicy(done)
    sync.attach(journal, policy)
    sync.busy_poll = SimpleNamespace(synced=lambda *times: done.append(("poll", *times)))
    return SimpleNamespace(
        sync=sync,
        journal=journal,
        policy=policy,
        segments=segments,
        telemetry=telemetry,
        peers=peers,
        done=done,
    )


def plan(*, needs_sync=True, source=None, records=1):
    return SimpleNamespace(
        logs=["a", "b"], needs_sync=needs_sync, only_source=source, size=70, records=records
    )


async def test_what_needs_no_sync_is_as_durable_as_required(world):
    """Its segments are written later all the same."""
    assert world.sync.sync(plan(needs_sync=False), is_sending=False, done=None)
    assert world.done == [("note", "a"), ("note", "b")]
    assert world.policy.asked == []


async def test_a_sync_on_the_loop_is_done_at_once(world):
    """It is timed, and a lone record is waited for on a busy loop."""
    assert world.sync.sync(plan(), is_sending=False, done=None)
    assert world.done[2:] == ["sync", ("poll", 0, 3)]
    assert world.policy.seen == [3]
    assert world.telemetry.sync_seconds.total == 0.003
    world.done.clear()
    world.segments.logs = ["a"]
    assert world.sync.sync(plan(records=2), is_sending=False, done=None)
    assert world.done[2:] == ["begin", "write", "sync"], "the disk works while segments are written"


async def test_with_other_brokers_a_lone_record_leaves_them_the_cpu(world):
    """Its ack waits for them."""
    world.peers.has_peers = True
    world.sync.sync(plan(), is_sending=False, done=None)
    assert world.done[2:] == ["sync"]


@pytest.mark.parametrize("error", [None, LogPoisonedError("broken")])
async def test_while_frames_are_sent_the_sync_follows_in_the_next_round(world, error):
    """So the disks of all replicas work at the same time."""
    world.journal.sync_error, outcomes = error, []
    assert not world.sync.sync(plan(), is_sending=True, done=outcomes.append)
    assert world.done[2:] == ["begin"]
    assert outcomes == []
    await asyncio.sleep(0)
    assert world.done[2:] == ["begin", "sync"]
    assert outcomes == [error]


async def test_a_sync_elsewhere_is_reported_when_it_has_ended(world):
    """Segments are written while it works."""
    world.policy.inline, outcomes = False, []
    assert not world.sync.sync(plan(), is_sending=True, done=outcomes.append)
    assert world.done[2:] == [("submit", 5), "write"]
    world.policy.synced(None, 4.0)
    assert world.done[-1] == ("synced", 42)
    assert (outcomes, world.policy.seen) == ([None], [4.0])


async def test_a_sync_elsewhere_that_fails_poisons(world):
    """The entry is not durable."""
    world.policy.inline, outcomes = False, []
    world.sync.sync(plan(), is_sending=False, done=outcomes.append)
    world.policy.synced(UnavailableError("EIO"), 4.0)
    [error] = outcomes
    assert type(error) is LogPoisonedError
    assert error.message == "EIO"
    assert ("synced", 42) not in world.done
    assert world.policy.seen == []


async def test_the_policy_knows_who_publishes_alone(world):
    """The same connection twice, and whether the loop reads it itself."""
    one, other = Source(), Source()
    world.sync.read_here.add(one)
    for source in (one, one, other, other, None, None, one):
        world.sync.sync(plan(source=source), is_sending=False, done=None)
    assert world.policy.asked == [
        (70, False, False),
        (70, True, True),
        (70, False, False),
        (70, True, False),
        (70, False, False),
        (70, False, False),
        (70, False, False),
    ]


def queued(*, waiting=0, most=0, ahead=0):
    copies = SimpleNamespace(waiting_bytes=waiting)
    return copies, SimpleNamespace(bytes_max=most, bytes_ahead=lambda: ahead)


@pytest.mark.parametrize(
    ("waiting", "most", "ahead", "has_room"),
    [
        (400, 600, 0, True),
        (400, 601, 600, True),  # measured, it fits
        (400, 601, 601, False),
        (0, 5000, 0, True),  # nothing is there
        (1001, 0, 0, False),
    ],
)
async def test_records_are_measured_near_the_end_of_the_last_file(
    world, waiting, most, ahead, has_room
):
    """A new one is made if they do not fit, as large as they are."""
    copies, queue = queued(waiting=waiting, most=most, ahead=ahead)
    resumed = []
    assert world.sync.has_room(copies, queue, resume=resumed.append) is has_room
    assert world.sync.is_making_file is not has_room
    if not has_room:
        await until_async(lambda: resumed)
        assert world.done == [("file", waiting + ahead)]
        assert resumed == [None]


async def test_one_file_is_made_at_a_time(world):
    """Meanwhile there is no room; who waits learns why there is none."""
    world.journal.room, world.journal.file_error = 0, DiskFullError("no space")
    copies, queue = queued(waiting=10)
    resumed = []
    for _ in range(2):
        assert not world.sync.has_room(copies, queue, resume=resumed.append)
    world.journal.room = 1000
    assert not world.sync.has_room(copies, queue, resume=resumed.append)
    await until_async(lambda: resumed)
    assert resumed == [world.journal.file_error]
    assert len(world.done) == 1
    assert world.sync.has_room(copies, queue, resume=resumed.append)

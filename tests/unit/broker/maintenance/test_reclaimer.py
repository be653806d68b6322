"""Records, and their files' descriptors and maps, are removed on a thread."""

import os
import threading
import time

import pytest

from strandline.broker.broker import Broker
from strandline.broker.maintenance.reclaimer import SpaceReclaimer
from strandline.config import BrokerConfig, JournalConfig, StreamConfig
from strandline.errors import DiskFullError, OffsetOutOfRangeError
from strandline.storage.disk import Disk
from strandline.storage.log_start import START_NAME, parse_start

SEGMENT_BYTES = 1 << 20
SLOW = ("unlink", "remove_large", "truncate", "sync_directory", "remove_directory", "write_durably")
"""Calls that take long where much is to be freed, or the disk is busy."""


class WatchedDisk(Disk):
    """Records the slow calls of the thread that created it, while enabled."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.is_watching = False
        self.seen = []
        for name in SLOW:
            setattr(self, name, self._noting(name, getattr(super(), name)))

    def _noting(self, name, call):
        def noted(*arguments, **more):
            if self.is_watching and threading.get_ident() == self.thread:
                self.seen.append((name, str(arguments[0])))
            return call(*arguments, **more)

        return noted


@pytest.fixture
async def broker(tmp_path):
    """A broker whose cleaner is run by hand."""
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        journal=JournalConfig(file_bytes=8 << 20, checkpoint_interval_ms=10**9),
        cleaner_interval_ms=10**9,
    )
    broker = Broker(config, disk=WatchedDisk())
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def fill(broker, answers, kit):
    """Creates a stream of several sealed segments, all mapped by a reader."""

    async def made(name="s", **settings):
        config = StreamConfig(name=name, subject=name, segment_bytes=SEGMENT_BYTES, **settings)
        partition = (await broker.create_stream(config)).partition(0)
        while len(partition.log.segments) < 5:
            token = len(answers.order)
            kit.put(partition, answers, token, key=b"k", value=bytes(300_000))
            await answers.wait(token + 1)
        await broker._checkpoints.checkpoint()
        read_all(partition)
        return partition

    return made


def read_all(partition):
    """Read a partition, so that its segments are mapped."""
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        offset = partition.log.read(offset, 1).next_offset


async def truncate(broker, partition):
    await broker.delete_records("s", 0, partition.high_watermark)


async def clean(broker, _):
    await broker._cleaner.clean()
    await broker.reclaimer.drained()


async def delete(broker, _):
    await broker.delete_stream("s")


REMOVALS = {
    "truncate": (truncate, {}),
    "retention": (clean, {"retention_bytes": SEGMENT_BYTES}),
    "compaction": (clean, {"compact": True}),
    "delete": (delete, {}),
}


@pytest.mark.parametrize(("remove", "settings"), REMOVALS.values(), ids=REMOVALS)
async def test_removing_leaves_the_loop_alone(broker, fill, remove, settings):
    """Whatever takes long on a file system that frees gigabytes happens on another thread."""
    partition = await fill(**settings)
    broker.disk.is_watching = True
    await remove(broker, partition)
    broker.disk.is_watching = False
    files = [(name, path) for name, path in broker.disk.seen if "/logs/" in path]
    indexes = [path for name, path in files if name == "unlink" and path.endswith("index")]
    assert len(files) == len(indexes), files


@pytest.mark.parametrize(("remove", "settings"), REMOVALS.values(), ids=REMOVALS)
async def test_removing_gives_the_space_back(broker, fill, kit, tmp_path, remove, settings):
    """Nothing that was removed stays open or mapped, though readers are attached; the files go."""
    partition = await fill(**settings)
    waiter = threading.Event()
    partition.watch(waiter)
    taken, sealed = partition.log.segments, partition.log.segments[0].path
    inode = sealed.stat().st_ino
    await remove(broker, partition)
    assert kit.held(tmp_path) == []
    assert not sealed.exists() or sealed.stat().st_ino != inode, "compaction puts another there"
    assert taken


async def test_acks_go_on_while_files_are_removed(broker, fill, answers, kit):
    """A slow file system delays only the caller of the removal."""
    await fill()
    other = (await broker.create_stream(StreamConfig(name="t", subject="t"))).partition(0)
    reached, released = threading.Event(), threading.Event()

    def slow(path, remove=broker.disk.remove_large):
        reached.set()
        assert released.wait(60)
        remove(path)

    broker.disk.remove_large = slow
    deleting = broker._loop.create_task(broker.delete_stream("s"))
    await kit.until(reached.is_set)
    before = len(answers.order)
    kit.put(other, answers, "meanwhile")
    await answers.wait(before + 1)
    await broker._checkpoints.checkpoint()
    assert not deleting.done()
    released.set()
    await deleting


async def test_a_full_disk_is_freed_by_what_is_removed(broker, fill):
    """The new start can be stored once the files are removed, and not before."""
    partition = await fill()
    write, path = broker.disk.write_atomically, partition.log.segments[0].path

    def full(target, data):
        if path.exists():
            raise DiskFullError("no space left")
        write(target, data)

    broker.disk.write_atomically = full
    end = partition.log.segments[-1].base_offset
    await broker.reclaimer.delete_before(partition.log, end)
    assert partition.log_start_offset == end
    with pytest.raises(OffsetOutOfRangeError, match="cannot delete records below offset"):
        await broker.reclaimer.delete_before(partition.log, 10**6)


async def test_a_removal_that_fails_is_logged_and_the_next_one_done(broker, caplog):
    """One file that cannot be removed does not keep the space of all others."""
    done = []

    def fail():
        raise DiskFullError("cannot remove x")

    broker.reclaimer.run(fail)
    broker.reclaimer.run(lambda: done.append(os.getpid()))
    await broker.reclaimer.drained()
    assert done
    assert "cannot remove x" in caplog.text


def test_closing_finishes_the_removal_in_progress():
    """What is queued is left to the next start; nothing is removed after the broker has stopped."""
    reclaimer = SpaceReclaimer()
    begun, done = threading.Event(), []

    def slow():
        begun.set()
        time.sleep(0.1)
        done.append("first")

    reclaimer.run(slow)
    reclaimer.run(lambda: done.append("second"))
    assert begun.wait(10)
    reclaimer.close()
    assert done == ["first"]


async def test_a_start_that_a_full_disk_rejected_is_stored_once_there_is_room(broker, fill):
    """A restart would bring the records back, whose files are gone."""
    partition = await fill()
    log, noted = partition.log, []
    store_start = log.store_start

    def full_at_first(offset):
        noted.append(offset)
        if len(noted) == 1:
            raise DiskFullError("no space left")
        store_start(offset)

    log.store_start = full_at_first
    end = log.segments[-1].base_offset
    await broker.reclaimer.delete_before(log, end)
    assert noted == [end, end]
    stored = (log.directory / START_NAME).read_bytes()
    assert parse_start(stored) == end

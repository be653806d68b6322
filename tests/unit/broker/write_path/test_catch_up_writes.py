"""Large writes: past the journal, durable in order, each reported once; small ones through it."""

import asyncio
import errno

import pytest

from strandline.broker.write_path import catch_up_writes as bulk_writes
from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.catch_up_writes import CatchUpWrites
from strandline.broker.write_path.replica_writes import ReplicaWrite, ReplicaWrites
from strandline.clock import ManualClock
from strandline.config import LimitsConfig
from strandline.errors import DiskFullError, LogPoisonedError, UnavailableError
from strandline.record.codec import Stamp, encode_records
from strandline.storage import segment
from strandline.storage.recovery import LogPlan, recover
from strandline.telemetry import Telemetry

LARGE = 3000


class Bulk:
    """Catch-up writes of one log, and their outcomes."""

    def __init__(self, path, disk):
        plans = {1: LogPlan(path / "log", 16 << 10, 10**9)}
        self.disk, self.storage = disk, recover(path / "data", plans, disk=disk, file_bytes=4096)
        self.told, self.poisoned = [], []
        self.telemetry, self.copies = Telemetry(), ReplicaWrites()
        self.writes = CatchUpWrites(
            asyncio.get_running_loop(),
            admission=Admission(LimitsConfig(), clock=ManualClock(), wake=lambda: None),
            copies=self.copies,
            telemetry=self.telemetry,
            on_poisoned=self.poison,
            sync=None,
        )

    @property
    def log(self):
        return self.storage.logs[1]

    def poison(self, error):
        self.poisoned.append(error)
        self.writes.reject_waiting(error)

    def write(self, name, base, *, size=LARGE, count=1):
        batches = [
            encode_records([bytes(size)], ["s"], Stamp(base + index, 0, 1))
            for index in range(count)
        ]
        return ReplicaWrite(1, self.log, batches, lambda error: self.told.append((name, error)))

    def begin(self, write):
        """Submit a write; return whether it bypasses the journal, or waits for one that does."""
        before = self.copies.waiting_bytes
        self.writes.submit(write)
        return self.copies.waiting_bytes == before

    async def passed(self):
        while not self.writes.is_idle:
            await self.writes.passed()
            await asyncio.sleep(0)


@pytest.fixture
async def bulk(tmp_path, disk, monkeypatch):
    """Nothing is under way; writes of more than a few records are large."""
    monkeypatch.setattr(bulk_writes, "BULK_BYTES", LARGE)
    return Bulk(tmp_path, disk)


async def test_it_is_synced_in_its_segment_and_reported_then(bulk):
    """The log's file is synced, the journal is not written."""
    gate = bulk.disk.hold("sync", "*.log")
    assert bulk.begin(bulk.write("a", 0))
    await asyncio.to_thread(gate.reached.wait, 5)
    assert not bulk.told
    assert not bulk.writes.is_idle
    gate.released.set()
    await bulk.passed()
    assert bulk.told == [("a", None)]
    assert bulk.log.log_end_offset == 1
    assert bulk.log.pending_bytes == 0
    assert bulk.disk.count("write", "*.journal") == 0
    assert bulk.telemetry.bulk_bytes > LARGE


async def test_the_disk_gets_it_a_part_at_a_time_and_its_pages_are_dropped(bulk, monkeypatch):
    """No sync of the journal waits for all of it, and its pages are dropped from the cache."""
    monkeypatch.setattr(segment, "WRITE_BACK_BYTES", 1 << 10)
    bulk.begin(bulk.write("a", 0, count=2))
    await bulk.passed()
    steps = [name for name, path in bulk.disk.seen if path.endswith(".log") and name != "open"]
    parts = bulk.log.size_bytes // (1 << 10)
    assert steps == ["create", "write", *["begin"] * parts, "sync", "drop"]


async def test_little_goes_to_the_journal_and_so_does_a_log_that_was_truncated(bulk):
    """Neither is touched."""
    assert not bulk.begin(bulk.write("small", 0, size=10))
    bulk.copies.write()
    bulk.copies.complete()
    assert bulk.begin(bulk.write("a", 1, count=2))
    await bulk.passed()
    bulk.log.truncate_to(2)
    assert not bulk.begin(bulk.write("b", 2))
    assert bulk.writes.is_idle
    assert bulk.log.log_end_offset == 2


async def test_it_does_not_overtake_what_goes_through_the_journal(bulk):
    """Batches of a log become durable in order."""
    assert not bulk.begin(bulk.write("small", 0, size=10))
    assert not bulk.begin(bulk.write("a", 0))
    assert bulk.log.log_end_offset == 0


async def test_what_comes_meanwhile_waits_and_goes_together(bulk):
    """One sync for all of it if it is much; else it is for the journal."""
    gate = bulk.disk.hold("sync", "*.log")
    bulk.begin(bulk.write("a", 0))
    for name, base in (("b", 1), ("c", 2)):
        assert bulk.begin(bulk.write(name, base, size=LARGE // 2))
    await asyncio.to_thread(gate.reached.wait, 5)
    assert bulk.log.log_end_offset == 1
    gate.released.set()
    await bulk.passed()
    assert bulk.told == [("a", None), ("b", None), ("c", None)]
    assert bulk.disk.count("sync", "*.log") == 2

    bulk.begin(bulk.write("d", 3))
    small = bulk.write("e", 4, size=10)
    assert bulk.begin(small)
    await bulk.passed()
    assert bulk.copies.has(small.log_id)
    assert bulk.told[3:] == [("d", None)]


async def test_what_is_submitted_by_a_callback_comes_after_what_waits(bulk):
    """Batches keep their order, also if one is submitted from a ``done`` callback."""
    second, third = bulk.write("b", 1), bulk.write("c", 2)
    first = bulk.write("a", 0)._replace(done=lambda _: bulk.begin(third))
    bulk.begin(first)
    bulk.begin(second)
    await bulk.passed()
    assert bulk.told == [("b", None), ("c", None)]
    assert bulk.log.log_end_offset == 3


async def test_no_space_undoes_all_of_it_and_what_follows(bulk):
    """The log is as before; when there is room again, the journal continues."""
    bulk.begin(bulk.write("a", 0))
    await bulk.passed()
    bulk.disk.fill("*.log")
    bulk.begin(bulk.write("b", 1, count=3))
    bulk.begin(bulk.write("c", 4))
    await bulk.passed()
    assert [name for name, _ in bulk.told] == ["a", "b", "c"]
    assert all(isinstance(error, DiskFullError) for _, error in bulk.told[1:])
    assert bulk.log.log_end_offset == 1
    assert not bulk.poisoned
    bulk.disk.heal()
    assert not bulk.begin(bulk.write("d", 1)), "it was cut"


async def test_a_failed_sync_poisons_and_nothing_is_reported_stored(bulk):
    """All waiting writes are rejected."""
    bulk.disk.fail("sync", "*.log", code=errno.EIO)
    bulk.begin(bulk.write("a", 0))
    bulk.begin(bulk.write("b", 1))
    await bulk.passed()
    assert [name for name, _ in bulk.told] == ["b", "a"]
    assert all(isinstance(error, LogPoisonedError) for _, error in bulk.told)
    assert len(bulk.poisoned) == 1


async def test_a_failed_write_poisons(bulk):
    """As in a group commit."""
    bulk.disk.fail("write", "*.log", code=errno.EIO)
    assert bulk.begin(bulk.write("a", 0))
    await bulk.passed()
    [(_, error)] = bulk.told
    assert isinstance(error, LogPoisonedError)
    assert bulk.poisoned == [error]


async def test_a_log_that_was_deleted_meanwhile_poisons_nothing(bulk):
    """Its writes fail; the other logs continue."""
    gate = bulk.disk.hold("sync", "*.log")
    bulk.begin(bulk.write("a", 0))
    await asyncio.to_thread(gate.reached.wait, 5)
    bulk.log.close()
    gate.released.set()
    await bulk.passed()
    [(_, error)] = bulk.told
    assert isinstance(error, UnavailableError)
    assert not bulk.poisoned

"""Finished batches on their way into logs: all or nothing, in order, each reported once."""

import errno

import pytest

from strandline.broker.write_path.replica_writes import (
    PART_OVERHEAD_BYTES,
    ReplicaWrite,
    ReplicaWrites,
)
from strandline.errors import DiskFullError, LogPoisonedError, UnavailableError
from strandline.record.codec import Stamp, encode_records
from strandline.storage.log import Log


def batch(base):
    return encode_records([b"v" * 100], ["s"], Stamp(base, 0, 1, "none"))


@pytest.fixture
def logs(tmp_path, disk):
    return [
        Log.open(tmp_path / str(n), disk=disk, segment_bytes=1 << 10, segment_age_ms=10**9)
        for n in (1, 2)
    ]


@pytest.fixture
def raw(logs):
    """Writes, and a function that submits one and notes its outcome."""
    writes, told = ReplicaWrites(), []

    def submit(name, number, *bases):
        done = lambda error: told.append((name, error))  # noqa: E731
        writes.submit(ReplicaWrite(number, logs[number - 1], [batch(b) for b in bases], done))

    writes.told, writes.put = told, submit
    return writes


def test_batches_are_written_in_order_and_reported_once_complete(raw, logs):
    """Nothing is reported before the group commit is on disk; then every write is."""
    raw.put("a", 1, 0, 1)
    raw.put("b", 2, 0)
    raw.put("c", 1, 2)
    assert raw.waiting_bytes == 4 * (len(batch(0)) + PART_OVERHEAD_BYTES)
    assert [log_id for log_id, _ in raw.write()] == [1, 1, 2, 1]
    assert (raw.told, raw.is_idle, raw.has_waiting) == ([], False, False)
    assert raw.waiting_bytes == 0
    raw.complete()
    assert raw.told == [("a", None), ("b", None), ("c", None)]
    assert [log.log_end_offset for log in logs] == [3, 1]
    assert raw.is_idle


def test_a_full_disk_costs_one_log_only_what_follows_in_it(raw, logs, disk):
    """Later writes to the same log fail too; the other log's batches are stored."""
    raw.put("fill", 1, *range(5))
    raw.write()
    raw.complete()
    disk.fail("create", "/1/", code=errno.ENOSPC)  # its next segment
    raw.put("a", 1, *range(5, 12))
    raw.put("b", 2, 0)
    raw.put("c", 1, 12)
    assert [log_id for log_id, _ in raw.write()] == [2]
    assert [name for name, _ in raw.told] == ["fill", "a", "c"]
    assert all(isinstance(error, DiskFullError) for _, error in raw.told[1:])
    assert logs[0].log_end_offset == 5
    raw.complete()
    assert raw.told[-1] == ("b", None)
    disk.heal()
    raw.put("again", 1, 5)
    raw.write()
    raw.complete()
    assert (raw.told[-1], logs[0].log_end_offset) == (("again", None), 6)


def test_what_the_journal_rejected_is_taken_back(raw, logs):
    """Without room in the journal the logs end where they did, and every write fails."""
    raw.put("a", 1, 0, 1)
    raw.put("b", 1, 2)
    raw.write()
    error = UnavailableError("no room")
    raw.undo(error)
    assert raw.told == [("a", error), ("b", error)]
    assert logs[0].log_end_offset == 0
    assert raw.is_idle


def test_a_failed_group_commit_rejects_its_own_writes_and_those_that_wait(raw):
    """Storage that failed answers everybody, once."""
    error = LogPoisonedError("broken")
    raw.put("a", 1, 0)
    raw.write()
    raw.put("b", 1, 1)
    raw.fail(error)
    raw.reject_waiting(error)
    assert raw.told == [("a", error), ("b", error)]
    assert raw.is_idle


def test_what_cannot_be_taken_back_stops_the_storage(raw, logs, monkeypatch):
    """A log that keeps batches which were rejected is reopened, not written to any more."""
    raw.put("a", 1, 0)
    raw.write()

    def failing(offset):
        raise UnavailableError("read-only file system")

    monkeypatch.setattr(logs[0], "undo_to", failing)
    with pytest.raises(LogPoisonedError, match="reopened: read-only file system"):
        raw.undo(UnavailableError("no room"))

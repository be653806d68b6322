"""One group commit as a value: what it writes, undoes, counts and rejects."""

from collections import Counter
from types import SimpleNamespace

import pytest

from strandline.broker.write_path.io_plan import IoPlan
from strandline.broker.write_path.pending import AckWaiter
from strandline.errors import (
    DiskFullError,
    InvalidRequestError,
    LogPoisonedError,
    UnavailableError,
)
from strandline.storage.journal import entry_bytes
from strandline.telemetry import Telemetry

NOW = 77


class Sink:
    """A connection that keeps rejections."""

    def __init__(self):
        self.rejections = []

    def rejected(self, token, error):
        self.rejections.append((token, error))


def chunk(base, count=1, *, size=10, sinks=()):
    waiting = [AckWaiter(sink, n, base) for n, sink in enumerate(sinks)]
    return SimpleNamespace(
        base_offset=base, count=count, bytes=size, waiting=waiting, on_disk=[], early=[]
    )


class FakePartition:
    """A partition and its log; it fails to write the batches that a test names."""

    def __init__(self, log_id, *, needs_sync=True):
        self.log_id, self.needs_sync, self.name = log_id, needs_sync, f"s/{log_id}"
        self.log = SimpleNamespace(undo_to=self.undo_to)
        self.failures, self.done, self.undo_error = {}, [], None

    def write(self, chunk, now_ns, logs):
        assert now_ns == NOW
        if chunk.base_offset in self.failures:
            raise self.failures[chunk.base_offset]
        logs.append(self.log)
        return bytearray(chunk.bytes)

    def undo_to(self, offset):
        self.done.append(("undo", offset))
        if self.undo_error is not None:
            raise self.undo_error

    def journaled(self, chunk, batch):
        self.done.append(("journaled", chunk.base_offset, len(batch)))

    def synced(self, chunk, next_offset):
        self.done.append(("synced", chunk.base_offset, next_offset))

    def reject_from(self, chunks, error):
        self.done.append(("reject", [each.base_offset for each in chunks], error))
        return sum(each.count for each in chunks)


class Copies:
    """Finished batches for other logs."""

    def __init__(self, *parts):
        self.parts, self.logs, self.done = list(parts), [f"log {n}" for n, _ in parts], []
        self.has_waiting = bool(parts)

    def write(self):
        return list(self.parts)

    def complete(self):
        self.done.append("complete")

    def undo(self, error):
        self.done.append(("undo", error))

    def fail(self, error):
        self.done.append(("fail", error))


class FakeJournal:
    """A journal that takes entries, or has no room."""

    def __init__(self, error=None, *, room=1 << 20):
        self.error, self.room, self.entries = error, room, []

    def has_room(self, length):
        return length <= self.room

    def append(self, parts):
        if self.error is not None:
            raise self.error
        self.entries.append(list(parts))


class World:
    """A plan of these batches by partition, and what it counts."""

    def __init__(self, *drained, copies=None):
        self.copies = copies or Copies()
        self.admission = SimpleNamespace(rejects=Counter())
        self.telemetry = Telemetry()
        self.plan = IoPlan(
            list(drained),
            self.copies,
            admission=self.admission,
            telemetry=self.telemetry,
        )


def test_everything_is_one_entry_of_the_journal():
    """Copies first; each batch is reported with its end once it is written, and once synced."""
    one, two = FakePartition(1), FakePartition(2)
    copies = Copies((9, b"x" * 100))
    world = World((one, [chunk(5, 3), chunk(8)]), (two, [chunk(0, 2, size=20)]), copies=copies)
    journal = FakeJournal()
    assert world.plan.write(journal, NOW)
    assert [(n, len(batch)) for n, batch in journal.entries[0]] == [
        (9, 100),
        (1, 10),
        (1, 10),
        (2, 20),
    ]
    assert world.plan.logs == ["log 9", one.log, one.log, two.log]
    assert (world.plan.size, world.plan.records) == (140, 6)
    assert one.done == [("journaled", 5, 10), ("journaled", 8, 10)]
    one.done.clear()
    world.plan.commit()
    assert one.done == [("synced", 5, 8), ("synced", 8, 9)]
    assert two.done[-1] == ("synced", 0, 2)
    assert copies.done == ["complete"]
    counted = world.telemetry
    assert (counted.group_commits, counted.batches_appended) == (1, 3)
    assert (counted.records_appended, counted.bytes_appended) == (6, 40)
    assert (counted.commit_bytes.total, counted.commit_records.total) == (40, 6)


@pytest.mark.parametrize(
    ("needs", "copied", "needs_sync"),
    [
        ((False, False), False, False),
        ((True, False), False, True),
        ((False, True), False, True),
        ((False, False), True, True),
    ],
)
def test_a_sync_is_needed_if_one_stream_or_a_copy_needs_it(needs, copied, needs_sync):
    """A stream whose acks wait for no disk does not."""
    partitions = [FakePartition(n, needs_sync=each) for n, each in enumerate(needs)]
    copies = Copies((9, b"x")) if copied else Copies()
    world = World(*((each, [chunk(0)]) for each in partitions), copies=copies)
    world.plan.write(FakeJournal(), NOW)
    assert world.plan.needs_sync is needs_sync


def test_nothing_is_no_entry_and_no_commit():
    """It is not counted."""
    world, journal = World(), FakeJournal()
    assert not world.plan.write(journal, NOW)
    world.plan.commit()
    assert journal.entries == []
    assert world.telemetry.group_commits == 0
    assert world.copies.done == ["complete"]


def test_a_batch_that_fails_costs_what_follows_in_its_partition():
    """Offsets are dense; another partition goes on."""
    one, two, error = FakePartition(1), FakePartition(2), DiskFullError("full")
    one.failures[3] = error
    chunks = [chunk(0, 3), chunk(3, 2), chunk(5)]
    world = World((one, chunks), (two, [chunk(0)]))
    assert world.plan.write(FakeJournal(), NOW)
    assert ("reject", [3, 5], error) in one.done
    assert [each.base_offset for each in chunks] == [0]
    assert world.admission.rejects == {"disk_full": 3}
    assert len(world.plan.writes) == 2
    world.plan.commit()
    assert world.telemetry.disk_full == 1


def test_a_record_that_cannot_be_stored_is_its_own_publishers_fault():
    """Those behind it may try again."""
    partition, bad, behind = FakePartition(1), Sink(), Sink()
    error = InvalidRequestError("no such schema")
    partition.failures[0] = error
    world = World((partition, [chunk(0, sinks=[bad]), chunk(1, sinks=[behind])]))
    assert not world.plan.write(FakeJournal(), NOW)
    assert bad.rejections == [(0, error)]
    [(_, bases, reason)] = partition.done
    assert bases == [0, 1]
    assert type(reason) is UnavailableError
    assert behind.rejections == []
    assert world.admission.rejects == {"unavailable": 2}


@pytest.mark.parametrize("cause", ["journal", "no file"])
def test_without_room_in_the_journal_everything_is_undone(cause):
    """The logs end where they did, and everybody hears why."""
    one, two = FakePartition(1), FakePartition(2)
    error = DiskFullError("no space")
    world = World((one, [chunk(5), chunk(6)]), (two, [chunk(0)]), copies=Copies((9, b"x")))
    two.failures[0] = UnavailableError("its own")
    parts = [(9, b"x"), (1, bytes(10)), (1, bytes(10))]
    if cause == "journal":
        assert not world.plan.write(FakeJournal(error), NOW)
    else:
        assert not world.plan.write(FakeJournal(room=entry_bytes(parts) - 1), NOW, error)
    assert one.done == [("undo", 5), ("reject", [5, 6], error)]
    assert [each[0] for each in two.done] == ["reject"]
    assert world.copies.done == [("undo", error)]
    assert (world.plan.writes, world.plan.parts, world.plan.logs) == ([], [], [])
    assert world.admission.rejects == {"unavailable": 1, "disk_full": 2}
    world.plan.fail(LogPoisonedError("later"))
    assert one.done[2:] == [("reject", [], world.copies.done[-1][1])]


def test_an_entry_that_fits_needs_no_file():
    """That none could be made is no reason yet."""
    partition = FakePartition(1)
    world = World((partition, [chunk(0)]))
    journal = FakeJournal(room=entry_bytes([(1, bytes(10))]))
    assert world.plan.write(journal, NOW, DiskFullError("no space"))
    assert len(journal.entries) == 1


def test_what_cannot_be_undone_is_reopened():
    """Nobody hears anything before."""
    partition = FakePartition(1)
    partition.undo_error = UnavailableError("stuck")
    world = World((partition, [chunk(5)]))
    with pytest.raises(LogPoisonedError, match=r"could not be undone.*stuck"):
        world.plan.write(FakeJournal(DiskFullError("no space")), NOW)
    assert partition.done == [("undo", 5)]


def test_failed_storage_rejects_everything_once():
    """Whether it was written is not known."""
    partition, error = FakePartition(1), LogPoisonedError("broken")
    world = World((partition, [chunk(0), chunk(1)]), copies=Copies((9, b"x")))
    with pytest.raises(LogPoisonedError):
        world.plan.write(FakeJournal(error), NOW)
    world.plan.fail(error)
    assert partition.done == [("reject", [0, 1], error)]
    assert world.copies.done == [("fail", error)]
    world.plan.fail(error)
    assert len(partition.done) == 1


def test_the_connection_that_all_came_over():
    """Judged by the ends of each batch; batches that nobody waits for do not count."""
    a, b = Sink(), Sink()
    for batches, source in (
        ([], None),
        ([[]], None),
        ([[a], [a, a], []], a),
        ([[a], [b]], None),
        ([[a, b]], None),
        ([[], [b]], b),
    ):
        partition = FakePartition(1)
        chunks = [chunk(n, sinks=sinks) for n, sinks in enumerate(batches)]
        world = World((partition, chunks))
        world.plan.write(FakeJournal(), NOW)
        assert world.plan.only_source is source

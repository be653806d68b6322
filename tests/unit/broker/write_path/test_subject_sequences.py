"""The last sequence of each subject: what is committed and what was accepted since, together."""

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.broker.write_path import subject_sequences as sequences_module
from strandline.broker.write_path.pending import PendingPurge
from strandline.broker.write_path.subject_sequences import SubjectSequences
from strandline.errors import (
    InvalidRequestError,
    StillLoadingError,
    UnavailableError,
    WrongLastSequenceError,
)
from strandline.storage.subject_history import ROLLUP_HEADER
from tests.kit.waiting import until_async


class Retention:
    """Knows the records below ``position``; catching up is quick unless ``is_slow``."""

    def __init__(self):
        self.position, self.start, self.lasts = 10, 2, {"a": 5, "old": 1}
        self.is_slow, self.error, self.asked = False, None, []

    def last(self, subject):
        return self.lasts.get(subject, -1)

    def is_current(self, end):
        if self.error is not None:
            raise self.error
        if self.is_slow:
            return False
        self.position = max(self.position, end)
        return True

    def catch_up(self, end):
        self.asked.append(end)
        if self.error is not None:
            raise self.error
        self.position = max(self.position, end)


class Held:
    """The appends that wait."""

    def __init__(self):
        self.waiting, self.done = [], []

    def release(self):
        self.done.append("release")

    def reject(self, error):
        self.done.append(error)


class World:
    """A partition whose log ends at 10, all of it committed."""

    def __init__(self):
        self.retention, self.held = Retention(), Held()
        self.next_offset = self.log_end_offset = self.last_stable_offset = 10
        self.write_error, self.chunks, self.watching = None, [], []
        self.sequences = SubjectSequences(self, self.held)

    def add_chunk(self, chunk, ack_sink, token):
        self.chunks.append((chunk, ack_sink, token))

    def watch(self, waiter):
        self.watching.append(waiter)

    def unwatch(self, waiter):
        self.watching.remove(waiter)

    def last(self, subject):
        """The sequence that a publish to a subject has to expect."""
        with pytest.raises(WrongLastSequenceError, match="wrong last sequence: ") as caught:
            self.sequences.check(subject, -1)
        found = int(caught.value.message.rpartition(" ")[2])
        self.sequences.check(subject, found)
        return found


@pytest.fixture
async def world():
    return World()


async def test_the_last_record_is_the_newest_that_is_there(world):
    """A sequence is the offset and one; a subject without records has 0."""
    assert world.last("a") == 6
    assert world.last("new") == 0
    assert world.last("old") == 0, "retention has removed it"
    world.sequences.note(["a", "b", "a"], 10)
    assert (world.last("a"), world.last("b")) == (13, 12)


async def test_what_was_committed_may_have_been_removed_since(world):
    """Then the retention knows better than what was accepted."""
    world.sequences.note(["a", "b"], 10)
    world.retention.position = 11
    world.retention.lasts["a"] = 7
    assert (world.last("a"), world.last("b")) == (8, 12)
    world.retention.start = 12
    assert (world.last("a"), world.last("b")) == (0, 0)


async def test_records_that_were_not_stored_do_not_count(world):
    """Those before them do."""
    world.sequences.note(["a", "b", "a"], 10)
    world.sequences.forget_from(12)
    assert (world.last("a"), world.last("b")) == (11, 12)
    world.sequences.forget_from(10)
    assert (world.last("a"), world.last("b")) == (6, 0)


async def test_rows_of_a_batch_count_each(world):
    """Under their own subject, or the stream's; headers may concern other subjects."""
    rows = pa.RecordBatch.from_pydict({"subject": ["a", None, "b"], "value": [b"", b"", b""]})
    world.sequences.note_batch(rows, 10, "default")
    assert [world.last(each) for each in ("a", "default", "b")] == [11, 12, 13]
    world.sequences.note_batch(rows.select(["value"]), 13, "default")
    assert world.last("default") == 16
    with_headers = rows.append_column("headers", pa.array([None, None, None], pa.null()))
    world.sequences.note_batch(with_headers, 16, "default")
    world.retention.is_slow = True
    world.retention.error = UnavailableError("slow")
    with pytest.raises(StillLoadingError):
        world.sequences.check("a", 17)


@pytest.mark.parametrize("kind", ["rollup", "purge"])
async def test_what_concerns_other_subjects_has_to_be_applied_first(world, kind):
    """Nothing is known until the log was read up to it; then what waits goes on."""
    if kind == "rollup":
        world.sequences.note(["a"], 10, [("x", b""), (ROLLUP_HEADER, b"all")])
    else:
        world.sequences.purge("a.>", 8, ack_sink="sink", token="t")
        [(purge, *rest)] = world.chunks
        assert isinstance(purge, PendingPurge)
        assert rest == ["sink", "t"]
    with pytest.raises(StillLoadingError):
        world.sequences.check("a", 6)
    assert world.watching == [world.sequences]
    world.held.waiting.append("append")
    world.sequences.set()
    await asyncio.sleep(0)
    assert world.held.done == [], "it is not committed yet"
    world.last_stable_offset = 11
    world.sequences.set()
    await asyncio.sleep(0)
    assert world.watching == []
    assert world.held.done == ["release"]
    assert world.last("a") == 6


async def test_a_header_of_another_kind_concerns_its_own_subject(world):
    """Nothing has to be read."""
    world.sequences.note(["a"], 10, [("x", b"")])
    assert world.last("a") == 11


async def test_much_is_applied_on_a_thread(world):
    """Once at a time; what waits is released after it."""
    world.retention.is_slow, world.retention.position = True, 3
    world.held.waiting.append("append")
    for _ in range(2):
        with pytest.raises(StillLoadingError):
            world.sequences.check("a", 6)
    await until_async(lambda: world.held.done)
    assert world.retention.asked == [10]
    assert world.held.done == ["release"]
    assert world.last("a") == 6


async def test_what_cannot_be_read_rejects_what_waits(world, caplog):
    """With the reason; the next check tries again."""
    world.retention.error, world.retention.position = UnavailableError("disk"), 3
    with pytest.raises(StillLoadingError):
        world.sequences.check("a", 6)
    await until_async(lambda: world.held.done)
    assert world.held.done == [world.retention.error]
    assert "cannot be loaded: disk" in caplog.text
    world.retention.error = None
    assert world.last("a") == 6


async def test_accepted_records_are_forgotten_once_they_are_applied(world, monkeypatch):
    """Else every record would be kept; with many it happens by itself."""
    monkeypatch.setattr(sequences_module, "NOTED_MAX", 4)
    world.sequences = SubjectSequences(world, world.held)
    world.sequences.note(["a", "b", "a", "b"], 10)
    assert world.sequences._accepted == {"a": (10, 12), "b": (11, 13)}
    world.last_stable_offset = 13
    world.sequences.note(["c"], 14)
    assert world.sequences._accepted == {"b": (13,), "c": (14,)}
    world.sequences.note(["d"] * 2, 15)
    assert world.sequences._noted == 4


async def test_a_new_leader_reads_what_others_accepted(world):
    """What it knew does not count."""
    world.sequences.note(["a"], 10)
    world.sequences.start_over(15)
    world.last_stable_offset = 12
    with pytest.raises(StillLoadingError):
        world.sequences.check("a", 6)
    world.last_stable_offset = 15
    assert world.last("a") == 6


async def test_a_partition_without_retention_knows_nothing(world):
    """It takes transactions, and notes nothing."""
    retention, world.retention = world.retention, None
    world.sequences.check_transactional()
    world.sequences.note(["a"], 10)
    world.sequences.set()
    with pytest.raises(StillLoadingError):
        world.sequences.check("a", 6)
    world.retention = retention
    assert world.last("a") == 6
    with pytest.raises(InvalidRequestError, match="takes no transactions"):
        world.sequences.check_transactional()


async def test_a_purge_of_a_partition_that_takes_nothing_is_rejected(world):
    """Nothing has to be applied for it."""
    world.write_error, rejections = UnavailableError("moved"), []
    sink = SimpleNamespace(rejected=lambda *given: rejections.append(given))
    world.sequences.purge("a", 8, ack_sink=sink, token="t")
    assert rejections == [("t", world.write_error)]
    assert world.chunks == []
    assert world.last("a") == 6

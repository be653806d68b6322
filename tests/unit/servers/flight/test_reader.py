"""One read: all partitions, following, long polls, limits; and how it ends."""

import threading
import time
from itertools import islice

import pyarrow as pa
import pytest

from strandline.api.tickets import ReadRequest
from strandline.errors import (
    CorruptBatchError,
    NotLeaderError,
    ShuttingDownError,
    UnknownStreamError,
)
from strandline.servers.flight import reader
from strandline.servers.flight.lifecycle import ServerLifecycle
from strandline.servers.flight.plan import plan_read
from strandline.servers.flight.reader import ReadSession, join


class Session:
    """A read of a fake stream, with a client that can go away."""

    def __init__(self, broker, stream, **request):
        self.lifecycle = ServerLifecycle(broker)
        self.gone = threading.Event()
        plan = plan_read(ReadRequest(stream=stream.name, **request), stream)
        session = ReadSession(
            plan, self.lifecycle, telemetry=broker.telemetry, is_cancelled=self.gone.is_set
        )
        self.batches = session.batches()

    def values(self):
        """Every value delivered."""
        return [value for batch in self.batches for value in batch.column("value").to_pylist()]

    def next_values(self, count):
        """The values of the next batches."""
        taken = islice(self.batches, count)
        return [value for batch in taken for value in batch.column("value").to_pylist()]


@pytest.fixture
def later():
    """Runs something a little later, on another thread."""
    timers = []

    def run(function, *args, after_s=0.1):
        timers.append(threading.Timer(after_s, function, args))
        timers[-1].start()

    yield run
    for timer in timers:
        timer.join()


def test_a_bounded_read_ends_where_the_log_ended(broker, stream, partition):
    """Records stored meanwhile are not part of it."""
    partition.store(b"a", b"b")
    session = Session(broker, stream)
    partition.store(b"c")
    assert session.values() == [b"a", b"b"]
    assert session.lifecycle.busy == 0
    assert broker.telemetry.read_records == 2


def test_several_partitions_come_one_after_another(broker):
    """Each batch says which partition it is of."""
    stream = broker.make_stream("m", partitions=3)
    for number in (0, 2):
        stream.partitions[number].store(b"%d" % number)
    rows = [row for batch in Session(broker, stream).batches for row in batch.to_pylist()]
    assert [(row["partition"], row["value"]) for row in rows] == [(0, b"0"), (2, b"2")]


def test_records_max_ends_a_read(broker, stream, partition):
    """In the middle of a batch if need be; zero records is a valid wish."""
    for _ in range(3):
        partition.store(b"a", b"b")
    assert len(Session(broker, stream, records_max=3).values()) == 3
    assert Session(broker, stream, records_max=0).values() == []
    assert len(Session(broker, stream, records_max=2, follow=True).values()) == 2


def test_following_delivers_what_is_stored_later(broker, stream, partition, later):
    """The reader waits, and gets each record when it is there."""
    partition.store(b"a")
    session = Session(broker, stream, follow=True, stop=3)
    assert session.next_values(1) == [b"a"]
    later(partition.store, b"b", b"c", b"d")
    started = time.monotonic()
    assert session.values() == [b"b", b"c"]
    assert 0.05 < time.monotonic() - started < 30


def test_following_several_partitions_interleaves_them(broker, later):
    """Any partition with records is read; a group commit wakes the reader."""
    stream = broker.make_stream("m", partitions=3)
    session = Session(broker, stream, follow=True)
    stream.partitions[1].store(b"b")
    assert session.next_values(1) == [b"b"]
    later(stream.partitions[2].store, b"c")
    later(session.lifecycle.notify, after_s=0.15)
    assert session.next_values(1) == [b"c"]
    session.batches.close()
    assert session.lifecycle.busy == 0


def test_no_partition_starves_another(broker):
    """One that always has more does not keep the others from being read."""
    stream = broker.make_stream("m", partitions=2)
    for _ in range(50):
        stream.partitions[0].store(b"busy" * 300_000)
    stream.partitions[1].store(b"rare")
    session = Session(broker, stream, follow=True)
    assert b"rare" in session.next_values(4)
    session.batches.close()


@pytest.mark.parametrize("follow", [False, True])
def test_a_long_poll_waits_for_enough_bytes(broker, stream, partition, later, follow):
    """Small records are collected until there are bytes_min, or the time is up."""
    session = Session(
        broker, stream, follow=follow, records_max=5, bytes_min=3000, wait_ms_max=20_000
    )
    for number in range(5):
        later(partition.store, b"x" * 900, after_s=0.03 * number)
        later(session.lifecycle.notify, after_s=0.03 * number + 0.01)
    batch = next(session.batches)
    assert batch.num_rows >= 3


def test_a_long_poll_ends_when_its_time_is_up(broker, stream, partition):
    """With the records so far, even none."""
    started = time.monotonic()
    assert Session(broker, stream, wait_ms_max=100).values() == []
    partition.store(b"a")
    session = Session(broker, stream, bytes_min=1 << 20, wait_ms_max=100)
    assert session.values() == [b"a"]
    assert 0.15 < time.monotonic() - started < 30


@pytest.mark.parametrize("request_", [{"follow": True}, {"wait_ms_max": 60_000, "bytes_min": 1}])
def test_a_client_that_goes_away_frees_the_thread(broker, stream, later, request_):
    """A waiting read notices within a fraction of a second."""
    session = Session(broker, stream, **request_)
    later(session.gone.set)
    started = time.monotonic()
    assert session.values() == []
    assert time.monotonic() - started < 30
    assert session.lifecycle.busy == 0


@pytest.mark.parametrize("request_", [{"follow": True}, {"wait_ms_max": 60_000, "bytes_min": 1}])
def test_a_stopping_broker_ends_reads(broker, stream, later, request_):
    """With an error that says to come back."""
    session = Session(broker, stream, **request_)
    later(session.lifecycle.stopping.set)
    with pytest.raises(ShuttingDownError):
        session.values()


@pytest.mark.parametrize(
    "error", [UnknownStreamError("it was deleted"), NotLeaderError("it was moved to broker 2")]
)
def test_a_partition_that_is_gone_ends_its_readers(broker, stream, partition, later, error):
    """Readers of a deleted partition end; those of a moved one are redirected."""
    session = Session(broker, stream, follow=True)
    later(setattr, partition, "closed_by", error)
    with pytest.raises(type(error), match=error.message):
        session.values()


def test_small_neighbours_are_joined(broker, stream, partition):
    """A selective filter does not send thousands of tiny batches; nothing is lost or reordered."""
    for number in range(300):
        partition.store(*[b"x" * 5000] * 30, b"%d" % number, subjects=["s.no"] * 30 + ["s.yes"])
    session = Session(broker, stream, subject="s.yes")
    batches = list(session.batches)
    assert [v for b in batches for v in b.column("value").to_pylist()] == [
        b"%d" % number for number in range(300)
    ]
    assert len(batches) < 150


def test_joining_unites_dictionaries():
    """Batches with other subjects become one, each row with its own."""
    batches = [
        pa.RecordBatch.from_arrays([pa.array(names).dictionary_encode()], names=["subject"])
        for names in (["a", "b"], ["c", "a"])
    ]
    assert join(batches).column(0).to_pylist() == ["a", "b", "c", "a"]
    assert join(batches[:1]) is batches[0]


def test_corruption_that_is_repaired_meanwhile_is_not_told(broker, stream, partition):
    """Where others keep copies a reader waits for the batch to come back."""
    partition.store(b"a")
    partition.store(b"b")
    partition.corrupt, partition.has_copies = {1}, True
    session = Session(broker, stream)
    repairing = threading.Timer(0.1, partition.corrupt.clear)
    repairing.start()
    try:
        assert session.values() == [b"a", b"b"]
    finally:
        repairing.join()


def test_corruption_that_stays_is_told_after_a_moment(broker, stream, partition, monkeypatch):
    """The wait is limited."""
    monkeypatch.setattr(reader, "REPAIR_MS_MAX", 100.0)
    partition.store(b"a")
    partition.corrupt, partition.has_copies = {0}, True
    with pytest.raises(CorruptBatchError):
        Session(broker, stream).values()


def test_an_error_in_the_middle_comes_after_what_was_good(broker, stream, partition):
    """Records before a corrupt batch are delivered."""
    partition.store(b"a")
    partition.store(b"b")
    partition.corrupt = {1}
    session = Session(broker, stream)
    assert session.next_values(1) == [b"a"]
    with pytest.raises(CorruptBatchError):
        session.values()

"""A consumer whose partitions cannot be read on: nothing that was read is lost by that."""

import queue
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from strandline.api import groups as wire
from strandline.client.consumer.consumer import Consumer, Options
from strandline.client.consumer.fetcher import Fetcher, split
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.reader.reading import bound_of
from strandline.client.reader.subscription import SUBSCRIPTION_COLUMNS
from strandline.errors import (
    CorruptBatchError,
    DisconnectedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StaleMemberError,
    StrandlineError,
    UnavailableError,
)
from strandline.types import PartitionName

END = 10


def rows(pairs):
    """A batch of (partition, offset)."""
    count = len(pairs)
    columns = {
        "partition": pa.array([partition for partition, _ in pairs], pa.int32()),
        "offset": pa.array([offset for _, offset in pairs], pa.int64()),
        "timestamp": pa.array([0] * count, pa.timestamp("ns", tz="UTC")),
        "subject": pa.array(["s"] * count),
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array([b"v"] * count),
        "headers": pa.array([None] * count, pa.map_(pa.string(), pa.binary())),
    }
    return pa.record_batch([columns[name] for name in SUBSCRIPTION_COLUMNS], SUBSCRIPTION_COLUMNS)


class Reading:
    """Each partition from its start, two records at a time, to the end or to the corruption."""

    def __init__(self, source, starts):
        self.source = source
        self.starts = starts
        self.is_cancelled = False

    def batches(self):
        for offset in range(0, END, 2):
            for partition, start in sorted(self.starts.items()):
                if offset == self.source.breaks_at:
                    self.source.breaks_at = None
                    raise DisconnectedError("gone")
                if (partition, offset) == self.source.corruption:
                    raise CorruptBatchError("corrupt")
                wanted = [(partition, o) for o in (offset, offset + 1) if o >= start]
                if wanted:
                    yield rows(wanted)
        self.source.is_at_end.get()

    def cancel(self):
        self.source.is_at_end.put(None)


class Source:
    """Two partitions in memory."""

    def __init__(self):
        self.corruption = None
        self.breaks_at = None
        self.first = 0
        self.is_at_end = queue.Queue()
        self.opened = []

    def open_read(self, stream, *, starts, columns, follow):
        assert follow
        assert columns == SUBSCRIPTION_COLUMNS
        self.opened.append(dict(starts))
        if any(not self.first <= start <= END for start in starts.values()):
            raise OffsetOutOfRangeError("there is none")
        return Reading(self, starts)

    def offsets(self, stream, at="latest"):
        bound_of(at)
        return dict.fromkeys((0, 1), END if at == "latest" else self.first)


class Coordinator(CoordinatorClient):
    """Gives one member everything, and remembers commits."""

    def __init__(self, **began_with):
        self.committed = {}
        self.began_with = began_with

    def ask(self, command, request, *, timeout_s, partitions=()):
        if command is wire.COMMIT_OFFSETS:
            self.committed |= request.positions["s"]
        elif command is not wire.LEAVE_GROUP:
            assigned = {"s": (0, 1)}
            answer = wire.Assignment(
                epoch=1, partitions=assigned, positions={}, began_with=self.began_with
            )
            return [answer]
        return []


def take(source, count):
    """Return the results of a fetcher of both partitions."""
    inbox = queue.Queue()
    fetch = Fetcher(source, "s", {0: 0, 1: 0}, inbox=inbox, restart="earliest")
    found = []
    while len(found) < count:
        fetched = inbox.get(timeout=30)
        assert fetched.error is None
        if fetched.moved_to is not None:
            continue
        offsets = fetched.batch.column("offset").to_pylist()
        found += [(fetched.partition, offset) for offset in offsets]
    fetch.cancel()
    return found


def test_runs_of_a_batch_are_split():
    """Each piece is of one partition; order is kept."""
    pieces = [
        (number, piece.column("offset").to_pylist())
        for number, piece in split(rows([(1, 0), (1, 1), (0, 7), (1, 2)]))
    ]
    assert pieces == [(1, [0, 1]), (0, [7]), (1, [2])]


def test_a_fetch_continues_where_it_broke_off():
    """After a lost connection each record comes once."""
    source = Source()
    source.breaks_at = 4
    found = take(source, 2 * END)
    assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(END)]
    assert len(source.opened) == 2


def test_a_fetch_begins_again_where_its_offsets_are_gone():
    """Records deleted by retention are skipped."""
    source = Source()
    source.first = 6
    assert sorted(take(source, 8)) == [(p, o) for p in (0, 1) for o in range(6, END)]


def test_a_read_that_ends_by_a_bug_is_told():
    """The next poll raises the error, instead of waiting for ever."""
    source = Source()
    source.first = "no offset"  # what no comparison of offsets takes
    consumer = Consumer(source, Coordinator(), "g", streams=["s"], options=Options())
    with pytest.raises(StrandlineError, match="TypeError"):
        list(iter(lambda: consumer.poll(5), "never"))
    consumer.close(commit=False)


def test_a_membership_that_ends_by_a_bug_is_told():
    """The next poll raises the error, since others will get the partitions."""

    class Confused(Coordinator):
        def ask(self, command, request, *, timeout_s, partitions=()):
            answer = super().ask(command, request, timeout_s=timeout_s, partitions=partitions)
            return answer if command is not wire.GROUP_HEARTBEAT else [None]

    options = Options(session_timeout_s=0.2)
    consumer = Consumer(Source(), Confused(), "g", streams=["s"], options=options)
    with pytest.raises(StrandlineError, match="AttributeError"):
        list(iter(lambda: consumer.poll(5), "never"))
    consumer.close(commit=False)


def test_who_is_not_corrupt_is_read_on_when_the_corrupt_one_is_paused():
    """Whether that was known to be corrupt by then or not."""
    for is_known in (True, False):
        source = Source()
        source.corruption = (1, 4)
        found = []
        consumer = Consumer(source, Coordinator(), "g", streams=["s"], options=Options())

        def poll(consumer=consumer, found=found):
            for batch in consumer.poll(5):
                found.extend((record.partition, record.offset) for record in batch)

        while is_known:
            try:
                poll()
            except CorruptBatchError:
                break
        while not (is_known or found):
            poll()
        consumer.pause("s", 1)
        while len([offset for partition, offset in found if partition == 0]) < END:
            poll()
        assert [offset for partition, offset in found if partition == 0] == list(range(END))
        consumer.close(commit=False)


def test_what_a_poll_found_for_nobody_is_found_again():
    """Unread batches are not committed; a seek past them drops them."""
    coordinator = Coordinator()
    options = Options(commit_interval_s=0.0)
    consumer = Consumer(Source(), coordinator, "g", streams=["s"], options=options)
    lost = []
    while len({batch.partition for batch in lost}) < 2:
        lost = consumer.poll(5)
        consumer.unread(lost)
        assert consumer.positions() == {("s", 0): 0, ("s", 1): 0}
    assert not any(coordinator.committed.values())
    consumer.seek("s", 1, 6)
    found = []
    while len(found) < END + 4:
        for batch in consumer.poll(5):
            found.extend((record.partition, record.offset) for record in batch)
    assert sorted(found) == [(0, o) for o in range(END)] + [(1, o) for o in range(6, END)]
    consumer.close()


def test_an_interrupted_poll_ends():
    """And the next one, after an unread, waits as usual."""
    source = Source()
    consumer = Consumer(source, Coordinator(), "g", streams=["s"], options=Options())
    found = 0
    while found < 2 * END:
        found += sum(batch.records.num_rows for batch in consumer.poll(5))
    polling = threading.Thread(target=consumer.poll, args=(60,))
    polling.start()
    consumer.wakeup()
    polling.join(30)
    assert not polling.is_alive()
    consumer.unread([])
    assert consumer.poll(0.1) == []
    consumer.close()
    with pytest.raises(DisconnectedError, match="closed"):
        consumer.poll()


def test_partitions_are_begun_with_again_when_the_callback_failed():
    """Else they would be assigned but never read."""
    calls = []

    def on_assigned(_consumer, partitions):
        calls.append(partitions)
        if len(calls) == 1:
            raise OSError("my database is away")

    options = Options(on_assigned=on_assigned)
    consumer = Consumer(Source(), Coordinator(), "g", streams=["s"], options=options)
    with pytest.raises(OSError, match="database"):
        consumer.poll(5)
    assert consumer.assignment() == set()
    assert consumer.poll(5)
    assert calls[0] == calls[1] == consumer.assignment()
    consumer.close()


def test_a_partition_that_a_broker_does_not_know_yet_is_begun_with_later():
    """It was just added to the stream, and only the coordinator knows it."""

    class Late(Source):
        known = (0,)

        def offsets(self, stream, at="latest"):
            return {
                number: at
                for number, at in super().offsets(stream, at).items()
                if number in self.known
            }

    source = Late()
    consumer = Consumer(source, Coordinator(), "g", streams=["s"], options=Options())
    assert consumer.poll(0.5) == []
    source.known = (0, 1)
    assert consumer.poll(5)
    assert consumer.assignment() == {PartitionName("s", 0), PartitionName("s", 1)}
    consumer.close()


def test_who_begins_late_leaves_nothing_of_an_added_partition_out():
    """A partition added after the group's start is read from its beginning."""
    options = Options(start="latest")
    consumer = Consumer(Source(), Coordinator(s=1), "g", streams=["s"], options=options)
    found = []
    while len(found) < END:
        found += [(record.partition, record.offset) for b in consumer.poll(5) for record in b]
    assert found == [(1, offset) for offset in range(END)]
    assert set(consumer.positions().values()) == {END}
    consumer.close()


def test_a_partition_that_cannot_be_claimed_now_is_claimed_later(caplog):
    """Even if the coordinator does not answer at the same time."""

    class Away(Coordinator):
        def ask(self, command, request, *, timeout_s, partitions=()):
            if command is wire.GROUP_HEARTBEAT:
                raise UnavailableError("moving")
            return super().ask(command, request, timeout_s=timeout_s, partitions=partitions)

    rejections = [StaleMemberError("claimed under epoch 9")]

    class Store:
        def claim(self, group, partitions, owner):
            if rejections:
                raise rejections.pop()
            return {}

        def commit(self, group, offsets, owner):
            """Take anything."""

    options = Options(offset_store=Store())
    consumer = Consumer(Source(), Away(), "g", streams=["s"], options=options)
    assert consumer.poll(0) == []
    assert "cannot start reading, will retry: claimed under epoch 9" in caplog.text
    assert consumer.poll(5)
    consumer.close()


def test_numbers_of_arrays_are_taken_and_others_are_rejected_by_name():
    """A position that cannot be committed would end every later poll."""
    coordinator = Coordinator()
    options = Options(commit_interval_s=0.0)
    consumer = Consumer(Source(), coordinator, "g", streams=["s"], options=options)
    while len(consumer.assignment()) < 2:
        consumer.poll(5)
    consumer.seek("s", np.int64(1), np.int64(6))
    consumer.commit({("s", np.int64(0)): np.int64(3)})
    assert coordinator.committed[0] == 3
    for given in ({"s": 3}, {("s", 0): 3.0}, {("s", 0): "3"}, {("s", "0"): 3}, 3):
        with pytest.raises(InvalidRequestError):
            consumer.commit(given)
    for place in (None, 1.5, "sometime", True):
        with pytest.raises(InvalidRequestError):
            consumer.seek("s", 0, place)
    with pytest.raises(OffsetOutOfRangeError, match="not between 0 and"):
        consumer.seek("s", 0, -5)
    while consumer.positions()[PartitionName("s", 1)] < END:
        consumer.poll(5)
    consumer.close()
    assert coordinator.committed[1] == END


def test_a_consumer_that_has_left_does_nothing_more():
    """In ``on_revoked`` it has not left yet."""
    coordinator = Coordinator()

    def on_revoked(consumer, partitions):
        consumer.commit(dict.fromkeys(partitions, 7))

    options = Options(commit_interval_s=None, on_revoked=on_revoked)
    consumer = Consumer(Source(), coordinator, "g", streams=["s"], options=options)
    while len(consumer.assignment()) < 2:
        consumer.poll(5)
    consumer.close()
    assert coordinator.committed == {0: 7, 1: 7}
    for call in (
        consumer.commit,
        lambda: consumer.seek("s", 0, 3),
        lambda: consumer.pause("s", 0),
        lambda: consumer.resume("s", 0),
    ):
        with pytest.raises(DisconnectedError, match="closed"):
            call()


def test_corruption_is_told_at_every_poll_and_loses_nothing():
    """Earlier batches are returned first; seeking past the corruption continues."""
    source, coordinator = Source(), Coordinator()
    source.corruption = (1, 4)
    options = Options(commit_interval_s=0.0)
    found = []
    consumer = Consumer(source, coordinator, "g", streams=["s"], options=options)

    def poll():
        for batch in consumer.poll(5):
            found.extend((record.partition, record.offset) for record in batch)

    with pytest.raises(CorruptBatchError):
        list(iter(poll, "never"))
    assert {offset for partition, offset in found if partition == 1} == set(range(4))
    with pytest.raises(CorruptBatchError):
        consumer.poll(0)
    assert coordinator.committed == {0: 6, 1: 4}
    source.corruption = None
    consumer.seek("s", 1, 6)
    consumer.seek("s", 0, consumer.positions()[PartitionName("s", 0)])
    while len(found) < 2 * END - 2:
        poll()
    assert sorted(found) == [
        (p, o) for p in (0, 1) for o in range(END) if (p, o) not in ((1, 4), (1, 5))
    ]
    consumer.close()
    assert coordinator.committed == {0: END, 1: END}


class AwayStore:
    """An unavailable offset store that counts its calls."""

    def __init__(self):
        self.is_away = True
        self.named_broker = 0
        self.committed = {}

    def _ask(self):
        self.named_broker += 1
        if self.is_away:
            raise UnavailableError("the database is away")

    def claim(self, group, partitions, owner):
        self._ask()
        return {}

    def commit(self, group, offsets, owner):
        self._ask()
        self.committed |= offsets

    def close(self):
        """Do nothing."""


def busy_polls(consumer, seconds):
    """Poll again and again without a wait."""
    over_s = time.monotonic() + seconds
    return [
        batch for _ in iter(lambda: time.monotonic() < over_s, False) for batch in consumer.poll(0)
    ]


def test_a_store_of_positions_that_is_away_is_asked_and_told_of_seldom(caplog):
    """By a member that polls all the time; once it is back, the member begins within one poll."""
    store = AwayStore()
    options = Options(offset_store=store, commit_interval_s=0.0)
    consumer = Consumer(Source(), Coordinator(), "g", streams=["s"], options=options)
    assert busy_polls(consumer, 1.0) == []
    assert 2 <= store.named_broker <= 8, "0.05, 0.1, 0.2, 0.4 and 0.8 s apart"
    assert [text for text in caplog.messages if "cannot start reading, will retry" in text] == [
        "group g: cannot start reading, will retry: the database is away"
    ]
    store.is_away = False
    assert consumer.poll(20), "it does not wait for the next poll"
    store.is_away, store.named_broker = True, 0
    busy_polls(consumer, 1.0)
    assert 2 <= store.named_broker <= 8
    assert len([text for text in caplog.messages if "could not be committed" in text]) == 1
    store.is_away = False
    consumer.close()
    assert store.committed == {PartitionName("s", 0): END, PartitionName("s", 1): END}

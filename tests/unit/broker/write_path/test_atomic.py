"""Records that are stored all or not at all: their conditions, and what is noted of them."""

from types import SimpleNamespace

import pytest

from strandline.broker.write_path.atomic import AtomicRecord, append_atomic
from strandline.config import StreamConfig
from strandline.errors import (
    RepeatedMessageError,
    StillLoadingError,
    UnavailableError,
    WrongLastSequenceError,
)


class Held:
    """Appends that wait for state that is read back."""

    def __init__(self, error=None):
        self.waiting, self.error = [], error

    def add(self, held):
        if self.error is None:
            self.waiting.append(held)
        return self.error


class FakePartition:
    """A partition at offset 10, which knows message id ``old``."""

    def __init__(self):
        self.config = StreamConfig(name="s", subject="s", dedup_window_ms=77)
        self.next_offset, self.write_error = 10, None
        self.noted, self.appended, self.asked = [], [], []
        self.is_loading = self.rejects = False
        self.duplicates = SimpleNamespace(
            held=Held(),
            find_message=self.find_message,
            note_message=lambda *note: self.noted.append(note),
        )
        self.sequences = SimpleNamespace(check=self.check)

    def find_message(self, message_id, window_ms):
        assert window_ms == 77
        if self.is_loading:
            raise StillLoadingError("loading")
        return 3 if message_id == "old" else None

    def check(self, subject, last):
        self.asked.append((subject, last))
        if last != 5:
            raise WrongLastSequenceError("wrong last sequence: 5")

    def append_arrow(self, batch, *, ack_sink, token):
        if not self.rejects:
            self.appended.append((batch.to_pylist(), ack_sink, token))
            self.next_offset += batch.num_rows


class Sink:
    def __init__(self):
        self.rejections = []

    def rejected(self, token, error):
        self.rejections.append((token, error))


@pytest.fixture
def partition():
    return FakePartition()


@pytest.fixture
def sink():
    return Sink()


def record(value=b"v", subject="s", **more):
    return AtomicRecord(value, subject, **more)


def test_records_are_one_batch_and_their_ids_are_noted(partition, sink):
    """Each id with the offset of its own record."""
    records = [
        record(b"a", "s.1", key=b"k", headers=[("h", b"1")], message_id="one"),
        record(None, "s.2"),
        record(b"c", "s.1", message_id="three"),
    ]
    append_atomic(partition, records, ack_sink=sink, token="t")
    [(rows, to, token)] = partition.appended
    assert (to, token) == (sink, "t")
    assert rows == [
        {"value": b"a", "subject": "s.1", "key": b"k", "headers": [("h", b"1")]},
        {"value": None, "subject": "s.2", "key": None, "headers": None},
        {"value": b"c", "subject": "s.1", "key": None, "headers": None},
    ]
    assert partition.noted == [("one", 10), ("three", 12)]
    assert sink.rejections == []


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        ([record(message_id="new"), record(message_id="old")], RepeatedMessageError),
        ([record(message_id="new"), record(message_id="new")], RepeatedMessageError),
        ([record(expected_last=9)], WrongLastSequenceError),
        ([record(expected_last=11)], WrongLastSequenceError),
        ([record(), record(expected_last=10)], WrongLastSequenceError),
        ([record(expected_subject_last=4)], WrongLastSequenceError),
        ([record(), record(expected_subject_last=5)], WrongLastSequenceError),
    ],
)
def test_one_condition_that_is_not_met_rejects_all(partition, sink, records, kind):
    """Nothing is stored or noted."""
    append_atomic(partition, records, ack_sink=sink, token="t")
    [(token, error)] = sink.rejections
    assert token == "t"
    assert type(error) is kind
    assert (partition.appended, partition.noted) == ([], [])


def test_conditions_are_about_the_state_before_the_first(partition, sink):
    """The first may name the stream's last record, each the last one of its own subject."""
    records = [
        record(expected_last=10, expected_subject_last=5),
        record(subject="t", expected_subject_last=5),
        record(subject="t"),
    ]
    append_atomic(partition, records, ack_sink=sink, token="t")
    assert sink.rejections == []
    assert partition.asked == [("s", 5), ("t", 5)]
    assert len(partition.appended) == 1


def test_a_partition_that_takes_nothing_checks_nothing(partition, sink):
    """Its own reason comes first."""
    partition.write_error = UnavailableError("moved")
    append_atomic(partition, [record(expected_last=1)], ack_sink=sink, token="t")
    assert sink.rejections == [("t", partition.write_error)]
    assert partition.duplicates.held.waiting == []


@pytest.mark.parametrize("cause", ["loading", "others wait"])
def test_they_wait_for_what_is_read_back(partition, sink, cause):
    """Behind those that came before; then they are tried again."""
    held = partition.duplicates.held
    if cause == "loading":
        partition.is_loading = True
    else:
        held.waiting.append("earlier")
    append_atomic(partition, [record(message_id="one")] * 1, ack_sink=sink, token="t")
    waiting = held.waiting.pop()
    held.waiting.clear()
    assert (waiting.ack_sink, waiting.token, waiting.records) == (sink, "t", 1)
    assert partition.appended == sink.rejections == []
    partition.is_loading = False
    waiting.append()
    assert partition.noted == [("one", 10)]
    assert held.waiting == []


def test_too_many_that_wait_are_rejected(partition, sink):
    """The reason is that of the queue."""
    partition.is_loading = True
    partition.duplicates.held.error = UnavailableError("too many")
    append_atomic(partition, [record(message_id="one")], ack_sink=sink, token="t")
    assert sink.rejections == [("t", partition.duplicates.held.error)]


def test_ids_of_what_was_rejected_are_not_noted(partition, sink):
    """The partition has answered by itself."""
    partition.rejects = True
    append_atomic(partition, [record(message_id="one")], ack_sink=sink, token="t")
    assert partition.noted == []

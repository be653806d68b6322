"""Records that are stored all or not at all: their conditions, and what is noted of them."""

from types import SimpleNamespace

import pytest

from strandline.broker.write_path.admission import RECORD_OVERHEAD_BYTES, Admission
from strandline.broker.write_path.atomic import AtomicRecord, append_atomic
from strandline.clock import ManualClock
from strandline.config import LimitsConfig, StreamConfig
from strandline.errors import (
    RecordTooLargeError,
    RepeatedMessageError,
    StillLoadingError,
    UnavailableError,
    WrongLastSequenceError,
)
from strandline.types import PartitionName

LIMITS = LimitsConfig()


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
        self.name = PartitionName("s", 0)
        self.config = StreamConfig(name="s", subject="s", dedup_window_ms=77)
        self.next_offset, self.write_error, self.schema_check = 10, None, None
        self.noted, self.appended, self.asked, self.subjects = [], [], [], []
        self.is_loading = False
        self.duplicates = SimpleNamespace(
            held=Held(),
            find_message=self.find_message,
            note_message=lambda *note: self.noted.append(note),
        )
        self.sequences = SimpleNamespace(check=self.check, note=self.note_subjects)

    def find_message(self, message_id, window_ms):
        assert window_ms == 77
        if self.is_loading:
            raise StillLoadingError("loading")
        return 3 if message_id == "old" else None

    def check(self, subject, last):
        self.asked.append((subject, last))
        if last != 5:
            raise WrongLastSequenceError("wrong last sequence: 5")

    def note_subjects(self, subjects, offset, headers):
        self.subjects.append((subjects, offset, headers))

    def add_chunk(self, chunk, ack_sink, token):
        self.appended.append((chunk, ack_sink, token))
        self.next_offset += chunk.count


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


def append(partition, records, sink, limits=LIMITS):
    admission = Admission(limits, clock=ManualClock(), wake=None)
    append_atomic(partition, records, admission, ack_sink=sink, token="t")


def test_records_are_one_batch_and_their_ids_are_noted(partition, sink):
    """Each id with the offset of its own record."""
    records = [
        record(b"a", "s.1", key=b"k", headers=[("h", b"1")], message_id="one"),
        record(None, "s.2"),
        record(b"c", "s.1", message_id="three"),
    ]
    append(partition, records, sink)
    [(chunk, to, token)] = partition.appended
    assert (to, token) == (sink, "t")
    assert chunk.base_offset == 10
    assert chunk.values == [b"a", None, b"c"]
    assert chunk.subjects == ["s.1", "s.2", "s.1"]
    assert chunk.keys == [b"k", None, None]
    assert chunk.headers == [[("h", b"1")], None, None]
    assert chunk.size == 3 * RECORD_OVERHEAD_BYTES + len(b"a" + b"c" + b"k" + b"h" + b"1")
    assert partition.noted == [("one", 10), ("three", 12)]
    assert partition.subjects == [
        (("s.1",), 10, [("h", b"1")]),
        (("s.2",), 11, None),
        (("s.1",), 12, None),
    ]
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
    append(partition, records, sink)
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
    append(partition, records, sink)
    assert sink.rejections == []
    assert partition.asked == [("s", 5), ("t", 5)]
    assert len(partition.appended) == 1


def test_a_partition_that_takes_nothing_checks_nothing(partition, sink):
    """Its own reason comes first."""
    partition.write_error = UnavailableError("moved")
    append(partition, [record(expected_last=1)], sink)
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
    append(partition, [record(message_id="one")] * 1, sink)
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
    append(partition, [record(message_id="one")], sink)
    assert sink.rejections == [("t", partition.duplicates.held.error)]


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (LimitsConfig(record_bytes=2), RecordTooLargeError),
        (LimitsConfig(batch_bytes=2 * RECORD_OVERHEAD_BYTES + 3), RecordTooLargeError),
        (LimitsConfig(pending_bytes=-1), UnavailableError),
    ],
)
def test_what_is_over_a_limit_is_rejected_as_a_whole(partition, sink, limits, kind):
    """The largest record, all of them, and what waits; at the limit they are accepted."""
    records = [record(b"a", message_id="one"), record(b"bcd")]
    append(partition, records, sink, limits)
    [(token, error)] = sink.rejections
    assert (token, type(error)) == ("t", kind)
    assert partition.appended == partition.noted == partition.subjects == []
    append(partition, records, sink, LimitsConfig(record_bytes=3, batch_bytes=68, pending_bytes=0))
    assert len(partition.appended) == len(sink.rejections) == 1

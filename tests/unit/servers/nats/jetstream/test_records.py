"""Reading single records of a partition: what is read does not depend on what follows them."""

import random

import pytest

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.partition import Partition
from strandline.clock import ManualClock
from strandline.config import LimitsConfig, StreamConfig
from strandline.record.batch import header_of, read_header
from strandline.record.codec import Stamp, encode_records
from strandline.record.decode import walk
from strandline.servers.nats.jetstream.records import (
    PORTION_BYTES,
    is_at_hand,
    last_at_hand,
    message_at,
    messages_at,
    newest_offset,
    next_message,
)
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName


def count_reads(partition):
    """Note which batches of a partition are read."""
    read, partition.seen = partition.committed.read, []

    def counted(*args, **options):
        buffer = read(*args, **options)
        view = memoryview(buffer)
        partition.seen += [read_header(view, place).base_offset for place, _ in walk(view)]
        return buffer

    partition.committed.read = counted


@pytest.fixture
def partition(tmp_path):
    """Returns a partition with batches of that many records; the values are the offsets."""
    opened = []

    def make(*counts, value=b"%d", **settings):
        log = Log.open(
            tmp_path / f"log{len(opened)}", disk=Disk(), segment_bytes=1 << 30, segment_age_ms=10**6
        )
        base = 0
        for count in counts:
            values = [value % offset for offset in range(base, base + count)]
            subjects = [f"s.{offset % 7}" for offset in range(base, base + count)]
            batch = bytes(encode_records(values, subjects, Stamp(base, 0, 1_000 + base)))
            log.append(batch, header_of(batch))
            base += count
        admission = Admission(LimitsConfig(), clock=ManualClock(), wake=lambda: None)
        found = Partition(
            PartitionName("s", 0),
            StreamConfig(name="s", subject="s.>", **settings),
            log,
            log_id=LogId(1),
            leader_epoch=LeaderEpoch(0),
            admission=admission,
        )
        found.commit(Offset(base))
        count_reads(found)
        opened.append(log)
        return found

    yield make
    for log in opened:
        log.close()


@pytest.mark.parametrize("settings", [{}, {"max_records_per_subject": 1000}])
@pytest.mark.parametrize("offset", [0, 1_000, 1_999])
def test_a_record_costs_one_batch_wherever_it_is(partition, offset, settings):
    """Also if each batch has one record, as when they were published one by one."""
    many = partition(*[1] * 2_000, **settings)
    message = message_at(many, offset)
    assert (message.sequence, message.payload) == (offset + 1, b"%d" % offset)
    assert many.seen == [offset]


def test_a_removed_record_costs_no_more(partition):
    """Nothing behind it is read."""
    many = partition(*[1] * 100, max_records_per_subject=1)
    assert message_at(many, 5) is None
    assert many.seen == [5]


def test_a_kept_record_is_found_among_those_it_replaced(partition):
    """Also in the middle of a batch, of which the others are no longer seen."""
    many = partition(10, 10, max_records_per_subject=1)
    found = [message_at(many, offset) for offset in range(20)]
    assert [each.sequence for each in found if each is not None] == list(range(14, 21))


def test_the_newest_record_of_a_subject_is_known_at_once(partition):
    """Without a file: if retention counts subjects, and little of the log is new."""
    few = partition(10, max_records_per_subject=1)
    assert (last_at_hand(few, "s.2"), last_at_hand(few, "other")) == (9, -1)
    assert last_at_hand(few, "s.*") is None
    assert last_at_hand(partition(3), "s.1") is None


@pytest.mark.parametrize("settings", [{}, {"max_records_per_subject": 1}])
def test_a_record_is_at_hand_if_its_bytes_are_in_memory(partition, monkeypatch, settings):
    """Not if a device would be waited for, or if its batch is large."""
    many = partition(10, 10, value=b"%d" + bytes(100_000), **settings)
    assert not is_at_hand(many, 15)
    some = partition(10, 10, **settings)
    assert is_at_hand(some, 15)
    some.log.checkpoint()
    some.log.flush()
    for cached in (True, False):
        monkeypatch.setattr(Disk, "is_cached", lambda *_, found=cached: found)
        assert is_at_hand(some, 15) is cached
    assert is_at_hand(some, 20), "it does not exist"


def test_a_log_that_is_not_applied_yet_is_not_at_hand(partition, monkeypatch):
    """To apply much of it takes long."""
    many = partition(*[10] * 10, max_records_per_subject=1)
    monkeypatch.setattr("strandline.broker.read_path.subject_retention.INLINE_BYTES", 100)
    assert not is_at_hand(many, 99)
    assert last_at_hand(many, "s.1") is None
    many.retention.catch_up(100)
    assert is_at_hand(many, 99)


def test_the_next_record_is_found_near_its_place(partition):
    """A search without a pattern reads little of what follows."""
    many = partition(*[1] * 2_000)
    assert next_message(many, 0).payload == b"0"
    assert len(many.seen) < 200


@pytest.mark.parametrize("settings", [{}, {"max_records_per_subject": 1}])
def test_the_newest_record_is_the_last_one(partition, settings):
    """Also where few records of each subject are kept; an empty partition has none."""
    assert newest_offset(partition(**settings)) is None
    assert newest_offset(partition(3, 4, **settings)) == 6


def read_all(partition, offsets):
    """Read records as a consumer does, each call from the first that is missing on."""
    found, calls = {}, 0
    while missing := [each for each in offsets if each + 1 not in found]:
        found |= messages_at(partition, missing)
        calls += 1
    return {sequence: message and message.payload for sequence, message in found.items()}, calls


def expected(offsets):
    return {each + 1: b"%d" % each for each in offsets}


def test_neighbouring_records_are_read_together(partition):
    """As the first delivery reads them: a call reads many, and each batch once."""
    many, offsets = partition(*[1] * 2_000), list(range(100, 400))
    found, calls = read_all(many, offsets)
    assert found == expected(offsets)
    assert calls == 1
    assert many.seen == offsets


def test_scattered_records_of_a_batch_are_read_at_once(partition):
    """In whatever order, a large batch is decoded once."""
    many, offsets = partition(1, 10_000, 1), random.Random(1).sample(range(1, 10_000), 300)
    found, calls = read_all(many, offsets)
    assert found == expected(offsets)
    assert calls == 1
    assert many.seen == [1]


def test_of_scattered_records_only_their_batches_are_read(partition):
    """What lies between is not read."""
    many, offsets = partition(*[1] * 2_000), list(range(0, 2_000, 100))
    found, calls = read_all(many, offsets)
    assert found == expected(offsets)
    assert calls == 1
    assert many.seen == offsets


def test_a_call_reads_a_limited_number_of_bytes(partition):
    """Then it returns, so that what was read is sent before more is read."""
    many, offsets = partition(*[1] * 100, value=b"%%-%dd" % 50_000), list(range(100))
    first = messages_at(many, offsets)
    assert 2 < len(first) <= PORTION_BYTES // 50_000 + 1
    found, calls = read_all(many, offsets)
    assert sorted(found) == list(range(1, 101))
    assert calls <= 100 // 4


def test_removed_records_are_reported(partition):
    """Those whose subject has a newer record, and those before the log's start."""
    many, offsets = partition(*[1] * 100, max_records_per_subject=1), list(range(80, 100))
    found, _ = read_all(many, offsets)
    assert [each for each in found if found[each] is not None] == list(range(94, 101))
    assert set(found) == set(range(81, 101))

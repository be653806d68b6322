"""Retention by age, bytes and count; the active segment stays."""

import pytest

from strandline.record.batch import read_header
from strandline.storage.retention import (
    RetentionPolicy,
    SegmentFacts,
    retention_start,
    seal_if_old,
    start_by_age,
    start_by_bytes,
)

FACTS = [SegmentFacts(10, 100, 50), SegmentFacts(20, 100, 40), SegmentFacts(30, 100, 90)]


@pytest.mark.parametrize(
    ("oldest", "start"), [(0, 0), (50, 0), (51, 20), (90, 20), (91, 30), (1000, 30)]
)
def test_by_age(oldest, start):
    """Segments go while their newest record is too old, from the front only."""
    assert start_by_age(FACTS, oldest_ns=oldest) == start


@pytest.mark.parametrize(
    ("bytes_max", "start"), [(350, 0), (349, 10), (250, 10), (150, 20), (50, 30), (1, 30)]
)
def test_by_bytes(bytes_max, start):
    """Segments are removed until the limit holds; the active one (50 bytes) stays."""
    assert start_by_bytes(FACTS, total=350, bytes_max=bytes_max) == start


@pytest.fixture
def log(open_log, make_batch):
    """Ten segments of five records; the times are the offsets in milliseconds."""
    made = open_log(segment_bytes=1 << 20)
    for offset in range(50):
        batch = make_batch(offset, time_ns=offset * 1_000_000)
        made.append(batch, read_header(batch))
        if offset % 5 == 4 and offset < 49:
            made.roll()
    return made


def apply_retention(log, policy, *, now_ns):
    """Remove what a policy does not keep, like the cleaner; return the new start, if any."""
    seal_if_old(log, policy, now_ns=now_ns)
    start = retention_start(log, policy, now_ns=now_ns)
    if start is None:
        return None
    log.delete_before(start)
    return log.log_start_offset


def test_nothing_to_do(log):
    """Without limits, or within them, nothing moves."""
    assert apply_retention(log, RetentionPolicy(), now_ns=10**18) is None
    generous = RetentionPolicy(age_ms=10**6, bytes_max=1 << 30, records_max=1000)
    assert apply_retention(log, generous, now_ns=60_000_000) is None
    assert log.log_start_offset == 0


def test_age(log):
    """Records older than the limit go by whole segments."""
    assert apply_retention(log, RetentionPolicy(age_ms=40), now_ns=60_000_000) == 20
    assert log.segments[0].base_offset == 20


def test_age_of_the_active_segment(log):
    """When even the active segment is too old it is sealed and goes too."""
    assert apply_retention(log, RetentionPolicy(age_ms=40), now_ns=10**12) == 50
    assert log.size_bytes == 0
    assert log.log_end_offset == 50


def test_bytes(log):
    """The log is no larger than the limit afterwards."""
    limit = log.size_bytes // 3
    assert apply_retention(log, RetentionPolicy(bytes_max=limit), now_ns=0) == 35
    assert log.size_bytes <= limit


def test_records_exactly(log):
    """A count is kept to the record."""
    assert apply_retention(log, RetentionPolicy(records_max=13), now_ns=0) == 37
    assert log.log_end_offset - log.log_start_offset == 13


def test_strictest_limit_wins(log):
    """With several limits the one that removes most decides."""
    policy = RetentionPolicy(age_ms=40, bytes_max=1 << 30, records_max=13)
    assert apply_retention(log, policy, now_ns=60_000_000) == 37


def test_reopened_log_knows_its_ages(log, open_log):
    """After a restart the newest times of sealed segments come from their indexes."""
    at = log.checkpoint()
    log.flush()
    again = open_log(at, segment_bytes=1 << 20)
    assert apply_retention(again, RetentionPolicy(age_ms=40), now_ns=60_000_000) == 20


def test_everything_but_the_active_segment_may_go(log):
    """A limit smaller than any segment leaves the one that is being written."""
    last = log.segments[-1].base_offset
    assert retention_start(log, RetentionPolicy(bytes_max=1), now_ns=0) == last
    assert apply_retention(log, RetentionPolicy(bytes_max=1), now_ns=0) == last

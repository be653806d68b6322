"""The first step of recovery: in which segment a log starts."""

import pytest

from strandline.storage.checkpoint import LogCheckpoint
from strandline.storage.log import Log


@pytest.fixture
def lost_active(open_log, fill):
    """Three segments of which the last is lost; the base offsets of all three."""
    log = open_log(segment_bytes=200)
    while len(log.segments) < 3:
        fill(log, 1)
    log.checkpoint()
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    log.segments[-1].path.unlink()
    return bases


def reopened(open_log, base: int, *, position: int, start: int = 0) -> Log:
    """The log as a checkpoint has it, whose active segment begins at ``base``."""
    at = LogCheckpoint(
        segment_base=base,
        position=position,
        log_start_offset=start,
        log_end_offset=base + (2 if position else 0),
        first_timestamp=0,
        max_timestamp=0,
    )
    return open_log(at, segment_bytes=200)


def test_where_durable_records_are_missing_the_log_ends_before_them(open_log, lost_active):
    """A leader has them; so the log goes on in the segment before."""
    log = reopened(open_log, lost_active[2], position=100)
    assert log.log_end_offset == lost_active[2]
    assert [segment.base_offset for segment in log.segments] == lost_active[:2]


def test_a_segment_without_durable_bytes_may_have_no_file(open_log, lost_active):
    """Nothing of it is missed, so the log goes on in it."""
    log = reopened(open_log, lost_active[2], position=0)
    assert log.log_end_offset == lost_active[2]
    assert [segment.base_offset for segment in log.segments] == lost_active


@pytest.mark.parametrize("start", [0, 4])
def test_a_log_without_any_file_begins_where_its_checkpoint_does(open_log, start):
    """There is no segment before the one that is missing."""
    log = reopened(open_log, 4, position=100, start=start)
    assert [segment.base_offset for segment in log.segments] == [4]

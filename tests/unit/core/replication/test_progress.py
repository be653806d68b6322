"""A leader's view of a follower."""

import pytest

from strandline.core.replication.messages import Acked, Fetch
from strandline.core.replication.progress import Phase, Progress

from .conftest import ref


@pytest.fixture
def progress():
    """A follower that has everything up to 10."""
    progress = Progress(2, log_end_offset=10, now_ms=0)
    progress.begin(Fetch(1, 5, 10, 1))
    progress.sent((), 0)
    progress.take_ack(Acked(1, 5, 10, 0))
    return progress


def test_the_window_fills_and_empties(progress):
    """Bytes are on the way until the follower has synced them, not until they were sent."""
    progress.sent((ref(10, 12, size=60), ref(12, 13, size=50)), 0)
    assert progress.room(100) == 0
    progress.take_ack(Acked(1, 5, 12, 0))
    assert progress.room(100) == 50
    progress.take_ack(Acked(1, 5, 13, 0))
    assert progress.room(100) == 100


def test_a_follower_of_whom_nothing_is_known_has_acked_nothing():
    """Not the records that its leader has, either."""
    progress = Progress(2, log_end_offset=10, now_ms=0)
    assert (progress.phase, progress.acked, progress.durable_offset) == (Phase.SILENT, False, 0)


def test_a_batch_larger_than_the_window_goes_alone(progress):
    """There is room for something whenever nothing is on the way."""
    assert progress.room(0) == 1


def test_an_ack_of_more_than_was_sent_counts_for_what_was_sent(progress):
    """A faulty peer cannot make us commit records that it cannot have."""
    progress.take_ack(Acked(1, 5, 99, 0))
    assert progress.durable_offset == 10


def test_a_follower_that_comes_back_with_less_counts_for_less(progress):
    """Earlier acks prove nothing about a disk that lost the records."""
    progress.begin(Fetch(1, 6, 4, 1))
    assert progress.durable_offset == 4
    assert not progress.acked


def test_what_was_acked_outlives_the_session(progress):
    """Within an epoch a follower that agrees never loses what it synced."""
    progress.silence(progress.session)
    assert progress.durable_offset == 10
    assert progress.phase is Phase.SILENT


def test_an_answer_is_outstanding_until_everything_is_confirmed(progress):
    """Batches, and the high watermark that went alone."""
    assert not progress.is_outstanding
    progress.sent((), 10)
    assert progress.is_outstanding
    progress.take_ack(Acked(1, 5, 10, 10))
    assert not progress.is_outstanding


def test_who_has_everything_is_behind_only_from_the_next_append_on(progress):
    """An idle hour does not count as lag."""
    progress.keep_up(10, 5)
    progress.log_grew(10, 11, 3_600_000)
    assert progress.caught_up_ms == 3_600_000


def test_a_steady_lag_is_not_falling_behind(progress):
    """One that is always 50 ms late under load was caught up 50 ms ago, more or less."""
    end = 10
    for now in range(0, 1000, 10):
        progress.sent((ref(end, end + 1),), 0)
        progress.log_grew(end, end + 1, now)
        end += 1
        progress.take_ack(Acked(1, 5, max(end - 5, 10), 0))
        progress.keep_up(end, now)
    assert 990 - progress.caught_up_ms <= 110


@pytest.mark.parametrize(("written", "gains"), [(9, True), (10, False), (11, False)])
def test_who_copies_no_faster_than_is_written_does_not_gain(progress, written, gains):
    """Noticed when it reaches an earlier log end with as much or more still ahead."""
    progress.begin(Fetch(1, 6, 10, 1))
    end = 110
    progress.log_grew(10, end, 0)
    for copied in range(20, 320, 10):
        progress.sent((ref(copied - 10, copied),), 0)
        progress.take_ack(Acked(1, 6, copied, 0))
        progress.keep_up(end, copied)
        end += written
    assert progress.is_gaining == gains
    progress.begin(Fetch(1, 7, progress.durable_offset, 1))
    assert progress.is_gaining, "what was so in another session says nothing"


def test_who_stands_still_falls_behind(progress):
    """Without acks the time of being caught up stays where it was."""
    progress.log_grew(10, 11, 50)
    progress.log_grew(11, 12, 5000)
    assert progress.caught_up_ms == 50

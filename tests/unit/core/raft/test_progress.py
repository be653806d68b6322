"""A leader's view of a follower's log: forward with answers, back only where the logs differ."""

import pytest

from strandline.core.raft.progress import RaftProgress


def test_only_news_counts():
    """An answer that came late, or twice, changes nothing."""
    progress = RaftProgress(next=11, match=5, wait_ticks=3)
    assert not progress.accepted(4)
    assert not progress.accepted(5)
    assert progress == RaftProgress(next=11, match=5, wait_ticks=3)


def test_what_was_accepted_is_not_sent_again():
    """The next entries are sent at once."""
    progress = RaftProgress(next=6, match=5, wait_ticks=3)
    assert progress.accepted(8)
    assert progress == RaftProgress(next=9, match=8, wait_ticks=0)


@pytest.mark.parametrize(
    ("hint", "next_index"),
    [
        (20, 10),  # one back where the follower has as much
        (9, 10),
        (7, 8),  # to the end of a log that is shorter
        (2, 4),  # never behind what is known to be there
    ],
)
def test_a_rejection_goes_back(hint, next_index):
    """To the end of the follower's log in one step, and at once."""
    progress = RaftProgress(next=11, match=3, wait_ticks=2)
    progress.refused(10, hint)
    assert progress == RaftProgress(next=next_index, match=3, wait_ticks=0)


@pytest.mark.parametrize(
    ("next_index", "match", "refused"), [(11, 3, 9), (11, 3, 11), (11, 10, 10)]
)
def test_an_old_rejection_says_nothing(next_index, match, refused):
    """Other entries are in flight by now, or the entry was accepted since."""
    progress = RaftProgress(next=next_index, match=match, wait_ticks=2)
    progress.refused(refused, 0)
    assert progress == RaftProgress(next=next_index, match=match, wait_ticks=2)

"""The ISR, and which replicas a record needs while it changes."""

import pytest

from strandline.core.replication.isr import InSync, may_join, must_leave
from strandline.core.replication.messages import Acked, Fetch
from strandline.core.replication.progress import Progress


@pytest.fixture
def isr():
    return InSync((1, 2), version=7, epoch=3)


def test_both_sets_count_while_a_change_is_open(isr):
    """It is unknown which set is in force, so a record needs the members of both."""
    proposal = isr.propose({1, 3}, ((3, "run"),))
    assert (proposal.version, proposal.isr, proposal.joining) == (7, (1, 3), ((3, "run"),))
    assert isr.counted == (1, 2, 3)
    assert isr.members == (1, 2)


def test_a_newer_version_settles_an_open_proposal(isr):
    """Either our proposal was decided, or it can no longer pass."""
    isr.propose({1}, ())
    assert isr.changed(8, (1, 2, 4))
    assert isr.counted == (1, 2, 4)
    assert isr.proposed is None


@pytest.mark.parametrize("version", [6, 7])
def test_old_news_is_ignored(isr, version):
    """Older metadata does not undo newer."""
    isr.propose({1}, ())
    assert not isr.changed(version, (1, 2, 3))
    assert isr.counted == (1, 2)
    assert isr.proposed == (1,)


def test_a_rejection_of_an_earlier_proposal_does_not_close_the_open_one(isr):
    """A repeated rejection arrives after another proposal was made."""
    first = isr.propose({1}, ())
    isr.rejected(first.proposal, hold_ms=50)
    second = isr.propose({1, 2, 3}, ())
    isr.rejected(first.proposal, hold_ms=60)
    assert isr.proposed == (1, 2, 3)
    isr.rejected(second.proposal, hold_ms=70)
    assert (isr.proposed, isr.hold_ms, isr.counted) == (None, 70, (1, 2))


def follower(*, end, durable=None, now=0):
    progress = Progress(2, log_end_offset=10, now_ms=now)
    progress.begin(Fetch(3, 1, end, 1))
    if durable is not None:
        progress.take_ack(Acked(3, 1, durable, 0))
    return progress


@pytest.mark.parametrize(
    ("durable", "high_watermark", "epoch_start", "joins"),
    [(10, 8, 10, True), (9, 8, 10, False), (10, 11, 10, False), (None, 0, 0, False)],
    ids=["has all", "below the epoch's start", "below the high watermark", "said nothing yet"],
)
def test_who_may_join(durable, high_watermark, epoch_start, joins):
    """A replica that has synced all records that may be committed, also the predecessor's."""
    progress = follower(end=10, durable=durable)
    assert may_join(progress, high_watermark, epoch_start=epoch_start) is joins


@pytest.mark.parametrize(
    ("end", "now", "leaves"),
    [(10, 99_999, False), (9, 999, False), (9, 1000, True), (7, 0, True)],
    ids=["has everything", "late", "late for too long", "lost what was committed"],
)
def test_who_must_leave(limits, end, now, leaves):
    """A replica that lags too long, and at once one that lost synced records."""
    progress = follower(end=end, durable=end)
    leaving = must_leave(progress, 8, log_end_offset=10, limits=limits, now_ms=now)
    assert leaving is leaves

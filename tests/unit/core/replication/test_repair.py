"""Corrupt batches come back from a replica that is known to hold the same."""

import pytest

from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.messages import Diverged, Fenced, FetchRange, Range, Replicate
from strandline.core.replication.repair import Repairs

from .conftest import ref


@pytest.fixture
def follower(make, assigned):
    """Broker 2, streaming from broker 1 in epoch 2; six of ten records are committed."""
    replica = make(2, 10, hw=6)
    replica.step(assigned(2, 1), 0)
    replica.step(ev.Received(1, Replicate(2, 2001, 10, 6)), 0)
    return replica


def test_corruption_is_asked_for_until_it_is_repaired(follower):
    """From the leader first, then from the others; the answer must cover it."""
    ask = FetchRange(2, 3, 5)
    assert follower.step(ev.CorruptionFound(3, 5), 0) == [fx.Send(1, ask)]
    assert follower.deadline_ms == 100
    assert follower.step(ev.TimePassed(), 100) == [fx.Send(3, ask)]
    short = Range(2, 3, (ref(3, 4),))
    follower.step(ev.Received(1, short, (b"x" * 10,)), 100)
    assert follower.deadline_ms is not None
    whole = Range(2, 3, (ref(3, 4), ref(4, 5)))
    buffers = (b"x" * 10, b"y" * 10)
    assert follower.step(ev.Received(3, whole, buffers), 150) == [fx.Repair(whole.batches, buffers)]
    assert follower.deadline_ms is None


def test_what_is_not_committed_is_asked_of_the_leader_alone(follower):
    """Only its log is known to be the same there."""
    assert follower.step(ev.CorruptionFound(7, 9), 0)[0].to == 1
    assert follower.step(ev.TimePassed(), 100)[0].to == 1


def test_without_a_source_it_waits(make, assigned):
    """A follower whose log was not compared yet has no replica to ask for its tail."""
    replica = make(2, 10)
    replica.step(assigned(2, 1), 0)
    assert replica.step(ev.CorruptionFound(3, 5), 0) == []
    assert replica.deadline_ms == 100


def test_what_was_truncated_needs_no_repair(follower):
    """Corruption that retention removed is forgotten."""
    follower.step(ev.CorruptionFound(3, 5), 0)
    follower.step(ev.LogStartMoved(5), 0)
    assert follower.step(ev.TimePassed(), 100) == []
    assert follower.deadline_ms is None


def test_what_comes_in_the_place_of_corruption_that_was_truncated_is_sound(make, assigned):
    """After a truncation the corrupt range is no longer requested."""
    replica = make(2, 10, hw=6)
    replica.step(assigned(2, 1), 0)
    replica.step(ev.CorruptionFound(7, 9), 0)
    [_, fetch] = replica.step(ev.Received(1, Diverged(2, 2001, 1, 6)), 0)
    session = fetch.message.session
    refs = (ref(6, 10, epoch=2),)
    replica.step(ev.Received(1, Replicate(2, session, 6, 6, refs), (b"x" * 10,)), 0)
    assert replica.log.log_end_offset == 10
    assert replica.step(ev.TimePassed(), 100) == []


@pytest.mark.parametrize(
    ("sender", "first", "after", "lent"),
    [(3, 2, 6, True), (3, 5, 7, False), (1, 5, 7, True), (3, 9, 12, False), (3, 4, 4, False)],
    ids=["committed", "uncommitted", "uncommitted, for its leader", "beyond the end", "empty"],
)
def test_what_is_lent_is_the_same_on_both_sides(follower, sender, first, after, lent):
    """Committed records go to any replica, others only between a leader and its followers."""
    effects = follower.step(ev.Received(sender, FetchRange(2, first, after)), 0)
    assert effects == ([fx.ReadRange(sender, first, after)] if lent else [])


def test_batches_that_were_read_are_sent(follower):
    """Unchanged, beside the message."""
    effects = follower.step(ev.RangeRead(3, 2, (ref(2, 4),), (b"x" * 10,)), 0)
    assert effects == [fx.Send(3, Range(2, 2, (ref(2, 4),)), (b"x" * 10,))]


def test_nothing_is_lent_across_epochs(follower):
    """The other's log may be another."""
    assert follower.step(ev.Received(3, FetchRange(1, 2, 4)), 0) == [fx.Send(3, Fenced(2))]


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, 10, (3, 5)),
        (3, 5, (3, 5)),
        (4, 10, (4, 5)),
        (0, 4, (3, 4)),
        (5, 10, None),
        (0, 3, None),
        (4, 4, None),
    ],
)
def test_only_what_is_still_in_the_log_is_repaired(start, end, wanted):
    """A range that was truncated or deleted is forgotten, a part of it stays."""
    repairs = Repairs(resend_ms=100)
    repairs.note(3, 5)
    repairs.ask([1], 1, 0)
    assert repairs.deadline_ms == 100
    repairs.forget_outside(start, end)
    assert repairs.wanted == wanted
    assert (repairs.deadline_ms is None) == (repairs.wanted is None)


def test_the_lowest_range_comes_first_and_each_once():
    """Reports come in any order, and again."""
    repairs = Repairs(resend_ms=100)
    assert repairs.wanted is None
    for found in ((7, 9), (3, 5), (7, 9)):
        repairs.note(*found)
    assert repairs._corrupt == [(3, 5), (7, 9)]

"""The follower: what it appends, truncates, acks and exposes."""

import pytest

from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.follower import FollowerState
from strandline.core.replication.messages import Acked, Diverged, Fenced, Fetch, Replicate, StartAt

from .conftest import ref

FIRST = 2001
"""The first session of broker 2 in these tests."""


@pytest.fixture
def follower(make, assigned):
    """Broker 2 with ten records of epoch 1, six committed, following broker 1 in epoch 2."""
    replica = make(2, 10, hw=6)
    [fetch] = replica.step(assigned(2, 1), 0)
    assert fetch == fx.Send(1, Fetch(2, FIRST, 10, 1, "run 2"))
    return replica


def told(replica, message, buffers=(), now=0, sender=1):
    return replica.step(ev.Received(sender, message, buffers), now)


def stream(*refs, base=None, session=FIRST, hw=6, wants_ack=False):
    first = refs[0].base_offset if base is None else base
    return Replicate(2, session, first, hw, refs, wants_ack)


def test_it_acks_only_what_it_has_synced(follower):
    """An append is not acked; its sync is, once per group commit."""
    new = ref(10, 12, epoch=2)
    assert told(follower, stream(new), (b"x",)) == [fx.Append((new,), (b"x",))]
    assert follower.step(ev.Flush(), 0) == []
    follower.step(ev.Synced(12), 0)
    assert follower.step(ev.Flush(), 0) == [fx.Send(1, Acked(2, FIRST, 12, 6))]
    assert follower.step(ev.Flush(), 0) == []


def test_readers_see_what_is_committed_and_durable_here(follower):
    """The leader's high watermark may be ahead of our disk."""
    assert told(follower, stream(ref(10, 12, epoch=2), hw=11), (b"x",))[1:] == [fx.Committed(10)]
    assert follower.step(ev.Synced(12), 0) == [fx.Committed(11)]


def test_nothing_is_committed_before_the_logs_agree(follower):
    """A sync of our own tail alone exposes nothing."""
    assert follower.step(ev.Synced(10), 0) == []


def test_what_is_there_already_is_skipped(follower):
    """A batch that comes twice is appended once; one that is partly new, from where it is new."""
    told(follower, stream(ref(10, 12, epoch=2)), (b"x",))
    assert told(follower, stream(ref(10, 12, epoch=2)), (b"x",)) == []
    both = stream(ref(10, 12, epoch=2), ref(12, 13, epoch=2))
    assert told(follower, both, (b"x", b"y")) == [fx.Append((ref(12, 13, epoch=2),), (b"y",))]


def test_a_gap_ends_the_session(follower):
    """The follower fetches again from its log end, and ignores messages in flight."""
    effects = told(follower, stream(ref(12, 13, epoch=2)), (b"x",))
    assert effects == [fx.Send(1, Fetch(2, FIRST + 1, 10, 1, "run 2"))]
    assert told(follower, stream(ref(10, 12, epoch=2)), (b"x",)) == []
    assert follower.log.log_end_offset == 10


@pytest.mark.parametrize(
    ("refs", "epochs"),
    [
        ((ref(9, 12, epoch=2),), ((1, 0),)),
        ((ref(10, 12, epoch=3),), ((1, 0),)),
        ((ref(10, 12, epoch=0),), ((1, 0),)),
    ],
    ids=["inside a batch", "of a later epoch", "of an older epoch"],
)
def test_batches_that_cannot_be_right_stop_the_follower(follower, refs, epochs):
    """A leader that sends nonsense gets no copy of it made."""
    assert told(follower, stream(*refs, base=9), (b"x",)) == [
        fx.Halted(fx.DivergenceError.MISALIGNED)
    ]
    assert follower.follower.state is FollowerState.HALTED
    assert follower.deadline_ms is None


def test_it_cuts_where_the_leader_says_and_asks_again(follower):
    """It truncates to the end of the last epoch that both know."""
    effects = told(follower, Diverged(2, FIRST, 1, 8))
    assert effects == [fx.TruncateTo(8), fx.Send(1, Fetch(2, FIRST + 1, 8, 1, "run 2"))]


def test_it_walks_back_past_epochs_that_the_leader_never_saw(make, assigned):
    """The leader's answer names an epoch that is not here: all above it goes (KIP-279)."""
    replica = make(2, 10, hw=2, epochs=((1, 0), (3, 4), (5, 7)))
    replica.step(assigned(6, 1), 0)
    effects = told(replica, Diverged(6, FIRST, 4, 9))
    assert effects == [fx.TruncateTo(7), fx.Send(1, Fetch(6, FIRST + 1, 7, 3, "run 2"))]
    effects = told(replica, Diverged(6, FIRST + 1, 2, 5))
    assert effects == [fx.TruncateTo(4), fx.Send(1, Fetch(6, FIRST + 2, 4, 1, "run 2"))]


def test_an_answer_to_an_old_question_cuts_nothing(follower):
    """The log may have grown since, rightly."""
    told(follower, Diverged(2, FIRST, 1, 8))
    told(follower, stream(ref(8, 9, epoch=2), session=FIRST + 1), (b"x",))
    assert told(follower, Diverged(2, FIRST, 1, 7)) == []
    assert told(follower, Diverged(2, FIRST + 1, 1, 7)) == [], "the stream has begun"
    assert follower.log.log_end_offset == 9


def test_an_answer_that_cuts_nothing_stops_the_follower(follower):
    """Otherwise it would fetch from a wrong leader for ever."""
    assert told(follower, Diverged(2, FIRST, 1, 12)) == [fx.Halted(fx.DivergenceError.MISALIGNED)]


def test_what_is_committed_is_never_truncated(follower):
    """It halts and reports that a leader without committed records was assigned."""
    assert told(follower, Diverged(2, FIRST, 1, 5)) == [
        fx.Halted(fx.DivergenceError.BELOW_HIGH_WATERMARK)
    ]
    assert follower.log.log_end_offset == 10
    assert follower.step(ev.PeerConnected(1), 0) == []


def test_an_operator_may_choose_to_lose_what_is_committed(make, assigned):
    """An unclean election, by name: the follower agrees with the leader at any price."""
    replica = make(2, 10, hw=6)
    replica.step(assigned(2, 1, unclean=True), 0)
    effects = told(replica, Diverged(2, FIRST, 1, 5))
    assert effects[:2] == [fx.TruncateTo(5), fx.Committed(5)]


def test_a_log_that_cannot_be_compared_starts_again(follower):
    """It is below the leader's log start; nothing is durable before the next sync."""
    effects = told(follower, StartAt(2, FIRST, 20))
    again = fx.Send(1, Fetch(2, FIRST + 1, 20, -1, "run 2"))
    assert effects == [fx.ResetTo(20), fx.Committed(20), again]
    assert follower.disk_offset == 0
    told(follower, stream(base=20, session=FIRST + 1, hw=20, wants_ack=True))
    assert follower.step(ev.Flush(), 0) == [fx.Send(1, Acked(2, FIRST + 1, 0, 20))]


def test_a_stream_that_is_further_than_the_leader_heard_is_not_dropped(follower):
    """Retention overtook the leader's view of us, not our log."""
    told(follower, stream(base=10, hw=10))
    again = fx.Send(1, Fetch(2, FIRST + 1, 10, 1, "run 2"))
    assert told(follower, StartAt(2, FIRST, 8)) == [again]
    assert follower.log.log_end_offset == 10


def test_a_question_is_repeated_until_it_is_answered(follower):
    """In the same session, since the answer may be late. Then no timer is left."""
    assert follower.deadline_ms == 100
    assert follower.step(ev.TimePassed(), 99) == []
    assert follower.step(ev.TimePassed(), 100) == [fx.Send(1, Fetch(2, FIRST, 10, 1, "run 2"))]
    told(follower, stream(base=10))
    assert follower.deadline_ms is None


def test_a_lost_link_ends_the_session(follower):
    """No timer runs while the link is down; then the follower opens a new session."""
    told(follower, stream(base=10))
    assert follower.step(ev.PeerDisconnected(1), 0) == []
    assert follower.deadline_ms is None
    assert told(follower, stream(ref(10, 12, epoch=2)), (b"x",)) == []
    assert follower.step(ev.PeerConnected(1), 0) == [
        fx.Send(1, Fetch(2, FIRST + 1, 10, 1, "run 2"))
    ]
    assert follower.step(ev.PeerDisconnected(3), 0) == [], "not our leader"


def test_a_full_disk_gives_the_stream_up_for_a_while(follower):
    """Batches that were not stored are fetched again later."""
    told(follower, stream(ref(10, 12, epoch=2)), (b"x",))
    assert follower.step(ev.Undone(10), 0) == []
    assert follower.log.log_end_offset == 10
    assert told(follower, stream(ref(12, 13, epoch=2)), (b"y",)) == []
    assert follower.step(ev.TimePassed(), 100) == [fx.Send(1, Fetch(2, FIRST + 1, 10, 1, "run 2"))]


def test_a_full_disk_wakes_no_follower_that_stopped(follower):
    """What made it stop is not mended by room on the disk; only an assignment starts it again."""
    told(follower, stream(ref(10, 12, epoch=2)), (b"x",))
    assert told(follower, stream(ref(11, 14, epoch=2)), (b"y",)) == [
        fx.Halted(fx.DivergenceError.MISALIGNED)
    ]
    assert follower.step(ev.Undone(10), 0) == []
    assert follower.follower.state is FollowerState.HALTED
    assert follower.deadline_ms is None


def test_a_full_disk_without_a_leader_asks_nobody(make, assigned):
    """There is nobody to fetch from, so no timer runs."""
    replica = make(2, 10)
    replica.step(assigned(2, None), 0)
    assert replica.step(ev.Undone(8), 0) == []
    assert replica.log.log_end_offset == 8
    assert replica.deadline_ms is None


def test_an_old_leader_is_fenced(follower, assigned):
    """Its batches are not appended, and it learns why."""
    follower.step(assigned(3, 3), 0)
    old = stream(ref(10, 12, epoch=2))
    assert told(follower, old, (b"x",)) == [fx.Send(1, Fenced(3))]
    assert follower.log.log_end_offset == 10


def test_a_newer_leader_is_not_believed_before_metadata_says_so(follower):
    """The follower asks; it does not take epochs from messages."""
    newer = Replicate(9, FIRST, 10, 10, (ref(10, 12, epoch=9),))
    assert told(follower, newer, (b"x",)) == [fx.AskMetadata(9)]
    assert follower.epoch == 2


def test_an_assignment_that_is_older_is_ignored(follower, assigned):
    """Epochs never go back."""
    assert follower.step(assigned(1, 3), 0) == []
    assert (follower.epoch, follower.follower.leader) == (2, 1)


def test_a_session_number_is_never_used_again(follower, assigned):
    """Not under the next leader either: a late answer must not look like a new one."""
    told(follower, Diverged(2, FIRST, 1, 8))
    follower.step(assigned(3, 2), 0)
    assert follower.leader is not None
    [refusing, fetch] = follower.step(assigned(4, 1), 0)
    assert refusing == fx.RejectWrites(fx.RejectReason.NOT_LEADER)
    assert fetch.message.session == FIRST + 2


def test_without_a_leader_it_waits(make, assigned):
    """Nothing to ask, nothing to time."""
    replica = make(2, 10)
    assert replica.step(assigned(2, None), 0) == []
    assert replica.deadline_ms is None
    assert replica.reject_reason is fx.RejectReason.NOT_LEADER


def test_what_is_everywhere_is_what_the_leader_said_last(follower, assigned):
    """Never more than is known here to be committed; nothing once there are new replicas."""
    message = Replicate(2, FIRST, 10, 8, (), min_replica_offset=7)
    told(follower, message)
    assert follower.min_replica_offset == 7 < follower.log.high_watermark == 8
    follower.step(assigned(2, 1, isr=(1, 2), version=1), 0)
    assert follower.min_replica_offset == 7, "replicas count whether in sync or not"
    follower.step(assigned(2, 1, replicas=(1, 2, 3, 4), version=2), 0)
    assert follower.min_replica_offset == 0
    told(follower, message)
    follower.step(assigned(2, 1, replicas=(1, 2, 3, 4), filling=(4,), version=3), 0)
    assert follower.min_replica_offset == 0
    told(follower, message)
    follower.step(assigned(3, 3, version=4), 0)
    assert follower.min_replica_offset == 0

"""The leader: what it sends and commits, and when it rejects records."""

import pytest

from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.effects import RejectReason
from strandline.core.replication.messages import (
    NO_EPOCH,
    Acked,
    Diverged,
    Fenced,
    Fetch,
    Replicate,
    StartAt,
)

from .conftest import ref


@pytest.fixture
def leader(make, assigned):
    """Broker 1, leading epoch 2 with ten records of epoch 1."""
    replica = make(1, 10, hw=10)
    assert replica.step(assigned(2, 1, min_isr=2), 0) == [fx.RejectWrites(None)]
    return replica


def sends(effects):
    return [(e.to, e.message) for e in effects if isinstance(e, fx.Send)]


def told(replica, sender, message, now=0):
    return replica.step(ev.Received(sender, message), now)


def join(replica, sender, end=10, now=0):
    """A follower opens, is greeted and answers."""
    told(replica, sender, Fetch(2, sender, end, 1, "run"), now)
    replica.step(ev.Flush(), now)
    return told(replica, sender, Acked(2, sender, end, 10), now)


def publish(replica, base, after, now=0):
    replica.step(ev.Appended((ref(base, after, epoch=2),), (b"x" * 10,)), now)
    return replica.step(ev.Flush(), now)


def test_who_is_alone_in_sync_knows_at_once_that_it_has_all(make, assigned):
    """No other replica can have committed more; readers wait for the leader to know."""
    replica = make(1, 10, hw=3)
    effects = replica.step(assigned(2, 1, isr=(1,)), 0)
    assert effects == [fx.Committed(10), fx.RejectWrites(None)]


def test_who_leads_with_too_few_in_sync_does_not_know_what_is_committed(make, assigned):
    """Nor does one that others are in sync with, before they answer."""
    alone = make(1, 10, hw=3)
    rejection = fx.RejectWrites(RejectReason.NOT_ENOUGH_REPLICAS)
    assert alone.step(assigned(2, 1, isr=(1,), min_isr=2), 0) == [rejection]
    first = make(1, 10, hw=3)
    assert first.step(assigned(2, 1), 0) == [fx.RejectWrites(None)]


def test_a_group_commit_costs_one_message_per_follower(leader):
    """However many batches: one Replicate with all of them."""
    join(leader, 2)
    join(leader, 3)
    leader.step(ev.Appended((ref(10, 11, epoch=2),), (b"a",)), 0)
    leader.step(ev.Appended((ref(11, 15, epoch=2),), (b"b",)), 0)
    sent = leader.step(ev.Flush(), 0)
    assert [(e.to, len(e.message.batches), e.buffers) for e in sent] == [
        (2, 2, (b"a", b"b")),
        (3, 2, (b"a", b"b")),
    ]
    assert leader.step(ev.Flush(), 0) == []


def test_a_record_is_committed_when_all_in_sync_replicas_have_synced_it(leader):
    """Not when most have; the leader itself counts only after its own sync."""
    join(leader, 2)
    join(leader, 3)
    publish(leader, 10, 12)
    assert told(leader, 2, Acked(2, 2, 12, 10)) == []
    assert told(leader, 3, Acked(2, 3, 12, 10)) == []
    assert leader.step(ev.Synced(12), 0) == [fx.Committed(12)]
    assert (leader.memory_offset, leader.disk_offset, leader.replicated_offset) == (12, 12, 12)


def test_ack_levels_are_reached_one_after_the_other(leader):
    """memory at once, disk after the leader's sync, replicated after everybody's."""
    join(leader, 2)
    publish(leader, 10, 12)
    assert (leader.memory_offset, leader.disk_offset, leader.replicated_offset) == (12, 10, 10)
    leader.step(ev.Synced(12), 0)
    assert (leader.disk_offset, leader.replicated_offset) == (12, 10)


def test_nobody_counts_before_it_has_spoken_in_this_epoch(leader):
    """A follower's acks to an earlier leader prove nothing about this leader's log."""
    publish(leader, 10, 12)
    leader.step(ev.Synced(12), 0)
    assert told(leader, 2, Acked(1, 2, 12, 10)) == []
    assert told(leader, 2, Acked(2, 2, 12, 10)) == []
    assert leader.replicated_offset == 10


def test_an_ack_of_an_old_session_does_not_count(leader):
    """The follower may have truncated its log since."""
    join(leader, 3)
    join(leader, 2)
    publish(leader, 10, 12)
    leader.step(ev.Synced(12), 0)
    told(leader, 3, Acked(2, 3, 12, 10))
    told(leader, 2, Fetch(2, 20, 10, 1, "run"))
    assert told(leader, 2, Acked(2, 2, 12, 10)) == []
    assert leader.replicated_offset == 10


def test_a_follower_with_a_new_disk_is_heard_though_it_counts_from_the_beginning(leader):
    """Its broker has started once, and the one before on that disk many times."""
    told(leader, 2, Fetch(2, 7 << 32, 10, 1, "before"))
    told(leader, 2, Acked(2, 7 << 32, 10, 10))
    leader.step(ev.PeerDisconnected(2), 0)
    told(leader, 2, Fetch(2, 1 << 32, 0, NO_EPOCH, "anew"))
    assert fx.ReadLog(2, 1 << 32, 0, 50) in leader.step(ev.Flush(), 0)


@pytest.mark.parametrize(
    ("fetch", "answer"),
    [
        (Fetch(2, 5, 10, 1), None),
        (Fetch(2, 5, 4, 1), None),
        (Fetch(2, 5, 11, 1), Diverged(2, 5, 1, 10)),
        (Fetch(2, 5, 4, 0), StartAt(2, 5, 0)),
        (Fetch(2, 5, 0, -1), None),
        (Fetch(2, 5, 12, -1), StartAt(2, 5, 0)),
        (Fetch(1, 5, 10, 1), Fenced(2)),
    ],
    ids=["equal", "shorter", "longer", "older epochs", "empty", "empty beyond", "old epoch"],
)
def test_a_follower_is_told_where_the_logs_part(leader, fetch, answer):
    """Or is streamed to, if its log is a prefix of ours."""
    sent = sends(told(leader, 2, fetch))
    assert sent == ([] if answer is None else [(2, answer)])


def test_a_follower_below_the_log_start_starts_there(leader):
    """Retention removed the records that it would need next."""
    leader.step(ev.LogStartMoved(6), 0)
    assert sends(told(leader, 2, Fetch(2, 5, 4, 1))) == [(2, StartAt(2, 5, 6))]


def test_a_follower_that_retention_overtakes_is_told_until_it_hears(leader):
    """It was streaming slowly; the records that it needs next are removed."""
    told(leader, 2, Fetch(2, 5, 4, 1))
    leader.step(ev.LogStartMoved(6), 0)
    assert sends(leader.step(ev.Flush(), 0)) == [(2, StartAt(2, 5, 6))]
    assert leader.step(ev.Flush(), 50) == []
    leader.step(ev.TimePassed(), 100)
    assert sends(leader.step(ev.Flush(), 100)) == [(2, StartAt(2, 5, 6))]


def test_a_follower_that_is_behind_is_read_for(leader):
    """From the log, one read at a time, within its window."""
    told(leader, 2, Fetch(2, 5, 4, 1))
    effects = leader.step(ev.Flush(), 0)
    assert effects[0] == fx.ReadLog(2, 5, 4, 50)
    assert isinstance(leader.step(ev.Flush(), 0), list)
    read = ev.BatchesRead(2, 5, 4, (ref(4, 8, size=60),), (b"y" * 60,))
    assert sends(leader.step(read, 0)) == [(2, Replicate(2, 5, 4, 10, read.batches))]
    assert leader.step(ev.Flush(), 0) == [fx.ReadLog(2, 5, 8, 40)]
    assert leader.step(read, 0) == [], "an answer to an older question"


def test_a_full_window_waits_for_acks(leader):
    """A slow follower does not pile up bytes; it is read for later."""
    join(leader, 2)
    leader.step(ev.Appended((ref(10, 11, epoch=2, size=100),), (b"a" * 100,)), 0)
    assert len(leader.step(ev.Flush(), 0)) == 1
    assert publish(leader, 11, 12) == []
    told(leader, 2, Acked(2, 2, 11, 10))
    assert leader.step(ev.Flush(), 0) == [fx.ReadLog(2, 2, 11, 50)]


@pytest.mark.parametrize(
    ("isr", "now_ms", "wanted"),
    [((1, 2), 229, 20), ((1, 2), 230, 50), ((1, 2, 3), 229, 50)],
)
def test_who_is_not_in_sync_gets_less_while_there_are_publishers(
    make, assigned, isr, now_ms, wanted
):
    """Replicas that catch up leave room for publishers; in-sync ones get everything."""
    leader = make(1, 10, hw=10)
    leader.step(assigned(2, 1, isr=isr), 0)
    publish(leader, 10, 11, 200)
    told(leader, 3, Fetch(2, 5, 4, 1), 210)
    effects = leader.step(ev.Flush(), now_ms)
    assert fx.ReadLog(3, 5, 4, wanted) in effects


def test_who_does_not_gain_on_publishers_is_spared_no_longer(make, assigned):
    """Else a follower far away would never be in sync again, as they do not pause."""
    leader = make(1, 10, hw=10)
    leader.step(assigned(2, 1, isr=(1, 2)), 0)
    told(leader, 3, Fetch(2, 5, 4, 1), 0)
    end, room = 10, []
    for start in range(4, 30, 2):
        end += 2
        effects = publish(leader, end - 2, end, 0)
        room += [each.bytes_max for each in effects if isinstance(each, fx.ReadLog)]
        read = ev.BatchesRead(3, 5, start, (ref(start, start + 2),), (b"y" * 10,))
        leader.step(read, 0)
        told(leader, 3, Acked(2, 5, start + 2, 10))
    assert (room[0], room[-1]) == (20, 50)


def test_a_batch_that_cannot_be_read_is_not_tried_in_a_circle(leader):
    """Corruption here: the read is repeated after a while, not at once."""
    told(leader, 2, Fetch(2, 5, 4, 1))
    leader.step(ev.Flush(), 0)
    leader.step(ev.BatchesRead(2, 5, 4, (), ()), 0)
    assert leader.step(ev.Flush(), 0) == []
    leader.step(ev.TimePassed(), 100)
    assert fx.ReadLog(2, 5, 4, 50) in leader.step(ev.Flush(), 100)


def test_a_read_that_failed_is_repeated_though_acks_come(leader):
    """Answers to earlier batches must not stop the timer of the read."""
    told(leader, 2, Fetch(2, 5, 4, 1))
    leader.step(ev.Flush(), 0)
    leader.step(ev.BatchesRead(2, 5, 4, (), ()), 0)
    told(leader, 2, Acked(2, 5, 4, 10), 10)
    assert leader.deadline_ms == 110
    leader.step(ev.TimePassed(), 110)
    assert fx.ReadLog(2, 5, 4, 50) in leader.step(ev.Flush(), 110)


def test_an_idle_partition_has_no_timer_and_sends_nothing(leader):
    """A thousand of them cost nothing."""
    join(leader, 2)
    join(leader, 3)
    assert leader.deadline_ms is None
    assert leader.step(ev.Flush(), 1_000_000) == []
    assert leader.step(ev.TimePassed(), 1_000_000) == []


def test_the_high_watermark_goes_alone_once(leader):
    """Only to followers with all batches; others receive it with their batches."""
    join(leader, 2)
    join(leader, 3)
    publish(leader, 10, 11)
    told(leader, 2, Acked(2, 2, 11, 10))
    told(leader, 3, Acked(2, 3, 11, 10))
    leader.step(ev.Synced(11), 0)
    news = sends(leader.step(ev.Flush(), 0))
    min_replica_offset = 11
    assert news == [
        (2, Replicate(2, 2, 11, 11, min_replica_offset=min_replica_offset)),
        (3, Replicate(2, 3, 11, 11, min_replica_offset=min_replica_offset)),
    ]
    assert leader.step(ev.Flush(), 0) == []


def test_what_is_everywhere_is_what_the_slowest_replica_has(leader):
    """And nothing as soon as one has lost its disk."""
    join(leader, 2)
    join(leader, 3)
    publish(leader, 10, 11)
    told(leader, 2, Acked(2, 2, 11, 10))
    leader.step(ev.Synced(11), 0)
    assert leader.min_replica_offset == 10
    told(leader, 3, Acked(2, 3, 11, 10))
    assert leader.min_replica_offset == 11
    leader.step(ev.Received(3, Fetch(2, 9, 0, NO_EPOCH)), 0)
    assert leader.min_replica_offset == 0


def test_who_does_not_answer_is_asked_and_sent_nothing_twice(leader):
    """An empty request finds out what was lost."""
    join(leader, 2)
    publish(leader, 10, 11)
    assert leader.deadline_ms == 100
    leader.step(ev.TimePassed(), 100)
    assert sends(leader.step(ev.Flush(), 100)) == [(2, Replicate(2, 2, 11, 10, (), True))]


def test_below_min_isr_records_are_rejected_at_once(leader):
    """And accepted as soon as there are enough again."""
    assert leader.reject_reason is None
    effects = leader.step(ev.IsrChanged(2, 1, (1,)), 0)
    assert effects == [fx.RejectWrites(RejectReason.NOT_ENOUGH_REPLICAS)]
    assert leader.step(ev.IsrChanged(2, 2, (1, 2)), 0) == [fx.RejectWrites(None)]


def test_a_newer_epoch_deposes_the_leader(leader):
    """It stops at once: nothing is sent, committed or timed."""
    join(leader, 2)
    publish(leader, 10, 11)
    effects = told(leader, 2, Fenced(5))
    assert effects == [fx.RejectWrites(RejectReason.NOT_LEADER), fx.AskMetadata(5)]
    assert told(leader, 2, Acked(2, 2, 11, 10)) == []
    assert leader.step(ev.Synced(11), 0) == []
    assert leader.step(ev.Flush(), 0) == []
    assert leader.deadline_ms is None


def test_news_for_an_earlier_leadership_are_dropped(leader):
    """Metadata's decision for epoch 1 does not change the ISR of epoch 2."""
    assert leader.step(ev.IsrChanged(1, 99, (1,)), 0) == []
    assert leader.step(ev.IsrRejected(1, 1), 0) == []
    assert leader.leader.isr.members == (1, 2, 3)


def test_a_rejected_proposal_is_not_repeated_at_once(leader):
    """The candidate is not alive for metadata; asking in a circle would not revive it."""
    join(leader, 2)
    leader.step(ev.IsrChanged(2, 1, (1, 2)), 0)
    [proposal] = join(leader, 3)
    assert (proposal.isr, proposal.joining) == ((1, 2, 3), ((3, "run"),))
    assert leader.step(ev.IsrRejected(2, proposal.proposal), 10) == []
    assert leader.deadline_ms == 110
    [again] = leader.step(ev.TimePassed(), 110)
    assert again.proposal > proposal.proposal


def test_who_lags_is_not_taken_back_before_it_has_caught_up(leader):
    """Having reached the high watermark alone would let it come and go with every ack."""
    join(leader, 2)
    leader.step(ev.IsrChanged(2, 1, (1, 2)), 0)
    publish(leader, 10, 12)
    told(leader, 2, Acked(2, 2, 12, 10))
    told(leader, 3, Fetch(2, 3, 10, 1, "run"), 5000)
    assert told(leader, 3, Acked(2, 3, 10, 10), 5000) == []
    leader.step(ev.Flush(), 5000)
    leader.step(ev.BatchesRead(3, 3, 10, (ref(10, 12, epoch=2),), (b"x" * 10,)), 5000)
    [proposal] = told(leader, 3, Acked(2, 3, 12, 10), 5001)
    assert proposal.isr == (1, 2, 3)


def test_a_resigning_leader_hands_over_when_all_is_committed(leader):
    """The last publisher is acked first; the successors are the in-sync followers, once."""
    join(leader, 2)
    join(leader, 3)
    publish(leader, 10, 11)
    assert leader.step(ev.Resign(), 0) == [fx.RejectWrites(RejectReason.RESIGNING)]
    told(leader, 2, Acked(2, 2, 11, 10))
    told(leader, 3, Acked(2, 3, 11, 10))
    assert leader.step(ev.Synced(11), 0) == [fx.Committed(11), fx.TransferLeadership((2, 3))]
    assert leader.step(ev.Resign(), 0) == []


def test_replicas_may_be_added_within_the_epoch(leader, assigned):
    """A reassignment adds a follower, which then may fetch."""
    assert told(leader, 4, Fetch(2, 1, 10, 1)) == []
    assert leader.step(ev.Flush(), 0) == []
    bigger = assigned(2, 1, version=1, min_isr=2)
    leader.step(ev.Assigned(2, 1, (1, 2, 3, 4), bigger.isr, 1, 2), 0)
    told(leader, 4, Fetch(2, 1, 10, 1))
    assert sends(leader.step(ev.Flush(), 0)) == [(4, Replicate(2, 1, 10, 10, (), True))]


def test_what_the_leader_appends_carries_its_epoch(leader):
    """A batch of another epoch is our own bug."""
    with pytest.raises(AssertionError, match="our epoch"):
        leader.step(ev.Appended((ref(10, 11, epoch=1),), (b"x",)), 0)


def test_only_the_high_watermark_can_wait(leader):
    """Batches, answers to a new session and questions leave at once."""
    assert leader.can_defer_flush, "nobody listens"
    told(leader, 2, Fetch(2, 2, 10, 1, "run"))
    assert not leader.can_defer_flush, "the session's first message"
    leader.step(ev.Flush(), 0)
    told(leader, 2, Acked(2, 2, 10, 10))
    leader.step(ev.Appended((ref(10, 12, epoch=2),), (b"x" * 10,)), 0)
    assert not leader.can_defer_flush, "a batch"
    leader.step(ev.Flush(), 0)
    assert leader.can_defer_flush
    leader.step(ev.TimePassed(), leader.deadline_ms)
    assert not leader.can_defer_flush, "the follower owes an answer"


def test_a_follower_does_not_wait(make, assigned):
    """A follower sends its acks at once, because publishers wait for them."""
    follower = make(2, 10, hw=10)
    follower.step(assigned(2, 1), 0)
    assert not follower.can_defer_flush

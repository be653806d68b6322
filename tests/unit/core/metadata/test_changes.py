"""ISR changes, elections and moves: each on the partition as it was when it was decided, or not."""

from typing import get_args

import msgspec
import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.commands import (
    BeginShutdown,
    BrokerRun,
    ChangeIsr,
    CreateStream,
    DeleteStream,
    Drain,
    ElectionReason,
    ElectLeader,
    FinishReassignment,
    IsrChange,
    LeaderChange,
    LogStart,
    Move,
    MoveLogStarts,
    ReassignReplicas,
)


def move(cluster, *target, number=0):
    return cluster.do(ReassignReplicas((Move(cluster.at(number), target),)))


def finish(cluster, number=0):
    return cluster.do(FinishReassignment((cluster.at(number),)))


# ISR


def test_a_leader_shrinks_and_grows_its_isr(cluster):
    """Each change raises the version and leaves the epoch."""
    made = cluster()
    made.create("s", (1, 2, 3))
    assert made.isr(1, 2).is_applied
    assert made.partition().isr == (1, 2)
    assert made.isr(3, 2, 1).is_applied
    assert made.partition().isr == (1, 2, 3), "kept in order"
    assert (made.partition().version, made.partition().leader_epoch) == (2, 0)


@pytest.mark.parametrize(
    ("isr", "why"), [((2, 3), "leader"), ((1, 4), "replicas"), ((1, 1), "replicas"), ((), "lacks")]
)
def test_an_impossible_isr_is_rejected(cluster, isr, why):
    """The leader is in it, all are replicas, each once."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    outcome = made.isr(*isr)
    assert outcome.reason == "not_eligible"
    assert why in outcome.message


def test_only_the_leader_of_the_epoch_changes_the_isr(cluster):
    """Another broker, an earlier epoch and an earlier run are rejected."""
    made = cluster()
    made.create("s", (1, 2, 3))
    item = IsrChange(made.at(), 0, (1, 2))
    assert made.do(ChangeIsr(made.run(2), (item,))).reason == "not_leader"
    old = IsrChange(made.at(), 7, (1, 2))
    assert made.do(ChangeIsr(made.run(1), (old,))).reason == "not_leader"
    assert made.do(ChangeIsr(BrokerRun(1, "r0"), (item,))).reason == "stale_incarnation"


def test_the_second_of_two_changes_to_one_version_is_rejected(cluster):
    """Compare and set: a decision on an outdated partition is made again."""
    made = cluster()
    made.create("s", (1, 2, 3))
    item = IsrChange(made.at(), 0, (1, 2))
    assert made.do(ChangeIsr(made.run(1), (item,))).is_applied
    outcome = made.do(ChangeIsr(made.run(1), (msgspec.structs.replace(item, isr=(1,)),)))
    assert outcome.reason == "stale_partition"
    assert "its version is 1, not 0" in outcome.message


def test_a_change_does_not_reach_a_stream_made_again(cluster):
    """A stream of the same name is another one: its log ids are."""
    made = cluster()
    made.create("s", (1, 2, 3))
    item = IsrChange(made.at(), 0, (1, 2))
    made.must(DeleteStream("s"))
    assert made.do(ChangeIsr(made.run(1), (item,))).reason == "stale_partition"
    made.create("s", (1, 2, 3))
    assert made.do(ChangeIsr(made.run(1), (item,))).reason == "stale_partition"
    assert made.partition().isr == (1, 2, 3)


def test_a_fenced_or_stopping_broker_does_not_join_the_isr(cluster):
    """Commits would wait for it without effect."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.isr(1)
    made.fence(2)
    made.must(BeginShutdown(made.run(3)))
    assert made.isr(1, 2).reason == "not_eligible"
    assert made.isr(1, 3).reason == "not_eligible"


def test_who_leaves_an_isr_that_is_too_small_to_commit_is_safe(cluster):
    """Nothing is committed below min_isr, so it keeps everything committed; then it is not safe."""
    made = cluster()
    made.create("s", (1, 2, 3), min_isr=2)
    made.isr(1, 2)
    assert made.partition().last_known_safe == (), "1 and 2 go on committing without 3"
    made.isr(1)
    assert made.partition().last_known_safe == (2,)
    made.isr(1, 3)
    assert made.partition().last_known_safe == (), "1 and 3 go on committing without 2"


# Elections


def test_a_new_leadership_has_a_new_epoch(cluster):
    """Two leaders never share one."""
    made = cluster()
    made.create("s", (1, 2, 3))
    assert made.elect(3).is_applied
    partition = made.partition()
    assert (partition.leader, partition.leader_epoch, partition.isr) == (3, 1, (1, 2, 3))


def test_a_leader_is_not_elected_again(cluster):
    """It would cost an interruption and gain nothing."""
    made = cluster()
    made.create("s", (1, 2, 3))
    assert made.elect(1).reason == "not_eligible"


def test_nobody_leads_who_may_lack_committed_records(cluster):
    """A live replica outside the ISR is rejected, except in an unclean election."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.isr(1)
    made.fence(1)
    for reason in get_args(ElectionReason):
        if reason == "unclean":
            continue
        assert made.elect(2, reason=reason).reason == "not_in_sync"
    assert made.elect(2, reason="unclean").is_applied
    partition = made.partition()
    assert (partition.leader, partition.isr, partition.last_known_safe) == (2, (2,), ())


def test_a_leader_that_has_failed_leaves_the_isr(cluster):
    """No commit waits for one that cannot store records; it may join again."""
    made = cluster()
    made.create("s", (1, 2, 3))
    assert made.elect(2, reason="leader_failed").is_applied
    assert (made.partition().leader, made.partition().isr) == (2, (2, 3))
    made.isr(1, 2, 3)
    assert made.partition().isr == (1, 2, 3)


def test_a_safe_replica_may_lead_when_the_isr_is_gone(cluster):
    """It has all committed records, and the ISR's members stay last known safe."""
    made = cluster()
    made.create("s", (1, 2, 3), min_isr=2)
    made.isr(1, 2)
    made.isr(1)
    made.fence(1)
    assert made.elect(3).reason == "not_in_sync"
    assert made.elect(2).is_applied
    partition = made.partition()
    assert (partition.leader, partition.isr, partition.last_known_safe) == (2, (2,), (1,))


@pytest.mark.parametrize("leader", [2, 4])
def test_a_leader_is_a_replica_in_service(cluster, leader):
    """Fenced brokers and brokers without a replica are rejected, unclean or not."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    made.fence(2)
    assert made.elect(leader).reason == "not_eligible"
    assert made.elect(leader, reason="unclean").reason == "not_eligible"


# Many at once


def test_each_partition_of_a_command_stands_for_itself(cluster):
    """Invalid changes are listed with their reason; the rest is applied."""
    made = cluster()
    made.create("s", (1, 2, 3), (1, 2, 3))
    stale = msgspec.structs.replace(made.at(1), version=9)
    changes = (LeaderChange(made.at(0), 2), LeaderChange(stale, 2))
    outcome = made.do(ElectLeader(changes, "operator"))
    assert outcome.is_applied
    assert [(r.name, r.reason) for r in outcome.rejected] == [(("s", 1), "stale_partition")]
    assert [made.partition(n).leader for n in (0, 1)] == [2, 1]


def test_a_thousand_rejections_are_listed_and_few_explained(cluster):
    """Outcomes are kept for retries, so they stay small; the reason is there for each."""
    made = cluster()
    made.create("s", *[(1, 2, 3)] * 1_000)
    stale = [msgspec.structs.replace(made.at(n), version=9) for n in range(1_000)]
    outcome = made.do(ElectLeader(tuple(LeaderChange(at, 2) for at in stale), "operator"))
    assert {r.reason for r in outcome.rejected} == {"stale_partition"}
    assert len(outcome.rejected) == 1_000
    assert sum(bool(r.message) for r in outcome.rejected) == 20
    assert outcome.message == outcome.rejected[0].message != ""


def test_a_command_names_a_partition_once_and_at_least_one(cluster):
    """Otherwise one of its changes would undo another."""
    made = cluster()
    made.create("s", (1, 2, 3))
    twice = (LeaderChange(made.at(), 2), LeaderChange(made.at(), 3))
    assert not made.do(ElectLeader(twice, "operator")).is_applied
    assert made.do(ElectLeader((), "operator")).reason == "limit"


# Moves


def test_a_move_adds_first_and_removes_last(cluster):
    """There are never fewer copies than before; finishing waits for those that come."""
    made = cluster(4)
    made.create("s", (1, 2, 3), min_isr=2)
    assert move(made, 4, 2, 3).is_applied
    partition = made.partition()
    assert (partition.replicas, partition.adding, partition.removing) == ((4, 2, 3, 1), (4,), (1,))
    assert finish(made).reason == "not_ready"
    made.isr(1, 2, 3, 4)
    assert "still leads" in finish(made).message
    made.elect(4, reason="reassignment")
    assert finish(made).is_applied
    partition = made.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((4, 2, 3), (2, 3, 4), 4)
    assert not partition.is_moving
    assert finish(made).reason == "not_ready"


def test_a_move_is_called_off_by_moving_back(cluster):
    """The added replicas leave at once, however far they are."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    move(made, 4, 2, 3)
    made.isr(1, 2, 3, 4)
    assert move(made, 1, 2, 3).is_applied
    assert made.partition().removing == (4,)
    assert finish(made).is_applied
    assert (made.partition().replicas, made.partition().isr) == ((1, 2, 3), (1, 2, 3))


def test_a_replica_is_filling_until_it_is_in_sync(cluster):
    """From its addition on, across elections; a first replica is never filling."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    made.isr(1, 2)
    move(made, 1, 2, 4)
    assert made.partition().filling == (4,)
    made.elect(2)
    move(made, 1, 2, 4, 3)
    assert made.partition().filling == (4,)
    made.isr(1, 2, 4)
    assert made.partition().filling == ()
    made.isr(1, 2)
    move(made, 1, 2, 4)
    assert made.partition().filling == (), "it was in sync once"


def test_a_replica_that_leaves_before_it_is_in_sync_is_filling_when_it_is_back(cluster):
    """Whatever is left on its disk."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    move(made, 4, 2, 3)
    move(made, 1, 2, 3)
    assert finish(made).is_applied
    assert made.partition().filling == ()
    move(made, 1, 2)
    assert finish(made).is_applied
    move(made, 1, 2, 3)
    assert made.partition().filling == (3,)


def test_an_unclean_leader_is_not_filling(cluster):
    """Its log defines the partition from then on."""
    made = cluster(4)
    made.create("s", (1, 2))
    move(made, 1, 3, 4)
    made.fence(1, 2)
    made.elect(3, reason="unclean")
    assert made.partition().filling == (4,)


def test_a_move_that_would_stop_appends_waits(cluster):
    """The replicas that stay have to be enough to commit, if there are enough now."""
    made = cluster(4)
    made.create("s", (1, 2, 3), min_isr=2)
    move(made, 1, 4)
    made.isr(1, 2, 3)
    assert finish(made).reason == "not_ready"
    move(made, 1, 2)
    made.isr(1, 3)
    assert "in sync" in finish(made).message
    made.isr(1, 2, 3)
    assert finish(made).is_applied


def test_a_partition_of_a_broker_alone_is_not_moved(cluster):
    """It has no replicas to copy from; brokers that register later do not change that."""
    made = cluster(0)
    made.must(CreateStream(StreamConfig(name="s", subject="s"), 1))
    made.register(1)
    made.unfence(1)
    assert move(made, 1).reason == "bad_assignment"
    assert made.partition().replicas == ()


def test_only_the_order_of_replicas_changes_at_once(cluster):
    """Another preferred leader needs no copying."""
    made = cluster()
    made.create("s", (1, 2, 3))
    assert move(made, 2, 1, 3).is_applied
    assert made.partition().replicas == (2, 1, 3)
    assert not made.partition().is_moving


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ((), "bad_assignment"),
        ((1, 1), "bad_assignment"),
        ((1,), "bad_assignment"),
        ((1, 2, 9), "unknown_broker"),
        ((1, 2, 4), "not_eligible"),
    ],
)
def test_an_impossible_target_is_rejected(cluster, target, reason):
    """Known brokers, each once, enough for min_isr, and new ones only if they are to stay."""
    made = cluster(4)
    made.create("s", (1, 2, 3), min_isr=2)
    made.must(Drain(4))
    assert move(made, *target).reason == reason


def test_a_log_start_only_grows(cluster):
    """Deleting up to an offset is done once, and never undone by one that comes late."""
    made = cluster()
    made.create("s", (1, 2, 3))
    late = made.at()
    made.must(MoveLogStarts((LogStart(made.at(), 5),)))
    assert made.partition().log_start_offset == 5
    version = made.partition().version
    made.must(MoveLogStarts((LogStart(made.at(), 4),)))
    assert (made.partition().log_start_offset, made.partition().version) == (5, version)
    assert made.do(MoveLogStarts((LogStart(late, 9),))).reason == "stale_partition"
    for offset in (-1, 1 << 63):
        assert made.do(MoveLogStarts((LogStart(made.at(), offset),))).reason == "limit"


def test_an_unclean_election_forgets_the_log_start(cluster):
    """The new leader may end before it, and its next records must not count as deleted."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.must(MoveLogStarts((LogStart(made.at(), 5),)))
    made.isr(1, 2)
    made.fence(1)
    made.elect(2)
    assert made.partition().log_start_offset == 5, "whoever is in sync has come so far"
    made.fence(2)
    made.elect(3, reason="unclean")
    assert made.partition().log_start_offset == 0


def test_an_unclean_election_is_remembered_by_its_epoch(cluster):
    """Older replicas then know that they must agree with the leader in any case."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.isr(1, 2)
    made.fence(1)
    made.elect(2)
    assert made.partition().unclean_epoch == 0
    made.fence(2)
    made.elect(3, reason="unclean")
    assert made.partition().unclean_epoch == made.partition().leader_epoch

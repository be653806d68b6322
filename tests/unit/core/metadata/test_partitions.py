"""Changes of one partition: ISRs, leaders, log starts and moves, and which are not valid."""

import pytest
from msgspec.structs import replace

from strandline.core.metadata import partitions as p
from strandline.core.metadata.image import BrokerImage, PartitionImage
from strandline.core.metadata.outcome import CommandRejectedError

PARTITION = PartitionImage(
    log_id=1, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4, version=9
)


def brokers(*, fenced=(), stopping=()):
    return {
        n: BrokerImage(
            id=n,
            directory_id="d",
            incarnation="r",
            is_fenced=n in fenced,
            is_stopping=n in stopping,
        )
        for n in range(1, 6)
    }


def of(**fields):
    return replace(PARTITION, **fields)


def rejection(call, *given, **more):
    with pytest.raises(CommandRejectedError) as caught:
        call(*given, **more)
    return caught.value.reason


def test_an_isr_without_those_that_are_gone_is_never_empty():
    """The last one stays, or nobody could lead again."""
    assert p.remaining_isr((1, 2, 3), {2}) == (1, 3)
    assert p.remaining_isr((1, 2), {1, 2, 3}) == (1, 2)


def test_a_leader_changes_its_isr():
    """In any order; the epoch stays, the version rises."""
    changed = p.change_isr(of(isr=(1, 2)), (3, 1), brokers=brokers(), min_isr=1)
    assert (changed.isr, changed.leader, changed.leader_epoch) == ((1, 3), 1, 4)
    assert changed.version == 10


@pytest.mark.parametrize(
    ("wanted", "isr", "fenced"),
    [
        ((1, 4), (1,), ()),
        ((1, 1), (1,), ()),
        ((2, 3), (1, 2, 3), ()),
        ((1, 2), (1,), (2,)),
        ((), (1,), ()),
    ],
)
def test_an_isr_has_replicas_in_service_and_the_leader(wanted, isr, fenced):
    """Commits wait for each of them."""
    where = brokers(fenced=fenced)
    assert rejection(p.change_isr, of(isr=isr), wanted, brokers=where, min_isr=1) == "not_eligible"


def test_a_member_that_is_out_of_service_may_stay_but_not_join():
    """It is removed by who fences it."""
    where = brokers(fenced=(2,), stopping=(3,))
    changed = p.change_isr(of(isr=(1, 2)), (1, 2), brokers=where, min_isr=1)
    assert changed.isr == (1, 2)
    assert rejection(p.change_isr, of(isr=(1,)), (1, 3), brokers=where, min_isr=1)


def test_a_replica_in_sync_is_elected_with_those_in_service():
    """The epoch rises; a leader that failed leaves the ISR."""
    changed = p.elect(PARTITION, 2, brokers=brokers(fenced=(3,)), min_isr=1)
    assert (changed.leader, changed.isr) == (2, (1, 2))
    assert (changed.leader_epoch, changed.version, changed.unclean_epoch) == (5, 10, 0)
    failed = p.elect(PARTITION, 2, brokers=brokers(), min_isr=1, has_failed=True)
    assert failed.isr == (2, 3)


@pytest.mark.parametrize(
    ("leader", "fields", "reason"),
    [
        (1, {}, "not_eligible"),  # it leads already
        (4, {}, "not_eligible"),  # no replica
        (2, {}, "not_eligible"),  # fenced
        (3, {"isr": (1, 2)}, "not_in_sync"),
    ],
)
def test_others_are_not_elected(leader, fields, reason):
    """Unless an operator orders it, and then only replicas in service."""
    where = brokers(fenced=(2,))
    assert rejection(p.elect, of(**fields), leader, brokers=where, min_isr=1) == reason


def test_a_replica_outside_the_isr_may_be_known_to_be_safe():
    """Then it alone is in sync."""
    known = of(isr=(1,), last_known_safe=(3,))
    changed = p.elect(known, 3, brokers=brokers(), min_isr=1)
    assert (changed.leader, changed.isr, changed.unclean_epoch) == (3, (3,), 0)


def test_an_unclean_leader_begins_anew():
    """What was known of other replicas does not hold for its log."""
    before = of(isr=(1,), last_known_safe=(2,), log_start_offset=50)
    changed = p.elect(before, 3, brokers=brokers(), min_isr=2, is_unclean=True)
    assert (changed.leader, changed.isr, changed.last_known_safe) == (3, (3,), ())
    assert changed.log_start_offset == 0
    assert changed.unclean_epoch == changed.leader_epoch == 5


@pytest.mark.parametrize(
    ("offset", "result"),
    [(-1, "limit"), (p.OFFSET_MAX + 1, "limit"), (0, 7), (7, 7), (8, 8), (p.OFFSET_MAX,) * 2],
)
def test_a_log_start_only_rises(offset, result):
    """The version with it."""
    before = of(log_start_offset=7)
    if result == "limit":
        assert rejection(p.move_log_start, before, offset) == result
        return
    changed = p.move_log_start(before, offset)
    assert changed.log_start_offset == result
    assert changed.version == 9 + (result > 7)


def test_a_replica_that_lost_its_disk_is_in_no_set():
    """It fills its log anew; the last one in sync cannot be forgotten."""
    before = of(isr=(1, 2), last_known_safe=(2, 3), filling=(3,))
    changed = p.forget_replica(before, 2)
    assert (changed.isr, changed.last_known_safe, changed.filling) == ((1,), (3,), (2, 3))
    assert changed.version == 10
    assert rejection(p.forget_replica, of(isr=(2,)), 2) == "last_replica"
    assert p.forget_replica(of(isr=()), 2).isr == ()


def test_a_move_adds_before_it_removes():
    """Begun again it changes nothing; a later one may keep what is being added."""
    moving = p.begin_move(PARTITION, (4, 2))
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 1, 3), (4,), (1, 3))
    assert (moving.filling, moving.version) == ((4,), 10)
    assert p.begin_move(moving, (4, 2)) is moving
    other = p.begin_move(moving, (5, 4, 1))
    assert (other.replicas, other.adding) == ((5, 4, 1, 2, 3), (5, 4))
    assert (other.removing, other.filling) == ((2, 3), (4, 5))


@pytest.mark.parametrize(
    ("isr", "leader", "min_isr", "why"),
    [
        ((1, 2, 3), 2, 1, "4 not in sync yet"),
        ((1, 2, 3, 4), 1, 1, "broker 1 still leads"),
        ((1, 2, 3, 4), 2, 3, "only 2 of the replicas that stay are in sync"),
        ((1, 2, 3, 4), 2, 2, ""),
        ((2, 4), None, 3, ""),
    ],
)
def test_a_move_ends_when_those_that_stay_can_go_on_alone(isr, leader, min_isr, why):
    """As many as before, or as the stream asks for."""
    moving = replace(p.begin_move(PARTITION, (4, 2)), isr=isr, leader=leader)
    assert p.why_move_waits(moving, min_isr=min_isr).endswith(why)
    if why:
        assert rejection(p.finish_move, moving, min_isr=min_isr) == "not_ready"
        return
    done = p.finish_move(moving, min_isr=min_isr)
    assert (done.replicas, done.adding, done.removing) == ((4, 2), (), ())
    assert (done.isr, done.leader, done.filling) == ((2, 4), leader, ()), "it is in sync"
    assert rejection(p.finish_move, done, min_isr=min_isr) == "not_ready"


@pytest.mark.parametrize(
    ("isr", "min_isr", "safe"),
    [((1, 2), 2, ()), ((1,), 2, (2, 3)), ((), 1, (1, 2, 3)), ((1,), 1, ())],
)
def test_replicas_outside_a_small_isr_are_known_to_be_safe(isr, min_isr, safe):
    """Nothing is committed without ``min_isr`` members, so they miss nothing."""
    before = of(isr=(1, 2), last_known_safe=(3, 5))
    assert p.safe_outside(before, isr, min_isr=min_isr) == safe

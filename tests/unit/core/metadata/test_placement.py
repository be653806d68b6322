"""Where replicas go: spread by load, apart by rack, the same for the same image."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from strandline.core.metadata.commands import Drain, FinishReassignment, Move, ReassignReplicas
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.placement import (
    Loads,
    drain_plan,
    place,
    rebalance_leaders,
    rebalance_plan,
    rotated,
    stranded,
    well_placed,
)
from strandline.errors import InvalidConfigError, UnavailableError
from strandline.types import PartitionName


def loads(assignment):
    """Replicas and preferred leaderships per broker."""
    replicas = Counter(b for replicas in assignment for b in replicas)
    return replicas, Counter(replicas[0] for replicas in assignment)


def spread(counter, brokers):
    counts = [counter[b] for b in range(1, brokers + 1)]
    return max(counts) - min(counts)


@pytest.mark.parametrize(
    ("brokers", "replicas"), [(1, 1), (3, 1), (3, 2), (3, 3), (5, 2), (5, 3), (7, 3)]
)
def test_replicas_and_leaders_are_shared_evenly(cluster, brokers, replicas):
    """No broker keeps, or is to lead, much more than another, for any number of partitions."""
    made = cluster(brokers)
    for partitions in (1, brokers, 10, 100):
        assignment = place(made.image, partitions=partitions, replicas=replicas)
        kept, led = loads(assignment)
        assert all(len(set(item)) == replicas for item in assignment)
        assert spread(kept, brokers) <= 1
        assert spread(led, brokers) <= 1


def test_streams_of_one_partition_are_spread_too(cluster):
    """Existing replicas count, so the next stream goes to the emptiest brokers."""
    made = cluster(5)
    for number in range(20):
        made.create(f"s{number}", replicas=3, partitions=1)
    kept, led = loads([p.replicas for _, p in made.image.partitions()])
    assert spread(kept, 5) <= 1
    assert spread(led, 5) <= 1


def test_no_two_replicas_are_in_one_rack_while_racks_suffice(cluster):
    """Racks go before load: a rack that fails takes one replica of each partition."""
    racks = ["a", "a", "a", "b", "c"]
    made = cluster(5, racks=racks)
    for replicas in place(made.image, partitions=30, replicas=3):
        assert sorted(racks[b - 1] for b in replicas) == ["a", "b", "c"]
    kept, _ = loads(place(made.image, partitions=30, replicas=3))
    assert {kept[1], kept[2], kept[3]} == {10}, "within a rack by load"


def test_with_too_few_racks_replicas_are_still_spread_over_them(cluster):
    """Two racks and three replicas: each rack has one at least."""
    racks = ["a", "a", "b", "b"]
    made = cluster(4, racks=racks)
    for replicas in place(made.image, partitions=20, replicas=3):
        assert {racks[b - 1] for b in replicas} == {"a", "b"}


def test_brokers_without_a_label_are_racks_of_their_own(cluster):
    """Without labels every broker counts as its own rack."""
    made = cluster(3, racks=["", "", "a"])
    kept, _ = loads(place(made.image, partitions=30, replicas=2))
    assert spread(kept, 3) <= 1


def test_placing_repeats(cluster):
    """The same image gives the same places, whichever broker decides."""
    made = cluster(5)
    again = cluster(5)
    assert place(made.image, partitions=9, replicas=2) == place(
        again.image, partitions=9, replicas=2
    )


def test_only_brokers_in_service_get_replicas(cluster):
    """Fenced, draining and stopping ones do not count; too few left is said at once."""
    made = cluster(4)
    made.fence(1)
    made.must(Drain(2))
    kept, _ = loads(place(made.image, partitions=5, replicas=2))
    assert set(kept) == {3, 4}
    with pytest.raises(UnavailableError, match="there are 2"):
        place(made.image, partitions=1, replicas=3)


def test_a_broker_alone_places_nothing():
    """Without registered brokers there are no replicas."""
    assert place(MetadataImage(), partitions=3, replicas=1) == ()


def test_leaderships_go_back_to_the_preferred(cluster):
    """One command for all of them, and nothing more to do afterwards."""
    made = cluster()
    made.create("s", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    made.elect(2, number=0)
    made.elect(1, number=2)
    command = rebalance_leaders(made.image)
    assert [(c.at.partition, c.leader) for c in command.changes] == [(0, 1), (2, 3)]
    made.must(command)
    assert rebalance_leaders(made.image) is None


def test_a_preferred_leader_that_lags_or_drains_is_left_alone(cluster):
    """It gets its leaderships when it is in sync, and not while it is to lose them."""
    made = cluster()
    made.create("s", (1, 2, 3), (1, 2, 3))
    made.elect(2, number=0)
    made.isr(2, 3, number=0)
    assert rebalance_leaders(made.image) is None
    made.isr(1, 2, 3, number=0)
    made.must(Drain(1))
    assert rebalance_leaders(made.image) is None


def test_draining_moves_a_few_partitions_at_a_time(cluster):
    """Each draining replica is replaced in its place, by the broker with the least load."""
    made = cluster(5)
    made.create("s", *[(1, 2, 3)] * 6)
    made.must(Drain(1))
    moves = drain_plan(made.image, moves_max=4)
    assert len(moves) == 4
    assert [move.target[0] for move in moves] == [4, 5, 4, 5]
    made.must(ReassignReplicas(moves))
    assert drain_plan(made.image, moves_max=4) == ()
    assert len(drain_plan(made.image, moves_max=5)) == 1


def test_a_move_that_waits_for_a_dead_broker_holds_up_no_other(cluster):
    """It continues when the broker is back, or is redirected if that broker is drained."""
    made = cluster(5)
    made.create("s", (1, 2, 3), (1, 2, 3))
    made.must(Drain(1))
    made.must(ReassignReplicas(drain_plan(made.image, moves_max=1)))
    assert drain_plan(made.image, moves_max=1) == ()
    made.fence(4)
    [move] = drain_plan(made.image, moves_max=1)
    assert (move.at.partition, move.target) == (1, (5, 2, 3))


def test_draining_respects_racks(cluster):
    """The replacement goes where the partition has no other replica, however full that is."""
    made = cluster(4, racks=["a", "b", "b", "a"])
    made.create("s", (1, 2))
    made.create("full", *[(4, 2)] * 5)
    made.must(Drain(1))
    [move] = drain_plan(made.image, moves_max=1)
    assert move.target == (4, 2)


def test_what_nobody_can_take_stays(cluster):
    """With as many brokers as replicas there is no room; a fourth broker makes some."""
    made = cluster(3)
    made.create("s", (1, 2, 3))
    made.must(Drain(1))
    assert drain_plan(made.image, moves_max=9) == ()
    made.register(4)
    made.unfence(4)
    assert [move.target for move in drain_plan(made.image, moves_max=9)] == [(4, 2, 3)]


def test_a_move_to_a_broker_that_is_drained_meanwhile_goes_elsewhere(cluster):
    """At once, since it already counts as moving."""
    made = cluster(5)
    made.create("s", (1, 2, 3))
    made.must(ReassignReplicas((Move(made.at(), (4, 2, 3)),)))
    made.must(Drain(4))
    [move] = drain_plan(made.image, moves_max=1)
    assert move.target == (1, 2, 3)


def test_a_broker_that_joined_is_filled_up(cluster):
    """One replica at a time from the fullest, until no broker has two more than another."""
    made = cluster(3)
    made.create("s", partitions=12, replicas=2)
    made.register(4)
    made.unfence(4)
    differences = []
    while moves := rebalance_plan(made.image, moves_max=1):
        for move in moves:
            assert len(set(move.target)) == 2
        made.must(ReassignReplicas(moves))
        number = moves[0].at.partition
        made.isr(*made.partition(number).replicas, number=number)
        finish_move(made, number)
        kept, led = loads([p.target for _, p in made.image.partitions()])
        differences.append(spread(kept, 4))
    assert differences[-1] <= 1
    assert all(after <= before for before, after in pairwise(differences))
    assert spread(led, 4) <= 2


def finish_move(made, number):
    """Elect a leader that stays, if need be, and end the move."""
    partition = made.partition(number)
    if partition.leader in partition.removing:
        made.elect(partition.target[0], number=number)
    made.must(FinishReassignment((made.at(number),)))


def test_what_cannot_leave_a_drained_broker_is_named(cluster):
    """With three copies on three brokers there is no other place; a fourth broker makes one."""
    made = cluster(3)
    made.create("s", (1, 2, 3))
    made.create("t", (3,))
    assert stranded(made.image) == ()
    made.must(Drain(3))
    assert stranded(made.image) == (PartitionName("s", 0),)
    made.register(4)
    made.unfence(4)
    assert stranded(made.image) == ()


def test_a_move_that_cannot_go_on_keeps_no_other_waiting(cluster):
    """A move without a leader, or one that waits for a remaining replica, copies nothing."""
    made = cluster(5)
    made.create("s", (1,), (2,), (4,))
    made.must(ReassignReplicas((Move(made.at(0), (5,)), Move(made.at(1), (5, 2)))))
    assert made.isr(2, 5, number=1).is_applied
    made.fence(1)
    assert made.partition(0).leader is None
    made.must(Drain(4))
    assert [move.at.partition for move in drain_plan(made.image, moves_max=1)] == [2]


def test_copies_are_placed_well_by_moving_little(cluster):
    """Replicas in service stay, unless two share a rack while another rack is free."""
    made = cluster(5, racks=["a", "a", "b", "b", "c"])
    made.create("s", (1, 2, 3), (1, 3, 5))

    def placed(number, replicas=3):
        partition = made.partition(number)
        return well_placed(made.image, partition, replicas=replicas, loads=Loads(made.image))

    assert placed(0) == (1, 3, 5)
    assert placed(1) == (1, 3, 5), "as it is"
    assert placed(1, replicas=2) == (1, 3)
    made.fence(3)
    assert placed(1) == (1, 5, 4), "the other one in that rack"
    made.must(Drain(5))
    assert set(placed(1)) == {1, 2, 4}, "racks do not suffice"
    made.fence(4)
    with pytest.raises(UnavailableError, match="there are 2"):
        placed(1)


def test_each_of_several_partitions_prefers_another_leader():
    """One list of brokers for a stream does not give one of them all leaderships."""
    assert [rotated((4, 2, 3), number) for number in range(4)] == [
        (4, 2, 3),
        (2, 3, 4),
        (3, 4, 2),
        (4, 2, 3),
    ]


def with_room(cluster, **most):
    """Return an image of three brokers that can keep this many partitions."""
    image = cluster(3).image
    for broker, count in enumerate(most.values(), 1):
        known = image.brokers[broker]
        image = image.with_broker(msgspec.structs.replace(known, partitions_max=count))
    return image


def test_brokers_without_room_get_no_more_partitions(cluster):
    """Those that have room get them, also if they keep more than their share then."""
    image = with_room(cluster, first=2, second=0, third=100)
    kept, led = loads(place(image, partitions=12, replicas=1))
    assert kept == led == {1: 2, 2: 5, 3: 5}


def test_partitions_for_which_no_broker_has_room_are_rejected(cluster):
    """The error names the broker, its room, and the remedy."""
    image = with_room(cluster, first=2, second=100, third=100)
    place(image, partitions=2, replicas=3)
    reason = r"broker 1 would get 3 more partitions, and there is room for 2: .* it can keep 2\."
    with pytest.raises(InvalidConfigError, match=reason + " Raise that with 'ulimit -n'"):
        place(image, partitions=3, replicas=3)


def test_a_drain_goes_to_brokers_with_room_and_names_what_stays(cluster):
    """A broker that could not open the replica gets none; the move continues once it can."""
    made = cluster(4)
    made.create("s", (1, 2), (1, 3))
    made.edit(4, partitions_max=1)
    made.must(Drain(1))
    assert [move.target for move in drain_plan(made.image, moves_max=9)] == [(4, 2), (2, 3)]
    made.edit(2, partitions_max=1)
    moves = drain_plan(made.image, moves_max=9)
    assert [move.target for move in moves] == [(4, 2)]
    made.must(ReassignReplicas(moves))
    assert stranded(made.image) == (PartitionName("s", 1),)
    assert drain_plan(made.image, moves_max=9) == ()
    made.edit(2, partitions_max=2)
    assert stranded(made.image) == ()
    assert [move.target for move in drain_plan(made.image, moves_max=9)] == [(2, 3)]


def test_a_rebalance_fills_up_brokers_with_room_or_says_who_has_none(cluster):
    """It moves nothing that could not be opened; the rejection has the remedy."""
    made = cluster(4)
    made.create("s", *[(1,)] * 6)
    made.edit(2, partitions_max=1)
    made.edit(3, partitions_max=1)
    targets = [move.target for move in rebalance_plan(made.image, moves_max=9)]
    assert sorted(targets) == [(2,), (3,), (4,), (4,)]
    for broker in (2, 3, 4):
        made.edit(broker, partitions_max=1)
    assert len(rebalance_plan(made.image, moves_max=9)) == 3
    made.create("t", (2,), (3,), (4,))
    reason = r"broker 2 would get 1 more partitions, and there is room for 0: .*'ulimit -n'"
    with pytest.raises(InvalidConfigError, match=reason):
        rebalance_plan(made.image, moves_max=9)
    assert rebalance_plan(made.image, moves_max=0) == ()


def test_copies_go_where_there_is_room(cluster):
    """A command without a target is not rejected while a broker has room."""
    made = cluster(4)
    made.create("s", (1, 2))
    made.create("t", (3,))
    made.edit(3, partitions_max=1)
    made.must(Drain(2))
    partition = made.partition()
    assert well_placed(made.image, partition, replicas=2, loads=Loads(made.image)) == (1, 4)

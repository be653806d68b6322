"""The choice of a leader: in sync, staying, longest log, least busy, smallest id, in this order."""

from collections import Counter

from strandline.core.metadata.commands import Drain, ElectLeader, Fence, Move, ReassignReplicas
from strandline.core.metadata.election import (
    brokers_to_ask,
    choose_leader,
    leader_change,
    led_partitions,
    unclean_election,
)
from strandline.types import PartitionName


def chosen(made, number=0, **more):
    more = {"led": led_partitions(made.image), **more}
    return choose_leader(made.partition(number), made.image.brokers, **more)


def test_only_members_of_the_isr_are_chosen(cluster):
    """A replica that lags is no candidate, whatever speaks for it."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.isr(1, 3)
    made.fence(1)
    ends = {made.partition().log_id: {2: (9, 999), 3: (0, 0)}}
    assert chosen(made, log_ends=ends) == 3


def test_a_safe_replica_is_chosen_only_if_nobody_in_the_isr_is_there(cluster):
    """The ISR goes first; without both there is no leader, however many replicas live."""
    made = cluster()
    made.create("s", (1, 2, 3), min_isr=2)
    made.isr(1, 3)
    made.isr(1)
    made.fence(1)
    assert chosen(made) == 3
    made.fence(3)
    assert chosen(made) is None
    made.unfence(1, 3)
    assert chosen(made) == 1


def test_the_most_up_to_date_is_chosen(cluster):
    """By the epoch of the last batch, then by the log end; unknown ones come last."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.fence(1)
    log = made.partition().log_id
    assert chosen(made, log_ends={log: {2: (1, 5), 3: (1, 6)}}) == 3
    assert chosen(made, log_ends={log: {2: (2, 5), 3: (1, 6)}}) == 2
    assert chosen(made, log_ends={log: {3: (0, 0)}}) == 3


def test_candidates_are_asked_how_far_they_are(cluster):
    """Only if there are several, and not brokers that are being fenced."""
    made = cluster(4)
    made.create("s", (1, 2, 3), (1, 2, 4))
    log = made.partition().log_id
    lost = Fence((made.run(1), made.run(4)))
    changes = tuple(
        leader_change(name, partition, 2, led=Counter())
        for name, partition in made.image.partitions()
    )
    elect = ElectLeader(changes, "leader_lost")
    assert brokers_to_ask(made.image, (lost, elect)) == {2: (log,), 3: (log,)}
    assert brokers_to_ask(made.image, (ElectLeader(changes, "handover"),)) == {}


def test_leaderships_are_shared_among_equals(cluster):
    """The broker that leads fewest wins, then the smallest id."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.fence(1)
    assert chosen(made, led=Counter({2: 1})) == 3
    assert chosen(made, led=Counter()) == 2


def test_who_is_leaving_or_drained_leads_only_if_nobody_else_can(cluster):
    """A leadership that has to move again soon is the worse choice, but better than none."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    made.must(ReassignReplicas((Move(made.at(), (4, 1, 3)),)))
    made.fence(1)
    made.must(Drain(3))
    assert chosen(made) == 3
    made.fence(3)
    assert chosen(made) == 2


def test_an_unclean_election_names_its_leader(cluster):
    """It is built from an operator's order and chosen by no rule."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.isr(1)
    made.fence(1)
    assert chosen(made) is None
    change = unclean_election(made.image, PartitionName("s", 0), 3)
    made.must(ElectLeader((change,), "unclean"))
    assert made.partition().leader == 3

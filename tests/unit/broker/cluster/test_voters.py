"""The voters of the quorum, step by step, as brokers join and leave."""

import msgspec
import pytest

from strandline.broker.cluster.voters import VOTERS_MAX, next_members, successor, successors
from strandline.core.metadata.image import BrokerImage, MetadataImage
from strandline.core.raft.messages import Members


def image(*brokers, removed=(), **changed):
    """Live brokers of these numbers, some of them changed: ``_3={"is_fenced": True}``."""
    made = MetadataImage(removed=removed)
    for number in brokers:
        broker = BrokerImage(id=number, directory_id=f"d{number}", incarnation="r", is_fenced=False)
        fields = changed.get(f"_{number}", {})
        made = made.with_broker(msgspec.structs.replace(broker, **fields))
    return made


def steps(members, at):
    """Every membership on the way, each step possible at once."""
    found = [members]
    while following := next(iter(next_members(found[-1], at)), None):
        found.append(following)
        assert len(found) < 20, found
    return found[1:]


def test_a_new_broker_learns_before_it_votes():
    """One step each; before it has a directory it only learns."""
    three = Members((1, 2, 3))
    expected = {"directory_id": "", "is_fenced": True}
    assert steps(three, image(1, 2, 3, 4, _4=expected)) == [Members((1, 2, 3), (4,))]
    assert steps(three, image(1, 2, 3, 4)) == [Members((1, 2, 3), (4,)), Members((1, 2, 3, 4))]


@pytest.mark.parametrize("fields", [{"is_fenced": True}, {"is_draining": True}])
def test_only_a_broker_in_service_becomes_a_voter(fields):
    """One that is away, or to leave, would be one more to wait for."""
    assert steps(Members((1,), (2,)), image(1, 2, _2=fields)) == []


def test_there_are_voters_enough_at_some_point():
    """Further brokers learn, and replace voters that are removed."""
    many = tuple(range(1, VOTERS_MAX + 2))
    full = Members(many[:-1], many[-1:])
    assert steps(full, image(*many)) == []
    assert steps(full, image(*many[1:], removed=(1,)))[-1] == Members(many[1:])


def test_founders_that_never_came_keep_their_vote():
    """They are expected, since nobody removed them."""
    assert steps(Members((1, 2, 3)), image(1, 2)) == []


def test_a_removed_voter_leaves_if_the_others_can_decide():
    """Of the remaining two one is away, so they could not decide without it."""
    three = Members((1, 2, 3))
    assert steps(three, image(1, 2, removed=(3,))) == [Members((1, 2))]
    assert steps(three, image(1, 2, removed=(3,), _2={"is_fenced": True})) == []


def test_a_voter_that_lost_its_disk_begins_again():
    """It leaves first, so that nothing is assumed of its former log."""
    lost = {"directory_id": "", "is_fenced": True}
    three = Members((1, 2, 3))
    assert steps(three, image(1, 2, 3, _3=lost)) == [Members((1, 2)), Members((1, 2), (3,))]
    assert steps(Members((1, 2), (3,)), image(1, 2, 3)) == [three]


def test_a_leader_hands_over_to_a_voter_in_service():
    """The next leader removes it."""
    at = image(2, 3, removed=(1,), _2={"is_fenced": True})
    assert successor(Members((2, 3)), at) == 3


def test_a_leader_that_stops_hands_over_to_one_that_stays():
    """Neither to itself, nor to a voter that is away, stops too or never came, nor to a learner."""
    members = Members((1, 2, 3, 4, 5, 6), (7,))
    at = image(1, 2, 3, 4, 5, 7, _2={"is_fenced": True}, _4={"is_stopping": True})
    assert successors(members, at, 1) == (3, 5)
    assert successors(Members((1,), (7,)), at, 1) == ()

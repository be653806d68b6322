"""Streams of the cluster's own get copies on brokers that join, three at most."""

import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.commands import ChangeIsr, Drain, FinishReassignment, IsrChange
from strandline.core.metadata.commands import ReassignReplicas as Reassign
from strandline.core.metadata.controller import Controller
from strandline.core.metadata.internal_streams import widen_plan, with_copies

GROUPS = "__groups"


def decided(made):
    """Return the image after the decisions of a controller that receives all heartbeats."""
    controller = Controller(0)
    for broker in made.image.brokers:
        controller.heartbeat(made.run(broker), 0)
    commands = controller.decide(made.image, 0)
    for command in commands:
        made.must(command)
    assert controller.decide(made.image, 0) == ()
    return commands


def catch_up(made, *isr):
    """The leader finds that the copies are in sync."""
    partition = made.partition(name=GROUPS)
    change = IsrChange(made.at(name=GROUPS), partition.leader_epoch, isr)
    made.must(ChangeIsr(made.run(partition.leader), (change,)))


def test_brokers_that_join_get_copies_and_the_settings_follow(cluster):
    """Acks and the least number in sync change once the copies are there, not before."""
    made = cluster(1)
    made.create(GROUPS, (1,), acks="disk")
    assert decided(made) == ()
    made.register(2)
    made.register(3)
    assert [type(command) for command in decided(made)[-1:]] == [Reassign]
    partition = made.partition(name=GROUPS)
    assert (set(partition.replicas), partition.leader) == ({1, 2, 3}, 1)
    assert made.image.streams[GROUPS].config.acks == "disk"
    catch_up(made, 1, 2, 3)
    assert [type(command) for command in decided(made)] == [FinishReassignment]
    config = made.image.streams[GROUPS].config
    assert (config.replicas, config.min_isr, config.acks) == (3, 2, "replicated")
    assert made.partition(name=GROUPS).replicas[0] == 1


def test_three_copies_are_enough(cluster):
    """More brokers change nothing, and streams of users are left alone."""
    made = cluster(5)
    made.create(GROUPS, (1, 2, 3), min_isr=2)
    made.create("s", (1,))
    assert decided(made) == ()


def test_a_broker_that_is_drained_gets_none(cluster):
    """Nor one that is out of service; two brokers are two copies."""
    made = cluster(4)
    made.create(GROUPS, (1,))
    made.must(Drain(2))
    made.fence(3)
    [move] = widen_plan(made.image, moves_max=5)
    assert set(move.target) == {1, 4}


def test_a_broker_without_room_gets_none(cluster):
    """It could not open its copy; once it can, it gets one."""
    made = cluster(2)
    made.create(GROUPS, (1,))
    made.create("s", (2,))
    made.edit(2, partitions_max=1)
    assert widen_plan(made.image, moves_max=5) == ()
    made.edit(2, partitions_max=2)
    assert len(widen_plan(made.image, moves_max=5)) == 1


@pytest.mark.parametrize(("moves_max", "partitions"), [(2, 2), (9, 4)])
def test_a_few_at_a_time(cluster, moves_max, partitions):
    """Copying is bounded as for any other move."""
    made = cluster(1)
    made.create("__cursors", *[(1,)] * 4)
    made.register(2)
    made.unfence(2)
    assert len(widen_plan(made.image, moves_max=moves_max)) == partitions


def test_memory_acks_stay_what_was_asked_for():
    """Only the default, the strongest that one copy could give, becomes a stronger one."""
    config = StreamConfig(name="__x", subject="x", acks="memory")
    assert with_copies(config, 3).acks == "memory"
    assert with_copies(config, 1).min_isr == 1

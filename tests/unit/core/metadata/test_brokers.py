"""Registration, fencing, draining and removal of brokers."""

import msgspec
import pytest

from strandline.core.metadata.brokers import BROKERS_MAX
from strandline.core.metadata.commands import (
    AdmitBroker,
    BeginShutdown,
    BrokerRun,
    Drain,
    Fence,
    ForgetDirectory,
    RegisterBroker,
    RemoveBroker,
    Unfence,
    decode_entry,
)


def test_a_broker_comes_in_fenced(cluster):
    """A registered broker is fenced until its heartbeats arrive."""
    made = cluster(2)
    assert made.register(3).is_applied
    assert made.image.brokers[3].state == "fenced"
    made.unfence(3)
    assert made.image.brokers[3].state == "live"


def test_an_admitted_broker_counts_for_nothing_until_it_registers(cluster):
    """It may be admitted again at another address until it has registered."""
    made = cluster(2)
    made.must(AdmitBroker(3, "host:1"))
    made.must(AdmitBroker(3, "host:2"))
    assert made.image.brokers[3].state == "fenced"
    assert made.image.brokers[3].peer_address == "host:2"
    assert made.do(Unfence((BrokerRun(3, ""),))).reason == "stale_incarnation"
    assert made.register(3).is_applied
    outcome = made.do(AdmitBroker(3, "host:3"))
    assert outcome.reason == "duplicate_broker"
    assert "another id" in outcome.message


@pytest.mark.parametrize(
    ("broker", "address"),
    [(0, "host:1"), (9, ""), (9, "host"), (9, ":1"), (9, "h:0"), (9, "h:65536"), (9, "h:x")],
)
def test_an_impossible_admission_is_rejected(cluster, broker, address):
    """A broker has a number above 0 and an address that can be called."""
    assert cluster(1).do(AdmitBroker(broker, address)).reason == "limit"


@pytest.mark.parametrize("is_fenced", [False, True])
def test_an_id_belongs_to_one_data_directory(cluster, is_fenced):
    """A second broker with a known id is rejected with a remedy."""
    made = cluster()
    if is_fenced:
        made.fence(2)
    outcome = made.register(2, run="r9", directory="another")
    assert outcome.reason == "duplicate_broker"
    assert "another id" in outcome.message
    assert made.image.brokers[2].directory_id == "d2"


def test_a_data_directory_belongs_to_one_id(cluster):
    """A broker whose configured id was changed is rejected with its right one."""
    outcome = cluster().register(4, directory="d2")
    assert outcome.reason == "duplicate_broker"
    assert "start it with id 2" in outcome.message


def test_a_restart_on_the_same_directory_is_let_in(cluster):
    """A broker that restarts before it is fenced loses the leaderships of its old process."""
    made = cluster()
    made.create("s", (1, 2, 3))
    assert made.register(1, run="r2").is_applied
    partition = made.partition()
    assert made.image.brokers[1].is_fenced
    assert (partition.leader, partition.isr, partition.leader_epoch) == (None, (2, 3), 1)


def test_registering_again_in_the_same_run_only_updates_addresses(cluster):
    """A retry, or a new address, costs no leadership."""
    made = cluster()
    made.create("s", (1, 2, 3))
    command = RegisterBroker(
        broker=1, directory_id="d1", incarnation="r1", peer_address="host:1", rack="b"
    )
    made.must(command)
    assert made.partition().leader == 1
    assert made.image.brokers[1].peer_address == "host:1"
    assert made.image.brokers[1].state == "live"


@pytest.mark.parametrize("kind", [Fence, Unfence])
def test_an_earlier_run_is_not_meant(cluster, kind):
    """Suspicions and heartbeats of a run that is over do not touch the one that followed."""
    made = cluster()
    made.register(1, run="r2")
    before = made.image
    outcome = made.do(kind((BrokerRun(1, "r1"),)))
    assert outcome.reason == "stale_incarnation"
    assert made.image == before


def test_a_fenced_broker_leads_nothing_and_is_in_no_isr(cluster):
    """Fencing ends leaderships with a new epoch, and commits no longer wait for the broker."""
    made = cluster()
    made.create("s", (1, 2, 3), (2, 3, 1))
    made.fence(1)
    first, second = made.partition(0), made.partition(1)
    assert (first.leader, first.leader_epoch, first.isr) == (None, 1, (2, 3))
    assert (second.leader, second.leader_epoch, second.isr) == (2, 0, (2, 3))


def test_the_last_in_sync_replica_stays_in_the_isr(cluster):
    """Only it surely has all committed records, so it stays, dead or alive."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.fence(3)
    made.fence(1)
    made.fence(2)
    assert made.partition().isr == (2,)
    assert made.partition().leader is None


def test_brokers_that_go_together_stay_in_the_isr_together(cluster):
    """After a power cut any of the replicas that had everything may lead."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.fence(1, 2, 3)
    assert made.partition().isr == (1, 2, 3)
    made.unfence(2)
    assert made.elect(2).is_applied
    assert made.partition().isr == (2,)


def test_a_stopping_broker_does_not_come_back_by_itself(cluster):
    """Its heartbeats do not unfence it; its next start does."""
    made = cluster()
    made.must(BeginShutdown(made.run(1)))
    assert made.image.brokers[1].state == "stopping"
    made.fence(1)
    assert made.do(Unfence((made.run(1),))).reason == "not_eligible"
    made.register(1, run="r2")
    made.unfence(1)
    assert made.image.brokers[1].state == "live"


def test_draining_outlives_a_restart(cluster):
    """It was asked by an operator, and only one calls it off."""
    made = cluster()
    made.must(Drain(1))
    made.register(1, run="r2")
    made.unfence(1)
    assert made.image.brokers[1].state == "draining"
    made.must(Drain(1, is_on=False))
    assert made.image.brokers[1].state == "live"


def test_a_lost_disk_is_forgotten_by_name(cluster):
    """Then the broker counts nowhere as having anything, and may come with a new directory."""
    made = cluster()
    made.create("s", (1, 2, 3), min_isr=2)
    made.fence(1)
    made.fence(2)
    assert made.partition().last_known_safe == (2,)
    version = made.partition().version
    made.must(ForgetDirectory(2))
    assert made.partition().last_known_safe == ()
    assert made.partition().filling == (2,), "what it gets on its new disk is a part"
    assert made.partition().version > version, "what was under way for it must not apply"
    assert made.register(2, run="r2", directory="new").is_applied
    assert made.do(Unfence((BrokerRun(2, ""),))).reason == "stale_incarnation"


def test_the_last_in_sync_replica_is_not_forgotten(cluster):
    """That would be data loss in passing; the message says which orders give records up."""
    made = cluster()
    made.create("s", (1, 2, 3))
    made.fence(2, 3)
    assert made.do(ForgetDirectory(1)).reason == "broker_in_use"
    made.fence(1)
    outcome = made.do(ForgetDirectory(1))
    assert outcome.reason == "last_replica"
    assert "s/0" in outcome.message


def test_an_older_copy_of_a_data_directory_is_rejected(cluster):
    """It had acknowledged more than it has; its own directory, and one that was given up, come."""
    made = cluster()
    made.must(Fence((made.run(1), made.run(2)), (7, 3)))
    made.must(Unfence((made.run(1),), (5,)))
    assert made.image.brokers[1].stored_index == 7, "it never falls"

    def register(index):
        command = RegisterBroker(
            broker=1, directory_id="d1", incarnation=f"r{index}", stored_index=index
        )
        return made.do(command)

    refused = register(6)
    assert refused.reason == "older_copy"
    assert "entry 6" in refused.message
    assert "replace-disk 1" in refused.message
    assert made.image.brokers[1].incarnation == "r1", "nothing has changed"
    assert register(7).is_applied
    assert register(9).is_applied
    made.must(ForgetDirectory(1))
    assert register(0).is_applied


def test_a_registration_that_comes_again_is_no_older_copy(cluster):
    """A repeated registration is not compared with what the same run has stored since."""
    made = cluster()
    command = RegisterBroker(broker=1, directory_id="d1", incarnation="r2", stored_index=4)
    made.must(command)
    made.must(Unfence((made.run(1),), (7,)))
    made.must(command)
    assert not made.image.brokers[1].is_fenced


def test_only_an_empty_broker_is_removed(cluster):
    """A live broker, or one with a partition, is not removed; a removed id is not used again."""
    made = cluster(4)
    made.create("s", (1, 2, 3))
    assert made.do(RemoveBroker(4)).reason == "broker_in_use"
    made.must(Drain(1))
    outcome = made.do(RemoveBroker(1))
    assert outcome.reason == "broker_in_use"
    assert "s/0" in outcome.message
    made.must(Drain(4))
    made.must(RemoveBroker(4))
    assert 4 not in made.image.brokers
    for directory in ("d4", "new"):
        assert made.register(4, directory=directory).reason == "removed_broker"
    assert made.do(AdmitBroker(4, "host:1")).reason == "removed_broker"


@pytest.mark.parametrize(
    "fields",
    [
        {"broker": 0},
        {"directory_id": ""},
        {"incarnation": ""},
        {"rack": "x" * 201},
        {"broker": BROKERS_MAX + 1},
    ],
)
def test_an_impossible_registration_is_rejected(cluster, fields):
    """Ids, names and numbers have limits, so that the image stays small."""
    made = cluster(BROKERS_MAX)
    command = {"broker": 1, "directory_id": "d1", "incarnation": "r1", **fields}
    assert made.do(RegisterBroker(**command)).reason == "limit"


@pytest.mark.parametrize("command", [Drain(9), ForgetDirectory(9), RemoveBroker(9)])
def test_an_unknown_broker_is_named(cluster, command):
    """The message says which there are."""
    outcome = cluster(2).do(command)
    assert outcome.reason == "unknown_broker"
    assert "1, 2" in outcome.message


def test_a_broker_of_before_may_tell_what_is_not_asked_any_more():
    """The address of its nats-server, a field of earlier versions, is ignored."""
    told = {"type": "RegisterBroker", "broker": 1, "directory_id": "d", "incarnation": "i"}
    entry = decode_entry(msgspec.msgpack.encode({**told, "nats_address": "127.0.0.1:4222"}))
    assert entry == RegisterBroker(broker=1, directory_id="d", incarnation="i")

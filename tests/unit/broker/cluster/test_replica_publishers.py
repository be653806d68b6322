"""Publishers that wait at a replica are notified, whenever it is dropped."""

from types import SimpleNamespace

import pytest

from strandline.broker.cluster.replica_publishers import (
    CHUNKS_UNDER_WAY,
    GATHERING_MS_MAX,
    ReplicaPublishers,
)
from strandline.broker.write_path.pending import AckWaiter
from strandline.core.replication.effects import RejectReason
from strandline.errors import (
    NotEnoughReplicasError,
    NotLeaderError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.telemetry import Telemetry
from strandline.types import Offset, PartitionName


class Outcomes:
    """An ack sink that keeps the outcomes."""

    def __init__(self):
        self.told = []

    def rejected(self, token, error):
        self.told.append((token, error))


def chunk(ack_sink, token):
    """A batch with a record whose publisher waits."""
    waiting = [AckWaiter(ack_sink, token, Offset(0))]
    return SimpleNamespace(on_disk=[], waiting=waiting, is_transactional=False)


def test_who_published_just_before_the_stream_was_deleted_is_told():
    """Also between the group commit's write and its sync: nothing is committed after that."""
    partition = SimpleNamespace(
        config=SimpleNamespace(acks_in_force="replicated"),
        set_write_error=lambda _: None,
        reject_from=lambda *_: None,
    )
    publishers = ReplicaPublishers(
        partition, SimpleNamespace(reject_reason=None), SimpleNamespace()
    )
    outcomes = Outcomes()
    publishers.synced(chunk(outcomes, "synced"), Offset(1))
    assert not outcomes.told
    publishers.end(UnknownStreamError("stream 's' was deleted"))
    publishers.synced(chunk(outcomes, "syncing"), Offset(2))
    assert [token for token, _ in outcomes.told] == ["synced", "syncing"]
    for _, error in outcomes.told:
        assert isinstance(error, UnavailableError)
        assert error.message.startswith("stream 's' was deleted; retry")
    assert not publishers.has_waiting


class Here:
    """A partition, its replica and the host; everything that they are asked to do, in order."""

    def __init__(self, acks="replicated"):
        self.done = []
        self.name = PartitionName("s", 0)
        self.config = SimpleNamespace(acks_in_force=acks, min_isr=2)
        self.high_watermark, self.now_ms = Offset(0), 0.0
        self.log_end_offset = Offset(1 << 40)
        self.leader, self.epoch, self.reject_reason = None, 1, RejectReason.NOT_LEADER
        self.telemetry = Telemetry()
        self.publishers = ReplicaPublishers(self, self, self)
        self.publishers.update_reject_reason()
        self.done.clear()

    def lead(self, epoch=1):
        """The replica leads, and takes records."""
        self.leader, self.epoch, self.reject_reason = object(), epoch, None
        self.publishers.note_role()
        self.publishers.update_reject_reason()
        self.done.clear()

    def __getattribute__(self, name):
        calls = ("set_write_error", "reject_from", "follow", "change_leader_epoch", "committed")
        if name in calls:
            return lambda *given: self.done.append((name, *given))
        return super().__getattribute__(name)

    def precise_ms(self):
        return self.now_ms

    def commit(self, offset):
        self.high_watermark = offset

    def answer(self, partition, waiting):
        self.done += [("answer", each.token) for each in waiting]

    def not_leader(self, partition):
        return NotLeaderError("broker 2 leads it")

    def answered(self):
        return [each[1] for each in self.done if each[0] == "answer"]


@pytest.mark.parametrize(
    ("acks", "is_transactional", "answered_at"),
    [
        ("memory", False, "journaled"),
        ("disk", False, "synced"),
        ("replicated", False, "committed"),
        ("memory", True, "committed"),
        ("disk", True, "committed"),
    ],
)
def test_an_ack_comes_when_a_record_is_as_safe_as_asked(acks, is_transactional, answered_at):
    """A transaction's when it is committed, whatever the stream asks for."""
    here = Here(acks)
    here.lead()
    batch = chunk(Outcomes(), "a")
    batch.is_transactional = is_transactional
    steps = []
    here.publishers.journaled(batch, Offset(1))
    steps += ["journaled"] * len(here.answered())
    here.publishers.synced(batch, Offset(1))
    steps += ["synced"] * (len(here.answered()) - len(steps))
    here.publishers.expose(Offset(1))
    steps += ["committed"] * (len(here.answered()) - len(steps))
    assert steps == [answered_at]
    assert not here.publishers.has_waiting


def test_records_are_acknowledged_in_order_as_far_as_they_are_committed():
    """A high watermark that is known already changes nothing."""
    here = Here()
    here.lead()
    for number in range(1, 4):
        batch = chunk(Outcomes(), number)
        here.publishers.journaled(batch, Offset(10 * number))
        here.publishers.synced(batch, Offset(10 * number))
    here.now_ms = 2000.0
    here.publishers.expose(Offset(20))
    assert here.done == [("committed", here), ("answer", 1), ("answer", 2)]
    assert here.high_watermark == 20
    assert here.publishers.has_waiting
    assert here.telemetry.commit_seconds.count == 2
    assert here.telemetry.commit_seconds.total == 4.0
    here.publishers.expose(Offset(20))
    assert len(here.done) == 3
    here.publishers.expose(Offset(29))
    assert here.answered() == [1, 2]
    here.publishers.expose(Offset(30))
    assert here.answered() == [1, 2, 3]


def test_what_only_this_disk_has_to_have_is_acknowledged_when_it_is_synced():
    """Also of a stream that waits for replicas."""
    here = Here()
    here.lead()
    batch = chunk(Outcomes(), "replicated")
    batch.on_disk = [AckWaiter(Outcomes(), "disk", Offset(0))]
    here.publishers.synced(batch, Offset(1))
    assert here.answered() == ["disk"]
    assert not batch.on_disk


@pytest.mark.parametrize(
    ("reason", "kind", "says", "unknown"),
    [
        (RejectReason.NOT_LEADER, NotLeaderError, "broker 2 leads it", "has changed"),
        (
            RejectReason.NOT_ENOUGH_REPLICAS,
            NotEnoughReplicasError,
            "fewer than 2 replicas of s/0",
            "too few replicas of s/0 are left",
        ),
        (RejectReason.RESIGNING, NotLeaderError, "handing over s/0", None),
        (RejectReason.CUT_OFF, UnavailableError, "reaches neither all", "is cut off"),
    ],
)
def test_who_waits_when_records_are_rejected_learns_that_the_outcome_is_unknown(
    reason, kind, says, unknown
):
    """Not of a leader that hands over: its records are committed yet."""
    here, outcomes = Here(), Outcomes()
    here.lead()
    here.publishers.synced(chunk(outcomes, "before"), Offset(1))
    here.reject_reason = reason
    here.publishers.update_reject_reason()
    [(_, error)] = [each for each in here.done if each[0] == "set_write_error"]
    assert type(error) is kind
    assert says in error.message
    here.publishers.synced(chunk(outcomes, "after"), Offset(2))
    assert here.publishers.has_waiting is (unknown is None)
    rejected = [each for each in here.done if each[0] == "reject_from"]
    if unknown is None:
        assert outcomes.told == rejected == []
    else:
        assert rejected == [("reject_from", (), error)]
        assert [token for token, _ in outcomes.told] == ["before", "after"]
        assert all(unknown in told.message for _, told in outcomes.told)
    here.done.clear()
    here.publishers.update_reject_reason()
    assert here.done == [], "it is known"
    here.publishers.describe_leader()
    assert [each[0] for each in here.done] == ["set_write_error"]
    here.reject_reason = None
    here.publishers.update_reject_reason()
    assert here.done[-1] == ("set_write_error", None)
    here.done.clear()
    here.publishers.describe_leader()
    assert here.done == []


def test_a_leader_that_is_cut_off_rejects_until_it_is_not():
    """Another reason comes first; once dropped, nothing is accepted again."""
    here = Here()
    here.lead()
    here.publishers.cut_off(is_cut_off=True)
    assert here.publishers.is_cut_off
    assert "reaches neither" in here.done[0][1].message
    here.publishers.cut_off(is_cut_off=False)
    assert here.done[-1] == ("set_write_error", None)
    here.publishers.end(UnknownStreamError("gone"))
    here.done.clear()
    here.publishers.cut_off(is_cut_off=True)
    here.publishers.describe_leader()
    assert here.done == []


def test_a_leader_takes_its_epoch_once():
    """A new one counts as an election; who already leads only changes its number."""
    here = Here()
    here.publishers.note_role()
    assert here.done == [("follow",)]
    here.leader, here.epoch = object(), 4
    led = []
    here.lead = led.append
    here.publishers.note_role()
    here.publishers.note_role()
    assert led == [4]
    here.reject_reason = None
    here.publishers.update_reject_reason()
    here.epoch = 5
    here.publishers.note_role()
    assert led == [4]
    assert here.done[-1] == ("change_leader_epoch", 5)
    assert here.telemetry.leader_elections == 2


def test_a_commit_of_an_earlier_epoch_is_not_timed():
    """It began with another leader."""
    here = Here()
    here.lead(1)
    here.publishers.journaled(chunk(Outcomes(), 1), Offset(1))
    here.lead(2)
    here.publishers.expose(Offset(1))
    assert here.telemetry.commit_seconds.count == 0


def test_a_partition_gathers_while_enough_is_under_way_and_not_for_long():
    """Else a group commit would wait for a follower that is gone."""
    here = Here()
    here.lead()
    for number in range(CHUNKS_UNDER_WAY):
        assert not here.publishers.is_gathering
        here.publishers.journaled(chunk(Outcomes(), number), Offset(number + 1))
    assert here.publishers.is_gathering
    here.now_ms = GATHERING_MS_MAX
    assert not here.publishers.is_gathering
    here.now_ms -= 0.001
    assert here.publishers.is_gathering
    here.publishers.expose(Offset(1))
    assert not here.publishers.is_gathering

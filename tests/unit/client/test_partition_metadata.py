"""Leaders of a producer's partitions: known, waited for, looked up, given up."""

import threading
import time

import pytest

from strandline.client.partition_metadata import UNKNOWN_MAX, PartitionMetadata
from strandline.errors import NotLeaderError, UnauthenticatedError, UnknownStreamError

LOST = NotLeaderError("somebody else leads")


class Brokers:
    """A cluster that says who leads what it is told to say, one answer after the other."""

    home = "home:1"

    def __init__(self, *answers):
        self.is_cluster = True
        self.metadata = self
        self.answers = list(answers)
        self.named_broker = self.asked_another = 0

    def server_info(self):
        """What a broker alone is asked."""
        self.named_broker += 1

    def routes(self, stream):
        """The next answer; the last one for ever."""
        assert stream == "s"
        self.named_broker += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def leaders(self, routes):
        """Routes are leaders here."""
        return routes

    def ask_another(self):
        """It is only one that answers."""
        self.asked_another += 1


class Kit:
    """Leaders, and the sender that is told of them."""

    def __init__(self, brokers):
        self.changed = threading.Condition()
        self.is_over = threading.Event()
        self.sent_to = []
        self.given_up = []
        self.refused = []
        self.leaders = PartitionMetadata(
            brokers, "s", self, changed=self.changed, is_over=self.is_over
        )

    def send_to(self, addresses):
        """Keep the addresses."""
        self.sent_to.append(sorted(addresses))

    def fail_partitions(self, partitions, error):
        """Keep both."""
        with self.changed:
            self.refused.append((set(partitions), error))
            self.changed.notify_all()

    def fail_all(self, error):
        """Keep the error; nothing is left to deliver."""
        with self.changed:
            self.given_up.append(error)
            self.is_over.set()
            self.changed.notify_all()

    def until(self, condition):
        """Wait for it."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout=20)


@pytest.fixture
def make():
    """A function that makes a kit; nobody looks for leaders afterwards."""
    made = []

    def make(brokers):
        made.append(Kit(brokers))
        return made[-1]

    yield make
    for kit in made:
        kit.is_over.set()


def test_what_is_known_may_be_sent_to(make):
    """Each partition at its leader and nowhere else; nobody is asked."""
    kit = make(brokers := Brokers({}))
    with kit.changed:
        kit.leaders.take({0: "a:1", 1: "b:1", 2: "a:1"})
    assert kit.sent_to == [["a:1", "b:1"]]
    assert kit.leaders.led_by("a:1") == [0, 2]
    assert kit.leaders.may_send(1, "b:1")
    assert not kit.leaders.may_send(1, "a:1")
    assert kit.leaders[9] == ""
    assert brokers.named_broker == 0


def test_a_partition_waits_until_its_leader_was_looked_up(make):
    """Also over an answer that fails, and one that names no leader."""
    kit = make(Brokers(NotLeaderError("not now"), {0: ""}, {0: "b:1"}))
    with kit.changed:
        kit.leaders.take({0: "a:1", 1: "c:1"})
        kit.leaders.look_up([0], LOST)
        assert not kit.leaders.may_send(0, "a:1")
        assert kit.leaders.may_send(1, "c:1"), "the other one does not wait"
        assert kit.leaders.last_loss is LOST
    kit.until(lambda: kit.leaders.may_send(0, "b:1"))
    assert kit.leaders._brokers.asked_another == 3, "at each loss and each answer without a leader"
    assert kit.sent_to[-1] == ["b:1"]
    assert kit.leaders.last_loss.message == "not now"


def test_a_partition_without_a_leader_is_looked_up_at_once(make):
    """The first that is known of it may be that it has none."""
    kit = make(Brokers({0: "a:1"}))
    with kit.changed:
        kit.leaders.take({0: ""})
    kit.until(lambda: kit.leaders.may_send(0, "a:1"))


def test_a_broker_alone_leads_everything(make):
    """There is nobody to ask, but whether it is alone still."""
    brokers = Brokers({})
    brokers.is_cluster = False
    kit = make(brokers)
    with kit.changed:
        kit.leaders.take({0: "home:1"})
        kit.leaders.look_up([0], LOST)
    kit.until(lambda: kit.leaders.may_send(0, "home:1"))
    assert brokers.named_broker == 1


def test_a_stream_that_stays_unknown_is_given_up(make):
    """Not at once: a broker that was restarted may not know it yet."""
    gone = UnknownStreamError("stream 's' does not exist")
    kit = make(brokers := Brokers(gone))
    with kit.changed:
        kit.leaders.look_up([0], LOST)
    kit.until(lambda: kit.given_up)
    assert kit.given_up == [gone]
    assert brokers.named_broker == UNKNOWN_MAX


def test_a_rejected_lookup_fails_what_waits_for_it(make):
    """As with a revoked token; the lookup goes on, in case the token is known only later."""
    revoked = UnauthenticatedError("this token is revoked")
    kit = make(Brokers(revoked, {0: "b:1"}))
    with kit.changed:
        kit.leaders.take({0: "a:1", 1: "c:1"})
        kit.leaders.look_up([0], LOST)
    kit.until(lambda: kit.leaders.may_send(0, "b:1"))
    assert kit.refused == [({0}, revoked)]
    assert not kit.given_up


def test_a_bug_leaves_nobody_waiting(make, caplog):
    """What cannot be looked up because of us is given up, and said."""
    kit = make(Brokers(ZeroDivisionError("a bug")))
    with kit.changed:
        kit.leaders.look_up([0], LOST)
    kit.until(lambda: kit.given_up)
    assert "see the log" in kit.given_up[0].message
    assert "a bug" in caplog.text


def test_partitions_that_come_later_are_found(make, monkeypatch):
    """Now and then somebody looks; what is known of the others already stays as it is."""
    monkeypatch.setattr("strandline.client.partition_metadata.METADATA_REFRESH_S", 0.0)
    kit = make(
        brokers := Brokers(NotLeaderError("not now"), {0: "z:1", 1: "b:1", 2: ""}, {2: "c:1"})
    )
    with kit.changed:
        kit.leaders.take({0: "a:1"})
        kit.leaders.refresh_partitions(time.monotonic())
    kit.until(lambda: brokers.named_broker == 1 and kit.leaders.partitions == 1)
    with kit.changed:
        kit.leaders.refresh_partitions(time.monotonic())
    kit.until(lambda: kit.leaders.may_send(2, "c:1"))
    assert kit.leaders.partitions == 3
    assert [kit.leaders[n] for n in range(2)] == ["a:1", "b:1"]


def test_nobody_looks_for_partitions_too_often_or_where_there_are_no_others(make):
    """A question every ten seconds, and none to a broker alone, which gives a stream no more."""
    kit = make(brokers := Brokers({0: "a:1"}))
    with kit.changed:
        kit.leaders.refresh_partitions(time.monotonic())
        brokers.is_cluster = False
        kit.leaders.refresh_partitions(time.monotonic() + 1e6)
    assert not brokers.named_broker

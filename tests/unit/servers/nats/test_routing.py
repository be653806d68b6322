"""From a subject to partitions."""

import zlib

import pytest

from strandline.broker import routing
from strandline.broker.routing import RouteTable, stream_bindings
from strandline.errors import InvalidSubjectError


def names(route):
    """Stream and partition of each group's first member."""
    return [(group[0].name, group[0].partition.name.partition) for group in route.groups]


def test_suffix_rule_binds_a_subject_for_each_partition(broker):
    """Partition N of a plain subject has the subject ``subject.N``, partition 0 the bare one."""
    broker.add("S", "a.b", partitions=3)
    (stream,) = broker.streams()
    assert [b.pattern for b in stream_bindings(stream)] == ["a.b", "a.b.1", "a.b.2"]
    routes = broker.routes
    assert names(routes.find(b"a.b")) == [("S", 0)]
    assert names(routes.find(b"a.b.2")) == [("S", 2)]
    assert names(routes.find(b"a.b.3")) == []
    assert names(routes.find(b"a.b.0")) == []


def test_subject_rule_hashes_the_subject(broker):
    """A wildcard stream spreads subjects over its partitions by CRC-32."""
    broker.add("S", "a.*", partitions=4)
    routes = broker.routes
    for subject in (b"a.x", b"a.y", b"a.z"):
        assert names(routes.find(subject)) == [("S", zlib.crc32(subject) % 4)]


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("rule", "by_key", "by_message_id"),
    [("subject", False, False), ("key", True, False), ("message_id", False, True)],
)
def test_a_rule_chooses_what_is_hashed(broker, partitions, rule, by_key, by_message_id):
    """The key or the message id, or else the subject; however few partitions there are."""
    broker.add("S", "a.>", partitions=partitions, partition_by=rule)
    for name in (b"a.x", b"a.y", b"a.z"):
        route = broker.routes.find(name)
        ((target,),) = route.groups
        assert route.partition is target.partition
        for key, message_id in ((None, None), (b"k", None), (None, "i"), (b"q", "j"), (b"", "")):
            hashed = name
            if by_key and key is not None:
                hashed = key
            if by_message_id and message_id is not None:
                hashed = message_id.encode()
            chosen = target.partition_for(key, message_id)
            assert chosen.name.partition == zlib.crc32(hashed) % partitions


def test_every_stream_on_a_subject_is_a_target(broker):
    """Streams do not take records from each other."""
    broker.add("A", "x.y")
    broker.add("B", "x.*")
    broker.add("C", "z")
    route = broker.routes.find(b"x.y")
    assert names(route) == [("A", 0), ("B", 0)]
    assert route.partition is None
    assert len(route.targets()) == 2


def test_queue_group_streams_take_turns(broker):
    """One stream of a group gets each record; streams outside get all."""
    broker.add("A", "x", queue_group="g")
    broker.add("B", "x", queue_group="g")
    broker.add("C", "x")
    route = broker.routes.find(b"x")
    seen = [tuple(target.name for target in route.targets()) for _ in range(4)]
    assert seen == [("A", "C"), ("B", "C"), ("A", "C"), ("B", "C")]


def test_of_a_queue_group_those_that_are_led_here_take_turns(broker):
    """If none is led here, any one can name the leader."""
    (a,) = broker.add("A", "x", queue_group="g")
    (b,) = broker.add("B", "x", queue_group="g")

    def taken():
        broker.announce("A", "B")
        route = broker.routes.find(b"x")
        return [target.name for _ in range(2) for target in route.targets()]

    a.is_led = False
    assert taken() == ["B", "B"]
    b.is_led = False
    assert taken() == ["A", "B"]


def test_only_queue_groups_care_who_leads(broker):
    """Every broker receives for a single stream; for a group only the partition's leader."""
    own = broker.add("S", "s", partitions=2)
    shared = broker.add("Q", "q", partitions=2, queue_group="g")
    own[0].is_led = shared[1].is_led = False
    found = {b.pattern: b.is_ours for s in broker.streams() for b in stream_bindings(s)}
    assert found == {"s": True, "s.1": True, "q": True, "q.1": False}


def test_only_stream_without_pub_ack_does_not_answer(broker):
    """The fast path knows whether to acknowledge."""
    broker.add("S", "a", pub_ack=False)
    broker.add("T", "b")
    assert not broker.routes.find(b"a").answers
    assert broker.routes.find(b"b").answers


@pytest.mark.parametrize("subject", [b"a..b", b"a.*", b">", b"\xff", b"", b"a" * 5000])
def test_subjects_that_cannot_be_published_to(broker, subject):
    """An invalid subject is a typed error and is not remembered."""
    routes = broker.routes
    with pytest.raises(InvalidSubjectError):
        routes.find(subject)
    assert subject not in routes.remembered


def test_routes_are_remembered_within_bounds(broker, monkeypatch):
    """Routes are remembered, long subjects are not, and the memory never exceeds its limit."""
    monkeypatch.setattr(routing, "REMEMBERED_SUBJECTS_MAX", 10)
    broker.add("S", "a.>")
    routes = broker.routes
    assert routes.route(b"a.b") is routes.route(b"a.b")
    long = b"a." + b"x" * 300
    assert routes.route(long) is not routes.route(long)
    for number in range(100):
        routes.find(b"a.%d" % number)
        assert len(routes.remembered) <= 10


def test_streams_that_change_change_their_own_routes(broker):
    """Subjects are routed again; a recreated stream replaces its predecessor."""
    broker.add("S", "a")
    broker.add("T", "*")
    routes = broker.routes
    assert names(routes.route(b"a")) == [("S", 0), ("T", 0)]
    broker.drop("S")
    assert names(routes.route(b"a")) == [("T", 0)]
    broker.add("S", "b")
    assert names(routes.route(b"a")) == [("T", 0)]
    assert names(routes.route(b"b")) == [("T", 0), ("S", 0)]
    assert [each.pattern for each in routes.bindings("S")] == ["b"]
    broker.drop("T")
    assert routes.route(b"a").groups == ()
    assert routes.bindings("T") == ()
    assert RouteTable().find(b"a").groups == ()


def test_streams_that_answer_the_same_publishes_are_named(broker):
    """Not those of the same queue group, nor those that answer nothing."""
    for name, subject in (("A", "x.*"), ("B", "x.y"), ("C", "y"), ("D", "x.>"), ("E", "x.y.z")):
        broker.add(name, subject)
    broker.add("Q", "x.q", queue_group="g")
    broker.add("R", "x.q", queue_group="g")
    broker.add("S", "x.s", pub_ack=False)
    beside = {s.config.name: broker.routes.answering_beside(s) for s in broker.streams()}
    assert beside["A"] == ["B", "D", "Q", "R"]
    assert beside["C"] == beside["S"] == []
    assert beside["D"] == ["A", "B", "E", "Q", "R"]
    assert beside["Q"] == ["A", "D"]
    broker.add("P", "z", partitions=3)
    broker.add("O", "z.2")
    assert broker.routes.answering_beside(broker.streams()[-1]) == ["P"]

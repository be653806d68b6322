"""Events derived from successive metadata images and counters."""

from collections import Counter

import msgspec
import pytest

from strandline.broker.events import EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventLog
from strandline.config import StreamConfig
from strandline.core.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    StreamImage,
)
from strandline.telemetry import Telemetry


def partition(**fields):
    return PartitionImage(
        **{"log_id": 1, "replicas": (1, 2, 3), "leader": 1, "isr": (1, 2, 3), **fields}
    )


def image(streams=(), **brokers):
    """An image with streams of the given partitions, and brokers by ``b<number>``."""
    return MetadataImage(
        streams={
            name: StreamImage(
                config=StreamConfig(name=name, subject=name, partitions=len(partitions)),
                created_ns=1,
                partitions=tuple(partitions),
            )
            for name, partitions in dict(streams).items()
        },
        brokers={int(name[1:]): broker for name, broker in brokers.items()},
    )


def broker(number, **fields):
    return BrokerImage(**{"id": number, "directory_id": "d", "incarnation": "i", **fields})


def changes(before, after):
    """What is noted between two images: kind, about, text."""
    log = EventLog()
    log.observe_image(before, None, now_ns=1)
    log.observe_image(after, None, now_ns=2)
    return [(e.kind, e.about, e.text) for e in log.events() if e.at_ns == 2]


@pytest.mark.parametrize(
    ("was", "now", "events"),
    [
        ({}, {}, []),
        (
            {"leader_epoch": 1},
            {"leader_epoch": 3, "leader": 2, "isr": (2, 3)},
            [
                ("election", "broker 2 leads, epoch 3; before, broker 1"),
                ("isr", "broker 1 fell out of sync"),
            ],
        ),
        ({}, {"leader": None}, [("election", "lost its leader, broker 1")]),
        ({"leader": None}, {}, [("election", "broker 1 leads, epoch 0; before, nobody")]),
        (
            {"leader_epoch": 1},
            {"leader_epoch": 2},
            [("election", "broker 1 leads again, epoch 2")],
        ),
        ({"isr": (1, 2)}, {}, [("isr", "broker 3 came into sync")]),
        (
            {},
            {"unclean_epoch": 4, "leader_epoch": 4, "leader": 3},
            [("election", "broker 3 was made leader although records may be lost")],
        ),
        (
            {},
            {"replicas": (1, 2, 3, 4), "adding": (4,), "removing": (3,)},
            [("move", "moves to brokers 1, 2, 4")],
        ),
        (
            {"replicas": (1, 2, 3, 4), "adding": (4,), "removing": (3,)},
            {"replicas": (1, 2, 4), "isr": (1, 2, 3)},
            [("move", "moved; replicas are brokers 1, 2, 4")],
        ),
    ],
)
def test_changes_of_a_partition_are_events(was, now, events):
    """Elections, the ISR and moves, each with the partition."""
    found = changes(image({"s": [partition(**was)]}), image({"s": [partition(**now)]}))
    assert found == [(kind, "s/0", text) for kind, text in events]


def test_streams_and_brokers_that_come_and_go_are_events():
    """Created, grown, recreated, deleted; joined, fenced, restarted, removed."""
    one = image({"a": [partition()], "b": [partition()]}, b1=broker(1), b2=broker(2))
    other = image(
        {"a": [partition(), partition(), partition()], "c": [partition()]},
        b1=broker(1, is_fenced=False),
        b3=broker(3),
    )
    assert sorted(changes(one, other)) == [
        ("broker", "broker 1", "was fenced, is live"),
        ("broker", "broker 2", "was removed from the cluster"),
        ("broker", "broker 3", "joined the cluster"),
        ("stream", "a", "grew to 3 partitions"),
        ("stream", "b", "deleted"),
        ("stream", "c", "created with 1 partition"),
    ]
    again = msgspec.structs.replace(one.streams["a"], created_ns=2)
    recreated = MetadataImage(streams={**one.streams, "a": again}, brokers=one.brokers)
    assert changes(one, recreated) == [("stream", "a", "created with 1 partition")]
    restarted = image({}, b1=broker(1, incarnation="j"))
    assert changes(image({}, b1=broker(1)), restarted) == [("broker", "broker 1", "restarted")]


def test_a_new_controller_is_an_event():
    """So is that there is none."""
    log = EventLog()
    for controller in (None, 2, 2, None, 1):
        log.observe_image(MetadataImage(), controller, now_ns=1)
    assert [event.text for event in log.events()] == [
        "broker 2 became the controller",
        "there is no controller now; it was broker 2",
        "broker 1 became the controller",
    ]


def test_counters_that_grow_are_events():
    """With how much they have grown since the last look, and none when they have not."""
    log, telemetry, rejects = EventLog(), Telemetry(), Counter()
    log.observe_counters(telemetry, rejects, now_ns=1)
    assert log.events() == []
    telemetry.corrupt_batches += 2
    rejects["disk_full"] += 1200
    telemetry.quota_rejections["app"] += 3
    for _ in range(2):
        log.observe_counters(telemetry, rejects, now_ns=2)
    assert sorted((event.kind, event.text) for event in log.events()) == [
        ("corruption", "2 corrupt batches found"),
        ("refusal", "1,200 records rejected: disk_full"),
        ("refusal", "3 requests rejected because of a quota"),
    ]


def test_the_history_is_bounded_and_one_change_of_many_does_not_fill_it():
    """A thousand streams at once leave room for what was before."""
    log = EventLog()
    log.observe_image(MetadataImage(), None, now_ns=1)
    log.observe_image(image({"first": [partition()]}), None, now_ns=1)
    many = {"first": [partition()]} | {f"s{number}": [partition()] for number in range(1000)}
    log.observe_image(image(many), None, now_ns=2)
    events = log.events()
    assert events[0].about == "first"
    assert events[-1].text == f"{1000 - EVENTS_AT_ONCE_MAX:,} more changes at once"
    for number in range(2 * EVENTS_MAX):
        log.observe_image(MetadataImage(), number, now_ns=3)
    assert len(log.events()) == EVENTS_MAX


@pytest.mark.parametrize("more", [0, 1])
def test_changes_are_summed_up_from_one_too_many_on(more):
    """As many as fit are all shown."""
    log = EventLog()
    log.observe_image(MetadataImage(), None, now_ns=1)
    count = EVENTS_AT_ONCE_MAX + more
    log.observe_image(image({f"s{n}": [partition()] for n in range(count)}), None, now_ns=2)
    assert len(log.events()) == count
    assert (log.events()[-1].text == "1 more changes at once") is bool(more)

"""Streams of a cluster: placement, growth, and what a broker alone rejects."""

import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.commands import (
    AddPartitions,
    BeginShutdown,
    CreateStream,
    DeleteStream,
)
from strandline.core.metadata.streams import check_stream_config
from strandline.errors import InvalidConfigError, InvalidRequestError, InvalidSubjectError


def create(made, *assignment, **settings):
    settings = {"name": "s", "subject": "s.*", "replicas": 3, **settings}
    settings.setdefault("partitions", len(assignment))
    return made.do(CreateStream(StreamConfig(**settings), 1, assignment))


def test_a_new_partition_is_led_by_the_first_replica_in_service(cluster):
    """Every replica that is there is in sync: there is nothing to copy yet."""
    made = cluster()
    made.fence(2)
    assert create(made, (2, 3, 1)).is_applied
    partition = made.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == (3, (1, 3), 0)


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ((), "bad_assignment"),
        (((1, 2, 3), (1, 2, 3)), "bad_assignment"),
        (((1, 2),), "bad_assignment"),
        (((1, 2, 2),), "bad_assignment"),
        (((1, 2, 9),), "unknown_broker"),
    ],
)
def test_an_assignment_has_to_fit_the_stream(cluster, assignment, reason):
    """A place for every copy of every partition, on distinct brokers that exist."""
    made = cluster()
    before = made.image
    assert create(made, *assignment, partitions=1).reason == reason
    assert made.image is before


def test_a_stream_needs_a_broker_in_service(cluster):
    """A stream whose brokers are gone since its placement is rejected, to be placed again."""
    made = cluster()
    made.fence(1)
    made.must(BeginShutdown(made.run(2)))
    assert create(made, (1,), replicas=1).reason == "not_eligible"
    assert create(made, (2,), replicas=1).reason == "not_eligible"


@pytest.mark.parametrize(
    "settings",
    [
        {"replicas": 0},
        {"replicas": 8},
        {"min_isr": 0},
        {"min_isr": 4},
        {"replicas": 2, "min_isr": 3},
    ],
)
def test_impossible_numbers_of_copies_are_rejected(cluster, settings):
    """More copies, or more of them in sync, than can be."""
    outcome = create(cluster(), (1, 2, 3), **settings)
    assert outcome.code == InvalidConfigError.code
    assert "work" in outcome.message or "replicas" in outcome.message


def test_a_cluster_may_promise_replicated(cluster):
    """A broker alone rejects this level."""
    made = cluster()
    assert create(made, (1, 2, 3), acks="replicated", min_isr=2).is_applied


@pytest.mark.parametrize("settings", [{"replicas": 2}, {"acks": "replicated"}, {"min_isr": 2}])
def test_a_broker_alone_keeps_one_copy(alone, settings):
    """It promises no other, whatever is asked."""
    apply, image = alone
    config = StreamConfig(name="s", subject="s", **settings)
    with pytest.raises(InvalidConfigError):
        apply(image, CreateStream(config, 1))


def test_a_broker_alone_knows_no_brokers(alone):
    """Naming replicas is an error there, and partitions have none."""
    apply, image = alone
    config = StreamConfig(name="s", subject="s")
    with pytest.raises(InvalidRequestError, match="assigned"):
        apply(image, CreateStream(config, 1, ((1,),)))
    partition = apply(image, CreateStream(config, 1)).partition("s", 0)
    assert (partition.replicas, partition.leader, partition.isr) == ((), None, ())


def test_partitions_are_added_at_the_end(cluster):
    """With log ids of their own; those there are stay as they are."""
    made = cluster()
    create(made, (1, 2, 3))
    before = made.partition(0)
    made.must(AddPartitions("s", 2, ((2, 3, 1), (3, 1, 2))))
    assert made.partition(0) is before
    assert [made.partition(n).log_id for n in range(3)] == [1, 2, 3]
    assert made.partition(2).leader == 3
    assert made.image.stream("s").config.partitions == 3
    made.must(DeleteStream("s"))
    create(made, (1, 2, 3))
    assert made.partition(0).log_id == 4


def test_a_broker_alone_adds_partitions_too(alone):
    """Without places, as it has none to give."""
    apply, image = alone
    image = apply(image, CreateStream(StreamConfig(name="s", subject="s.*"), 1))
    image = apply(image, AddPartitions("s", 3))
    assert [p.log_id for p in image.stream("s").partitions] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (AddPartitions("t", 1, ((1, 2, 3),)), "unknown_stream"),
        (AddPartitions("s", 0), "invalid_request"),
        (AddPartitions("s", 1), "invalid_request"),
        (AddPartitions("s", 10_000, ((1, 2, 3),)), "invalid_config"),
    ],
)
def test_what_cannot_be_added_is_rejected(cluster, command, code):
    """Unknown streams, no partitions, none placed, too many."""
    made = cluster()
    create(made, (1, 2, 3))
    assert made.do(command).code == code
    assert len(made.image.stream("s").partitions) == 1


@pytest.mark.parametrize("subject", [">", "*", "*.orders", "*.>", "$JS.EVENT.>", "_INBOX.x.*"])
def test_a_stream_that_would_answer_requests_of_others_is_rejected(subject):
    """It may store them, but not with PubAcks; the error names the way out."""
    with pytest.raises(InvalidConfigError, match="--no-pub-ack"):
        check_stream_config(StreamConfig(name="s", subject=subject), is_cluster=False)
    check_stream_config(StreamConfig(name="s", subject=subject, pub_ack=False), is_cluster=False)


@pytest.mark.parametrize("subject", ["$JS.>", "$SYS.>", "_INBOX.>", "_INBOX_PRIVATE.>"])
def test_all_of_the_messages_of_nats_itself_are_not_stored(subject):
    """A part of them may be."""
    with pytest.raises(InvalidSubjectError, match="name the part"):
        check_stream_config(
            StreamConfig(name="s", subject=subject, pub_ack=False), is_cluster=False
        )


@pytest.mark.parametrize(
    ("replicas", "min_isr", "works"),
    [(1, 1, True), (7, 7, True), (8, 1, False), (0, 1, False), (3, 0, False), (3, 4, False)],
)
def test_replicas_have_limits(replicas, min_isr, works):
    """One to seven, of which at least one and at most all have to be in sync."""
    config = StreamConfig(name="s", subject="s", replicas=replicas, min_isr=min_isr)
    if works:
        check_stream_config(config, is_cluster=True)
        return
    with pytest.raises(InvalidConfigError, match=r"replicas is .*; give|min_isr must be"):
        check_stream_config(config, is_cluster=True)

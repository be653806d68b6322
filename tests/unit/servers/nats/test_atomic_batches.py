"""Answers to committed batches of NATS: one for each batch, by the broker whose it is."""

from types import SimpleNamespace

import msgspec
import pytest

from strandline.errors import NotEnoughReplicasError, NotLeaderError
from strandline.servers.nats.atomic_batches import _BatchAckSink
from strandline.types import Offset, PartitionName

LEADERLESS = NotLeaderError("s/0 has no leader now", is_leaderless=True)
MOVED = NotLeaderError("broker 2 leads s/0")
TOO_FEW = NotEnoughReplicasError("too few replicas are in sync")


@pytest.fixture
def answers():
    """Where answers go, in order."""
    return []


def sink_of(answers, *, is_alone=False, answers_leaderless=False):
    """The ack sink of a batch of three messages."""

    def deliver(reply, answer):
        answers.append((reply, msgspec.json.decode(answer)))

    replies = SimpleNamespace(
        is_alone=is_alone, answers_leaderless=answers_leaderless, deliver=deliver
    )
    return _BatchAckSink(replies, "orders", batch_id="b", count=3)


@pytest.mark.parametrize(("partition", "named"), [(0, {}), (2, {"partition": 2})])
def test_an_ack_has_the_sequence_of_the_last_message(answers, partition, named):
    """And how many there are; the partition, as PubAcks do, unless it is the first."""
    where = PartitionName("orders", partition)
    sink_of(answers).acked(b"reply", where, Offset(9), duplicate=False)
    body = {"stream": "orders", "seq": 12, "batch": "b", "count": 3}
    assert answers == [(b"reply", body | named)]


@pytest.mark.parametrize(
    ("error", "is_alone", "answers_leaderless", "is_answered"),
    [
        (TOO_FEW, False, False, True),
        (TOO_FEW, True, False, True),
        (MOVED, False, False, False),
        (MOVED, False, True, False),
        (MOVED, True, False, True),
        (LEADERLESS, False, False, False),
        (LEADERLESS, False, True, True),
        (LEADERLESS, True, False, True),
    ],
)
def test_a_rejection_is_answered_by_one_broker(
    answers, error, is_alone, answers_leaderless, is_answered
):
    """Every broker receives the messages; the leader answers, without one the controller."""
    sink = sink_of(answers, is_alone=is_alone, answers_leaderless=answers_leaderless)
    sink.rejected(b"reply", error)
    assert [reply for reply, _ in answers] == [b"reply"] * is_answered
    for _, body in answers:
        assert (body["stream"], body["seq"]) == ("orders", 0)
        assert body["error"]["description"].endswith(error.message)


def test_without_a_reply_subject_nothing_is_answered(answers):
    """Such a batch is stored as any other."""
    sink = sink_of(answers, is_alone=True)
    sink.acked(None, PartitionName("orders", 0), Offset(9), duplicate=False)
    sink.rejected(None, TOO_FEW)
    assert answers == []

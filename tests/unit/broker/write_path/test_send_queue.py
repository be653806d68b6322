"""The output of a round of the loop: acks once each, whatever one of their receivers does."""

import asyncio

import pytest

from strandline.broker.write_path.pending import AckRun, AckWaiter
from strandline.broker.write_path.send_queue import SendQueue
from strandline.telemetry import Telemetry
from strandline.types import PartitionName

PARTITION = PartitionName("s", 0)


class Sink:
    """Keeps acks; raises if it is told to."""

    def __init__(self, bug=None):
        self.acks, self.bug = [], bug

    def acked(self, token, partition, offset, *, duplicate):
        if self.bug is not None:
            raise self.bug
        self.acks.append((token, partition, offset, duplicate))

    def acked_many(self, tokens, partition, offset):
        self.acks.append((tokens, partition, offset))


@pytest.fixture
async def queue():
    return SendQueue(Telemetry())


async def test_acks_are_sent_once_in_the_next_round(queue):
    """In the order in which they came due, and counted."""
    sink, order = Sink(), []
    queue.add_answers(lambda: order.append(len(sink.acks)))
    queue.acknowledge(PARTITION, [AckWaiter(sink, "a", 5)])
    queue.acknowledge(PARTITION, [AckRun(sink, ("b", None, "c"), 6)])
    assert sink.acks == []
    await asyncio.sleep(0)
    assert sink.acks == [("a", PARTITION, 5, False), (("b", None, "c"), PARTITION, 6)]
    assert order == [2], "one round, after the acks"
    assert queue._telemetry.acks == 3
    await asyncio.sleep(0)
    assert order == [2]
    queue.deliver_soon()
    await asyncio.sleep(0)
    assert order == [2, 2]


async def test_a_group_commit_sends_what_is_due(queue):
    """The round that was scheduled finds nothing left."""
    sink = Sink()
    queue.acknowledge(PARTITION, [AckWaiter(sink, "a", 5)])
    queue.deliver()
    assert len(sink.acks) == 1
    await asyncio.sleep(0)
    assert len(sink.acks) == 1


async def test_a_bug_of_a_receiver_does_not_cost_others_their_acks(queue):
    """It is reported to the loop."""
    seen = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    bugs = ValueError("of a sink"), ValueError("of a sender")

    def broken():
        raise bugs[1]

    queue.add_answers(broken)
    done = []
    queue.add_answers(lambda: done.append(True))
    sink = Sink()
    queue.acknowledge(PARTITION, [AckWaiter(Sink(bugs[0]), "a", 1), AckWaiter(sink, "b", 2)])
    queue.deliver()
    assert sink.acks == [("b", PARTITION, 2, False)]
    assert done == [True]
    assert queue._telemetry.acks == 1
    assert [each["exception"] for each in seen] == [*bugs]
    assert seen[0]["message"] == "an answer was not sent"


async def test_every_sender_of_frames_is_called(queue):
    """One that sent something hides neither those before nor those after it."""
    called = []

    def sender(has_sent):
        def send():
            called.append(has_sent)
            return has_sent

        return send

    assert not queue.has_peers
    assert queue.send_frames() is False
    queue.add_frames(sender(False))
    assert queue.send_frames() is False
    queue.add_frames(sender(True))
    queue.add_frames(sender(False))
    assert queue.has_peers
    called.clear()
    assert queue.send_frames() is True
    assert called == [False, True, False]


async def test_a_broker_that_has_ended_sends_nothing(queue):
    """Its front ends and replicas are gone."""
    called = []
    queue.add_frames(lambda: called.append(1) or True)
    queue.add_answers(lambda: called.append(2))
    queue.disconnect()
    assert not queue.has_peers
    assert queue.send_frames() is False
    queue.deliver()
    assert called == []

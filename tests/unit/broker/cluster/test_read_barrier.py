"""The metadata read barrier: a caller sees everything decided before, or gets an error."""

import asyncio

import pytest

from strandline.broker.cluster import read_barrier as newest_module
from strandline.broker.cluster.channels import ReadIndexRequest, ReadIndexResponse
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.cluster.read_barrier import MetadataReadBarrier
from strandline.config import StreamConfig
from strandline.errors import UnavailableError


class Group:
    """Member 2 of a quorum that broker 1 leads, whose answers tests give."""

    leader, is_leading, applied_index = 1, False, 0

    def __init__(self):
        self.asked = asyncio.Queue()
        self.is_reached = self.is_fresh = True
        self.questions = PeerRpc(self.send)
        self.newest = MetadataReadBarrier(self, self.questions, is_fresh=lambda: self.is_fresh)

    def send(self, to, request):
        assert to == self.leader
        self.asked.put_nowait(request)
        return self.is_reached

    async def answer(self, index, failure=""):
        """Let the controller answer the next question."""
        async with asyncio.timeout(30):
            question = await self.asked.get()
        self.questions.answered(self.leader, ReadIndexResponse(question.number, index, failure))


async def test_a_stream_is_known_elsewhere_the_moment_after_it_was_created(cluster):
    """At brokers that do not lead the metadata, and at the one that does."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    for number, at in enumerate((1, 2, 3)):
        name = f"s{number}"
        config = StreamConfig(name=name, subject=name, replicas=3, acks="replicated")
        await cluster.brokers[at].create_stream(config)
        for broker in cluster.brokers.values():
            await broker.membership.newest.know()
            assert broker.stream(name).created_ns


async def test_who_comes_while_a_question_is_in_progress_waits_for_the_next():
    """Its answer may be older; waiting callers share the next one."""
    group = Group()
    first = asyncio.create_task(group.newest.know())
    question = await group.asked.get()
    later = [asyncio.create_task(group.newest.know()) for _ in range(100)]
    group.questions.answered(1, ReadIndexResponse(question.number, 0))
    await asyncio.wait_for(first, 30)
    assert not any(task.done() for task in later)
    await group.answer(0)
    await asyncio.wait_for(asyncio.gather(*later), 30)
    assert group.asked.empty()


async def test_the_broker_has_to_have_followed():
    """Knowing the commit index is not enough: it must be applied."""
    group = Group()
    group.is_fresh = False
    knowing = asyncio.create_task(group.newest.know())
    await group.answer(7)
    for _ in range(3):
        await asyncio.sleep(newest_module.POLL_S)
        assert not knowing.done()
        group.applied_index = 7
    group.is_fresh = True
    await asyncio.wait_for(knowing, 30)


async def test_another_controller_is_asked_after_one_that_does_not_know():
    """It was deposed, its link broke, or another broker answers."""
    group = Group()
    knowing = asyncio.create_task(group.newest.know())
    await group.answer(0, "another leads")
    await group.asked.get()
    group.questions.peer_disconnected(1)
    question = await group.asked.get()
    group.questions.answered(3, ReadIndexResponse(question.number, 0))
    await asyncio.sleep(0)
    assert not knowing.done()
    group.questions.answered(1, ReadIndexResponse(question.number, 0))
    await asyncio.wait_for(knowing, 30)


@pytest.mark.parametrize("trouble", ["leaderless", "unreached"])
async def test_where_nobody_can_tell_that_is_the_answer(trouble, monkeypatch):
    """The error comes after a while, and does not affect later calls."""
    monkeypatch.setattr(newest_module, "PATIENCE_S", 0.1)
    group = Group()
    group.leader = None if trouble == "leaderless" else 1
    group.is_reached = trouble != "unreached"
    with pytest.raises(UnavailableError, match="cannot find out"):
        await group.newest.know()
    monkeypatch.undo()
    group.leader, group.is_reached, group.asked = 1, True, asyncio.Queue()
    knowing = asyncio.create_task(group.newest.know())
    await group.answer(0)
    await asyncio.wait_for(knowing, 30)


async def test_who_does_not_lead_says_so(cluster):
    """A question that came too late is answered, too."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    follower = next(b for b in cluster.brokers.values() if not b.membership.quorum.is_leading)
    told = []
    questions = PeerRpc(lambda *sent: told.append(sent))
    asked = MetadataReadBarrier(follower.membership.quorum, questions, is_fresh=lambda: True)
    asked.serve(3, ReadIndexRequest(5))
    async with asyncio.timeout(30):
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    [(to, answer)] = told
    assert (to, answer.number) == (3, 5)
    assert answer.failure

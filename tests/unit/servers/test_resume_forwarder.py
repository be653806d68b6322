"""Publishes to a paused partition: it is resumed, and they are sent again in order."""

import asyncio

import pytest

from strandline.client.reader.results import Ack
from strandline.errors import PausedError, UnavailableError
from strandline.servers import resume_forwarder as waking_module
from strandline.servers.resume_forwarder import ForwardedPublish, ResumeForwarder
from strandline.types import PartitionName

HERE = PartitionName("s", 0)
PAUSED = PausedError("s/0 is paused")


class Leader:
    """A partition's leader, and the publishes it received: ``sent`` are in flight."""

    def __init__(self):
        self.is_paused = True
        self.wakes = 0
        self.failure = None
        self.sent, self.stored, self.told = [], [], {}
        self.resuming = ResumeForwarder(self.resume)

    async def resume(self, partition):
        assert partition == HERE
        assert not self.sent, "some are under way"
        self.wakes += 1
        if self.failure is not None:
            raise self.failure
        self.is_paused = False

    def publish(self, *names, wakes=True):
        for name in names:
            publish = ForwardedPublish(
                HERE,
                lambda publish, name=name: self.sent.append((name, publish)),
                lambda outcome, name=name: self.told.update({name: outcome}),
                wakes=wakes,
            )
            self.resuming.submit(publish)

    def answer(self, count=None):
        """Answer publishes in flight, or the first of them."""
        answered = self.sent[:count]
        del self.sent[: len(answered)]
        for name, publish in answered:
            if self.is_paused:
                self.resuming.answered(publish, PAUSED)
            else:
                self.stored.append(name)
                self.resuming.answered(publish, Ack.at(len(self.stored), 0))

    async def until_told(self, *names):
        async with asyncio.timeout(30):
            while not set(names) <= set(self.told):
                self.answer()
                await asyncio.sleep(0.001)


@pytest.fixture
async def leader(monkeypatch):
    monkeypatch.setattr(waking_module, "RETRY_S", 0.001)
    made = Leader()
    yield made
    await made.resuming.stop()


async def test_what_was_rejected_goes_again_before_what_came_behind_it(leader):
    """The partition is resumed once, when nothing is in flight."""
    leader.publish("a", "b", "c")
    leader.answer(1)
    leader.publish("d")
    assert [name for name, _ in leader.sent] == ["b", "c"]
    await leader.until_told("a", "b", "c", "d")
    assert leader.stored == ["a", "b", "c", "d"]
    assert leader.wakes == 1
    assert all(isinstance(outcome, Ack) for outcome in leader.told.values())


async def test_a_leader_that_hears_late_stores_them_in_order(leader):
    """The first goes alone until it is stored: those behind it would be stored before it."""

    async def resume(_):
        leader.wakes += 1

    leader.resuming = ResumeForwarder(resume)
    leader.publish("a", "b", "c")
    leader.answer()
    async with asyncio.timeout(30):
        while not leader.sent:  # noqa: ASYNC110  it goes on a loop of its own
            await asyncio.sleep(0.001)
    leader.publish("d")
    assert [name for name, _ in leader.sent] == ["a"]
    leader.answer()
    leader.is_paused = False
    await leader.until_told("a", "b", "c", "d")
    assert leader.stored == ["a", "b", "c", "d"]
    assert leader.wakes == 2
    assert all(isinstance(outcome, Ack) for outcome in leader.told.values())


async def test_nothing_goes_again_behind_a_later_one(leader):
    """If the partition was resumed in between, the earlier publisher gets an error."""
    leader.publish("a", "b")
    leader.answer(1)
    leader.is_paused = False
    leader.publish("c")
    await leader.until_told("a", "b", "c")
    assert leader.stored == ["b", "c"]
    assert leader.told["a"] is PAUSED
    assert not leader.wakes


async def test_who_wakes_nobody_is_told(leader):
    """A publish to a subject does not resume a partition."""
    leader.publish("a", wakes=False)
    leader.answer()
    assert leader.told == {"a": PAUSED}
    assert not leader.wakes


async def test_a_partition_that_cannot_be_woken_is_the_answer(leader):
    """Until it can be: the next publish tries again."""
    leader.failure = UnavailableError("no quorum")
    leader.publish("a")
    await leader.until_told("a")
    assert leader.told["a"] is leader.failure
    leader.failure = None
    leader.publish("b")
    await leader.until_told("b")
    assert leader.stored == ["b"]


async def test_a_leader_that_continues_refusing_is_believed(leader, monkeypatch):
    """After retries for as long as it may not know of the resume."""
    monkeypatch.setattr(waking_module, "PATIENCE_S", 0.05)

    async def resume(_):
        leader.wakes += 1

    leader.resuming = ResumeForwarder(resume)
    leader.publish("a")
    await leader.until_told("a")
    assert leader.told["a"] is PAUSED
    assert leader.wakes

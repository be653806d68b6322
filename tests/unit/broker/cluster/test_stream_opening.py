"""Waiting until the leaders of a new stream serve it, and serving those who wait."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.broker.cluster import stream_opening
from strandline.broker.cluster.channels import Failed, StreamOpened, StreamOpenRequest
from strandline.broker.cluster.stream_opening import StreamOpening
from strandline.errors import UnavailableError
from tests.kit.waiting import until_async


class Rpc:
    """Keeps requests and answers; broker 9 is not connected."""

    def __init__(self):
        self.asked, self.answers = {}, []

    def ask(self, to, question, kind):
        if to == 9:
            return None
        assert kind is StreamOpened
        answer = asyncio.get_running_loop().create_future()
        self.asked[to] = (question(to), answer)
        return answer

    def answer(self, caller, answer):
        self.answers.append((caller, answer))


@pytest.fixture
async def opening():
    """An opening whose own stream opens when a test says so."""
    is_open = asyncio.get_running_loop().create_future()

    async def until_open(question):
        await asyncio.shield(is_open)

    made = StreamOpening(Rpc(), until_open)
    yield SimpleNamespace(opening=made, rpc=made._rpc, is_open=is_open)
    await made.stop()


def waiting(opening, *leaders):
    return asyncio.create_task(opening.opening.wait(leaders, "s", created_ns=5, partitions=2))


async def test_every_leader_is_waited_for(opening):
    """One that is not connected cannot be asked."""
    task = waiting(opening, 2, 9, 3)
    await until_async(lambda: len(opening.rpc.asked) == 2)
    for broker in (3, 2):
        question, answer = opening.rpc.asked[broker]
        assert question == StreamOpenRequest(broker, "s", 5, 2)
        assert not task.done()
        answer.set_result(StreamOpened(broker))
        await asyncio.sleep(0)
    await asyncio.wait_for(task, 5)


async def test_a_leader_that_fails_does_not_fail_the_creation(opening, caplog):
    """It was decided; the others are waited for."""
    task = waiting(opening, 2, 3)
    await until_async(lambda: len(opening.rpc.asked) == 2)
    opening.rpc.asked[2][1].set_exception(UnavailableError("the link broke"))
    await asyncio.sleep(0.02)
    assert not task.done()
    opening.rpc.asked[3][1].set_result(StreamOpened(3))
    await asyncio.wait_for(task, 5)
    assert "a leader does not serve stream s yet: the link broke" in caplog.text


async def test_others_are_answered_once_it_is_open_here(opening):
    """With the number of their request."""
    opening.opening.serve(2, StreamOpenRequest(7, "s", 5, 1))
    await asyncio.sleep(0.02)
    assert opening.rpc.answers == []
    opening.is_open.set_result(None)
    await until_async(lambda: opening.rpc.answers)
    assert opening.rpc.answers == [(2, StreamOpened(7))]


async def test_others_hear_why_it_cannot_be_opened(opening):
    """They do not wait until their patience ends."""
    opening.opening.serve(2, StreamOpenRequest(7, "s", 5, 1))
    opening.is_open.set_exception(UnavailableError("stopping"))
    await until_async(lambda: opening.rpc.answers)
    assert opening.rpc.answers == [(2, Failed(7, "unavailable", "stopping"))]


async def test_who_has_waited_long_is_not_answered(opening, monkeypatch):
    """It has gone on by then."""
    monkeypatch.setattr(stream_opening, "PATIENCE_S", 0.02)
    opening.opening.serve(2, StreamOpenRequest(7, "s", 5, 1))
    await until_async(lambda: not opening.opening._serving)
    assert opening.rpc.answers == []

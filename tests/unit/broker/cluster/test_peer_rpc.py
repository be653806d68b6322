"""Requests between brokers: only the asked broker's answer counts, and a lost link fails them."""

import asyncio

import pytest

from strandline.broker.cluster.channels import (
    Failed,
    LogEndsResponse,
    MarkerWritten,
    ReadIndexRequest,
    ReadIndexResponse,
)
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.errors import UnavailableError


@pytest.fixture
def sent():
    """The requests sent, by broker."""
    return []


@pytest.fixture
def questions(sent):
    return PeerRpc(lambda to, request: sent.append((to, request)) or to != 9)


async def test_each_question_gets_its_own_answer(questions, sent):
    """In whatever order they come, and once."""
    first, second = (questions.ask(to, ReadIndexRequest, ReadIndexResponse) for to in (1, 2))
    assert sent == [(1, ReadIndexRequest(1)), (2, ReadIndexRequest(2))]
    questions.answered(2, ReadIndexResponse(2, 20))
    questions.answered(1, ReadIndexResponse(1, 10))
    questions.answered(1, ReadIndexResponse(1, 11))
    assert ((await first).index, (await second).index) == (10, 20)
    questions.answered(1, ReadIndexResponse(1, 12))


async def test_what_is_no_answer_to_the_question_is_dropped(questions):
    """From another broker, of another kind, to a number that was never given."""
    asked = questions.ask(1, ReadIndexRequest, ReadIndexResponse)
    questions.answered(2, ReadIndexResponse(1, 0))
    questions.answered(2, Failed(1, "unavailable", "not yours"))
    questions.answered(1, LogEndsResponse(1, ()))
    questions.answered(1, MarkerWritten(7, ""))
    assert not asked.done()
    questions.answered(1, ReadIndexResponse(1, 5))
    assert (await asked).index == 5


async def test_a_failure_and_a_lost_link_are_answers(questions):
    """Only for requests to that broker; others stay."""
    failed, lost, kept = (
        questions.ask(to, ReadIndexRequest, ReadIndexResponse) for to in (1, 2, 3)
    )
    questions.answered(1, Failed(1, "unavailable", "another leads"))
    questions.peer_disconnected(1)
    questions.peer_disconnected(2)
    with pytest.raises(UnavailableError, match="another leads"):
        await failed
    with pytest.raises(UnavailableError, match="link to broker 2 broke"):
        await lost
    assert not kept.done()


async def test_who_is_not_there_was_not_asked(questions):
    """And a loss of that link fails no request."""
    assert questions.ask(9, ReadIndexRequest, ReadIndexResponse) is None
    questions.peer_disconnected(9)


async def test_who_gave_up_is_not_told(questions):
    """A cancelled request leaves nothing behind, and a late answer is ignored."""
    asked = questions.ask(1, ReadIndexRequest, ReadIndexResponse)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked, 0.001)
    questions.answered(1, ReadIndexResponse(1, 5))
    questions.peer_disconnected(1)
    await asyncio.sleep(0)
    assert not questions._asked


async def test_others_are_answered(questions, sent):
    """Whether they are still there is their business."""
    questions.answer(9, ReadIndexResponse(4, 2))
    assert sent == [(9, ReadIndexResponse(4, 2))]

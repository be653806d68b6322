"""Appends that wait until the message ids of their partition are read back."""

import asyncio
import threading
from functools import partial

import pyarrow as pa
import pytest

from strandline.broker.write_path import duplicates, state_loader
from strandline.errors import NotLeaderError, UnavailableError
from tests.kit.waiting import until_async


@pytest.fixture
def load(monkeypatch):
    """Every log counts as long; a load waits for the test, and fails if it says so."""
    state = {"may_end": threading.Event(), "failure": None, "count": 0}
    monkeypatch.setattr(state_loader, "INLINE_BYTES", -1)
    read = duplicates.load_window

    def held(*args, **kwargs):
        state["count"] += 1
        assert state["may_end"].wait(30)
        if state["failure"] is not None:
            raise state["failure"]
        return read(*args, **kwargs)

    monkeypatch.setattr(duplicates, "load_window", held)
    yield state
    state["may_end"].set()


@pytest.fixture
async def answers(kit):
    """Receives the outcomes."""
    return kit.Answers()


@pytest.fixture
async def partition(open_broker, make_stream, load):
    """An empty partition, whose message ids are not known."""
    return await make_stream(await open_broker())


until = partial(until_async, seconds=30)


def append(partition, answers, token, message_id=None):
    """Append a record whose value is its token."""
    partition.append(
        token.encode(),
        subject="s",
        headers=[("Nats-Msg-Id", message_id.encode())] if message_id else None,
        message_id=message_id,
        ack_sink=answers,
        token=token,
    )


async def test_all_that_comes_later_waits_in_order(partition, answers, load, kit):
    """With an id or without, single records and batches; earlier appends do not wait."""
    append(partition, answers, "before")
    await until(lambda: "before" in answers.acks)
    append(partition, answers, "first", "m1")
    append(partition, answers, "plain")
    partition.append_arrow(pa.record_batch({"value": [b"batch"]}), ack_sink=answers, token="batch")
    append(partition, answers, "repeat", "m1")
    append(partition, answers, "last", "m2")
    assert partition._admission.pending_bytes > 0
    assert set(answers.acks) == {"before"}
    load["may_end"].set()
    await until(lambda: "last" in answers.acks)
    assert kit.values(partition) == [b"before", b"first", b"plain", b"batch", b"last"]
    assert answers.acks["repeat"] == answers.acks["first"]
    assert not answers.errors
    assert partition._admission.pending_bytes == 0


async def test_they_are_rejected_after_a_while(partition, answers, load, monkeypatch):
    """Before a stock client stops waiting; later appends wait again."""
    monkeypatch.setattr(duplicates, "HELD_S_MAX", 0.05)
    append(partition, answers, "early", "m1")
    append(partition, answers, "plain")
    await until(lambda: len(answers.errors) == 2)
    assert answers.codes == {"early": "still_loading", "plain": "still_loading"}
    assert partition._admission.pending_bytes == 0
    monkeypatch.setattr(duplicates, "HELD_S_MAX", 30)
    append(partition, answers, "later", "m1")
    load["may_end"].set()
    await until(lambda: "later" in answers.acks)
    assert load["count"] == 1
    assert partition.log_end_offset == 1


async def test_only_so_many_wait(partition, answers, load, monkeypatch):
    """The others are rejected at once, with an id or without."""
    monkeypatch.setattr(duplicates, "HELD_MAX", 2)
    for token, message_id in (("a", "m1"), ("b", None), ("c", None), ("d", "m4")):
        append(partition, answers, token, message_id)
    assert answers.codes == {"c": "still_loading", "d": "still_loading"}
    load["may_end"].set()
    await until(lambda: {"a", "b"} == set(answers.acks))


async def test_they_get_the_reason_why_the_log_cannot_be_read(partition, answers, load):
    """The next one begins to read again."""
    load["failure"] = UnavailableError("unreadable")
    append(partition, answers, "early", "m1")
    append(partition, answers, "plain")
    load["may_end"].set()
    await until(lambda: len(answers.errors) == 2)
    assert {str(error) for error in answers.errors.values()} == {"unreadable"}
    load["failure"] = None
    append(partition, answers, "later", "m1")
    await until(lambda: "later" in answers.acks)


@pytest.mark.parametrize("ending", ["reject_from", "close"])
async def test_they_are_rejected_when_the_leadership_ends(partition, answers, load, ending):
    """With the reason; a load that ends afterwards stores nothing."""
    append(partition, answers, "early", "m1")
    gone = NotLeaderError("another broker leads")
    partition.set_write_error(gone)
    if ending == "close":
        partition.close(gone)
    else:
        partition.reject_from((), gone)
    assert answers.codes == {"early": "not_leader"}
    load["may_end"].set()
    await asyncio.sleep(0.1)
    assert partition.log_end_offset == 0


async def test_ids_are_read_back_before_the_first_publish(open_broker, make_stream, kit, load):
    """If the newest batch has ids; a log without is not read."""
    answers = kit.Answers()
    load["may_end"].set()
    broker = await open_broker()
    first, second = await make_stream(broker), await make_stream(broker, "t")
    append(first, answers, "with", "m1")
    append(second, answers, "without")
    await until(lambda: {"with", "without"} == set(answers.acks))
    kit.abandon(broker)
    load["count"] = 0

    broker = await open_broker()
    first, second = (broker.stream(name).partition(0) for name in "st")
    await until(
        lambda: (
            first.duplicates.window is not None
            and not second.duplicates._window_replay.is_under_way
        )
    )
    assert load["count"] == 1
    assert second.duplicates.window is None
    append(first, answers, "again", "m1")
    append(second, answers, "second", "m1")
    await until(lambda: {"again", "second"} <= set(answers.acks))
    assert answers.acks["again"] == answers.acks["with"]

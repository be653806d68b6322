"""Acks, records and the future that knows whether anybody looked."""

import asyncio
import concurrent.futures
import pickle
import queue
import threading
import time
from datetime import UTC, datetime

import pytest

from strandline.client.reader.results import Ack, AckFuture, Record


def test_an_ack_is_the_offset():
    """It compares and counts as an integer, and says where it is."""
    ack = Ack.at(41, 2, duplicate=True)
    assert ack == 41
    assert ack + 1 == 42
    assert (ack.offset, ack.partition, ack.duplicate) == (41, 2, True)
    assert repr(ack) == "Ack(offset=41, partition=2, duplicate=True)"
    assert repr(Ack.at(0, 0)) == "Ack(offset=0, partition=0)"


def test_an_ack_can_be_pickled():
    """Acks travel between processes of a job."""
    ack = pickle.loads(pickle.dumps(Ack.at(5, 1)))
    assert (ack, ack.partition, ack.duplicate) == (5, 1, False)


def test_a_record_has_a_time():
    """Nanoseconds as a number, microseconds as a datetime in UTC."""
    record = Record("s", 0, 1, 1_795_262_400_123_456_789, "s", None, b"v", [])
    assert record.timestamp == datetime(2026, 11, 21, 12, 0, 0, 123_456, tzinfo=UTC)


def test_a_future_knows_whether_it_was_looked_at():
    """Result, exception and callbacks count as looking; being done does not."""
    for look in (
        lambda future: future.result(),
        lambda future: future.exception(),
        lambda future: future.add_done_callback(print),
        lambda future: concurrent.futures.wait([future]) and future.result(),
    ):
        future = AckFuture()
        future.set_result(1)
        assert future.done()
        assert not future.seen
        look(future)
        assert future.seen


async def test_a_cancelled_await_leaves_the_append_alone():
    """What was handed over may already be stored; only the waiting ends."""
    future = AckFuture()
    waiting = asyncio.wrap_future(future)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not future.cancelled()
    future.set_result(1)
    assert future.result() == 1


def test_a_future_has_the_fields_of_every_other_future():
    """Its lock is made late; a Python whose futures have other fields would not notice them."""
    added = {"_lock", "seen"}
    assert set(vars(AckFuture())) - added == set(vars(concurrent.futures.Future())) - {"_condition"}
    future = AckFuture()
    future.set_result(1)
    assert future._lock is None, "nobody needed it"
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)


@pytest.mark.parametrize("wait", ["result", "exception", "wait", "callback"])
def test_a_future_wakes_whoever_waits_whenever_that_began(wait):
    """Before, after or while the outcome is set; each waiter gets it once."""
    for outcome in (7, ValueError("refused")):
        for number in range(100):
            future, seen, go = AckFuture(), queue.Queue(), threading.Barrier(2)

            def look(future=future, seen=seen, go=go):
                go.wait()
                if wait == "wait":
                    concurrent.futures.wait([future], timeout=10)
                if wait == "callback":
                    future.add_done_callback(seen.put)
                else:
                    seen.put(future.exception(10) or future.result(10))

            thread = threading.Thread(target=look)
            thread.start()
            go.wait()
            for _ in range(number % 30):
                time.sleep(0)
            settle = future.set_result if outcome == 7 else future.set_exception
            settle(outcome)
            thread.join(10)
            assert seen.get(timeout=10) in (outcome, future)
            assert seen.empty()


def test_a_future_has_one_outcome():
    """A second one is an error, whether or not anybody looked at the first."""
    for look in (lambda _: None, lambda future: future.done()):
        future = AckFuture()
        future.set_result(1)
        look(future)
        with pytest.raises(concurrent.futures.InvalidStateError):
            future.set_result(2)
        with pytest.raises(concurrent.futures.InvalidStateError):
            future.set_exception(OSError())
        assert future.result() == 1

"""Reads are cancelled when the interpreter exits, which waits for the threads within them."""

import threading

import pytest

from strandline.client.reader import exit_guard
from strandline.client.reader.exit_guard import GuardedBatches, _Calls


@pytest.fixture
def calls(monkeypatch):
    """Those of a process of its own."""
    calls = _Calls()
    monkeypatch.setattr(exit_guard, "_calls", calls)
    monkeypatch.setattr(exit_guard, "QUIET_S", 0.001)
    return calls


def test_exit_cancels_every_read_that_is_open(calls):
    """Not those that are gone."""
    cancelled = []
    reads = [
        GuardedBatches(iter([each]), lambda each=each: cancelled.append(each)) for each in "ab"
    ]
    gone = GuardedBatches(iter("c"), lambda: cancelled.append("c"))
    del gone
    assert [next(each) for each in reads] == ["a", "b"]
    calls.end()
    assert sorted(cancelled) == ["a", "b"]


def test_exit_waits_for_a_thread_within_a_read(calls):
    """It returns once the thread has left, which then comes no further."""
    inside, cancelled, after = threading.Event(), threading.Event(), threading.Event()

    def batches():
        inside.set()
        cancelled.wait(30)
        yield "a"

    read = GuardedBatches(batches(), cancelled.set)

    def consume():
        next(read)
        after.set()

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    assert inside.wait(30)
    assert calls._running
    calls.end()
    assert not calls._running
    assert not after.is_set()


def test_exit_waits_no_longer_than_it_may(calls, monkeypatch):
    """A read that cannot be cancelled does not keep the process."""
    monkeypatch.setattr(exit_guard, "WAIT_S", 0.05)
    read = GuardedBatches(iter("a"), lambda: None)
    calls.enter()
    calls.end()
    assert calls._running
    calls.leave()
    assert [*read] == ["a"]

"""The sync thread: syncs in order, reports on the loop, and knows when it is not needed."""

import asyncio

import pytest

from strandline.broker.syncer import INLINE_MS_MAX, Syncer
from strandline.errors import LogPoisonedError


@pytest.fixture
def make_syncer():
    made = []

    def make(sync):
        syncer = Syncer(asyncio.get_running_loop(), sync)
        made.append(syncer)
        return syncer

    yield make
    for syncer in made:
        syncer.close()


async def test_syncs_are_reported_on_the_loop_in_order(make_syncer):
    """Each sync is answered once, on the loop's thread, successes and failures alike."""
    loop, outcome, all_done = asyncio.get_running_loop(), [], asyncio.Event()

    def sync(fd):
        if fd == 2:
            raise LogPoisonedError("EIO")

    syncer = make_syncer(sync)

    def done(error):
        assert asyncio.get_running_loop() is loop
        outcome.append(error.code if error else None)
        if len(outcome) == 3:
            all_done.set()

    for fd in (1, 2, 3):
        syncer.submit(fd, done)
    await asyncio.wait_for(all_done.wait(), 5)
    assert outcome == [None, "log_poisoned", None]


async def test_closing_finishes_what_was_submitted(make_syncer):
    """The thread ends after its last sync, not before."""
    synced = []
    syncer = make_syncer(synced.append)
    syncer.submit(1, lambda _: None)
    syncer.close()
    assert synced == [1]
    assert not syncer._thread.is_alive()


async def test_slow_syncs_move_to_the_thread_and_back(make_syncer):
    """A disk that is slow on average is synced beside the loop, until it is quick again."""
    syncer = make_syncer(lambda _: None)
    assert syncer.is_inline
    for _ in range(50):
        syncer.observe(10 * INLINE_MS_MAX)
    assert not syncer.is_inline
    for _ in range(50):
        syncer.observe(0.1)
    assert syncer.is_inline

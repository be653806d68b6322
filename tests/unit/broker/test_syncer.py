"""The sync thread: syncs in order, reports on the loop, and knows when it is not needed."""

import asyncio
import time
import weakref

import pytest

from strandline.broker.syncer import COUNTED_MS_MAX, INLINE_BYTES_MAX, INLINE_MS_MAX, Syncer
from strandline.clock import SystemClock
from strandline.errors import LogPoisonedError


@pytest.fixture
def make_syncer():
    made = []

    def make(sync):
        syncer = Syncer(asyncio.get_running_loop(), sync, SystemClock())
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

    def done(error, _):
        assert asyncio.get_running_loop() is loop
        outcome.append(error.code if error else None)
        if len(outcome) == 3:
            all_done.set()

    for fd in (1, 2, 3):
        syncer.submit(fd, done)
    await asyncio.wait_for(all_done.wait(), 5)
    assert outcome == [None, "log_poisoned", None]


async def test_what_was_told_is_let_go_before_the_next_job(make_syncer):
    """A turn's logs: while the thread holds them no space of a deleted one is freed."""
    loop, let_go = asyncio.get_running_loop(), asyncio.Event()

    class Told:
        def done(self, *_):
            pass

    told = Told()
    weakref.finalize(told, loop.call_soon_threadsafe, let_go.set)
    make_syncer(lambda _: None).submit(1, told.done)
    del told
    await asyncio.wait_for(let_go.wait(), 5)


async def test_closing_finishes_what_was_submitted(make_syncer):
    """The thread ends after its last sync, not before."""
    synced = []
    syncer = make_syncer(synced.append)
    syncer.submit(1, lambda *_: None)
    syncer.close()
    assert synced == [1]
    assert not syncer._thread.is_alive()


async def test_slow_syncs_move_to_the_thread_and_back(make_syncer):
    """A disk that is slow on average is synced beside the loop, until it is quick again."""
    syncer = make_syncer(lambda _: None)
    assert syncer.is_inline(1, is_from_one=False)
    for _ in range(50):
        syncer.observe(10 * INLINE_MS_MAX)
    assert not syncer.is_inline(1, is_from_one=False)
    for _ in range(50):
        syncer.observe(0.1)
    assert syncer.is_inline(1, is_from_one=False)


async def test_large_turns_are_synced_beside_the_loop(make_syncer):
    """However quick the disk, if there are others to read from meanwhile."""
    syncer = make_syncer(lambda _: None)
    assert syncer.is_inline(INLINE_BYTES_MAX, is_from_one=False)
    assert not syncer.is_inline(INLINE_BYTES_MAX + 1, is_from_one=False)
    assert syncer.is_inline(INLINE_BYTES_MAX + 1, is_from_one=True)
    syncer.average_ms = INLINE_MS_MAX
    assert not syncer.is_inline(1, is_from_one=True)


async def test_one_hiccup_does_not_move_them(make_syncer):
    """A sync that took very long is no reason to expect the same of the next."""
    syncer = make_syncer(lambda _: None)
    for _ in range(50):
        syncer.observe(0.2)
    syncer.observe(1000 * COUNTED_MS_MAX)
    assert syncer.is_inline(1, is_from_one=False)


async def test_a_busy_loop_is_not_a_slow_disk(make_syncer):
    """What the thread reports is the sync's own time, however late the loop hears of it."""
    syncer = make_syncer(lambda _: None)
    heard = asyncio.get_running_loop().create_future()
    syncer.submit(1, lambda _, took_ms: heard.set_result(took_ms))
    busy_s = 1.0
    time.sleep(busy_s)  # noqa: ASYNC251  the loop is busy
    assert await asyncio.wait_for(heard, 60) < busy_s * 1000 / 2

"""The sync thread: syncs in order, reports on the loop, and keeps no reference to finished jobs."""

import asyncio
import time
import weakref

import pytest

from strandline.broker.write_path.sync_thread import SyncThread
from strandline.clock import SystemClock
from strandline.errors import LogPoisonedError


@pytest.fixture
def make_thread():
    made = []

    def make(sync):
        thread = SyncThread(asyncio.get_running_loop(), sync, SystemClock())
        made.append(thread)
        return thread

    yield make
    for thread in made:
        thread.close()


async def test_syncs_are_reported_on_the_loop_in_order(make_thread):
    """Each sync is answered once, on the loop's thread, successes and failures alike."""
    loop, outcome, all_done = asyncio.get_running_loop(), [], asyncio.Event()

    def sync(fd):
        if fd == 2:
            raise LogPoisonedError("EIO")

    thread = make_thread(sync)

    def done(error, _):
        assert asyncio.get_running_loop() is loop
        outcome.append(error.code if error else None)
        if len(outcome) == 3:
            all_done.set()

    for fd in (1, 2, 3):
        thread.submit(fd, done)
    await asyncio.wait_for(all_done.wait(), 5)
    assert outcome == [None, "log_poisoned", None]


async def test_a_finished_job_is_released_before_the_next_job(make_thread):
    """A reference to a group commit's logs would keep the space of a deleted one."""
    loop, let_go = asyncio.get_running_loop(), asyncio.Event()

    class Told:
        def done(self, *_):
            pass

    told = Told()
    weakref.finalize(told, loop.call_soon_threadsafe, let_go.set)
    make_thread(lambda _: None).submit(1, told.done)
    del told
    await asyncio.wait_for(let_go.wait(), 5)


async def test_closing_finishes_what_was_submitted(make_thread):
    """The thread ends after its last sync, not before."""
    synced = []
    thread = make_thread(synced.append)
    thread.submit(1, lambda *_: None)
    thread.close()
    assert synced == [1]
    assert not thread._thread.is_alive()


async def test_a_busy_loop_is_not_a_slow_disk(make_thread):
    """The thread reports the time of the sync itself, however late the loop receives it."""
    thread = make_thread(lambda _: None)
    heard = asyncio.get_running_loop().create_future()
    thread.submit(1, lambda _, took_ms: heard.set_result(took_ms))
    busy_s = 1.0
    time.sleep(busy_s)  # noqa: ASYNC251  the loop is busy
    assert await asyncio.wait_for(heard, 60) < busy_s * 1000 / 2

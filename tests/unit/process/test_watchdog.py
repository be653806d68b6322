"""The watchdog logs where the event loop was blocked, and nothing while it runs."""

import asyncio
import time

import pytest

from strandline.process.watchdog import STALL_MS, UNKNOWN, LoopWatchdog


@pytest.fixture
async def watchdog():
    made = LoopWatchdog()
    yield made
    made.stop()


def block_the_loop():
    """Something that should have been done on a thread."""
    time.sleep(2 * STALL_MS / 1e3)


async def test_a_loop_that_stood_still_is_logged_with_the_place(watchdog, caplog):
    """It names function, file and line, and for how long."""
    await asyncio.sleep(0)
    block_the_loop()
    async with asyncio.timeout(30):
        while not caplog.records:  # noqa: ASYNC110  a log has no event
            await asyncio.sleep(0.01)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert int(record.message.split(" for ")[1].split(" ms")[0]) >= STALL_MS
    assert "block_the_loop" in record.message
    assert "test_watchdog.py:" in record.message


async def test_the_same_place_is_not_logged_again_and_again(watchdog, caplog):
    """It is logged rarely."""
    for _ in range(3):
        block_the_loop()
        await asyncio.sleep(0.2)
    places = [record.message.split(" in ")[1] for record in caplog.records]
    assert len(places) == len(set(places))


async def test_a_loop_that_runs_is_not_logged(watchdog, caplog):
    """Many small steps are not logged, only a gap without a sample."""
    for _ in range(30):
        await asyncio.sleep(STALL_MS / 1e4)
    assert not [r for r in caplog.records if UNKNOWN not in r.message]
    watchdog._beat_ms -= 10 * STALL_MS
    watchdog._timer.cancel()
    watchdog._beat()
    assert "was blocked" in caplog.text

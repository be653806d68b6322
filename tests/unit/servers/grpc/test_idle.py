"""Partitions that are paused for lack of publishes."""

import asyncio
import gc
import weakref
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from strandline.errors import UnavailableError
from strandline.servers.grpc.liftbridge import idle
from strandline.servers.grpc.liftbridge.idle import AutoPause
from strandline.types import PartitionName


class Partition:
    """A partition that is paused as soon as it is seen twice."""

    def __init__(self):
        self.name = PartitionName("s", 0)
        self.config = SimpleNamespace(auto_pause_ms=1, auto_pause_if_read=True)
        self.blocked_by = None
        self.log_end_offset = 7


async def test_a_partition_that_was_paused_is_not_remembered(monkeypatch):
    """A reference would keep the files of a deleted one open."""
    monkeypatch.setattr(idle, "INTERVAL_S", 0.001)
    partitions, now_ms = [Partition()], iter(range(1_000_000))
    gone, paused = weakref.ref(partitions[0]), asyncio.Event()
    broker = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: next(now_ms)), partitions=lambda: partitions
    )
    pause = AsyncMock(side_effect=lambda *_, **__: (partitions.clear(), paused.set()))
    host = SimpleNamespace(broker=broker, leader=lambda _: 1, me=1, pause=pause)
    running = asyncio.create_task(AutoPause(host, {}).run())
    async with asyncio.timeout(30):
        await paused.wait()
        while gone() is not None:
            await asyncio.sleep(0.001)
            gc.collect()
    pause.assert_awaited_once_with("s", (0,), is_on=True)
    running.cancel()


async def test_partitions_are_looked_at_in_intervals(monkeypatch, caplog):
    """Never in a row, also when one cannot be paused: that is logged, and tried again."""
    slept, partitions, now_ms = [], [Partition()], iter(range(1_000_000))
    broker = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: next(now_ms)), partitions=lambda: partitions
    )
    pause = AsyncMock(side_effect=UnavailableError("no majority"))
    host = SimpleNamespace(broker=broker, leader=lambda _: 1, me=1, pause=pause)

    async def sleep(seconds):
        slept.append((seconds, pause.await_count))
        if len(slept) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(idle.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await AutoPause(host, {}).run()
    interval_s = idle.INTERVAL_S
    assert slept == [(interval_s, 0), (interval_s, 0), (interval_s, 1), (interval_s, 2)]
    assert caplog.text.count("could not be paused: no majority") == 2

"""The rate at which moves copy: one for all, and a reader waits once."""

import asyncio

from strandline.broker.cluster.replication_throttle import SLICE_BYTES_MIN, ReplicationThrottle


async def test_a_reader_waits_until_what_was_copied_has_had_its_time():
    """The first read is immediate; any other waits for the rate."""
    rate, read = ReplicationThrottle(100_000), asyncio.Event()
    begun_s = asyncio.get_running_loop().time()
    rate.ask("first", lambda: rate.spent(30_000))
    rate.ask("second", read.set)
    assert not read.is_set()
    async with asyncio.timeout(20):
        await read.wait()
    assert asyncio.get_running_loop().time() - begun_s >= 0.29


async def test_asked_again_a_reader_waits_once():
    """A reader that asks again is not queued twice."""
    rate, reads = ReplicationThrottle(100_000), []
    rate.spent(10_000)
    rate.ask("a", lambda: reads.append(1))
    rate.ask("a", lambda: reads.append(2))
    last = asyncio.Event()
    rate.ask("b", last.set)
    async with asyncio.timeout(20):
        await last.wait()
    assert reads == [2]


async def test_slices_are_not_too_small():
    """Each costs a read and a message."""
    assert ReplicationThrottle(1).slice_bytes == SLICE_BYTES_MIN
    assert ReplicationThrottle(4 << 20).slice_bytes == 1 << 20

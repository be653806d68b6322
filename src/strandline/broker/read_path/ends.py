"""Waiting until a new leader's high watermark covers everything that was acknowledged.

A new leader learns from its followers' acks, moments after the election, how far its predecessor
had committed. A request for the end waits for that, so that its answer includes every acknowledged
record. Must not know what is requested.
"""

import asyncio
from typing import Final

from strandline.broker.write_path.partition import Partition
from strandline.errors import UnavailableError

PATIENCE_S: Final = 5.0
"""Longer than followers take to answer; limited, since too few of them may be left."""


async def wait_until_caught_up(*partitions: Partition, patience_s: float = PATIENCE_S) -> None:
    """Wait until these partitions' high watermarks cover everything that was acknowledged.

    Args:
        *partitions: the partitions; those that this broker does not lead are skipped.
        patience_s: the longest wait for all partitions together.

    Raises:
        UnavailableError: the wait took too long; retry.
    """
    deadline_s = asyncio.get_running_loop().time() + patience_s
    for partition in partitions:
        if not partition.knows_end:
            await _know_end(partition, deadline_s)


async def _know_end(partition: Partition, deadline_s: float) -> None:
    changed = asyncio.Event()
    partition.watch(changed)
    try:
        async with asyncio.timeout_at(deadline_s):
            while not partition.knows_end and not partition.closed:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        if partition.transaction_index is not None:
            partition.transaction_index.check_loaded()
        raise UnavailableError(
            f"the new leader of {partition.name} does not know its high watermark yet; retry"
        ) from None
    finally:
        partition.unwatch(changed)

"""Answers about where a partition ends, from a leader that knows it.

A new leader may hear only from its followers' acks how far its predecessor had committed, moments
after it was elected. Who asks for the end meanwhile waits, so that nothing is answered that is
older than what was acknowledged. Must not know what is asked.
"""

import asyncio
from typing import Final

from strandline.broker.partition import Partition
from strandline.errors import UnavailableError

PATIENCE_S: Final = 5.0
"""Longer than followers take to answer; where too few are left it would be for ever."""


async def know_end(partition: Partition) -> None:
    """Wait until everything that may have been acknowledged here is known to be committed.

    Raises:
        UnavailableError: not yet; retry.
    """
    if partition.knows_end:
        return
    changed = asyncio.Event()
    partition.watch(changed)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not partition.knows_end and not partition.closed:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise UnavailableError(
            f"the new leader of {partition.name} does not know yet how far it is committed; retry"
        ) from None
    finally:
        partition.unwatch(changed)

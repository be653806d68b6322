"""Who leads and where: the host that clients are told to dial, and a leader that knows its end.

A new leader may hear only from its followers' acks how far its predecessor had committed, moments
after it was elected. Who asks for the end meanwhile waits, so that nothing is answered that is
older than what was acknowledged. Must not know what is asked.
"""

import asyncio
from typing import Final

from strandline.broker.partition import Partition
from strandline.config import BrokerConfig
from strandline.errors import UnavailableError
from strandline.types import BrokerId

PATIENCE_S: Final = 5.0
"""Longer than followers take to answer; where too few are left it would be for ever."""


def advertised_host(config: BrokerConfig) -> str:
    """The host by which clients of gRPC reach this broker."""
    host = config.grpc.advertised_host or config.host
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104  not a bind
        return host
    peers, me = config.cluster.peer_addresses, BrokerId(config.cluster.broker_id)
    return peers[me][0] if me in peers else "localhost"


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

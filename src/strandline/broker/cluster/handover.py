"""The handover of partitions and of the metadata leadership before a broker stops.

Rules: the broker stops in any case; partitions that others cannot take over in time get an
election. The metadata leadership goes last, since the handover of partitions needs a controller. It
is transferred directly to another broker, which saves an election timeout.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from strandline.broker.cluster.replicas import Replicas
from strandline.broker.cluster.requests import Session
from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.cluster.voters import successors
from strandline.broker.quorum import Quorum
from strandline.core.metadata.commands import BeginShutdown, BrokerRun
from strandline.core.metadata.image import MetadataImage
from strandline.errors import UnavailableError
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

STEP_S: Final = 5.0
SUCCESSOR_S: Final = 1.0
"""The wait for a broker that may become controller; the quorum's leader waits as long."""
POLL_S: Final = 0.01


async def hand_over(
    run: BrokerRun,
    quorum: Quorum,
    *,
    machine: MetadataMachine,
    replicas: Replicas,
    session: Session,
) -> None:
    """Transfer this broker's leaderships to others, as many as possible in the time allowed.

    Args:
        run: the current run of the broker, which is registered.
        quorum: this broker's member.
        machine: has the newest image.
        replicas: the replicas of its partitions.
        session: proposes the shutdown.
    """
    replicas.resign()
    await _wait(lambda: replicas.may_hand_over, STEP_S)
    try:
        outcome = await session.propose(BeginShutdown(run), timeout_s=STEP_S)
        if outcome.is_applied:
            await _wait(lambda: not _has_successors(replicas, machine.image, run.broker), STEP_S)
    except UnavailableError as error:
        logger.warning("stopping without handing over leaderships: %s", error)
    for successor in successors(quorum.members, machine.image, run.broker):
        if quorum.is_leading:
            quorum.hand_over(successor)
            await _wait(lambda: quorum.leader not in (None, run.broker), SUCCESSOR_S)


def _has_successors(replicas: Replicas, image: MetadataImage, me: BrokerId) -> bool:
    """Whether the broker leads a partition that another live broker has a replica of."""
    return replicas.leads and any(
        any(image.brokers[broker].may_lead for broker in partition.replicas)
        for _, partition in image.partitions()
        if partition.leader == me
    )


async def _wait(condition: Callable[[], bool], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  conditions of many partitions
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        logger.warning("stopping before all leaderships were handed over")

"""ISR changes that leaders on this broker propose to the metadata until they are decided.

Rules: all pending changes are proposed together. A change that adds a replica is proposed only if
the replica belongs to the current run of its broker (KIP-903).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from strandline.broker.cluster.pending_proposals import PendingProposals
from strandline.broker.cluster.replica import ReplicaDriver
from strandline.broker.cluster.requests import Session
from strandline.core.metadata.commands import BrokerRun, ChangeIsr, IsrChange, PartitionAt
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandOutcome
from strandline.core.replication import events as ev
from strandline.core.replication.effects import ProposeIsr
from strandline.errors import UnavailableError

logger = logging.getLogger(__name__)

ISR_TIMEOUT_S = 30.0
ISR_RETRY_S = 1.0


class _WantedIsr(NamedTuple):
    """An ISR that a leader on this broker proposes."""

    driver: ReplicaDriver
    proposal: ProposeIsr


class IsrProposals:
    """The ISR changes that leaders on this broker propose to the metadata.

    Args:
        session: sends the proposals.
        image: returns the image from which replicas were last assigned.

    Attributes:
        me: this run of the broker; None before it is registered.
    """

    def __init__(self, session: Session, image: Callable[[], MetadataImage]) -> None:
        self._session = session
        self._image = image
        self.me: BrokerRun | None = None
        self._wanted: PendingProposals[_WantedIsr] = PendingProposals()

    def propose(self, driver: ReplicaDriver, proposal: ProposeIsr) -> None:
        """Propose a change, and repeat it until it is decided."""
        self._wanted.put(driver.log_id, _WantedIsr(driver, proposal))  # replaces an older proposal

    async def run(self) -> None:
        """Propose pending changes, until cancelled."""
        while True:
            possible = [each for each in await self._wanted.taken() if self._is_possible(each)]
            if possible:
                await self._decide(possible)

    def _is_possible(self, wanted: _WantedIsr) -> bool:
        """Whether joining replicas belong to their brokers' current runs (KIP-903)."""
        driver, proposal = wanted
        if proposal.epoch != driver.replica.epoch:
            return False
        for broker, incarnation in proposal.joining:
            known = self._image().brokers.get(broker)
            if known is None or known.incarnation != incarnation or not known.may_lead:
                driver.step(ev.IsrRejected(proposal.epoch, proposal.proposal))
                return False
        return True

    async def _decide(self, wanted: list[_WantedIsr]) -> None:
        """Propose ISRs; if their outcome is unknown, keep them for the next attempt."""
        assert self.me is not None, "begun before"
        changes = tuple(
            IsrChange(
                PartitionAt(*driver.partition.name, driver.log_id, proposal.version),
                proposal.epoch,
                proposal.isr,
            )
            for driver, proposal in wanted
        )
        command = ChangeIsr(self.me, changes)
        try:
            outcome = await self._session.propose(command, timeout_s=ISR_TIMEOUT_S)
        except UnavailableError as error:
            # The next command has a higher sequence, so this one is not applied after it. The
            # leaders still wait for a decision, so propose the change again.
            logger.warning("ISR changes were not decided, will retry: %s", error)
            for each in wanted:
                self._wanted.put_back(each.driver.log_id, each)
            await asyncio.sleep(ISR_RETRY_S)
            return
        self._notify(wanted, outcome)

    def _notify(self, wanted: list[_WantedIsr], outcome: CommandOutcome) -> None:
        """Notify leaders of rejections; the image tells them of applied changes.

        A rejection because of an outdated version or leader is not passed on: the newer version may
        be this very change, applied in an earlier attempt. The image will show which.
        """
        reasons = {rejection.name: rejection.reason for rejection in outcome.rejected}
        for driver, proposal in wanted:
            reason = reasons.get(driver.partition.name, outcome.reason)
            if reason and reason not in ("stale_partition", "not_leader"):
                name = driver.partition.name
                logger.info("ISR %s of %s was rejected: %s", proposal.isr, name, reason)
                driver.step(ev.IsrRejected(proposal.epoch, proposal.proposal))

"""The ISRs that leaders here want: proposed to metadata until it is known what became of them.

Rules: changes that are wanted at one time are proposed together; of those that join, only the runs
of brokers that were heard count (KIP-903).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from strandline.broker.cluster.replica import ReplicaDriver
from strandline.broker.cluster.requests import Session
from strandline.broker.cluster.wanted import PendingProposals
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
    """An ISR that a leader here wants."""

    driver: ReplicaDriver
    proposal: ProposeIsr


class IsrProposals:
    """The ISR changes that leaders on this broker propose to the metadata.

    Args:
        session: proposes.
        image: what replicas were last told of.

    Attributes:
        me: this run of the broker; None before it is registered.
    """

    def __init__(self, session: Session, image: Callable[[], MetadataImage]) -> None:
        self._session = session
        self._image = image
        self.me: BrokerRun | None = None
        self._wanted: PendingProposals[_WantedIsr] = PendingProposals()

    def propose(self, driver: ReplicaDriver, proposal: ProposeIsr) -> None:
        """Let metadata decide, however long it takes."""
        self._wanted.put(driver.log_id, _WantedIsr(driver, proposal))  # any before is closed

    async def run(self) -> None:
        """Propose what leaders want, until cancelled."""
        while True:
            possible = [each for each in await self._wanted.taken() if self._is_possible(each)]
            if possible:
                await self._decide(possible)

    def _is_possible(self, wanted: _WantedIsr) -> bool:
        """Whether those that join are the runs of brokers that were heard (KIP-903)."""
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
        """Propose ISRs until it is known what became of them."""
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
            # Its number is passed with the next, so it will not be applied once that was. Leaders
            # that still are wait for it to be decided, which is done anew.
            logger.warning("no change of ISRs was decided, will try again: %s", error)
            for each in wanted:
                self._wanted.put_back(each.driver.log_id, each)
            await asyncio.sleep(ISR_RETRY_S)
            return
        self._notify(wanted, outcome)

    def _notify(self, wanted: list[_WantedIsr], outcome: CommandOutcome) -> None:
        """Tell leaders of rejections; what was applied they learn from the image.

        So they do where another version or leader was first: that may have been this very change,
        proposed twice, and must not be taken for refused before the image shows it.
        """
        reasons = {rejection.name: rejection.reason for rejection in outcome.rejected}
        for driver, proposal in wanted:
            reason = reasons.get(driver.partition.name, outcome.reason)
            if reason and reason not in ("stale_partition", "not_leader"):
                logger.info("ISR %s of %s: %s", proposal.isr, driver.partition.name, reason)
                driver.step(ev.IsrRejected(proposal.epoch, proposal.proposal))

"""The ISRs that leaders here want: proposed to metadata until it is known what became of them.

Rules: changes that are wanted at one time are proposed together; of those that join, only the runs
of brokers that were heard count (KIP-903).
"""

import asyncio
import logging
from typing import NamedTuple

from strandline.broker.cluster.replica import ReplicaDriver
from strandline.broker.cluster.requests import Session
from strandline.errors import UnavailableError
from strandline.metadata.commands import BrokerRun, ChangeIsr, IsrChange, PartitionAt
from strandline.metadata.image import MetadataImage
from strandline.metadata.outcome import Outcome
from strandline.replication import events as ev
from strandline.replication.effects import ProposeIsr
from strandline.types import LogId

logger = logging.getLogger(__name__)

ISR_TIMEOUT_S = 30.0


class _Wanted(NamedTuple):
    """An ISR that a leader here wants."""

    driver: ReplicaDriver
    proposal: ProposeIsr


class IsrProposals:
    """What leaders of this broker want of metadata.

    Args:
        session: proposes.

    Attributes:
        me: this run of the broker; None before it is registered.
        image: as far as this broker knows it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.me: BrokerRun | None = None
        self.image = MetadataImage()
        self._wanted: dict[LogId, _Wanted] = {}
        """One for each: a command that names a partition twice is refused whole."""
        self._is_wanted = asyncio.Event()

    def propose(self, driver: ReplicaDriver, proposal: ProposeIsr) -> None:
        """Let metadata decide, however long it takes."""
        self._wanted[driver.log_id] = _Wanted(driver, proposal)  # any before is closed
        self._is_wanted.set()

    async def run(self) -> None:
        """Propose what leaders want, until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            wanted, self._wanted = self._wanted, {}
            possible = [each for each in wanted.values() if self._is_possible(each)]
            if possible:
                await self._decide(possible)

    def _is_possible(self, wanted: _Wanted) -> bool:
        """Whether those that join are the runs of brokers that were heard (KIP-903)."""
        driver, proposal = wanted
        if proposal.epoch != driver.replica.epoch:
            return False
        for broker, incarnation in proposal.joining:
            known = self.image.brokers.get(broker)
            if known is None or known.incarnation != incarnation or not known.may_lead:
                driver.step(ev.IsrRefused(proposal.epoch, proposal.proposal))
                return False
        return True

    async def _decide(self, wanted: list[_Wanted]) -> None:
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
            self._wanted = {each.driver.log_id: each for each in wanted} | self._wanted
            self._is_wanted.set()
            return
        self._tell(wanted, outcome)

    def _tell(self, wanted: list[_Wanted], outcome: Outcome) -> None:
        """Tell leaders of refusals; what was applied they learn from the image.

        So they do where another version or leader was first: that may have been this very change,
        proposed twice, and must not be taken for refused before the image shows it.
        """
        reasons = {refusal.name: refusal.reason for refusal in outcome.refused}
        for driver, proposal in wanted:
            reason = reasons.get(driver.partition.name, outcome.reason)
            if reason and reason not in ("stale_partition", "not_leader"):
                logger.info("ISR %s of %s: %s", proposal.isr, driver.partition.name, reason)
                driver.step(ev.IsrRefused(proposal.epoch, proposal.proposal))

"""Giving up a partition's records and going on beyond their end, in a cluster: its leader decides.

Rules: the partition takes no records from before the decision is asked for until it is known, or
one that was acknowledged meanwhile might lie beyond the offset and be lost. So an answer that did
not come is asked for again, as long as it takes: what was asked before is then refused, or was
done. A change of the partition meanwhile, such as of its ISR, only means to decide again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from strandline.broker.cluster.delete_records import LogStarts
from strandline.broker.cluster.operations import Operations
from strandline.broker.write_path.partition import Partition
from strandline.core.metadata.commands import SkipTo
from strandline.errors import OffsetOutOfRangeError, UnavailableError
from strandline.types import LogId, Offset

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class Skips:
    """The partitions that are about to continue at a later offset.

    Args:
        log_starts: knows what is led here.
        operations: lets metadata decide.
        settle: lets every partition refuse, or take, records as it should now.
    """

    def __init__(
        self, log_starts: LogStarts, operations: Operations, *, settle: Callable[[], None]
    ) -> None:
        self._log_starts = log_starts
        self._operations = operations
        self._settle = settle
        self._under_way: set[LogId] = set()

    def block_writes(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Let partitions that are about to go on elsewhere take no records."""
        if not self._under_way:
            return
        for partition in partitions():
            if partition.log_id in self._under_way:
                error = UnavailableError(f"the records of {partition.name} are given up; retry")
                partition.block_writes(error)

    async def skip(
        self, target: Partition, offset: Offset, *, quiesce: Callable[[], Awaitable[None]]
    ) -> None:
        """Let the partition go on at an offset beyond its end; returns once that is decided.

        Raises:
            NotLeaderError: another broker leads it; it is named.
            OffsetOutOfRangeError: it is not beyond the end.
            UnavailableError: it is being done already.
        """
        self._log_starts.led(target)
        if target.log_id in self._under_way:
            raise UnavailableError(f"the records of {target.name} are being given up already")
        self._under_way.add(target.log_id)
        self._settle()
        try:
            await quiesce()
            while not (target.closed or await self._is_decided(target, offset)):  # noqa: ASYNC110  each look decides anew
                await asyncio.sleep(RETRY_S)
        finally:
            self._under_way.discard(target.log_id)
            target.block_writes(None)
            self._settle()

    async def _is_decided(self, target: Partition, offset: Offset) -> bool:
        """Whether it is done; if not, the partition has changed, or the answer was lost.

        Raises:
            NotLeaderError, OffsetOutOfRangeError: as ``skip``.
        """
        command = SkipTo(self._log_starts.led(target), offset)
        # Looked at each time: another leader, were there one meanwhile, would have taken records.
        if offset <= target.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{target.name} ends at {target.log_end_offset}: {offset} is not beyond"
            )
        try:
            outcome = await self._operations.outcome(command)
        except UnavailableError as error:
            logger.warning("whether %s goes on elsewhere is not known: %s", target.name, error)
            return False
        if outcome.reason != "stale_partition":
            outcome.raise_if_rejected()
        return outcome.is_applied

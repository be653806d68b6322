"""Skips of a partition to an offset beyond its end, in a cluster, where its leader proposes them.

Rules: the partition rejects records from before the proposal until its outcome is known. Otherwise
a record acknowledged in between might be beyond the offset, and lost. So a proposal without an
answer is repeated until there is one. If the partition has changed, such as its ISR, the skip is
proposed again.
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
    """The partitions that are about to continue at an offset beyond their end.

    Args:
        log_starts: knows the partitions that this broker leads.
        operations: proposes to the metadata.
        settle: updates which partitions reject records.
    """

    def __init__(
        self, log_starts: LogStarts, operations: Operations, *, settle: Callable[[], None]
    ) -> None:
        self._log_starts = log_starts
        self._operations = operations
        self._settle = settle
        self._under_way: set[LogId] = set()

    def block_writes(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Block the writes of partitions that are about to skip."""
        if not self._under_way:
            return
        for partition in partitions():
            if partition.log_id in self._under_way:
                error = UnavailableError(f"the records of {partition.name} are given up; retry")
                partition.block_writes(error)

    async def skip(
        self, target: Partition, offset: Offset, *, quiesce: Callable[[], Awaitable[None]]
    ) -> None:
        """Continue the partition at an offset beyond its end; return once that is decided.

        Raises:
            NotLeaderError: another broker leads the partition; the message names it.
            OffsetOutOfRangeError: the offset is not beyond the end.
            UnavailableError: another skip of the partition is in progress.
        """
        self._log_starts.led_partition(target)
        if target.log_id in self._under_way:
            raise UnavailableError(f"the records of {target.name} are being dropped already")
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
        """Propose the skip; return whether it is decided. Otherwise propose it again.

        Raises:
            NotLeaderError, OffsetOutOfRangeError: as for ``skip``.
        """
        command = SkipTo(self._log_starts.led_partition(target), offset)
        # Check again in each attempt: another leader may have accepted records meanwhile.
        if offset <= target.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not beyond the end of {target.name}, which is "
                f"{target.log_end_offset}; give a higher one"
            )
        try:
            outcome = await self._operations.outcome(command)
        except UnavailableError as error:
            logger.warning(
                "it is not known whether %s skips to its new offset: %s", target.name, error
            )
            return False
        if outcome.reason != "stale_partition":
            outcome.raise_if_rejected()
        return outcome.is_applied
